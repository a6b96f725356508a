// The life of a training as a value: which steps count, what the loss scale is, which commit is the
// newest, in which order a step uses the modules, and when no step may follow.
//
// It is told what happens, and says what may come next and what becomes of a step. It computes,
// reads and writes nothing. zero/session/session.h acts on it.
//
//   Fill of every module, or FillAll, FillFrom, Adopt     the state is there
//   BeginStep … Use, Reduce, ForwardDone … then EndStep, SkipStep or DropStep
//   RepeatStep … DropStep                                 after a skipped step
//   BeginCommit … EndCommit                               between two steps; the next may begin
//   Retract                                               at the end
//
// - A step counts when it ends. A step that is dropped does not, but its loss speaks for or against
//   a commit as that of any other.
// - A step whose loss or gradient is not finite is skipped: no update is counted, and the loss
//   scale of fp16 is told of an overflow (zero/session/loss_scale.h).
// - No step follows too many in a row that are skipped, whose loss is not finite or whose gradient
//   is zero in fp16 (StreakLimits), nor an overflow with the lowest loss scale.
// - Losses decide on the newest commit (zero/session/commit_life.h). While one speaks against it
// and none
//   for it, no commit takes the place of the one before. A commit is confirmed from the beginning
//   if its weights gave a finite loss already, if they come from a commit, or if no step reports
//   its loss, or none has ended that says whether steps do.
// - The first failure ends the training: no step and no commit follows. What a caller can mend
//   (kInvalidArgument) is no failure.
//
// The functions Check… say why an event may not come now, and what to do. An event that its check
// refuses breaks our own contract.
//
// A plain value. Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/result.h"
#include "config/config.h"
#include "offload/commit_record.h"
#include "zero/gradient_norm.h"
#include "zero/model.h"
#include "zero/plan/step_decision.h"
#include "zero/plan/use_order.h"
#include "zero/session/commit_life.h"
#include "zero/session/loss_scale.h"

namespace penstock::zero {

/// The training ends after this many skipped steps in a row,
inline constexpr uint64_t kMaxSkippedInARow = 20;
/// and after this many losses in a row that are not finite: other gradients do not fix a forward.
inline constexpr uint64_t kMaxLossesNotFinite = 2;
/// and after this many steps in a row at one loss scale whose whole gradient is zero in fp16.
inline constexpr uint64_t kMaxZeroGradients = 10;

struct StreakLimits {
  uint64_t skipped = kMaxSkippedInARow;
  uint64_t losses_not_finite = kMaxLossesNotFinite;
  uint64_t zero_gradients = kMaxZeroGradients;
};

/// Which steps that end report the loss of their forward. That of all others counts as finite.
enum class LossReports : uint8_t {
  kEachStep,
  kNever,
  kAsFirstStep,  ///< each step if the first one that ends does, else none
};

struct LifeRules {
  StepRules step;
  std::optional<config::LossScaling> loss_scaling;  ///< none: the engine has no loss scale
  LossReports losses = LossReports::kEachStep;
  bool two_slots = true;              ///< a commit leaves the one before in place
  bool commits_within_steps = false;  ///< no update begins before its step ends
  bool resumes_streaks = true;  ///< skipped steps before a resume count as those in a row after it
  StreakLimits limits;

  /// Those of a configuration.
  static LifeRules Of(const config::Config& config, LossReports losses);
};

/// What a caller says of one step in place of the rules and of the engine's loss scale.
struct StepScalars {
  std::optional<double> gradient_clipping;
  std::optional<double> loss_scale;
};

class StepLife {
 public:
  /// `model` has an order (WithOrder); `head` has the counts of a new training.
  StepLife(const ModelSpec& model, LifeRules rules, const offload::CommitHead& head);

  // The state is filled once.
  /// Says that a module has new weights, or all have. Precondition: it had none.
  void Fill(ModuleId module);
  void FillAll();
  /// Says that all have those of a commit elsewhere, of which `head` is.
  void FillFrom(const offload::CommitHead& head);
  /// Says that the training continues in the files of a commit.
  void Adopt(const offload::CommitHead& head);
  bool filled() const { return unfilled_ == 0; }
  bool filled(ModuleId module) const { return filled_[offload::Index(module)]; }
  /// Returns how many modules have no weights yet, and which is the first of them.
  size_t unfilled() const { return unfilled_; }
  ModuleId FirstUnfilled() const;
  Status CheckFilled() const;

  /// Says that so many steps were made elsewhere, and how many of them were not skipped. Errors:
  /// kInvalidArgument unless the training is new.
  Status BeginAt(uint64_t step, uint64_t optimizer_steps);
  /// Counts steps up to `last` that are passed over. Errors: kInvalidArgument within a step, before
  /// the state was filled, or if `last` was counted already.
  Status PassOver(uint64_t last);

  // Steps.
  Status CheckBegin() const;
  void BeginStep();
  /// The last step once more: with its number and its loss scale, once, if it was skipped. It can
  /// only be dropped.
  Status CheckRepeat() const;
  void RepeatStep();
  /// Says that the open step uses a module, and that its gradient is complete.
  void Use(ModuleId module) { order_.Used(module); }
  void Reduce(ModuleId module) { order_.Reduced(module); }
  /// Says which steps report their loss: never kAsFirstStep once a step has ended.
  LossReports losses() const { return rules_.losses; }
  /// Says whether the loss that the open step reported is finite.
  void ForwardDone(bool finite);
  /// Returns what becomes of the open step. Errors: kNumeric for a gradient that is not finite and
  /// may not be skipped, with which the training ends (Keep).
  Result<StepDecision> Decide(const GradientNorm::Value& gradient,
                              const StepScalars& of_step = {}) const;
  Status CheckEnd() const;
  /// Ends the open step as it was decided. Returns the order that is planned from now on, if it is
  /// new. Precondition: its forward is done, if steps report losses.
  std::optional<StepOrder> EndStep(const StepDecision& decision);
  /// Ends it as one whose gradient is not finite, which need not be complete. The planned order
  /// stays. Preconditions as of EndStep.
  void SkipStep();
  void DropStep();
  bool open() const { return open_; }
  /// Returns how many steps were begun: the identity of the one that was begun last.
  uint64_t steps_begun() const { return steps_begun_; }
  /// Returns the loss scale of the step that was begun last, and of the next one; 1 if the engine
  /// has none.
  double scale_of_step() const { return scale_of_step_; }
  double next_scale() const { return loss_scale_ ? loss_scale_->value() : 1; }
  /// Returns the number of uses that were not the planned ones.
  uint64_t late_uses() const { return order_.late(); }

  /// Says whether the steps in a row allow another. Errors: kNumeric.
  Status CheckStreaks() const;
  /// Returns after how many more skipped steps CheckStreaks fails, if their losses are as the last
  /// one was, finite or not; 0: it fails now.
  uint64_t SkipsToTheEnd() const;

  // Commits.
  Status CheckCommit() const;
  /// Returns what the commit keeps of the life.
  offload::CommitHead BeginCommit();
  /// Says what became of the commit that was begun; a failure ends the training.
  void EndCommit(const Status& made);
  /// The commit that was begun was not made, and training goes on: nothing was written of it.
  void DropCommit();
  const CommitLife& commits() const { return commits_; }
  /// Whether the newest commit is doubtful, and the one before would be the newest again.
  bool retractable() const { return commits_.retractable() && rules_.two_slots; }
  /// Returns the step of the newest commit, if it is to be noted as one in doubt: no loss that its
  /// weights gave was finite. This process may not have made it. `last_is_finite`: the last loss.
  /// None with one slot, where no other commit could be resumed.
  std::optional<uint64_t> Doubted(bool last_is_finite) const;
  Status CheckRetract() const;
  /// Says that the newest commit was taken back, which ends the training. `before_stands`: the one
  /// before can be read. Preconditions: retractable(), and no commit is pending.
  void Retract(bool before_stands);

  /// Ends the training, unless it has ended. Keep: but for kInvalidArgument; returns `status`.
  void Fail(Status status);
  Status Keep(Status status);
  /// Returns why the training has ended, if it has.
  const Status& failure() const { return failure_; }

  const offload::CommitHead& counts() const { return counts_; }
  /// Whether a step of this process computed a finite loss with the weights as they are.
  bool proven() const { return proven_; }
  /// Whether the weights as they are come from a commit, and no step of this process computed a
  /// finite loss with them.
  bool untried() const { return from_commit_ && !proven_; }

 private:
  Status CheckBetweenSteps() const;
  void OpenStep(bool repeated);
  void CountStep(bool skipped, double grad_norm);
  void CountStreaks(bool skipped, bool forward_is_finite, double grad_norm);

  LifeRules rules_;
  offload::CommitHead counts_;
  std::optional<LossScale> loss_scale_;
  CommitLife commits_;
  UseOrder order_;
  std::vector<bool> filled_;  ///< by module
  size_t unfilled_;
  Status failure_;
  uint64_t losses_not_finite_ = 0;  ///< in a row
  uint64_t zero_gradients_ = 0;     ///< zero gradients in a row, at one loss scale
  bool proven_ = false;
  bool from_commit_ = false;  ///< the weights as they are come from a commit
  // Of the step that was begun last.
  uint64_t steps_begun_ = 0;
  bool open_ = false;
  bool repeated_ = false;    ///< it can only be dropped
  bool repeatable_ = false;  ///< it has ended, and was skipped
  double scale_of_step_ = 1;
  std::optional<bool> forward_is_finite_;
};

}  // namespace penstock::zero
