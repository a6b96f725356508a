#include "offload/whole_state.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/folder.h"
#include "offload/uuid.h"

namespace penstock::offload {
namespace {

Error OfRank(size_t rank, const Error& error) {
  return MakeError(error.code, "rank {}: {}", rank, error.message);
}

/// Called before the locks are requested, which this process would hold itself.
Status CheckNamedOnce(const RankPaths& ranks) {
  std::set<FileId> named;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    for (const std::string& path : ranks[rank]) {
      const Result<FileId> id = IdAt(path);
      if (!id.ok() || named.insert(*id).second) continue;
      return MakeError(ErrorCode::kCorruption,
                       "rank {}: state file {} is named twice among the files of the state", rank,
                       path);
    }
  }
  return {};
}

/// Whether two records can be the same commit on two ranks.
bool BelongTogether(const CommitRecord& a, const CommitRecord& b) {
  return a.head == b.head && a.session == b.session;
}

}  // namespace

Result<WholeState> WholeState::Open(const RankPaths& paths, StateLock lock) {
  PENSTOCK_CHECK(!paths.empty());
  if (paths.size() == 1) return OpenOneRank(paths.front(), lock);
  WholeState state;
  PENSTOCK_TRY(state.OpenRanks(paths, lock));
  for (uint32_t rank = 0; rank < state.world_size(); ++rank) {
    PENSTOCK_TRY(state.CheckRank(rank));
  }
  PENSTOCK_TRY(state.Agree());
  return state;
}

Result<WholeState> WholeState::OpenOneRank(const std::vector<std::string>& paths, StateLock lock) {
  WholeState state;
  PENSTOCK_ASSIGN(std::unique_ptr<StateReader> reader, StateReader::Open(paths, lock));
  state.readers_.push_back(std::move(reader));
  for (const HeldCommit& held : state.rank(0).commits()) {
    state.commits_.push_back(state.NameOf(held.name.step, held.name.session, held.sequence));
  }
  PENSTOCK_TRY(state.CheckRank(0));
  return state;
}

Status WholeState::OpenRanks(const RankPaths& paths, StateLock lock) {
  PENSTOCK_TRY(CheckNamedOnce(paths));
  std::optional<Error> missing;
  bool commits = false;
  for (size_t rank = 0; rank < paths.size(); ++rank) {
    Result<std::unique_ptr<StateReader>> reader = StateReader::OpenToAgree(paths[rank], lock);
    if (!reader.ok() && reader.error().code != ErrorCode::kNotFound) {
      return OfRank(rank, reader.error());
    }
    if (!reader.ok()) {
      if (!missing) missing = OfRank(rank, reader.error());
      continue;
    }
    commits = commits || !(*reader)->commits().empty();
    readers_.push_back(*std::move(reader));
  }
  if (!missing) return {};
  if (!commits) return *missing;
  return MakeError(ErrorCode::kCorruption,
                   "{}; other ranks hold commits, and the state is not whole without that file",
                   missing->message);
}

Status WholeState::CheckRank(uint32_t rank) const {
  const StateReader& reader = *readers_[rank];
  const ShardLayout& layout = reader.layout();
  if (layout.world_size != world_size() || layout.rank != rank) {
    return MakeError(ErrorCode::kCorruption,
                     "state file {} is of rank {} of {}, where rank {} of {} was expected; name "
                     "the files of all ranks of the state in their order",
                     reader.path(0), layout.rank, layout.world_size, rank, world_size());
  }
  if (reader.header().uuid != uuid()) {
    return MakeError(ErrorCode::kCorruption,
                     "rank {}: state file {} is of the state {}, and that of rank 0 is of {}", rank,
                     reader.path(0), ToString(reader.header().uuid), ToString(uuid()));
  }
  if (layout.model != model() || reader.header().geometry.slots != slots()) {
    return MakeError(ErrorCode::kCorruption,
                     "rank {}: state file {} has another layout than {}, which is rank 0's", rank,
                     reader.path(0), this->rank(0).path(0));
  }
  return {};
}

Status WholeState::Agree() {
  std::vector<std::vector<HeldCommit>> held;
  for (const auto& reader : readers_) held.push_back(reader->commits());
  Result<std::vector<CommitName>> agreed = CommonCommits(held);
  if (!agreed.ok()) {
    return MakeError(agreed.error().code, "state {}: {}", ToString(uuid()), agreed.error().message);
  }
  commits_ = *std::move(agreed);
  return Use(commits_.front());
}

Status WholeState::Use(const CommitName& name) {
  for (uint32_t rank = 0; rank < world_size(); ++rank) {
    PENSTOCK_TRY(readers_[rank]->Use(name));
    PENSTOCK_TRY(CheckRecord(rank));
  }
  return {};
}

Result<std::vector<std::string>> WholeState::DamagedTiles(const CheckProgress& progress,
                                                          uint32_t part, uint32_t of) const {
  Bytes total;
  for (uint32_t rank = part; rank < world_size(); rank += of) {
    total += readers_[rank]->layout().weight_bytes() + readers_[rank]->layout().record_bytes();
  }
  std::vector<std::string> damages;
  Bytes read;
  for (uint32_t rank = part; rank < world_size(); rank += of) {
    PENSTOCK_ASSIGN(const StateCheck check, CheckTiles(*readers_[rank], [&](Bytes done, Bytes) {
                      return progress(read + done, total);
                    }));
    read += check.read;
    damages.insert(damages.end(), check.damages.begin(), check.damages.end());
  }
  return damages;
}

Status WholeState::CheckRecord(uint32_t rank) const {
  if (BelongTogether(readers_[rank]->commit(), commit())) return {};
  return MakeError(ErrorCode::kCorruption,
                   "rank {}: the commit of step {} in {} has other numbers of steps, another seed "
                   "or other compute threads than that of rank 0",
                   rank, commit().head.step, readers_[rank]->path(0));
}

std::string WholeState::notice() const {
  std::vector<std::string> notices;
  for (const auto& reader : readers_) {
    if (!reader->notice().empty()) notices.push_back(reader->notice());
  }
  if (std::string newer = NewerNotice(); !newer.empty()) notices.push_back(std::move(newer));
  return fmt::format("{}", fmt::join(notices, "; "));
}

std::string WholeState::NewerNotice() const {
  if (world_size() == 1) return {};
  std::vector<std::vector<HeldCommit>> held;
  for (const auto& reader : readers_) held.push_back(reader->commits());
  return offload::NewerNotice(held, commits_.front());
}

std::vector<double> WholeState::Shares() const {
  Bytes all;
  std::vector<Bytes> of_rank;
  for (const auto& reader : readers_) {
    of_rank.push_back(reader->layout().weight_bytes() + reader->layout().record_bytes());
    all += of_rank.back();
  }
  std::vector<double> shares;
  for (uint32_t rank = 0; rank < world_size(); ++rank) {
    const double of_all = static_cast<double>(of_rank[rank].value) / static_cast<double>(all.value);
    for (const double share : readers_[rank]->Shares()) shares.push_back(share * of_all);
  }
  return shares;
}

}  // namespace penstock::offload
