// A training as a front end sees it. A session is filled, gives steps, and commits.
//
//   session = Session::Create(…); session->Initialize(…) | Fill(…) | Adopt()
//   step = session->BeginStep(…)
//     use = step.Acquire(module) … kernels on step.compute_stream() … (the lease ends)
//     step.Gradients(module) … kernels … step.AddGradients(module), for each micro-batch
//     step.ReduceGradients(module)
//     step.Losses(…) … kernels … step.ReportLosses(…); or step.ReportLoss(loss), from any thread
//   step.Finish()
//   session->BeginCommit(…) … session->FinishCommit()
//
// The session gives the learning rate. It records in which order a step uses the modules; a use out
// of order is served, counted (late_uses) and planned for from the next step on.
// What counts, what is skipped, when the training ends and when a commit may be made is decided by
// zero/session/step_life.h.
//
// A caller that computes by itself (front/training.h) has a session on the states alone. It brings
// weights and gives gradients by itself, tells the step (Step::CountUse, AnnounceGradient), and
// says the scalars of each update (StepEnd).
//
// Misuse is a Status with code kInvalidArgument and a line that says what to do; the step stays
// open, and the caller may try again, but for a step without a loss, which is then over. A Step
// that is destroyed before it is finished is dropped, and changes nothing. Only updates that have
// begun cannot be taken back (Step::Drop).
//
// Threads: ReportLoss from any thread, all else from one. Steps and leases must not outlive the
// session.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/mutex.h"
#include "base/result.h"
#include "zero/engine/engine.h"
#include "zero/gradient_norm.h"
#include "zero/session/step.h"
#include "zero/session/step_life.h"

namespace penstock::zero {

class Session {
 public:
  /// Creates a session with an engine of its own. The updates of a step that may report a loss wait
  /// for it. Errors: those of Engine::Create.
  static Result<std::unique_ptr<Session>> Create(EngineOptions options, LossReports losses,
                                                 device::Device& device,
                                                 kernels::StateOperators& operators);
  /// Makes a session on an engine that outlives it, of the model and with the configuration of the
  /// engine.
  explicit Session(Engine& engine, LossReports losses = LossReports::kEachStep);
  /// Makes a session without a device, on states that outlive it, whose updates begin when a step
  /// ends.
  Session(StatePort& states, const LifeRules& rules) : Session(states, nullptr, rules) {}
  /// Drops an open step and waits for a commit that was begun.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // One of these four comes before the first step.
  /// Makes new weights from `source`, and the initial moments of the optimizer.
  Status Initialize(const TensorSource& source);
  /// Fills every tile by `fill`, several at a time, and takes the counts of `state`.
  Status Fill(const TileFill& fill, const TrainState& state);
  /// Fills the tiles of one module, each of which is filled once. Errors: kInvalidArgument if it
  /// was filled already; else they end the training.
  Status FillModule(ModuleId module, const TileFill& fill);
  Status CheckUnfilled(ModuleId module) const;
  /// Resumes from the commit in EngineOptions::adopt.
  Result<TrainState> Adopt();

  /// See StepLife::BeginAt.
  Status BeginAt(uint64_t step, uint64_t optimizer_steps);

  /// Begins a step of so many micro-batches of each rank; none: of as many as
  /// gradient_accumulation_steps says, which is the most. Errors: kInvalidArgument for another
  /// number, while another step is open, or before the state was filled; kNumeric after too many
  /// skipped steps; the failure that ended the training.
  Result<Step> BeginStep(std::optional<uint64_t> micro_batches = {});
  /// Begins the last step once more, which was skipped: with its number, its micro-batches and its
  /// loss scale, to look at what it computes. It can only be dropped, and the loss that it reports
  /// is ignored. Errors: as BeginStep, but also where no further step may follow; kInvalidArgument
  /// if the last step was not skipped, or was repeated already.
  Result<Step> RepeatStep();
  /// Says that the step that begins next is the last: nothing is read ahead for another.
  void ExpectLastStep() { states_.ExpectLastStep(); }
  /// Counts steps up to `last` without computing them, between two steps: nothing but the number of
  /// the next step changes, and what is skipped in a row is what it was. Errors: kInvalidArgument
  /// within a step, before the state was filled, or if `last` was counted already.
  Status PassOver(uint64_t last) { return life_.PassOver(last); }
  /// See StepLife::CheckStreaks and SkipsToTheEnd.
  Status CheckSkips() const { return life_.CheckStreaks(); }
  uint64_t SkipsToTheEnd() const { return life_.SkipsToTheEnd(); }
  Status Drain() { return states_.Drain(); }
  /// Ends the training for a failure of what the caller does beside the session; see
  /// StepLife::Fail and Keep.
  void Fail(Status status) { life_.Fail(std::move(status)); }
  Status Keep(Status status) { return life_.Keep(std::move(status)); }

  /// Begins to commit the state as the last step left it; see StatePort::BeginCommit. The next step
  /// may be computed meanwhile, and is finished after FinishCommit. Errors: kInvalidArgument within
  /// a step (but for LifeRules::commits_within_steps), before the state was filled or before the
  /// last commit is finished; kNumeric while the newest commit is doubtful, because this one would
  /// take the place of the last good one; the failure that ended the training.
  /// `caller_file`: what the caller's file has that `run_json` names (offload/caller_file.h);
  /// empty: it names none.
  Status BeginCommit(
      std::string run_json, std::function<Status()> first = [] { return Status(); },
      std::string caller_file = {});
  /// Waits for the commit that was begun, if any. `stands`, if it is given, says at last whether
  /// the commit counts. A failure ends the training, unless there is no room for the caller's file
  /// (kOutOfSpace): then nothing was written of the commit, and another one may be begun.
  Status FinishCommit(const std::function<Status()>& stands = {});
  /// Begins a commit and waits for it.
  Status Commit(std::string run_json, std::string caller_file = {});
  /// Whether losses speak against the weights of the newest commit.
  bool commit_is_doubtful() const { return life_.commits().doubtful(); }
  /// Whether a finite loss speaks for them.
  bool commit_is_confirmed() const { return life_.commits().confirmed(); }
  /// For the end of a run: takes a doubtful commit back if there is one before it, which is then
  /// the newest. Returns the step of the commit that was taken back, if any; no step may follow
  /// then. Errors: kInvalidArgument within a step.
  Result<std::optional<uint64_t>> TakeBackDoubtfulCommit();
  /// Returns the step of the newest commit, if there is one.
  std::optional<uint64_t> committed_step() const { return life_.commits().newest(); }
  /// Checks that this commit can be read; see StatePort::CheckCommit. Errors: kInvalidArgument
  /// while another commit is being made.
  Status CheckCommit() const;

  const StepLife& life() const { return life_; }
  /// Whether the open step may report its loss, and has not.
  bool takes_loss() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return reporting_ != 0 && !loss_;
  }
  /// Whether it has to, before it ends.
  bool requires_loss() EXCLUDES(mutex_) {
    return life_.losses() == LossReports::kEachStep && takes_loss();
  }
  /// Returns the norm of the open step's gradient, once it is known; see Step::Norm.
  const std::optional<GradientNorm::Value>& gradient() const { return gradient_; }
  /// Returns the counts so far.
  const offload::CommitHead& state() const { return life_.counts(); }
  /// See StepLife::proven, untried and late_uses.
  bool proven() const { return life_.proven(); }
  bool untried() const { return life_.untried(); }
  uint64_t late_uses() const { return life_.late_uses(); }
  const offload::ShardLayout& layout() const { return states_.layout(); }
  /// Returns the figures by tensor of the last step that was finished; see StatePort::figures.
  const StepFigures& figures() const { return states_.figures(); }
  const ModelSpec& model() const { return states_.options().model; }
  device::Stream& compute_stream() { return device().compute_stream(); }
  EngineCounters counters() const { return states_.counters(); }
  Bytes host_peak() const { return states_.host_peak(); }
  const std::string& aio_engine() const { return states_.aio_engine(); }
  const std::vector<std::string>& state_paths() const { return states_.state_paths(); }
  const std::string& state_uuid() const { return states_.state_uuid(); }
  const std::vector<std::string>& notices() const { return states_.notices(); }

 private:
  friend class Step;
  friend class Use;

  /// What has happened to a module in the open step.
  struct Module {
    uint32_t held = 0;
    bool used = false;
    bool reduced = false;
    bool on_host = false;  ///< BeginHostGradients was called
  };

  struct ReportedLoss {
    double value;
    std::chrono::steady_clock::time_point at;
  };

  /// What Doing is told of a module, made once.
  struct Deeds {
    std::string waits;
    std::string computes;
  };

  Session(StatePort& states, DevicePort* device, const LifeRules& rules);
  DevicePort& device() const {
    PENSTOCK_CHECK(device_ != nullptr, "the session has no device; its caller computes");
    return *device_;
  }
  Status BeginStates(uint64_t number);
  Step Opened() { return Step(*this, life_.steps_begun()); }
  Status CheckEmpty() const;
  Status Filled(Status status);
  Status CheckMicroBatches(uint64_t micro_batches) const;
  Status CheckOpen(uint64_t step) const;
  Status CheckModule(uint64_t step, ModuleId module) const;
  Status CheckGradient(uint64_t step, ModuleId module) const;
  Status CheckUsed(uint64_t step, ModuleId module) const;
  Status CheckComplete() const;
  const std::string& NameOf(ModuleId module) const { return layout().module(module).name; }
  /// Tells others what this thread does; see EngineOptions::doing.
  void Doing(std::string_view what) const {
    if (doing_) doing_(what);
  }
  Module& Of(ModuleId module) { return modules_[offload::Index(module)]; }

  Result<Use> Acquire(uint64_t step, ModuleId module);
  void Release(uint64_t step, ModuleId module);
  void Reduced(ModuleId module);
  void ReportLoss(uint64_t step, double loss) EXCLUDES(mutex_);
  Result<GradientNorm::Value> Norm(uint64_t step);
  Result<GradientNorm::Value> FinishGradients();
  Result<StepOutcome> Finish(uint64_t step, const StepNote& note, StepEnd end);
  Result<StepOutcome> FinishOpen(const StepNote& note, StepEnd end);
  Status UpdateStep(double grad_scale, std::vector<GroupSpec> groups);
  std::optional<ReportedLoss> TakeLoss() EXCLUDES(mutex_);
  Result<StepOutcome> Skip(uint64_t step);
  Status Drop(uint64_t step);
  Status DropStates();
  void EndStep();

  std::unique_ptr<Engine> owned_;
  StatePort& states_;
  DevicePort* const device_;                            ///< none: the caller computes
  const config::Config& config_;                        ///< of the states
  const std::function<void(std::string_view)>& doing_;  ///< of the states
  StepLife life_;
  std::vector<Module> modules_;
  std::vector<Deeds> deeds_;  ///< by module; empty without EngineOptions::doing
  double lr_ = 0;             ///< learning rate of the last begun step
  /// The drive has no room for the caller's file of the commit that was begun. Set by what makes
  /// the commit, and read when that has ended.
  bool no_room_ = false;
  uint64_t micro_batches_ = 0;                          ///< micro-batches of that step on one rank
  std::optional<GradientNorm::Value> gradient_;         ///< norm, once all gradients are there
  std::chrono::steady_clock::time_point gradients_at_;  ///< when it was
  Mutex mutex_;
  uint64_t reporting_ GUARDED_BY(mutex_) = 0;  ///< the step whose loss is awaited; 0: none
  std::optional<ReportedLoss> loss_ GUARDED_BY(mutex_);
};

}  // namespace penstock::zero
