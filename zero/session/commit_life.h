// The life of the newest commit: pending → durable → confirmed | retracted.
//
// A commit is pending while it is made, and durable when its record is. That does not make its
// weights good: a step whose gradients are finite can destroy them, and only the next forward shows
// it. A finite loss *confirms* the commit. A loss that is not finite makes it *doubtful*, until a
// finite one confirms it. A run that ends while its newest commit is doubtful *retracts* it if
// there is a commit before, which is then the newest again. Until the newest is confirmed, no
// update and no commit overwrites what the one before names.
//
// Weights that the last update has plainly destroyed are not committed in the first place
// (FirstDestroyed in zero/states/tensor_figures.h).
//
// A plain value. A commit of another process, from which a run resumes, counts as confirmed, and so
// does its copy: this run may not retract it.
#pragma once

#include <cstdint>
#include <optional>

namespace penstock::zero {

class CommitLife {
 public:
  /// Says that the run continues from a commit that it did not make.
  void Adopt(uint64_t step) { newest_ = Commit{.step = step, .confirmed = true}; }
  /// Says that a commit of the state after `step` is being made. `confirmed`: its weights gave a
  /// finite loss already. Preconditions: no commit is pending, and the newest is not doubtful.
  void Begin(uint64_t step, bool confirmed = false);
  /// Says whether the commit was made. Precondition: one is pending.
  void MadeDurable();
  void Failed();
  /// Says that it was not made, and training goes on: what losses have said of it is said of the
  /// newest. Precondition: one is pending.
  void Dropped();
  /// Says that a forward was computed with the weights of the newest commit, or with later ones. If
  /// that commit is pending, the forward is that of a step that is dropped: no step is finished
  /// before the commit is.
  void ForwardDone(bool finite);
  /// Says that the newest commit was taken back. Precondition: retractable().
  void Retract(bool before_stands);

  bool pending() const { return pending_.has_value(); }
  /// Whether a finite loss speaks for the newest durable commit.
  bool confirmed() const { return newest_ && newest_->confirmed; }
  /// Whether losses speak against it.
  bool doubtful() const { return newest_ && newest_->doubted && !newest_->confirmed; }
  /// Whether it is also not the only one: the commit before would be the newest again.
  bool retractable() const { return doubtful() && before_.has_value(); }
  /// Whether the newest has proved nothing yet, and another commit would take the place of the one
  /// before.
  bool unproven() const { return newest_ && !newest_->confirmed && before_.has_value(); }
  /// Returns the step of the newest commit that is durable and not retracted.
  std::optional<uint64_t> newest() const;

 private:
  struct Commit {
    uint64_t step = 0;
    bool confirmed = false;
    bool doubted = false;
  };
  std::optional<Commit> pending_;
  std::optional<Commit> newest_;
  std::optional<Commit> before_;
};

}  // namespace penstock::zero
