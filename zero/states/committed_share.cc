#include "zero/states/committed_share.h"

#include <utility>

#include "base/check.h"
#include "offload/uuid.h"
#include "zero/states/source_tiles.h"

namespace penstock::zero {

CommittedShare::CommittedShare(std::unique_ptr<offload::StateReader> reader)
    : reader_(std::move(reader)), state_(StateOf(reader_->commit())) {
  for (const offload::HeldCommit& held : reader_->commits()) commits_.push_back(held.name);
}

offload::CommitName CommittedShare::commit() const {
  return {.step = reader_->commit().head.step, .session = reader_->commit().session};
}

std::string CommittedShare::uuid() const { return offload::ToString(reader_->header().uuid); }

const offload::ShardLayout& CommittedShare::shard(uint32_t rank) const {
  PENSTOCK_CHECK(rank == reader_->layout().rank, "the share is not of rank {}", rank);
  return reader_->layout();
}

Error CommittedShare::RestIsElsewhere() const {
  return MakeError(ErrorCode::kUnavailable,
                   "{} holds the share of rank {} alone, and the files of the other ranks are not "
                   "to be seen from here",
                   reader_->path(0), reader_->layout().rank);
}

Result<std::vector<std::string>> CommittedShare::CallerPaths() const {
  PENSTOCK_ASSIGN(const auto file, reader_->caller_file());
  return file ? std::vector<std::string>{reader_->caller_path()} : std::vector<std::string>();
}

Status CommittedShare::ReadState(StateKind, ModuleId, size_t, uint64_t, std::span<float>) {
  return RestIsElsewhere();
}

Result<std::unique_ptr<SourceTiles>> CommittedShare::OpenTiles(int) const {
  return RestIsElsewhere();
}

uint64_t CommittedShare::ReadableAtOnce(ModuleId module, size_t tensor, uint64_t begin) const {
  return model().module(module).tensors[tensor].elements - begin;
}

Status CommittedShare::Use(const offload::CommitName& name) {
  PENSTOCK_TRY(reader_->Use(name));
  state_ = StateOf(reader_->commit());
  return {};
}

Result<std::vector<std::string>> CommittedShare::DamagedTiles(
    const offload::CheckProgress& progress, uint32_t /*part*/, uint32_t /*of*/) const {
  PENSTOCK_ASSIGN(offload::StateCheck check, offload::CheckTiles(*reader_, progress));
  return std::move(check.damages);
}

Result<CommitCheck> CommittedShare::Check(const offload::CheckProgress& progress) {
  PENSTOCK_ASSIGN(offload::StateCheck check, offload::CheckState(*reader_, progress));
  return CommitCheck{std::move(check), {}};
}

}  // namespace penstock::zero
