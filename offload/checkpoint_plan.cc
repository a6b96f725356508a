#include "offload/checkpoint_plan.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "base/check.h"

namespace penstock::offload {
namespace {

constexpr size_t kNever = std::numeric_limits<size_t>::max();
constexpr uint32_t kNoSlot = std::numeric_limits<uint32_t>::max();

struct Slot {
  uint32_t checkpoint = 0;
  size_t last_use = 0;  ///< index of the access
};

class Planner {
 public:
  Planner(const std::vector<CheckpointAccess>& accesses, uint32_t slots)
      : accesses_(accesses), most_slots_(slots) {
    uint32_t checkpoints = 0;
    for (size_t i = 0; i < accesses.size(); ++i) {
      PENSTOCK_CHECK(i == 0 || accesses[i].kernel >= accesses[i - 1].kernel);
      checkpoints = std::max(checkpoints, accesses[i].checkpoint + 1);
    }
    written_.resize(checkpoints, kNever);
    slot_of_.resize(checkpoints, kNoSlot);
    next_.resize(accesses.size());
    std::vector<size_t> later(checkpoints, kNever);
    for (size_t i = accesses.size(); i-- > 0;) {
      next_[i] = std::exchange(later[accesses[i].checkpoint], i);
      if (accesses[i].write) written_[accesses[i].checkpoint] = i;
    }
    slots_.reserve(slots);
    plan_.uses.reserve(accesses.size());
    if (!accesses.empty()) plan_.fetches.resize(accesses.back().kernel + 1);
  }

  CheckpointPlan Plan() {
    for (size_t i = 0; i < accesses_.size(); ++i) {
      const uint32_t slot = SlotFor(i);
      slots_[slot] = {accesses_[i].checkpoint, i};
      slot_of_[accesses_[i].checkpoint] = slot;
      ranks_.insert(RankOf(slot));
      plan_.uses.push_back({.access = accesses_[i], .slot = slot});
    }
    for (const size_t write : copied_out_) plan_.uses[write].copy_out = true;
    return std::move(plan_);
  }

 private:
  /// What is given up first has the highest rank: the slot needed furthest away, of those not
  /// needed again the one that was used first.
  struct Rank {
    size_t next_use;
    size_t age;
    uint32_t slot;

    auto operator<=>(const Rank&) const = default;
  };
  Rank RankOf(uint32_t slot) const {
    const size_t last = slots_[slot].last_use;
    return {.next_use = next_[last], .age = kNever - last, .slot = slot};
  }

  /// The slot of the access, which has no rank then.
  uint32_t SlotFor(size_t use) {
    const uint32_t checkpoint = accesses_[use].checkpoint;
    if (const uint32_t slot = slot_of_[checkpoint]; slot != kNoSlot) {
      ranks_.erase(RankOf(slot));
      return slot;
    }
    if (slots_.size() < most_slots_) {
      PENSTOCK_CHECK(accesses_[use].write, "checkpoint {} is read before it was written",
                     checkpoint);
      slots_.emplace_back();
      return static_cast<uint32_t>(slots_.size() - 1);
    }
    const uint32_t slot = Victim(use);
    const Slot& before = slots_[slot];
    slot_of_[before.checkpoint] = kNoSlot;
    if (next_[before.last_use] != kNever) copied_out_.push_back(written_[before.checkpoint]);
    if (!accesses_[use].write) {
      PENSTOCK_CHECK(written_[checkpoint] < use, "checkpoint {} is read before it was written",
                     checkpoint);
      plan_.fetches[accesses_[before.last_use].kernel].push_back(
          {.checkpoint = checkpoint, .slot = slot});
    }
    return slot;
  }

  /// The full slot that the access at `use` takes, as PlanCheckpoints says.
  uint32_t Victim(size_t use) {
    const auto of_this_kernel = [&](size_t other) {
      return other != kNever && accesses_[other].kernel == accesses_[use].kernel;
    };
    for (auto rank = ranks_.rbegin(); rank != ranks_.rend(); ++rank) {
      if (of_this_kernel(slots_[rank->slot].last_use) || of_this_kernel(rank->next_use)) continue;
      const uint32_t slot = rank->slot;
      ranks_.erase(*rank);
      return slot;
    }
    PENSTOCK_CHECK(false, "{} slots for checkpoints are too few", slots_.size());
    return kNoSlot;
  }

  const std::vector<CheckpointAccess>& accesses_;
  const uint32_t most_slots_;
  std::vector<Slot> slots_;        ///< full slots
  std::set<Rank> ranks_;           ///< their ranks
  std::vector<uint32_t> slot_of_;  ///< indexed by checkpoint
  std::vector<size_t> written_;    ///< indexed by checkpoint: the access that writes it
  std::vector<size_t> next_;       ///< indexed by access: the next one of the same checkpoint
  std::vector<size_t> copied_out_;
  CheckpointPlan plan_;
};

}  // namespace

CheckpointPlan PlanCheckpoints(const std::vector<CheckpointAccess>& accesses, uint32_t slots) {
  return Planner(accesses, slots).Plan();
}

Bytes PlanBytes(uint64_t checkpoints, uint64_t slots, uint64_t accesses, uint64_t kernels) {
  // A node of the set: colour, three links and the rank. A fetch: a block of the heap of its own. A
  // vector that grows may hold twice what is in it.
  const Bytes of_access{sizeof(CheckpointAccess) + sizeof(CheckpointPlan::Use) + sizeof(size_t)};
  const Bytes of_kernel{sizeof(std::vector<CheckpointPlan::Fetch>) + 32};
  const Bytes of_slot{sizeof(Slot) + 4 * sizeof(void*) + 3 * sizeof(size_t) + 16};
  const Bytes of_checkpoint{sizeof(uint32_t) + 4 * sizeof(size_t)};
  return of_access * accesses + of_kernel * kernels + of_slot * slots + of_checkpoint * checkpoints;
}

}  // namespace penstock::offload
