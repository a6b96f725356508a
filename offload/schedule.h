// A whole step as a list: when each module is used, in which device slot, and whether it has to be
// copied there. A plain value, computed by zero/plan/schedule_builder.h and executed by
// offload/executor.h and offload/tile_store.h.
//
// Time is counted in uses: use u of step s (from 0) happens at s * uses.size() + u.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "offload/layout.h"

namespace penstock::offload {

struct ScheduledUse {
  ModuleId module{};
  uint32_t slot = 0;  ///< its slot on the device
  bool fetch =
      false;  ///< copied from the host for this use; false: still there from an earlier one
  bool backward = false;
};

struct Schedule {
  std::vector<ScheduledUse> uses;
  std::vector<Bytes> slot_bytes;  ///< size of each device slot
  /// For each module its own slot; nullopt if it shares slots. Empty: all share.
  std::vector<std::optional<uint32_t>> own_slot;
  std::vector<uint32_t> first_use;  ///< first use of each module
  /// The tiles that are updated, by the first use of their module, then by position.
  std::vector<TileId> update_order;
  std::vector<TileId> load_order;  ///< the same, in the order in which their updates begin
  /// For each module: when the host's copy is needed for its update, counted from the start of a
  /// step.
  std::vector<uint64_t> update_at;

  uint64_t length() const { return uses.size(); }
  /// Whether the weights of a use may be fetched while the use before is computed: it is in the
  /// same step, and in another slot.
  bool FetchesAhead(uint64_t use) const {
    return use > 0 && use < length() && uses[use].fetch && uses[use].slot != uses[use - 1].slot;
  }
};

/// Answers when a module is next copied from host memory, in any step.
class Fetches {
 public:
  /// Precondition: every module has a use that fetches it.
  explicit Fetches(const Schedule& schedule);

  /// Returns the first time at or after `from` at which the module is fetched. O(log uses).
  uint64_t Next(ModuleId module, uint64_t from) const;

 private:
  uint64_t length_;
  std::vector<std::vector<uint64_t>> uses_;  ///< uses of each module, in order
};

}  // namespace penstock::offload
