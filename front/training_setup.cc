// Training: how it begins, with new weights or from a commit.
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/message_text.h"
#include "front/training.h"
#include "kernels/convert_elements.h"
#include "offload/whole_commit.h"
#include "zero/states/tile_fill.h"

namespace penstock::front {
namespace {

using offload::ModuleId;
using offload::TileId;

/// A child of a fork does not need the memory, and copy-on-write would move pages into which a
/// drive or a device writes.
void KeepFromChildren(std::span<std::byte> memory) {
  if (memory.empty()) return;
  static_cast<void>(::madvise(memory.data(), memory.size(), MADV_DONTFORK));
}

/// The caller may have changed what led to skipped steps before a resume.
zero::LifeRules RulesOf(const Plan& plan) {
  zero::LifeRules rules = zero::LifeRules::Of(plan.engine.config, plan.losses);
  if (!plan.scales_loss) rules.loss_scaling.reset();  // a step says by what it was scaled
  rules.commits_within_steps = true;
  rules.resumes_streaks = false;
  return rules;
}

/// Decides from which commit the training resumes, before anything is written. Returns the notice
/// about commits that were left, of which a caller that named one has no need.
Result<std::string> UseCommit(zero::CommittedState& state, const Plan& plan) {
  if (!plan.continue_step) {
    return offload::UseWholeCommit(state, offload::kNoProgress, plan.doubted_step);
  }
  PENSTOCK_TRY(offload::UseWholeCommit(state, offload::kNoProgress, plan.doubted_step,
                                       offload::WantedCommit{.step = *plan.continue_step,
                                                             .path = plan.continue_from.front(),
                                                             .notice = state.notice()})
                   .status());
  return std::string();
}

}  // namespace

Training::~Training() {
  answers_.reset();  // a copy reads the state
  copies_.reset();   // which give gradients to the states
  const std::optional<ContextScope> scope = Enter();
  step_.reset();
  if (session_) static_cast<void>(EndCommit());
  session_.reset();
}

Result<std::unique_ptr<Training>> Training::Create(Plan plan) {
  std::unique_ptr<zero::CommittedState> from;
  if (!plan.continue_from.empty()) {
    PENSTOCK_ASSIGN(from, zero::CommittedState::Open(plan.continue_from, /*exclusive=*/true));
    PENSTOCK_ASSIGN(std::string left, UseCommit(*from, plan));
    if (!left.empty()) plan.warnings.push_back(std::move(left));
    if (plan.check_commit) PENSTOCK_TRY(plan.check_commit(*from));
    plan.engine.seed = from->train_state().seed;
    if (!plan.in_new_files && zero::FitsInPlace(*from, plan.layout, plan.engine.config.durable,
                                                plan.continue_from, plan.engine.state_folders)) {
      plan.engine.adopt = plan.continue_from;
      plan.engine.adopt_at = from->commit();
      from.reset();  // the engine takes the lock
    }
  }
  if (plan.engine.adopt.empty() && plan.place_new_files) {
    PENSTOCK_TRY(plan.place_new_files(plan.engine));
  }
  std::unique_ptr<Training> training(new Training(std::move(plan)));
  PENSTOCK_TRY(training->Build());
  PENSTOCK_TRY(training->Continue(std::move(from)));
  return training;
}

Status Training::Build() {
  // The waiting call does not return, so there is no other way to tell its caller.
  plan_.engine.warn = [](const std::string& line) {
    std::fputs(("penstock: warning: " + MessageLine(line) + "\n").c_str(), stderr);
  };
  PENSTOCK_ASSIGN(const zero::MemoryPlan memory, PlanStore(plan_));
  if (plan_.on_device) {
    PENSTOCK_ASSIGN(home_, DeviceHome::Create(plan_));
  } else {
    PENSTOCK_ASSIGN(host_, HostHome::Create(plan_, memory));
  }
  session_.emplace(states(), RulesOf(plan_));
  PENSTOCK_TRY(BuildInbox());
  PENSTOCK_TRY(room_.Create(plan_.arriving));
  for (const std::span<std::byte> memory_of :
       {home_ != nullptr ? home_->states().memory() : host_->engine().memory(), room_.bytes()}) {
    KeepFromChildren(memory_of);
  }
  const std::vector<std::string>& notices = states().notices();
  plan_.notices.insert(plan_.notices.end(), notices.begin(), notices.end());
  return {};
}

/// Gradients go to where the states are.
Status Training::BuildInbox() {
  GradientInbox::Callbacks callbacks{
      .place = [this](TileId tile) { return host_->engine().Gradient(tile).data(); },
      .last = [this](ModuleId module) { PENSTOCK_CHECK(step_->AnnounceGradient(module).ok()); },
      .complete =
          [this](ModuleId module) {
            host_->engine().GradientsArrived(plan_.layout.TrainedTilesOf(module));
          }};
  if (home_ != nullptr) {
    callbacks.place = [this](TileId tile) { return home_->states().GradientOf(tile); };
    callbacks.complete = [this](ModuleId module) { home_->states().GradientsArrived(module); };
    callbacks.round = [this](ModuleId module, uint32_t tensor, uint64_t sum, std::byte* place) {
      home_->RoundSum(module, tensor, sum, place);
    };
  }
  PENSTOCK_ASSIGN(GradientInbox inbox,
                  GradientInbox::Create(plan_.layout, plan_.gradients_a_step(),
                                        plan_.holds_gradients, std::move(callbacks)));
  inbox_.emplace(std::move(inbox));
  return {};
}

/// Resumes from a commit: in its files, or `from` another state, which is moved.
Status Training::Continue(std::unique_ptr<zero::CommittedState> from) {
  if (plan_.continue_from.empty()) return {};
  if (from != nullptr) return MoveFrom(*from);
  PENSTOCK_ASSIGN(zero::TrainState adopted, session_->Adopt());
  continued_ = std::move(adopted.run_json);
  return {};
}

Status Training::MoveFrom(const zero::CommittedState& from) {
  if (!plan_.layout.model.HasTensorsOf(from.model())) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "the commit in {} has other tensors, dtypes, groups or optimizer states than "
                     "this model; resume it with the model and the rule that made it",
                     plan_.continue_from.front());
  }
  PENSTOCK_ASSIGN(const zero::TileFill fill, zero::FillFromState(plan_.layout, from));
  PENSTOCK_TRY(session_->Fill(fill, from.train_state()));
  continued_ = from.train_state().run_json;
  PENSTOCK_ASSIGN(std::string caller_file, from.ReadCaller());
  PENSTOCK_TRY(session_->Commit(*continued_, std::move(caller_file)));
  moved_ = true;
  return {};
}

Status Training::CheckUnfilled(uint32_t unit) const {
  PENSTOCK_TRY(CheckUnit(unit));
  return session_->CheckUnfilled(ModuleId{unit});
}

Status Training::Fill(uint32_t unit, const void* const* tensors) {
  PENSTOCK_TRY(CheckUnfilled(unit));
  const offload::ModuleLayout& of = plan_.layout.module(ModuleId{unit});
  for (size_t i = 0; i < of.tensors.size(); ++i) {
    if (tensors[i] != nullptr) continue;
    return MakeError(ErrorCode::kInvalidArgument,
                     "the elements of tensor {} are NULL; give those of every tensor of unit {}",
                     of.tensors[i].name, of.name);
  }
  const zero::TensorSource source = [&](ModuleId, size_t tensor, uint64_t begin,
                                        std::span<float> values) -> Status {
    const offload::GroupLayout& group = plan_.layout.model.group(of.tensors[tensor].group);
    const auto dtype = static_cast<DType>(group.planes.weight().encoding);
    const auto* bytes = static_cast<const std::byte*>(tensors[tensor]);
    kernels::ConvertElements(dtype, bytes + (SizeOf(dtype) * begin).value, DType::kFloat32,
                             values.data(), values.size());
    return {};
  };
  const auto accumulator =
      static_cast<float>(plan_.engine.config.optimizer.initial_accumulator_value);
  return session_->FillModule(ModuleId{unit},
                              zero::FillFromTensors(plan_.layout, source, accumulator));
}

/// A finite master of an fp16 weight must be in fp16's range.
Status Training::CheckMaster(const offload::TensorLayout& tensor, const float* values) const {
  const offload::GroupLayout& group = plan_.layout.model.group(tensor.group);
  if (group.planes.weight().encoding != Encoding::kFloat16) return {};
  const auto* const end = values + tensor.elements;
  const auto* const large = std::find_if_not(values, end, kernels::FitsFloat16);
  if (large == end) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "element {} of the master of tensor {} is {}, which fp16 cannot hold; train the "
                   "tensor in bf16 or fp32",
                   large - values, tensor.name, *large);
}

/// Checks before anything is written, so that the unit can be filled again.
Status Training::CheckStates(ModuleId module, const StatesOfUnit& states) const {
  const offload::ModuleLayout& of = plan_.layout.module(module);
  for (size_t i = 0; i < of.tensors.size(); ++i) {
    const offload::TensorLayout& tensor = of.tensors[i];
    for (const zero::StateKind kind : zero::StatesOf(plan_.layout.model.group(tensor.group))) {
      const float* const values = states(i, kind);
      if (values == nullptr) {
        return MakeError(ErrorCode::kInvalidArgument,
                         "a state of tensor {} is NULL, and its rule has it; give the fp32 master "
                         "and every moment of the rule",
                         tensor.name);
      }
      if (kind == zero::StateKind::kMaster) {  // weights are as they are
        PENSTOCK_TRY(CheckMaster(tensor, values));
        continue;
      }
      const auto* const lost = std::find_if_not(values, values + tensor.elements,
                                                [](float v) { return std::isfinite(v); });
      if (lost == values + tensor.elements) continue;
      return MakeError(ErrorCode::kNumeric,
                       "element {} of a moment of tensor {} is {}; fill moments that are finite",
                       lost - values, tensor.name, *lost);
    }
  }
  return {};
}

Status Training::FillStates(uint32_t unit, const StatesOfUnit& states) {
  PENSTOCK_TRY(CheckUnfilled(unit));
  PENSTOCK_TRY(CheckStates(ModuleId{unit}, states));
  return session_->FillModule(
      ModuleId{unit}, zero::FillFromStates(plan_.layout,
                                           [&](zero::StateKind kind, ModuleId, size_t tensor,
                                               uint64_t begin, std::span<float> values) -> Status {
                                             std::copy_n(states(tensor, kind) + begin,
                                                         values.size(), values.begin());
                                             return {};
                                           }));
}

Status Training::BeginAt(uint64_t step, uint64_t optimizer_steps) {
  return session_->BeginAt(step, optimizer_steps);
}

}  // namespace penstock::front
