// One life through both front ends: a session whose model is computed on a device of ours, and a
// training whose caller computes. The same events come to the same outcomes, and to the same bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "device/device.h"
#include "front/training.h"
#include "kernels/state/state_operators.h"
#include "offload/state_copy.h"
#include "offload/whole_state.h"
#include "tests/front/c_training.h"
#include "tests/zero/toy_model.h"
#include "zero/session/session.h"

namespace penstock::front {
namespace {

using offload::ModuleId;

enum class Event {
  kStep,
  kOverflow,  ///< a step whose gradient is not finite
  kBadLoss,   ///< one whose loss is not
  kDropGood,  ///< a step that is dropped after a finite loss
  kDropBad,   ///< after one that is not
  kDrop,      ///< before its loss
  kCommit,    ///< begun and finished
  kBesides,   ///< begun, and finished when the next step ends
  kTakeBack,  ///< a doubtful commit
  kSnapshot,  ///< of the newest commit
  kResume,    ///< the process ends; another continues the newest commit
  kKill,      ///< the process ends without notice; another continues what is in the files
};
constexpr uint32_t kEvents = static_cast<uint32_t>(Event::kKill) + 1;

const char* NameOf(Event event) {
  constexpr const char* kNames[] = {"step",      "overflow", "bad loss", "drop good",
                                    "drop bad",  "drop",     "commit",   "besides",
                                    "take back", "snapshot", "resume",   "kill"};
  return kNames[static_cast<size_t>(event)];
}

/// What became of a step.
struct Outcome {
  uint64_t step = 0;
  double grad_norm = 0;
  bool skipped = false;
};

struct StepPlan {
  std::optional<double> loss;
  float factor = 1;
  bool drop = false;
};

/// The gradient of a tensor from its weights, in fp32.
std::vector<float> Gradient(const Values& weight, uint64_t elements, float factor) {
  const Values gradient = GradientOf(weight, 0);
  std::vector<float> values(elements);
  for (uint64_t i = 0; i < elements; ++i) values[i] = gradient.At(i) * factor;
  return values;
}

/// A front end.
class Driver {
 public:
  virtual ~Driver() = default;
  virtual Result<Outcome> Step(const StepPlan& step) = 0;
  virtual Status BeginCommit() = 0;
  virtual Status FinishCommit() = 0;
  virtual Result<std::optional<uint64_t>> TakeBack() = 0;
  virtual Status Snapshot(const std::vector<std::string>& to) = 0;
  virtual const zero::StepLife& life() const = 0;
  virtual std::vector<std::string> paths() const = 0;
};

class SessionDriver final : public Driver {
 public:
  static Result<std::unique_ptr<Driver>> Make(Plan plan, int dtype) {
    auto driver = std::make_unique<SessionDriver>();
    driver->dtype_ = dtype;
    driver->device_ = device::CreateCpuDevice({.memory = 64_MiB}).value();
    driver->operators_ = kernels::CreateStateOperators(driver->device_->kind(), 1).value();
    const bool resumes = !plan.continue_from.empty();
    plan.engine.adopt = plan.continue_from;
    PENSTOCK_ASSIGN(driver->session_,
                    zero::Session::Create(std::move(plan.engine), zero::LossReports::kEachStep,
                                          *driver->device_, *driver->operators_));
    PENSTOCK_TRY(resumes ? driver->session_->Adopt().status() : driver->Fill());
    return std::unique_ptr<Driver>(std::move(driver));
  }

  Result<Outcome> Step(const StepPlan& plan) override {
    PENSTOCK_ASSIGN(zero::Step step, session_->BeginStep());
    for (uint32_t unit = 0; unit < kUnits; ++unit) {
      PENSTOCK_TRY(step.Acquire(ModuleId{unit}).status());
    }
    if (plan.loss) step.ReportLoss(*plan.loss);
    if (plan.drop) {
      PENSTOCK_TRY(step.Drop());
      return Outcome{};
    }
    for (uint32_t unit = kUnits; unit-- > 0;) PENSTOCK_TRY(Backward(step, unit, plan.factor));
    PENSTOCK_TRY(session_->FinishCommit());
    PENSTOCK_ASSIGN(const zero::StepOutcome outcome, step.Finish());
    return Outcome{outcome.step, outcome.grad_norm, outcome.skipped};
  }
  Status BeginCommit() override { return session_->BeginCommit("{}"); }
  Status FinishCommit() override { return session_->FinishCommit(); }
  Result<std::optional<uint64_t>> TakeBack() override { return session_->TakeBackDoubtfulCommit(); }
  Status Snapshot(const std::vector<std::string>& to) override {
    PENSTOCK_ASSIGN(const offload::WholeState state,
                    offload::WholeState::Open({paths()}, offload::StateLock::kHeld));
    return offload::CopyState(state, {to}, [] { return false; });
  }
  const zero::StepLife& life() const override { return session_->life(); }
  std::vector<std::string> paths() const override { return session_->state_paths(); }

 private:
  int DTypeOf(size_t tensor) const { return tensor == 1 ? PENSTOCK_FLOAT32 : dtype_; }
  Status Fill() {
    return session_->Initialize(
        [this](ModuleId module, size_t tensor, uint64_t begin, std::span<float> values) -> Status {
          const Values first =
              FirstWeights(DTypeOf(tensor), static_cast<uint32_t>(offload::Index(module)),
                           static_cast<uint32_t>(tensor));
          for (size_t i = 0; i < values.size(); ++i) values[i] = first.At(begin + i);
          return {};
        });
  }
  Status Backward(zero::Step& step, uint32_t unit, float factor) {
    const ModuleId module{unit};
    PENSTOCK_ASSIGN(const zero::Use use, step.Acquire(module));
    PENSTOCK_ASSIGN(float* const sums, step.Gradients(module));
    const float scaled = factor * static_cast<float>(step.loss_scale());
    const std::byte* const weights = use.weights();
    static_cast<device::CpuStream&>(step.compute_stream()).Launch([=, this] {
      const offload::ShardLayout& layout = session_->layout();
      for (const uint32_t tensor : {0U, 1U}) {
        const offload::TensorLayout& of = layout.module(module).tensors[tensor];
        Values values(DTypeOf(tensor), kElements[tensor]);
        std::memcpy(values.bytes.data(), weights + layout.SlotOffset(module, of.offset).value,
                    values.bytes.size());
        const std::vector<float> gradient = Gradient(values, kElements[tensor], scaled);
        for (uint64_t i = 0; i < gradient.size(); ++i) sums[of.offset + i] += gradient[i];
      }
    });
    return step.ReduceGradients(module);
  }

  int dtype_ = PENSTOCK_FLOAT32;
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<kernels::StateOperators> operators_;
  std::unique_ptr<zero::Session> session_;
};

class TrainingDriver final : public Driver {
 public:
  static Result<std::unique_ptr<Driver>> Make(Plan plan, int dtype) {
    auto driver = std::make_unique<TrainingDriver>();
    driver->dtype_ = dtype;
    const bool resumes = !plan.continue_from.empty();
    PENSTOCK_ASSIGN(driver->training_, Training::Create(std::move(plan)));
    if (!resumes) PENSTOCK_TRY(driver->Fill());
    return std::unique_ptr<Driver>(std::move(driver));
  }

  Result<Outcome> Step(const StepPlan& plan) override {
    std::vector<std::byte> slot(1 << 20);
    const UnitMemory to(slot.data());
    for (uint32_t unit = 0; unit < kUnits; ++unit) {
      PENSTOCK_TRY(training_->Use(unit, UseKind::kForward, to));
    }
    if (plan.loss) PENSTOCK_TRY(training_->ReportLoss(*plan.loss));
    if (plan.drop) {
      PENSTOCK_TRY(training_->DropStep());
      return Outcome{};
    }
    for (uint32_t unit = kUnits; unit-- > 0;) {
      PENSTOCK_TRY(training_->Use(unit, UseKind::kBackward, to));
      PENSTOCK_TRY(Backward(unit, slot.data(), plan.factor));
    }
    const GroupScalars of_config{.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-6};
    const GroupScalars groups[] = {of_config, of_config};
    const double scale = training_->life().next_scale();
    const bool scales = training_->life().counts().loss_scale.has_value();
    PENSTOCK_ASSIGN(const zero::StepOutcome outcome,
                    training_->EndStep(groups, 0, scales ? 0 : scale));
    return Outcome{outcome.step, outcome.grad_norm, outcome.skipped};
  }
  Status BeginCommit() override { return training_->BeginCommit("{}"); }
  Status FinishCommit() override { return training_->FinishCommit(); }
  Result<std::optional<uint64_t>> TakeBack() override {
    return training_->TakeBackDoubtfulCommit();
  }
  Status Snapshot(const std::vector<std::string>& to) override { return training_->CopyCommit(to); }
  const zero::StepLife& life() const override { return training_->life(); }
  std::vector<std::string> paths() const override { return training_->engine().state_paths(); }

 private:
  int DTypeOf(size_t tensor) const { return tensor == 1 ? PENSTOCK_FLOAT32 : dtype_; }
  Status Fill() {
    for (uint32_t unit = 0; unit < kUnits; ++unit) {
      std::vector<Values> values;
      std::vector<const void*> tensors;
      for (uint32_t i = 0; i < kTensors; ++i) {
        values.push_back(FirstWeights(DTypeOf(i), unit, i));
      }
      for (const Values& value : values) tensors.push_back(value.bytes.data());
      PENSTOCK_TRY(training_->Fill(unit, tensors.data()));
    }
    return {};
  }
  Status Backward(uint32_t unit, const std::byte* slot, float factor) {
    const offload::ShardLayout& layout = training_->layout();
    const float scaled = factor * static_cast<float>(training_->loss_scale());
    for (const uint32_t tensor : {0U, 1U}) {
      const offload::TensorLayout& of = layout.module(ModuleId{unit}).tensors[tensor];
      Values values(DTypeOf(tensor), kElements[tensor]);
      std::memcpy(values.bytes.data(), slot + layout.SlotOffset(ModuleId{unit}, of.offset).value,
                  values.bytes.size());
      const std::vector<float> gradient = Gradient(values, kElements[tensor], scaled);
      PENSTOCK_TRY(training_->Gradient(unit, tensor, gradient.data(), DType::kFloat32));
    }
    return {};
  }

  int dtype_ = PENSTOCK_FLOAT32;
  std::unique_ptr<Training> training_;
};

struct Setting {
  Home home;
  std::string dtype;

  std::string name() const { return home.name + "_" + dtype; }
};
void PrintTo(const Setting& setting, std::ostream* out) { *out << setting.name(); }

/// A life, and what it came to.
class LivesTest : public ::testing::TestWithParam<Setting> {
 protected:
  using Maker = Result<std::unique_ptr<Driver>> (*)(Plan plan, int dtype);

  struct Lived {
    std::vector<std::string> outcomes;  ///< of each event
    /// Masters and moments at each snapshot, resume and kill.
    std::vector<std::vector<float>> committed;
  };

  static Result<Plan> PlanIn(const std::string& folder, const std::vector<std::string>& from) {
    const Setting& setting = GetParam();
    json config = ConfigOf(setting.home, folder);
    config["optimizer"]["params"] = {
        {"lr", 1e-3}, {"betas", {0.9, 0.99}}, {"eps", 1e-6}, {"weight_decay", 0}};
    if (setting.dtype == "fp16") {
      config["fp16"] = {{"enabled", true},
                        {"initial_scale_power", 4},
                        {"loss_scale_window", 2},
                        {"hysteresis", 1},
                        {"min_loss_scale", 2}};
    } else {
      config["bf16"] = {{"enabled", true}};
    }
    const json options{{"folders", {folder}},
                       {"host_memory", 64 << 20},
                       {"continue", from},
                       {"reports_loss", true},
                       {"scales_loss", setting.dtype == "fp16"}};
    return MakePlan(config.dump(), ModelOf(setting.dtype).dump(), options.dump());
  }

  static Result<std::unique_ptr<Driver>> MakeIn(Maker make, const std::string& folder,
                                                const std::vector<std::string>& from = {}) {
    PENSTOCK_ASSIGN(Plan plan, PlanIn(folder, from));
    return make(std::move(plan), CodeOf(GetParam().dtype));
  }

  static Lived Live(Maker make, const std::vector<Event>& events) {
    Lived lived;
    const TempFolder folder;
    Result<std::unique_ptr<Driver>> driver = MakeIn(make, folder.Path());
    for (const Event event : events) {
      EXPECT_TRUE(driver.ok()) << driver.error().message;
      if (!driver.ok()) return lived;
      std::string outcome = NameOf(event) + std::string(": ");
      if (event == Event::kSnapshot || event == Event::kKill) {
        static_cast<void>((*driver)->FinishCommit());
      }
      const bool is_committed = (*driver)->life().commits().newest().has_value();
      const std::string next = folder.Path() + fmt::format("/{}", lived.outcomes.size());
      if (event == Event::kSnapshot && is_committed) {
        outcome += CodeText((*driver)->Snapshot(FilesIn(next, **driver)));
        Keep(lived, FilesIn(next, **driver));
      } else if (event == Event::kResume && is_committed) {
        const std::vector<std::string> paths = (*driver)->paths();
        driver->reset();
        Keep(lived, paths);
        driver = MakeIn(make, std::filesystem::path(paths.front()).parent_path(), paths);
      } else if (event == Event::kKill && is_committed) {
        // What a process leaves that is killed now. The copy may catch updates half written.
        const std::vector<std::string> left = FilesIn(next, **driver);
        for (size_t i = 0; i < left.size(); ++i) {
          std::filesystem::copy_file((*driver)->paths()[i], left[i]);
        }
        driver->reset();
        Keep(lived, left);
        driver = MakeIn(make, next, left);
      } else if (!IsEnd(event)) {
        outcome += Happen(**driver, event);
      }
      if (driver.ok()) outcome += StateOf((*driver)->life());
      lived.outcomes.push_back(std::move(outcome));
    }
    return lived;
  }
  static bool IsEnd(Event event) { return event >= Event::kSnapshot; }
  /// Where copies of a driver's files go, in a folder that is made.
  static std::vector<std::string> FilesIn(const std::string& folder, const Driver& driver) {
    std::filesystem::create_directory(folder);
    std::vector<std::string> files;
    for (const std::filesystem::path path : driver.paths()) {
      files.push_back(folder + "/" + path.filename().string());
    }
    return files;
  }
  static void Keep(Lived& lived, const std::vector<std::string>& paths) {
    for (const zero::StateKind kind :
         {zero::StateKind::kMaster, zero::StateKind::kExpAvg, zero::StateKind::kExpAvgSq}) {
      lived.committed.push_back(zero::CommittedValues(paths, kind));
    }
  }

  static std::string Happen(Driver& driver, Event event) {
    const auto of_step = [&](const StepPlan& plan) {
      const Result<Outcome> outcome = driver.Step(plan);
      if (!outcome.ok()) return CodeText(outcome.status());
      return fmt::format("step {} norm {:x} {}", outcome->step,
                         std::bit_cast<uint64_t>(outcome->grad_norm),
                         outcome->skipped ? "skipped" : "applied");
    };
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    switch (event) {
      case Event::kStep:
        return of_step({.loss = 1});
      case Event::kOverflow:
        return of_step({.loss = 1, .factor = kInfinity});
      case Event::kBadLoss:
        return of_step({.loss = zero::kNaN});
      case Event::kDropGood:
        return of_step({.loss = 1, .drop = true});
      case Event::kDropBad:
        return of_step({.loss = zero::kNaN, .drop = true});
      case Event::kDrop:
        return of_step({.drop = true});
      case Event::kCommit: {
        static_cast<void>(driver.FinishCommit());
        const Status begun = driver.BeginCommit();
        return CodeText(begun.ok() ? driver.FinishCommit() : begun);
      }
      case Event::kBesides: {
        static_cast<void>(driver.FinishCommit());
        return CodeText(driver.BeginCommit());
      }
      default: {
        static_cast<void>(driver.FinishCommit());
        const Result<std::optional<uint64_t>> taken = driver.TakeBack();
        if (!taken.ok()) return CodeText(taken.status());
        return *taken ? fmt::format("took back {}", **taken) : std::string("stands");
      }
    }
  }
  static std::string CodeText(const Status& status) {
    if (status.ok()) return "ok";
    if (status.error().code == ErrorCode::kNumeric) return "numeric";
    return fmt::format("error {}", static_cast<int>(status.error().code));
  }
  static std::string StateOf(const zero::StepLife& life) {
    const offload::CommitHead& counts = life.counts();
    return fmt::format(
        "; {} steps, {} updates, scale {}, commit {}{}{}{}", counts.step, counts.optimizer_steps,
        life.next_scale(), life.commits().newest() ? std::to_string(*life.commits().newest()) : "-",
        life.commits().confirmed() ? " confirmed" : "",
        life.commits().doubtful() ? " doubtful" : "", life.failure().ok() ? "" : ", ended");
  }

  /// Returns what the session's life came to, which the training's is compared with.
  static Lived ExpectSameLife(std::vector<Event> events) {
    events.push_back(Event::kResume);
    const Lived session = Live(SessionDriver::Make, events);
    const Lived training = Live(TrainingDriver::Make, events);
    EXPECT_EQ(session.outcomes, training.outcomes);
    EXPECT_TRUE(session.committed == training.committed) << "the bits differ";
    return session;
  }
};

struct Script {
  const char* name;
  std::vector<Event> events;
  const char* shows;  ///< a part of an outcome, so that the script does what its name says
};

const std::vector<Script>& Scripts() {
  using enum Event;
  static const std::vector<Script> scripts = {
      {"steps are counted and committed", {kStep, kStep, kCommit, kStep}, "commit 2"},
      {"an overflow is skipped", {kStep, kOverflow, kStep, kCommit}, "skipped; 2 steps, 1 updates"},
      {"a bad loss is skipped", {kStep, kBadLoss, kStep, kCommit}, "skipped; 2 steps, 1 updates"},
      {"two bad losses end it", {kStep, kCommit, kBadLoss, kBadLoss, kStep}, "numeric"},
      {"a dropped step does not count", {kStep, kDrop, kDropGood, kStep, kCommit}, "2 steps"},
      {"a finite loss confirms a commit", {kStep, kCommit, kStep}, "commit 1 confirmed"},
      {"that of a dropped step does, too", {kStep, kCommit, kDropGood}, "commit 1 confirmed"},
      {"a bad loss doubts it, and no commit follows",
       {kStep, kCommit, kStep, kCommit, kBadLoss, kCommit},
       "commit 2 doubtful"},
      {"a doubtful commit is confirmed after all",
       {kStep, kCommit, kDropBad, kStep, kCommit},
       "commit 2"},
      {"a doubtful commit is taken back, and the one before resumed",
       {kStep, kCommit, kStep, kCommit, kDropBad, kTakeBack, kStep, kResume, kStep, kCommit},
       "took back 2"},
      {"a commit without doubt stands", {kStep, kCommit, kStep, kTakeBack, kStep}, "stands"},
      {"a commit beside the next step", {kStep, kBesides, kStep, kBesides, kStep}, "commit 2"},
      {"a step that was not committed is computed again",
       {kStep, kCommit, kStep, kStep, kResume, kStep, kCommit},
       "2 steps"},
      {"a kill leaves the newest commit",
       {kStep, kCommit, kStep, kCommit, kStep, kKill, kStep, kCommit, kKill, kStep},
       "kill: ; 3 steps"},
      {"a kill after a commit was taken back leaves the one before",
       {kStep, kCommit, kStep, kCommit, kDropBad, kTakeBack, kKill, kStep, kCommit},
       "kill: ; 1 steps"},
      {"a snapshot is the newest commit, and no step is in it that was not committed",
       {kStep, kCommit, kStep, kSnapshot, kStep, kCommit, kSnapshot, kKill, kStep},
       "snapshot: ok; 3 steps"},
  };
  return scripts;
}

TEST_P(LivesTest, EveryEventComesToTheSameInBothFrontEnds) {
  for (const Script& script : Scripts()) {
    SCOPED_TRACE(script.name);
    const Lived lived = ExpectSameLife(script.events);
    EXPECT_TRUE(std::ranges::any_of(lived.outcomes,
                                    [&](const std::string& outcome) {
                                      return outcome.find(script.shows) != std::string::npos;
                                    }))
        << "no outcome is \"" << script.shows << "\": " << ::testing::PrintToString(lived.outcomes);
  }
}

TEST_P(LivesTest, RandomOrdersDoToo) {
  for (const uint32_t seed : {1, 2, 3}) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::vector<Event> events;
    for (int i = 0; i < 24; ++i) events.push_back(static_cast<Event>(random() % kEvents));
    static_cast<void>(ExpectSameLife(events));
  }
}

class LossScaleLivesTest : public LivesTest {};

TEST_P(LossScaleLivesTest, TheLossScaleOfTheEngineGoesDownAndUpAndIsResumed) {
  using enum Event;
  const Lived lived =
      ExpectSameLife({kOverflow, kStep, kStep, kStep, kOverflow, kOverflow, kCommit, kResume, kStep,
                      kStep, kStep, kOverflow, kOverflow, kOverflow, kOverflow, kStep});
  const auto has = [&](const char* what) {
    return std::ranges::any_of(lived.outcomes, [&](const std::string& outcome) {
      return outcome.find(what) != std::string::npos;
    });
  };
  for (const char* scale : {"scale 8,", "scale 16,", "scale 4,"}) EXPECT_TRUE(has(scale)) << scale;
  EXPECT_TRUE(has("step: numeric")) << "an overflow at the lowest scale ends the training";
}

std::string NameOfParam(const ::testing::TestParamInfo<Setting>& info) { return info.param.name(); }

INSTANTIATE_TEST_SUITE_P(Homes, LivesTest,
                         ::testing::Values(Setting{kHomes[1], "bf16"}, Setting{kHomes[1], "fp16"},
                                           Setting{kHomes[3], "bf16"}, Setting{kHomes[3], "fp16"}),
                         NameOfParam);
INSTANTIATE_TEST_SUITE_P(Homes, LossScaleLivesTest,
                         ::testing::Values(Setting{kHomes[1], "fp16"}, Setting{kHomes[3], "fp16"}),
                         NameOfParam);

}  // namespace
}  // namespace penstock::front
