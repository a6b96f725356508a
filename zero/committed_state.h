// A committed state, read tensor by tensor: for export, inspection, comparison and moving.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "offload/layout.h"
#include "offload/state_check.h"
#include "zero/model.h"
#include "zero/train_state.h"

namespace penstock::zero {

/// What a committed state holds for every element, as fp32. The optimizer determines which moments
/// there are. The master of a frozen element is its weight.
enum class StateKind { kMaster, kExpAvg, kExpAvgSq };
std::vector<StateKind> StatesOf(const offload::GroupLayout& group);

/// Reads a committed state, for export, inspection and comparison. Threads: one at a time.
class CommittedState {
 public:
  /// Opens the newest valid commit; nobody can write to the state while it is open, and with
  /// `exclusive` nobody else can read it either. Errors: kNotFound, kUnavailable (in use),
  /// kCorruption.
  static Result<std::unique_ptr<CommittedState>> Open(const std::vector<std::string>& state_paths,
                                                      bool exclusive = false);
  virtual ~CommittedState() = default;

  virtual const TrainState& train_state() const = 0;
  /// Returns the UUID of the state as text.
  virtual std::string uuid() const = 0;
  virtual const offload::ShardLayout& layout() const = 0;
  /// Whether the state has two slots, so that a crash leaves the commit in place.
  virtual bool durable() const = 0;
  /// Returns a notice for the user about the commit that was opened, or an empty one.
  virtual std::string notice() const { return {}; }
  /// Returns the share of the state that each of its files holds, 0 to 1.
  virtual std::vector<double> Shares() const = 0;
  /// Reads elements [begin, begin + size) of one state of a tensor, exactly. The tensor's group
  /// must have that state. Verifies checksums of the tiles that it reads. The last tile stays in
  /// memory: reading a tensor in order reads each tile once, and so does reading every state of a
  /// tile before the next tile.
  virtual Status ReadState(StateKind kind, ModuleId module, size_t tensor, uint64_t begin,
                           std::span<float> values) = 0;
  /// Reads everything and verifies every checksum, at the speed of the drives.
  virtual Result<offload::StateCheck> Check(const offload::CheckProgress& progress) = 0;
};

}  // namespace penstock::zero
