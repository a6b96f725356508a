// A world in virtual time for offload::TilePolicy: a device, a drive and an optimizer that take
// their steps in any order that a generator chooses, and check at each step what must never break.
// A thread that has to wait continues only when the policy names it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <random>
#include <vector>

#include "offload/layout.h"
#include "offload/schedule.h"
#include "offload/tile_policy.h"
#include "tests/offload/policy_host.h"
#include "tests/offload/policy_schedules.h"
#include "tests/offload/policy_waiters.h"

namespace penstock::offload {

class PolicyWorld {
 public:
  PolicyWorld(const ShardLayout& layout, const Schedule& schedule, const TilePolicyOptions& options,
              Begins updates, uint64_t seed)
      : layout_(layout),
        schedule_(&schedule),
        begins_(updates),
        passes_(options.passes),
        random_(seed),
        host_(options),
        policy_(layout, schedule, options) {}

  /// Fills the tiles, several at a time, as a new state is.
  void Fill() {
    std::vector<TileId> to_fill = schedule_->update_order;
    std::shuffle(to_fill.begin(), to_fill.end(), random_);
    std::vector<TileId> filling;
    while (!to_fill.empty() || !filling.empty() || host_.requests() > 0) {
      const bool may_begin = !to_fill.empty() && !waiters_.filler.waiting;
      if (may_begin && BeginFill(to_fill.back())) {
        filling.push_back(to_fill.back());
        to_fill.pop_back();
      } else if (!filling.empty() && (host_.requests() == 0 || random_() % 2 == 0)) {
        policy_.FinishFill(filling.back());
        StartWrites(filling.back());
        filling.pop_back();
      } else {
        ASSERT_GT(host_.requests(), 0U) << "no thread can fill a tile";
        CompleteIo();
      }
      CarryOut();
    }
  }

  /// Resumes from a commit instead.
  void Adopt(uint64_t version) {
    updates_ = version;
    for (PolicyHost::Tile& tile : host_.tiles()) tile.begun = tile.version = version;
    policy_.Reset(version);
  }

  /// From here on steps leave uses of the schedule out, swap some and add others, and the schedule
  /// changes between steps.
  void UseInAnyOrder() { any_order_ = true; }
  /// From here on reads and copies take no time: each ends before anything else happens.
  void TakeNoTime() { no_time_ = true; }

  /// Runs this many steps, updates included. Fails the test if no thread can continue.
  void Run(uint64_t steps) {
    last_step_ = steps;
    BeginStep();
    policy_.SetTime(0);
    CarryOut();
    while (step_ < steps || !policy_.settled()) {
      if (step_ == steps) policy_.SetDraining(true);
      CarryOut();
      std::vector<void (PolicyWorld::*)()> possible;
      if (host_.requests() > 0) possible.push_back(&PolicyWorld::CompleteIo);
      if (!pinned_.empty()) possible.push_back(&PolicyWorld::CopyOne);
      if (step_ < steps && !waiters_.device.waiting) possible.push_back(&PolicyWorld::FeedDevice);
      if (waiters_.may_update()) possible.push_back(&PolicyWorld::TakeUpdate);
      if (!updating_.empty()) possible.push_back(&PolicyWorld::FinishUpdate);
      if (!updating_.empty() && Choose(4) == 0) possible.push_back(&PolicyWorld::GiveBackUpdate);
      ASSERT_FALSE(possible.empty()) << "no thread can continue in step " << step_ << ", use "
                                     << use_ << ", tile " << next_tile_;
      (this->*possible[Choose(possible.size())])();
      CarryOut();
      if (::testing::Test::HasFatalFailure()) return;
    }
    for (const PolicyHost::Tile& tile : host_.tiles()) EXPECT_EQ(tile.version, updates_);
  }

  uint64_t weight_reads() const { return host_.weight_reads(); }
  uint64_t record_reads() const { return host_.record_reads(); }

  const PolicyWaiters& waiters() const { return waiters_; }

 private:
  /// The first of what is possible is what takes time.
  size_t Choose(size_t count) { return no_time_ ? 0 : random_() % count; }
  PolicyHost::Tile& At(TileId tile) { return host_.At(tile); }
  const TileHome& HomeOf(TileId tile) const { return host_.HomeOf(tile); }
  const StepUse& use() const { return uses_[use_]; }
  TileId TileOfUse() const { return layout_.TilesOf(use().module)[next_tile_]; }
  uint64_t step_start() const { return (step_ - first_step_) * schedule_->length(); }
  uint64_t now() const { return step_start() + (uses_.empty() ? 0 : use().clock); }

  /// Pins the next tile of the use, or begins the next use.
  void FeedDevice() {
    if (use().fetch && next_tile_ == 0 && !asked_) policy_.SetTime(now());
    if (use().fetch) {
      const TileId tile = TileOfUse();
      asked_ = !policy_.TryPin(tile);
      if (asked_) {
        waiters_.device.Wait();
        return;
      }
      At(tile).next_use = now() + 1;
      ASSERT_EQ(At(tile).version, At(tile).begun) << "the device gets the weight of this step";
      if (HomeOf(tile).weight_on_drive) {
        ASSERT_TRUE(At(tile).weight_there);
        ++At(tile).device_pins;
        pinned_.push_back(tile);
      }
      if (++next_tile_ < layout_.TileCount(use().module)) return;
    }
    EndUse();
  }

  void EndUse() {
    next_tile_ = 0;
    // The device has read what it computed with before its gradients are complete.
    if (!use().begins.empty() && begins_ == Begins::kWithGradients && !late_ && !dropped_) {
      CopyAll();
      for (const ModuleId module : use().begins) BeginModule(module);
    }
    if (++use_ == uses_.size()) EndStep();
  }

  void EndStep() {
    CopyAll();
    ++step_;
    use_ = 0;
    uses_.clear();
    policy_.SetTime(step_start());
    CarryOut();
    if (any_order_ && random_() % 4 == 0) ChangeSchedule();
    if (!dropped_ && (begins_ == Begins::kWithGradients ||
                      (begins_ == Begins::kAtStepEnd && random_() % 8 > 0))) {
      // What this step did not use may still have the last one's update before it.
      if (policy_.updates().unfinished() > 0 && any_order_) Drain();
      if (passes_ == 2) MakeFirstPass();
      ++updates_;
      for (const TileId tile : schedule_->load_order) {
        if (At(tile).begun < updates_) BeginTile(tile);
      }
    }
    if (random_() % 4 == 0) Drain();
    BeginStep();
  }

  void BeginStep() {
    if (step_ + 1 == last_step_) policy_.EndAfterThisStep();
    if (any_order_ && random_() % 4 == 0) ChangeSchedule();
    uses_ = any_order_ ? StepInAnyOrder(*schedule_, random_) : StepInOrder(*schedule_);
    // A commit may hold the next step's updates back until its end.
    late_ = random_() % 4 == 0;
    dropped_ = any_order_ && random_() % 8 == 0;
  }

  void ChangeSchedule() {
    schedules_.push_back(AnyOrder(layout_, begins_, random_));
    schedule_ = &schedules_.back();
    first_step_ = step_;
    policy_.SetSchedule(*schedule_);
    CarryOut();
  }

  /// Nothing changes in it, and no thread uses weights meanwhile.
  void MakeFirstPass() {
    if (policy_.updates().unfinished() > 0) Drain();
    first_pass_ = true;
    for (const TileId tile : schedule_->update_order) {
      policy_.Begin(tile);
      Unsettle();
      CarryOut();
    }
    Drain();
    first_pass_ = false;
  }

  /// As a commit does that the next step cannot wait for.
  void Drain() {
    policy_.SetDraining(true);
    CarryOut();
    while (waiters_.settling.waiting && !::testing::Test::HasFatalFailure()) {
      if (!updating_.empty()) {
        Choose(8) == 0 ? GiveBackUpdate() : FinishUpdate();
      } else if (waiters_.may_update()) {
        TakeUpdate();
      } else {
        ASSERT_GT(host_.requests(), 0U) << "draining does not end";
        CompleteIo();
      }
      CarryOut();
    }
    ASSERT_TRUE(policy_.settled());
    policy_.SetDraining(false);
    CarryOut();
  }

  bool BeginFill(TileId tile) {
    if (!policy_.TryBeginFill(tile)) {
      waiters_.filler.Wait();
      return false;
    }
    CarryOut();
    host_.TakeBlocks(tile);
    return true;
  }

  void StartWrites(TileId tile) {
    host_.StartWrites(tile);
    Unsettle();
  }
  /// A drain begins to wait as soon as there is something to wait for.
  void Unsettle() {
    if (!waiters_.settling.waiting && !policy_.settled()) waiters_.settling.Wait();
  }

  void BeginModule(ModuleId module) {
    for (const TileId tile : layout_.TilesOf(module)) BeginTile(tile);
  }
  void BeginTile(TileId tile) {
    policy_.Begin(tile);
    Unsettle();
    ++At(tile).begun;
    CarryOut();
  }

  void CopyOne() {
    const size_t at = Choose(pinned_.size());
    std::swap(pinned_[at], pinned_.back());
    --At(pinned_.back()).device_pins;
    policy_.Unpin(pinned_.back());
    pinned_.pop_back();
  }
  void CopyAll() {
    while (!pinned_.empty()) {
      CopyOne();
      CarryOut();
    }
  }

  void TakeUpdate() {
    const auto tile = policy_.TakeUpdate();
    ASSERT_TRUE(tile.has_value()) << "an update was announced that is not there";
    ++waiters_.updates_taken;
    PolicyHost::Tile& entry = At(*tile);
    ASSERT_FALSE(entry.updating);
    ASSERT_EQ(entry.device_pins, 0) << "the device still reads what is to be updated";
    ASSERT_EQ(entry.begun, entry.version + (first_pass_ ? 0 : 1));
    ASSERT_EQ(policy_.updates().in_first_pass(*tile), first_pass_);
    ASSERT_TRUE(entry.weight_there || !HomeOf(*tile).weight_on_drive);
    ASSERT_TRUE(entry.record_there || !HomeOf(*tile).record_on_drive);
    ASSERT_TRUE(!entry.writing);
    entry.updating = true;
    updating_.push_back(*tile);
  }
  /// Returns an update that was taken, and lets it go.
  TileId EndUpdate() {
    const size_t at = Choose(updating_.size());
    std::swap(updating_[at], updating_.back());
    const TileId tile = updating_.back();
    updating_.pop_back();
    At(tile).updating = false;
    return tile;
  }
  void GiveBackUpdate() { policy_.GiveBack(EndUpdate()); }
  void FinishUpdate() {
    const TileId tile = EndUpdate();
    if (first_pass_) {
      policy_.FinishFirstPass(tile);
      return;
    }
    ++At(tile).version;
    policy_.FinishUpdate(tile);
    StartWrites(tile);
  }

  void CompleteIo() { host_.Complete(Choose(host_.requests()), policy_); }

  /// The fetches of a tile that are still to come, by looking at every use.
  uint64_t NextFetch(TileId tile) {
    uint64_t time = std::max(At(tile).next_use, now());
    while (schedule_->uses[time % schedule_->length()].module != layout_.tile(tile).module ||
           !schedule_->uses[time % schedule_->length()].fetch) {
      ++time;
    }
    return time;
  }

  /// Without updates, which move the need of a copy: nothing that could go is needed later.
  void CheckFurthest(TileId evicted) {
    if (begins_ != Begins::kNever) return;
    for (const TileId other : layout_.Tiles()) {
      if (!At(other).weight_there || At(other).device_pins > 0) continue;
      EXPECT_LE(NextFetch(other), NextFetch(evicted))
          << "tile " << Index(other) << " should have gone";
    }
  }

  /// What the owner of the policy does after each event.
  void CarryOut() {
    for (const TileAction& action : policy_.TakeActions()) {
      if (action.kind == TileAction::Kind::kEvictWeight) CheckFurthest(action.tile);
      host_.CarryOut(action);
    }
    waiters_.Wake(policy_.TakeWakes());
  }

  const ShardLayout& layout_;
  const Schedule* schedule_;
  std::deque<Schedule> schedules_;  ///< that came later
  const Begins begins_;
  const uint64_t passes_;  ///< of an update; with two, updates begin at the step's end
  std::mt19937_64 random_;
  PolicyHost host_;
  TilePolicy policy_;
  uint64_t updates_ = 0;  ///< of every tile, when all are finished
  bool any_order_ = false;
  bool no_time_ = false;
  bool late_ = false;     ///< this step's updates begin at its end
  bool dropped_ = false;  ///< this step has none
  bool first_pass_ = false;
  uint64_t last_step_ = 0;
  uint64_t step_ = 0;
  uint64_t first_step_ = 0;  ///< of the schedule
  std::vector<StepUse> uses_;
  uint64_t use_ = 0;
  uint32_t next_tile_ = 0;
  bool asked_ = false;  ///< TryPin said no
  PolicyWaiters waiters_;
  std::vector<TileId> pinned_;
  std::vector<TileId> updating_;
};

}  // namespace penstock::offload
