// A drive that misbehaves by plan, over any other drive: for tests of everything above.
//
// Errors are reported without the block ever reaching the base drive. A short block reaches it cut
// to about half, rounded to the file's alignment (a block of one alignment unit cannot be short and
// goes through whole). A delayed block is carried out at once, but reported only after
// kDelayedBehind others or when nothing else is in flight. With `reorder`, results wait in a pool
// and leave it at random. Damage that a write does is in aio/write_damage.h. The fate of a block
// depends only on the plan, its seed and the block's position.
//
// Owns the base drive. Threads: see aio/drive.h.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "aio/layered_drive.h"
#include "aio/write_damage.h"

namespace penstock::aio {

inline constexpr uint64_t kDelayedBehind = 64;
inline constexpr size_t kOperationCount = 3;

class FaultDrive final : public LayeredDrive {
 public:
  /// Called with the file of a sync that is made to fail.
  using OnFailedSync = std::function<void(int fd)>;

  FaultDrive(std::unique_ptr<Drive> base, FaultPlan plan, int queue_depth,
             OnFailedSync on_failed_sync = nullptr);

  void Submit(const BlockOperation& block) override;
  void Reap(bool wait, std::vector<BlockResult>& results) override;
  const std::string& name() const override { return name_; }

 private:
  /// What befalls one block.
  struct Fate {
    int error_number = 0;
    bool cut_short = false;
    bool delayed = false;
    std::optional<Damage> damage;
  };
  struct Delayed {
    uint64_t after = 0;  ///< due when this many results were reported
    BlockResult result;
  };

  Fate Decide(const BlockOperation& block);
  void ApplyListed(const Fault& fault, uint64_t position, const BlockOperation& block,
                   Fate& fate) const;
  /// Carries `passed` out as the fate says, or reports it.
  void Pass(BlockOperation passed, const Fate& fate);
  void ApplyRandom(Operation operation, uint64_t position, Fate& fate) const;
  void CollectFromBase(bool wait);
  void ReleaseDelayed();
  void Report(std::vector<BlockResult>& results);

  const std::string name_;
  const FaultPlan plan_;
  const OnFailedSync on_failed_sync_;
  std::array<uint64_t, kOperationCount> seen_{};  ///< blocks so far, by operation
  std::vector<uint64_t> seen_at_;  ///< indexed by listed fault: blocks that hold its `at`
  WriteDamage damage_;
  std::vector<bool> delay_slot_;  ///< indexed by slot: whether its result is to be delayed
  size_t in_base_ = 0;
  uint64_t reported_ = 0;
  uint64_t draws_ = 0;  ///< random numbers used up by `reorder`
  std::vector<BlockResult> ready_;
  std::vector<Delayed> delayed_;
};

}  // namespace penstock::aio
