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
#include "offload/whole_state.h"
#include "zero/model.h"
#include "zero/states/train_state.h"
#include "zero/states/value_check.h"

namespace penstock::zero {

/// What a committed state holds for every element, as fp32. The optimizer determines which moments
/// there are. The master of a frozen element is its weight.
enum class StateKind { kMaster, kExpAvg, kExpAvgSq };
std::vector<StateKind> StatesOf(const offload::GroupLayout& group);

/// What a check of everything that a commit names found.
struct CommitCheck : offload::StateCheck {
  std::vector<ValueFault> values;  ///< of tiles that are intact, in the order of the model
};

class SourceTiles;

/// Errors: kInvalidArgument if the group of a tensor does not keep that state.
Status CheckKept(const offload::ModelLayout& model, ModuleId module, size_t tensor, StateKind kind);

/// Reads a committed state, for export, inspection and comparison: the tensors of the whole model,
/// however many ranks hold it. Threads: one at a time.
class CommittedState {
 public:
  /// Opens the newest commit that all ranks hold; no process can write to the state while it is
  /// open, and with kExclusive no other process can read it. Errors: those of WholeState::Open;
  /// kUnavailable for states that this version does not read.
  static Result<std::unique_ptr<CommittedState>> Open(
      const offload::RankPaths& paths, offload::StateLock lock = offload::StateLock::kShared);
  /// The same for a state of one rank.
  static Result<std::unique_ptr<CommittedState>> Open(const std::vector<std::string>& state_paths,
                                                      bool exclusive = false);
  virtual ~CommittedState() = default;

  virtual const TrainState& train_state() const = 0;
  /// Returns the name of the commit, with which each rank can continue from it.
  virtual offload::CommitName commit() const = 0;
  /// Returns the UUID of the state as text.
  virtual std::string uuid() const = 0;
  virtual const offload::ModelLayout& model() const = 0;
  virtual uint32_t world_size() const = 0;
  /// Returns the share of a rank, as it is cut into tiles.
  virtual const offload::ShardLayout& shard(uint32_t rank) const = 0;
  /// Whether the state has two slots, so that a crash leaves the commit in place.
  virtual bool durable() const = 0;
  /// Returns a notice for the user about the commit that was opened, or an empty one.
  virtual std::string notice() const { return {}; }
  /// Returns the paths of the callers' files that the commit in use names (offload/caller_file.h),
  /// by rank. Errors: kCorruption for what no writer puts into a commit.
  virtual Result<std::vector<std::string>> CallerPaths() const = 0;
  /// Returns what is in the caller's file of rank 0, or of this rank alone; empty without one.
  /// Errors: of offload::StateReader::ReadCaller.
  virtual Result<std::string> ReadCaller() const = 0;
  /// Returns the share of the state that each of its files holds, 0 to 1: by rank, then by path.
  virtual std::vector<double> Shares() const = 0;
  /// Reads elements [begin, begin + size) of one state of a tensor, exactly. The tensor's group
  /// must have that state. Verifies checksums of the tiles that it reads. The last tile stays in
  /// memory: reading a tensor in order reads each tile once, and so does reading every state of a
  /// tile before the next tile.
  virtual Status ReadState(StateKind kind, ModuleId module, size_t tensor, uint64_t begin,
                           std::span<float> values) = 0;
  /// Returns how many elements of a tensor from `begin` on lie in one tile.
  virtual uint64_t ReadableAtOnce(ModuleId module, size_t tensor, uint64_t begin) const = 0;
  /// Opens the commit in use for so many threads that read tiles of all ranks at the same time, in
  /// any order. The state outlives what it returns. Errors: those of SourceTiles::Open.
  virtual Result<std::unique_ptr<SourceTiles>> OpenTiles(int threads) const = 0;
  /// Returns the commits that all ranks hold, the newest first; there is one at least.
  virtual std::vector<offload::CommitName> commits() const = 0;
  /// From now on reads this one of them, which train_state() then is of. Errors: of reading.
  virtual Status Use(const offload::CommitName& name) = 0;
  /// Reads all that the commit in use names, of the ranks r with r mod `of` equal to `part`.
  /// Returns a line for each part that is damaged or cannot be read. Errors: if that cannot be
  /// done; of `progress`.
  virtual Result<std::vector<std::string>> DamagedTiles(
      const offload::CheckProgress& progress = offload::kNoProgress, uint32_t part = 0,
      uint32_t of = 1) const = 0;
  /// Reads everything, verifies every checksum and looks at every value, at the speed of the
  /// drives.
  virtual Result<CommitCheck> Check(const offload::CheckProgress& progress) = 0;
};

/// Whether an engine with this layout in these folders can continue in the files of a state, of
/// which `paths` are those of the layout's rank: tiles, slots and folders are the same, and no file
/// has another name (a hard link), such as that of a copy.
bool FitsInPlace(const CommittedState& state, const offload::ShardLayout& layout, bool durable,
                 const std::vector<std::string>& paths, const std::vector<std::string>& folders);

}  // namespace penstock::zero
