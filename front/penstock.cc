#include "front/penstock.h"

#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "front/c_call.h"
#include "front/description.h"
#include "front/fingerprint.h"
#include "front/reference.h"
#include "front/training.h"

namespace penstock::front {
namespace {

Result<Plan> PlanOf(const char* config, const char* model, const char* options) {
  if (config == nullptr || model == nullptr || options == nullptr) {
    return Missing("a text").error();
  }
  return MakePlan(config, model, options);
}

/// Tells the caller what became of a step that has ended.
void GiveOutcome(penstock_engine& engine, Training& training, const zero::StepOutcome& done,
                 penstock_outcome* outcome) {
  AnswerRequests(engine);
  *outcome = {.step = done.step,
              .optimizer_steps = training.counts().optimizer_steps,
              .grad_norm = done.grad_norm,
              .skipped = done.skipped ? 1 : 0,
              .notices = static_cast<uint32_t>(training.step_notices())};
}

Result<DType> DTypeOf(int dtype) {
  switch (dtype) {
    case PENSTOCK_FLOAT32:
      return DType::kFloat32;
    case PENSTOCK_BFLOAT16:
      return DType::kBFloat16;
    case PENSTOCK_FLOAT16:
      return DType::kFloat16;
    default:
      break;
  }
  return MakeError(ErrorCode::kInvalidArgument, "{} is no penstock_dtype", dtype);
}

Result<UseKind> UseKindOf(int kind) {
  switch (kind) {
    case PENSTOCK_FORWARD:
      return UseKind::kForward;
    case PENSTOCK_BACKWARD:
      return UseKind::kBackward;
    case PENSTOCK_ASIDE:
      return UseKind::kAside;
    default:
      break;
  }
  return MakeError(ErrorCode::kInvalidArgument, "{} is no penstock_use_kind", kind);
}

Result<zero::StateKind> StateKindOf(int kind) {
  switch (kind) {
    case PENSTOCK_MASTER:
      return zero::StateKind::kMaster;
    case PENSTOCK_EXP_AVG:
      return zero::StateKind::kExpAvg;
    case PENSTOCK_EXP_AVG_SQ:
      return zero::StateKind::kExpAvgSq;
    default:
      break;
  }
  return MakeError(ErrorCode::kInvalidArgument, "{} is no penstock_state_kind", kind);
}

GroupScalars ScalarsOf(const penstock_group& group) {
  return {.lr = group.lr,
          .beta1 = group.beta1,
          .beta2 = group.beta2,
          .eps = group.eps,
          .weight_decay = group.weight_decay};
}

Result<kernels::OptimizerTile> TileOf(const penstock_elements& elements) {
  if (elements.weight == nullptr || elements.gradient == nullptr) {
    return Missing("the weight or the gradient").error();
  }
  PENSTOCK_ASSIGN(const DType dtype, DTypeOf(elements.weight_dtype));
  const auto plane = [&](Encoding encoding, void* data) {
    return data == nullptr
               ? kernels::PlaneView()
               : kernels::PlaneView(encoding, static_cast<std::byte*>(data), elements.count);
  };
  return kernels::OptimizerTile{.weight = plane(EncodingOf(dtype), elements.weight),
                                .lo = plane(Encoding::kInt16, elements.lo),
                                .master = plane(Encoding::kFloat32, elements.master),
                                .exp_avg = plane(Encoding::kFloat32, elements.exp_avg),
                                .exp_avg_sq = plane(Encoding::kFloat32, elements.exp_avg_sq),
                                .gradient = elements.gradient,
                                .gradient_dtype = dtype};
}

}  // namespace
}  // namespace penstock::front

using namespace penstock;         // NOLINT(google-build-using-namespace): the C names are global
using namespace penstock::front;  // NOLINT(google-build-using-namespace)

int penstock_abi(void) { return PENSTOCK_ABI; }

const char* penstock_version(void) { return PENSTOCK_VERSION; }

const char* penstock_error(void) { return LastError(); }

void penstock_free(char* text) { std::free(text); }

int penstock_create(const char* config, const char* model, const char* options,
                    penstock_engine** engine) {
  return Guard([&]() -> Status {
    if (engine == nullptr) return Missing("the place of the engine");
    PENSTOCK_ASSIGN(Plan plan, PlanOf(config, model, options));
    auto made = std::make_unique<penstock_engine>();
    PENSTOCK_ASSIGN(made->training, Training::Create(std::move(plan)));
    CloseAtExit(*made);
    *engine = made.release();
    return {};
  });
}

int penstock_plan(const char* config, const char* model, const char* options, char** json) {
  return Guard([&]() -> Status {
    PENSTOCK_ASSIGN(const Plan plan, PlanOf(config, model, options));
    return GiveText(DescribePlan(plan), json);
  });
}

void penstock_close(penstock_engine* engine) {
  if (engine == nullptr || engine->process != ::getpid()) return;
  const DefaultArithmetic arithmetic;
  Forget(*engine);
  {
    const std::lock_guard lock(engine->mutex);  // a call may be under way
    engine->training.reset();
  }
  if (engine->run != nullptr) LeaveRun(*engine->run, /*close=*/false);
  delete engine;
}

int penstock_describe(penstock_engine* engine, char** json) {
  return With(engine,
              [&](Training& training) { return GiveText(DescribeTraining(training), json); });
}

int penstock_counters(penstock_engine* engine, char** json) {
  return With(engine,
              [&](Training& training) { return GiveText(DescribeCounters(training), json); });
}

int penstock_fill(penstock_engine* engine, uint32_t unit, const void* const* tensors) {
  return With(engine, [&](Training& training) -> Status {
    if (tensors == nullptr) return Missing("the list of tensors");
    return training.Fill(unit, tensors);
  });
}

int penstock_fill_states(penstock_engine* engine, uint32_t unit, const penstock_states* tensors) {
  return With(engine, [&](Training& training) -> Status {
    if (tensors == nullptr) return Missing("the list of states");
    return training.FillStates(unit, [tensors](size_t tensor, zero::StateKind kind) {
      const penstock_states& states = tensors[tensor];
      return kind == zero::StateKind::kMaster   ? states.master
             : kind == zero::StateKind::kExpAvg ? states.exp_avg
                                                : states.exp_avg_sq;
    });
  });
}

int penstock_begin_at(penstock_engine* engine, uint64_t step, uint64_t optimizer_steps) {
  return With(engine, [&](Training& training) { return training.BeginAt(step, optimizer_steps); });
}

int penstock_use(penstock_engine* engine, uint32_t unit, int kind, void* to) {
  return With(engine, [&](Training& training) -> Status {
    PENSTOCK_ASSIGN(const UseKind use, UseKindOf(kind));
    return training.Use(unit, use, UnitMemory(static_cast<std::byte*>(to)));
  });
}

int penstock_use_tensors(penstock_engine* engine, uint32_t unit, int kind, void* const* tensors) {
  return With(engine, [&](Training& training) -> Status {
    PENSTOCK_ASSIGN(const UseKind use, UseKindOf(kind));
    if (tensors == nullptr) return Missing("the list of tensors");
    PENSTOCK_ASSIGN(const UnitMemory to, training.MemoryOf(unit, tensors));
    return training.Use(unit, use, to);
  });
}

int penstock_gradient(penstock_engine* engine, uint32_t unit, uint32_t tensor, const void* values,
                      int dtype) {
  return With(engine, [&](Training& training) -> Status {
    PENSTOCK_ASSIGN(const DType of_values, DTypeOf(dtype));
    return training.Gradient(unit, tensor, values, of_values);
  });
}

int penstock_read_gradient(penstock_engine* engine, uint32_t unit, uint32_t tensor, float* to) {
  return With(engine, [&](Training& training) -> Status {
    if (to == nullptr) return Missing("the place for the gradient");
    return training.ReadGradient(unit, tensor, to);
  });
}

int penstock_replace_gradient(penstock_engine* engine, uint32_t unit, uint32_t tensor,
                              const void* values, int dtype) {
  return With(engine, [&](Training& training) -> Status {
    if (values == nullptr) return Missing("the gradient");
    PENSTOCK_ASSIGN(const DType of_values, DTypeOf(dtype));
    return training.ReplaceGradient(unit, tensor, values, of_values);
  });
}

int penstock_use_on(penstock_engine* engine, uint32_t unit, int kind, void* to, void* stream) {
  return With(engine, [&](Training& training) -> Status {
    PENSTOCK_ASSIGN(const UseKind use, UseKindOf(kind));
    return training.UseOn(unit, use, UnitMemory(static_cast<std::byte*>(to)),
                          static_cast<CuStream>(stream));
  });
}

int penstock_use_tensors_on(penstock_engine* engine, uint32_t unit, int kind, void* const* tensors,
                            void* stream) {
  return With(engine, [&](Training& training) -> Status {
    PENSTOCK_ASSIGN(const UseKind use, UseKindOf(kind));
    if (tensors == nullptr) return Missing("the list of tensors");
    PENSTOCK_ASSIGN(const UnitMemory to, training.MemoryOf(unit, tensors));
    return training.UseOn(unit, use, to, static_cast<CuStream>(stream));
  });
}

int penstock_gradient_on(penstock_engine* engine, uint32_t unit, uint32_t tensor,
                         const void* values, int dtype, void* stream) {
  return With(engine, [&](Training& training) -> Status {
    PENSTOCK_ASSIGN(const DType of_values, DTypeOf(dtype));
    return training.GradientOn(unit, tensor, values, of_values, static_cast<CuStream>(stream));
  });
}

int penstock_report_loss(penstock_engine* engine, double loss) {
  return With(engine, [&](Training& training) { return training.ReportLoss(loss); });
}

int penstock_note_loss(penstock_engine* engine, double loss) {
  return With(engine, [&](Training& training) -> Status {
    training.NoteLoss(loss);
    return {};
  });
}

int penstock_step_notices(penstock_engine* engine, char** json) {
  return With(engine, [&](Training& training) {
    return GiveText(DescribeLines(training.TakeStepNotices()), json);
  });
}

int penstock_loss_scale(penstock_engine* engine, double* scale) {
  return With(engine, [&](Training& training) -> Status {
    if (scale == nullptr) return Missing("the place of the loss scale");
    *scale = training.loss_scale();
    return {};
  });
}

int penstock_norm(penstock_engine* engine, double* norm, int* finite) {
  return With(engine, [&](Training& training) -> Status {
    if (norm == nullptr || finite == nullptr) return Missing("a place of the norm");
    PENSTOCK_ASSIGN(const zero::GradientNorm::Value value, training.Norm());
    PENSTOCK_TRY(NoteCommit(*engine));  // Norm has waited for it
    *norm = value.norm;
    *finite = value.finite ? 1 : 0;
    return {};
  });
}

int penstock_end_step(penstock_engine* engine, const penstock_group* groups, uint32_t count,
                      double max_norm, double loss_scale, penstock_outcome* outcome) {
  return With(engine, [&](Training& training) -> Status {
    if ((groups == nullptr && count > 0) || outcome == nullptr) {
      return Missing("the list of groups or the place of the outcome");
    }
    std::vector<GroupScalars> scalars;
    for (uint32_t i = 0; i < count; ++i) scalars.push_back(ScalarsOf(groups[i]));
    PENSTOCK_TRY(FinishCommit(*engine));
    PENSTOCK_ASSIGN(const zero::StepOutcome done, training.EndStep(scalars, max_norm, loss_scale));
    GiveOutcome(*engine, training, done, outcome);
    return {};
  });
}

int penstock_skip_step(penstock_engine* engine, double lr, double loss_scale,
                       penstock_outcome* outcome) {
  return With(engine, [&](Training& training) -> Status {
    if (outcome == nullptr) return Missing("the place of the outcome");
    PENSTOCK_TRY(FinishCommit(*engine));
    PENSTOCK_ASSIGN(const zero::StepOutcome done, training.SkipStep(lr, loss_scale));
    GiveOutcome(*engine, training, done, outcome);
    return {};
  });
}

int penstock_drop_step(penstock_engine* engine) {
  return With(engine, [](Training& training) { return training.DropStep(); });
}

int penstock_drain(penstock_engine* engine) {
  return With(engine, [](Training& training) { return training.Drain(); });
}

int penstock_begin_commit(penstock_engine* engine, const char* json) {
  return With(engine, [&](Training& training) -> Status {
    if (json == nullptr) return Missing("the text of the commit");
    if (engine->run == nullptr) return training.BeginCommit(json);
    const std::lock_guard lock(engine->run->mutex);
    return engine->run->run->BeginCommit(training, json);
  });
}

int penstock_finish_commit(penstock_engine* engine) {
  return With(engine, [&](Training& /*training*/) { return FinishCommit(*engine); });
}

int penstock_take_back_commit(penstock_engine* engine, int* taken_back, uint64_t* step) {
  return With(engine, [&](Training& training) -> Status {
    if (taken_back == nullptr || step == nullptr) return Missing("the place of the answer");
    PENSTOCK_ASSIGN(const std::optional<uint64_t> taken, training.TakeBackDoubtfulCommit());
    PENSTOCK_TRY(NoteCommit(*engine));
    *taken_back = taken ? 1 : 0;
    *step = taken.value_or(0);
    return {};
  });
}

int penstock_watch(penstock_engine* engine, const char* folder, const char* const* names,
                   uint32_t count) {
  return With(engine, [&](Training& training) -> Status {
    if (folder == nullptr) return Missing("the folder");
    if (engine->run != nullptr) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "the engine is of a run, which is watched already; leave that to it");
    }
    std::vector<std::string> files;
    for (uint32_t i = 0; i < count; ++i) {
      if (names == nullptr || names[i] == nullptr) return Missing("a name");
      files.emplace_back(names[i]);
    }
    return training.Watch(folder, files);
  });
}

int penstock_copy_commit(penstock_engine* engine, const char* const* paths, uint32_t count) {
  return With(engine, [&](Training& training) -> Status {
    std::vector<std::string> targets;
    for (uint32_t i = 0; i < count; ++i) {
      if (paths == nullptr || paths[i] == nullptr) return Missing("a path");
      targets.emplace_back(paths[i]);
    }
    PENSTOCK_TRY(training.CopyCommit(targets));
    return NoteCommit(*engine);
  });
}

int penstock_continued(penstock_engine* engine, char** json) {
  return With(engine, [&](Training& training) -> Status {
    const std::optional<std::string>& text =
        engine->run == nullptr ? training.continued() : engine->run->run->continued();
    if (text) return GiveText(*text, json);
    return MakeError(ErrorCode::kNotFound, "the engine is new and resumes from no commit");
  });
}

int penstock_read(penstock_engine* engine, uint32_t unit, uint32_t tensor, int kind, uint64_t begin,
                  uint64_t count, float* to) {
  return With(engine, [&](Training& training) -> Status {
    if (to == nullptr && count > 0) return Missing("the place of the elements");
    PENSTOCK_ASSIGN(const zero::StateKind state, StateKindOf(kind));
    return training.Read(unit, tensor, state, begin, std::span(to, count));
  });
}

int penstock_reference_update(const char* config, const penstock_group* group, uint64_t t,
                              double grad_scale, const penstock_elements* elements) {
  return Guard([&]() -> Status {
    if (config == nullptr || group == nullptr || elements == nullptr) return Missing("an argument");
    if (elements->count == 0) return {};
    PENSTOCK_ASSIGN(const kernels::OptimizerTile tile, TileOf(*elements));
    return UpdateElements(config, ScalarsOf(*group), t, grad_scale, tile);
  });
}

int penstock_block_sums(const void* values, int dtype, uint64_t count, double* sums, int* finite) {
  return Guard([&]() -> Status {
    if (count > 0 && (values == nullptr || sums == nullptr)) return Missing("an argument");
    if (finite == nullptr) return Missing("the place of the answer");
    PENSTOCK_ASSIGN(const DType of_values, DTypeOf(dtype));
    *finite = SumBlocks(values, of_values, count, sums) ? 1 : 0;
    return {};
  });
}

int penstock_fingerprints(const void* const* memory, const uint64_t* bytes, uint32_t count,
                          uint64_t* fingerprints) {
  return Guard([&]() -> Status {
    if (count > 0 && (memory == nullptr || bytes == nullptr || fingerprints == nullptr)) {
      return Missing("an argument");
    }
    for (uint32_t i = 0; i < count; ++i) {
      if (memory[i] == nullptr && bytes[i] > 0) return Missing("an address");
      fingerprints[i] = Fingerprint({static_cast<const std::byte*>(memory[i]), bytes[i]});
    }
    return {};
  });
}
