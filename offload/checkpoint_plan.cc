#include "offload/checkpoint_plan.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "base/check.h"

namespace penstock::offload {
namespace {

constexpr size_t kNever = std::numeric_limits<size_t>::max();

struct Slot {
  std::optional<uint32_t> checkpoint;
  size_t last_use = 0;  ///< index of the access
};

class Planner {
 public:
  Planner(const std::vector<CheckpointAccess>& accesses, uint32_t slots)
      : accesses_(accesses), slots_(slots) {
    for (size_t i = 0; i < accesses.size(); ++i) {
      PENSTOCK_CHECK(i == 0 || accesses[i].kernel >= accesses[i - 1].kernel);
      written_.resize(std::max<size_t>(written_.size(), accesses[i].checkpoint + 1), kNever);
      if (accesses[i].write) written_[accesses[i].checkpoint] = i;
    }
    std::vector<size_t> later(written_.size(), kNever);
    next_.resize(accesses.size());
    for (size_t i = accesses.size(); i-- > 0;) {
      next_[i] = std::exchange(later[accesses[i].checkpoint], i);
    }
    if (!accesses.empty()) plan_.fetches.resize(accesses.back().kernel + 1);
  }

  CheckpointPlan Plan() {
    for (size_t i = 0; i < accesses_.size(); ++i) {
      const size_t slot = SlotFor(i);
      slots_[slot] = {accesses_[i].checkpoint, i};
      plan_.uses.push_back({.access = accesses_[i], .slot = static_cast<uint32_t>(slot)});
    }
    for (const size_t write : copied_out_) plan_.uses[write].copy_out = true;
    return std::move(plan_);
  }

 private:
  size_t SlotFor(size_t use) {
    const uint32_t checkpoint = accesses_[use].checkpoint;
    for (size_t slot = 0; slot < slots_.size(); ++slot) {
      if (slots_[slot].checkpoint == checkpoint) return slot;
    }
    const size_t slot = Victim(use);
    const Slot& before = slots_[slot];
    if (before.checkpoint && next_[before.last_use] != kNever) {
      copied_out_.push_back(written_[*before.checkpoint]);
    }
    if (!accesses_[use].write) {
      PENSTOCK_CHECK(written_[checkpoint] < use && before.checkpoint,
                     "checkpoint {} is read before it was written", checkpoint);
      plan_.fetches[accesses_[before.last_use].kernel].push_back(
          {.checkpoint = checkpoint, .slot = static_cast<uint32_t>(slot)});
    }
    return slot;
  }

  /// The slot that the access at `use` takes: an empty one, else as PlanCheckpoints says.
  size_t Victim(size_t use) const {
    std::optional<size_t> best;
    std::pair<size_t, size_t> best_rank;
    for (size_t i = 0; i < slots_.size(); ++i) {
      const Slot& slot = slots_[i];
      if (!slot.checkpoint) return i;
      if (accesses_[slot.last_use].kernel == accesses_[use].kernel) continue;
      const size_t next = next_[slot.last_use];
      if (next != kNever && accesses_[next].kernel == accesses_[use].kernel) continue;
      const std::pair rank(next, kNever - slot.last_use);
      if (best && rank <= best_rank) continue;
      best = i;
      best_rank = rank;
    }
    PENSTOCK_CHECK(best.has_value(), "{} slots for checkpoints are too few", slots_.size());
    return *best;
  }

  const std::vector<CheckpointAccess>& accesses_;
  std::vector<Slot> slots_;
  std::vector<size_t> written_;  ///< by checkpoint: the access that writes it
  std::vector<size_t> next_;     ///< by access: the next one of the same checkpoint
  std::vector<size_t> copied_out_;
  CheckpointPlan plan_;
};

}  // namespace

CheckpointPlan PlanCheckpoints(const std::vector<CheckpointAccess>& accesses, uint32_t slots) {
  return Planner(accesses, slots).Plan();
}

}  // namespace penstock::offload
