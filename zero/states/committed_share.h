// One rank's share of a committed state, where the files of the other ranks are not to be seen: on
// drives of other hosts. A rank can continue in its files, and nothing else.
//
// Threads: as CommittedState.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "offload/state_reader.h"
#include "zero/states/committed_state.h"

namespace penstock::zero {

class CommittedShare final : public CommittedState {
 public:
  /// `reader`: of the rank's files, at the commit on which the ranks have agreed.
  explicit CommittedShare(std::unique_ptr<offload::StateReader> reader);

  const TrainState& train_state() const override { return state_; }
  offload::CommitName commit() const override;
  std::string uuid() const override;
  const offload::ModelLayout& model() const override { return reader_->layout().model; }
  uint32_t world_size() const override { return reader_->layout().world_size; }
  /// `rank`: that of the share.
  const offload::ShardLayout& shard(uint32_t rank) const override;
  /// Those that this rank holds, unless it was told which ones all ranks hold.
  std::vector<offload::CommitName> commits() const override { return commits_; }
  void SetCommits(std::vector<offload::CommitName> all) { commits_ = std::move(all); }
  Status Use(const offload::CommitName& name) override;
  /// Checks this rank's tiles, for any `part`.
  Result<std::vector<std::string>> DamagedTiles(const offload::CheckProgress& progress,
                                                uint32_t part, uint32_t of) const override;
  bool durable() const override { return reader_->header().geometry.slots == 2; }
  std::string notice() const override { return reader_->notice(); }
  Result<std::vector<std::string>> CallerPaths() const override;
  Result<std::string> ReadCaller() const override { return reader_->ReadCaller(); }
  /// Of the rank's files.
  std::vector<double> Shares() const override { return reader_->Shares(); }
  /// Refused with kUnavailable: most of a tensor is elsewhere.
  Status ReadState(StateKind kind, ModuleId module, size_t tensor, uint64_t begin,
                   std::span<float> values) override;
  uint64_t ReadableAtOnce(ModuleId module, size_t tensor, uint64_t begin) const override;
  /// Refused as well.
  Result<std::unique_ptr<SourceTiles>> OpenTiles(int threads) const override;
  /// Reads what there is.
  Result<CommitCheck> Check(const offload::CheckProgress& progress) override;

 private:
  Error RestIsElsewhere() const;

  const std::unique_ptr<offload::StateReader> reader_;
  TrainState state_;
  std::vector<offload::CommitName> commits_;
};

}  // namespace penstock::zero
