// A training's life told from the list of all that happened: the oracle of
// zero/session/step_life.h.
//
// Nothing is kept but the list. Every answer is found anew by looking through it, by the
// definition of what is asked. A process that ends without a word is one event, kResume: another
// process continues from the newest commit, and what came after the beginning of that commit is no
// longer part of the training.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "offload/commit_record.h"
#include "zero/session/step_life.h"

namespace penstock::zero {

enum class Event {
  kBegin,
  kRepeat,
  // Ends of a step, whose loss is finite but in the last of them:
  kApplied,
  kZero,      ///< applied, with a gradient that is zero
  kOverflow,  ///< the gradient is not finite
  kLossNotFinite,
  kDropSilent,  ///< without a loss
  kDropFinite,
  kDropNotFinite,
  kPass,  ///< over kPassed steps
  kBeginCommit,
  kCommitMade,
  kCommitFailed,
  kRetract,
  kRetractAlone,  ///< the commit before cannot be read
  kResume
};

inline constexpr uint64_t kPassed = 3;

class History {
 public:
  explicit History(LifeRules rules) : rules_(std::move(rules)) {}

  void Add(Event event) { events_.push_back(event); }

  /// Whether a training may do this now.
  bool Allows(Event event) const {
    switch (event) {
      case Event::kBegin:
        return !ended() && !open() && !Stops();
      case Event::kRepeat:
        return !ended() && !open() && Skips(LastOfStep());
      case Event::kApplied:
      case Event::kZero:
      case Event::kOverflow:
      case Event::kLossNotFinite:
        return open() && LastOfStep() == Event::kBegin && !pending();
      case Event::kDropSilent:
        return open();
      case Event::kDropFinite:
      case Event::kDropNotFinite:
        return open() && LastOfStep() == Event::kBegin && rules_.losses == LossReports::kEachStep;
      case Event::kPass:
        return !open();
      case Event::kBeginCommit:
        return !ended() && (!open() || rules_.commits_within_steps) && !pending() &&
               (confirmed() || !has_before()) && !doubtful();
      case Event::kCommitMade:
      case Event::kCommitFailed:
        return pending();
      case Event::kRetract:
      case Event::kRetractAlone:
        return retractable() && !open() && !pending();
      case Event::kResume:
        return newest().has_value();
    }
    return false;
  }

  /// The counts, of all steps that led here.
  offload::CommitHead Head() const { return HeadAt(events_.size()); }

  bool ended() const {
    return std::any_of(events_.begin() + ProcessBegin(events_.size()), events_.end(),
                       [&](Event event) { return Ends(event); });
  }
  bool open() const { return LastOfStep() == Event::kBegin || LastOfStep() == Event::kRepeat; }
  bool pending() const { return IsPending(events_.size()); }

  /// Whether the steps in a row allow no other.
  bool Stops() const {
    const StreakLimits& limits = rules_.limits;
    return InARow(&History::LossIsNotFinite) >= limits.losses_not_finite ||
           InARow(&History::UnderflowsAt) >= limits.zero_gradients ||
           (rules_.loss_scaling && InARow(&History::ExhaustedAt) > 0) ||
           Head().skipped_in_a_row >= limits.skipped;
  }
  /// After how many more steps like the last skipped one, or overflows, that is so.
  uint64_t SkipsToTheEnd() const {
    History longer = *this;
    const bool losses = InARow(&History::LossIsNotFinite) > 0;
    for (uint64_t skips = 0;; ++skips) {
      if (longer.Stops()) return skips;
      longer.Add(Event::kBegin);
      longer.Add(losses ? Event::kLossNotFinite : Event::kOverflow);
    }
  }

  /// The step of the newest commit.
  std::optional<uint64_t> committed_step() const {
    const std::optional<size_t> commit = newest();
    return commit ? std::optional(HeadAt(*commit).step) : std::nullopt;
  }
  /// Where the newest commit was begun, in the list.
  std::optional<size_t> newest() const { return NewestAt(events_.size()); }
  bool confirmed() const { return newest() && Confirmed(*newest()); }
  bool doubtful() const {
    return newest() && !Confirmed(*newest()) &&
           std::ranges::any_of(LossesAfter(*newest()), std::logical_not<>());
  }
  bool retractable() const { return doubtful() && has_before() && rules_.two_slots; }
  bool has_before() const { return StandingAt(events_.size()).before.has_value(); }
  bool proven() const { return ProvenAt(events_.size()); }
  bool untried() const { return FromCommitAt(events_.size()) && !proven(); }

 private:
  static bool IsEnd(Event event) {
    return event == Event::kApplied || event == Event::kZero || event == Event::kOverflow ||
           event == Event::kLossNotFinite;
  }
  bool Skips(Event event) const {
    return event == Event::kLossNotFinite ||
           (event == Event::kOverflow && rules_.step.skips_overflow);
  }
  static bool Updates(Event event) { return event == Event::kApplied || event == Event::kZero; }
  /// An end of a step that counts.
  bool Counts(Event event) const { return Updates(event) || Skips(event); }
  bool Ends(Event event) const {
    return event == Event::kCommitFailed || event == Event::kRetract ||
           event == Event::kRetractAlone || (event == Event::kOverflow && !Skips(event));
  }
  static std::optional<bool> LossOf(Event event) {
    if (event == Event::kLossNotFinite || event == Event::kDropNotFinite) return false;
    if (IsEnd(event) || event == Event::kDropFinite) return true;
    return std::nullopt;
  }

  /// Where the process began in which the list had this length.
  std::ptrdiff_t ProcessBegin(size_t length) const {
    while (length > 0 && events_[length - 1] != Event::kResume) --length;
    return static_cast<std::ptrdiff_t>(length);
  }
  std::optional<size_t> NewestAt(size_t length) const { return StandingAt(length).newest; }
  /// The places in the list of the steps that led to this length of it, the newest first.
  std::vector<size_t> StepsBefore(size_t length) const {
    std::vector<size_t> steps;
    steps.reserve(length);
    while (length > 0) {
      const Event event = events_[--length];
      if (Counts(event) || event == Event::kPass) steps.push_back(length);
      if (event == Event::kResume) length = *NewestAt(length);
    }
    return steps;
  }
  /// How many steps of this process were so, of the last one backwards. Those that were passed over
  /// are left out.
  uint64_t InARow(bool (History::*is_so)(size_t step) const) const {
    uint64_t count = 0;
    const auto first = static_cast<size_t>(ProcessBegin(events_.size()));
    for (size_t step = events_.size(); step-- > first;) {
      if (!Counts(events_[step])) continue;
      if (!(this->*is_so)(step)) break;
      ++count;
    }
    return count;
  }
  bool LossIsNotFinite(size_t step) const { return events_[step] == Event::kLossNotFinite; }
  bool UnderflowsAt(size_t step) const {
    return rules_.loss_scaling && events_[step] == Event::kZero &&
           ScaleAt(step).state.scale == ScaleAt(step + 1).state.scale;
  }
  bool ExhaustedAt(size_t step) const { return ScaleAt(step + 1).exhausted; }

  offload::CommitHead HeadAt(size_t length) const {
    offload::CommitHead head;
    bool in_a_row = true;
    for (const size_t step : StepsBefore(length)) {
      const Event event = events_[step];
      head.step += event == Event::kPass ? kPassed : 1;
      head.optimizer_steps += Updates(event) ? 1 : 0;
      const bool counted_on =
          rules_.resumes_streaks || step >= static_cast<size_t>(ProcessBegin(length));
      in_a_row = in_a_row && counted_on && !Updates(event);
      head.skipped_in_a_row += in_a_row && Skips(event) ? 1 : 0;
    }
    if (rules_.loss_scaling) head.loss_scale = ScaleAt(length).state;
    return head;
  }

  struct Scale {
    offload::LossScaleState state;
    bool exhausted = false;
  };
  /// As DeepSpeed has it (runtime/fp16/loss_scaler.py), with its names.
  Scale ScaleAt(size_t length) const {
    const config::LossScaling& rules = *rules_.loss_scaling;
    const auto delayed_shift = static_cast<uint32_t>(rules.hysteresis);
    if (rules.loss_scale > 0) return {{rules.loss_scale, 0, delayed_shift}};
    double cur_scale = std::ldexp(1.0, static_cast<int>(rules.initial_scale_power));
    uint32_t cur_hysteresis = delayed_shift;
    int64_t cur_iter = 0;
    int64_t last_overflow_iter = -1;
    bool raised = false;
    const std::vector<size_t> steps = StepsBefore(length);
    for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
      if (events_[*step] == Event::kPass) continue;
      raised = false;
      if (Skips(events_[*step])) {
        if (delayed_shift == 1 || cur_hysteresis == 1) {
          raised = cur_scale == rules.min_loss_scale;
          cur_scale = std::max(cur_scale / 2, rules.min_loss_scale);
        } else {
          cur_hysteresis -= 1;
        }
        last_overflow_iter = cur_iter;
      } else {
        if (rules.consecutive_hysteresis) cur_hysteresis = delayed_shift;
        if ((cur_iter - last_overflow_iter) % rules.loss_scale_window == 0) {
          cur_hysteresis = delayed_shift;
          cur_scale *= 2;
        }
      }
      ++cur_iter;
    }
    const auto since_overflow = static_cast<uint64_t>(cur_iter - last_overflow_iter - 1);
    return {{cur_scale, since_overflow, cur_hysteresis}, raised};
  }

  /// The commits on the drive, by where they were begun. There are two places.
  struct Standing {
    std::optional<size_t> newest;
    std::optional<size_t> before;
  };
  Standing StandingAt(size_t length) const {
    Standing standing;
    size_t begun = 0;
    const auto first = static_cast<size_t>(ProcessBegin(length));
    if (first > 0) standing.newest = NewestAt(first - 1);
    for (size_t i = first; i < length; ++i) {
      if (events_[i] == Event::kBeginCommit) begun = i;
      if (events_[i] == Event::kCommitMade) standing = {begun, standing.newest};
      if (events_[i] == Event::kRetract) standing = {standing.before, std::nullopt};
      if (events_[i] == Event::kRetractAlone) standing = {};
    }
    return standing;
  }
  bool IsPending(size_t length) const {
    for (; length > 0; --length) {
      const Event event = events_[length - 1];
      if (event == Event::kBeginCommit) return true;
      if (event == Event::kCommitMade || event == Event::kCommitFailed || event == Event::kResume) {
        return false;
      }
    }
    return false;
  }
  /// Losses of steps that computed with the weights of a commit of this process or with later ones,
  /// and with those of no later commit that was not lost.
  std::vector<bool> LossesAfter(size_t commit) const {
    std::vector<bool> losses;
    for (size_t i = commit + 1; i < events_.size(); ++i) {
      const std::optional<bool> loss = LossOf(events_[i]);
      if (loss && LastBegun(i) == commit) losses.push_back(*loss);
    }
    return losses;
  }
  std::optional<size_t> LastBegun(size_t length) const {
    if (!IsPending(length)) return NewestAt(length);
    while (events_[length - 1] != Event::kBeginCommit) --length;
    return length - 1;
  }
  bool Confirmed(size_t commit) const {
    const auto first = static_cast<size_t>(ProcessBegin(events_.size()));
    if (rules_.losses != LossReports::kEachStep || commit < first)
      return true;  // or of another process
    if (ProvenAt(commit) || FromCommitAt(commit)) return true;
    return std::ranges::any_of(LossesAfter(commit), std::identity());
  }
  /// Whether a step that was skipped since the last update had a finite loss.
  bool ProvenAt(size_t length) const {
    const auto first = static_cast<size_t>(ProcessBegin(length));
    for (; length > first && !Updates(events_[length - 1]); --length) {
      if (Skips(events_[length - 1]) && *LossOf(events_[length - 1])) return true;
    }
    return false;
  }
  bool FromCommitAt(size_t length) const {
    const std::ptrdiff_t first = ProcessBegin(length);
    return first > 0 &&
           std::none_of(events_.begin() + first,
                        events_.begin() + static_cast<std::ptrdiff_t>(length), &History::Updates);
  }
  /// The last thing that begins or ends a step, or comes between two.
  Event LastOfStep() const {
    for (size_t i = events_.size(); i-- > 0;) {
      const Event event = events_[i];
      if (event <= Event::kPass || event == Event::kResume) return event;
    }
    return Event::kPass;
  }

  LifeRules rules_;
  std::vector<Event> events_;
};

}  // namespace penstock::zero
