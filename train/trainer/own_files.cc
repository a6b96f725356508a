#include "train/trainer/own_files.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "offload/commit_agreement.h"
#include "offload/state_reader.h"
#include "train/process/log.h"
#include "zero/states/committed_share.h"

namespace penstock::train {
namespace {

using offload::HeldCommit;
using offload::StateReader;

constexpr char kSeen = '1';

/// The first file of a rank that this process does not see.
const std::string* Missing(const RankFiles& files) {
  std::error_code ignored;
  const auto there = [&](const std::string& path) {
    return std::filesystem::exists(path, ignored);
  };
  const auto found = std::ranges::find_if_not(files.paths, there);
  return found == files.paths.end() ? nullptr : &*found;
}

/// A character for each rank's files: whether this rank sees all of them.
std::string Seen(const StateFiles& files) {
  std::string seen;
  for (const RankFiles& rank : files.ranks) seen += Missing(rank) == nullptr ? kSeen : '0';
  return seen;
}

/// Returns the error that `reader` does not see the files of rank `of`, which it needs. `all`: what
/// each rank sees.
Error NotSeen(const Folder& run, const StateFiles& files, size_t of, size_t reader,
              const std::vector<std::string>& all, Ranks& ranks) {
  const RankFiles& rank = files.ranks[of];
  const std::string file =
      fmt::format("{}, which rank {} wrote on host {}", rank.paths.front(), of, rank.host);
  const auto owner =
      std::ranges::find_if(all, [of](const auto& seen) { return seen[of] == kSeen; });
  if (owner == all.end()) {
    // The ranks ended before each had its files; no drive is missing.
    const auto ended = NothingIfWithoutRows(
        run, fmt::format("it has no rows, and no rank sees {}: it ended before its first commit, "
                         "unless its rows were moved away",
                         file));
    if (ended) return *ended;
    return MakeError(ErrorCode::kNotFound,
                     "--resume: no rank sees {}; start a rank there, or mount its drive", file);
  }
  const std::vector<std::string>& hosts = ranks.job().hosts();
  return MakeError(
      ErrorCode::kInvalidArgument,
      "--resume: rank {} (host {}) does not see {}, and rank {} (host {}) does; {}", reader,
      hosts[reader], file, owner - all.begin(), hosts[owner - all.begin()],
      files.ranks.size() == all.size()
          ? "start each rank on the host that it had, or put the files where all ranks see them"
          : fmt::format("resume with {} ranks, or put the files where all ranks see them",
                        files.ranks.size()));
}

/// A rank's knowledge of its files.
struct Told {
  std::vector<HeldCommit> commits;
  std::string notice;  ///< damage, for the user; empty: none
};

std::string ToText(const Told& told) {
  nlohmann::json commits = nlohmann::json::array();
  for (const HeldCommit& held : told.commits) {
    commits.push_back({held.name.step, held.name.session, held.sequence});
  }
  return nlohmann::json{{"commits", commits}, {"notice", told.notice}}.dump(
      -1, ' ', false, nlohmann::json::error_handler_t::replace);
}
/// Parses a text of another rank.
Told FromText(const std::string& text) {
  const auto json = nlohmann::json::parse(text);
  Told told{.commits = {}, .notice = json.at("notice")};
  for (const auto& held : json.at("commits")) {
    told.commits.push_back({.name = {.step = held[0], .session = held[1]}, .sequence = held[2]});
  }
  return told;
}

/// Logs what the other ranks found in their files: only rank 0 logs notices, and it sees none of
/// these files.
void LogTold(const std::vector<std::string>& hosts, const std::vector<std::string>& notices) {
  for (size_t rank = 1; rank < notices.size(); ++rank) {
    if (notices[rank].empty()) continue;
    LogNotice(fmt::format("rank {} (host {}): {}", rank, hosts[rank], notices[rank]));
  }
}

/// The error of a rank whose files cannot be opened: if they were never complete, that there is no
/// commit.
Error NotOpened(const Folder& run, const StateFiles& files, uint32_t rank, const Error& error) {
  std::error_code ignored;
  const bool never_whole =
      error.code == ErrorCode::kNotFound ||
      (error.code == ErrorCode::kCorruption &&
       std::filesystem::file_size(files.ranks[rank].paths.front(), ignored) == 0);
  if (!never_whole) return error;
  return NothingIfWithoutRows(run, error.message).value_or(error);
}

/// Opens this rank's share.
Result<std::unique_ptr<StateReader>> OpenMine(const StateFiles& files, const comm::World& world) {
  PENSTOCK_ASSIGN(
      std::unique_ptr<StateReader> reader,
      StateReader::OpenToAgree(files.ranks[world.rank].paths, offload::StateLock::kShared));
  const offload::ShardLayout& layout = reader->layout();
  if (layout.rank == world.rank && layout.world_size == world.size) return reader;
  return MakeError(ErrorCode::kCorruption,
                   "state file {} is of rank {} of {}, where rank {} of {} was expected",
                   reader->path(0), layout.rank, layout.world_size, world.rank, world.size);
}

}  // namespace

Result<bool> SeeOwnFilesOnly(const Folder& run, const StateFiles& files, Ranks& ranks) {
  PENSTOCK_ASSIGN(const std::vector<std::string> all, ranks.job().Gather(Seen(files)));
  const auto sees = [](const std::string& seen) { return seen.find(kSeen) != std::string::npos; };
  const auto knows = [&](const std::string& seen) { return seen.size() == files.ranks.size(); };
  // If there are no files at all, or no run.json, opening the files explains that.
  if (std::ranges::none_of(all, sees) || !std::ranges::all_of(all, knows)) return false;
  const bool same_ranks = files.ranks.size() == all.size();
  bool all_see_all = true;
  for (size_t of = 0; of < files.ranks.size(); ++of) {
    for (size_t reader = 0; reader < all.size(); ++reader) {
      if (all[reader][of] == kSeen) continue;
      all_see_all = false;
      if (same_ranks && of != reader) continue;
      PENSTOCK_TRY(ranks.Agree(Status(NotSeen(run, files, of, reader, all, ranks))));
    }
  }
  return !all_see_all;
}

Result<ResumePoint> OpenOwnShare(const Folder& run, const StateFiles& files, Ranks& ranks) {
  Result<std::unique_ptr<StateReader>> opened = OpenMine(files, ranks.world());
  if (!opened.ok()) opened = NotOpened(run, files, ranks.world().rank, opened.error());
  PENSTOCK_ASSIGN(std::unique_ptr<StateReader> mine, ranks.Agree(std::move(opened)));
  PENSTOCK_ASSIGN(const std::vector<std::string> texts,
                  ranks.job().Gather(ToText(Told{mine->commits(), mine->notice()})));
  std::vector<std::vector<HeldCommit>> held;
  std::vector<std::string> notices;
  for (const std::string& text : texts) {
    Told told = FromText(text);
    held.push_back(std::move(told.commits));
    notices.push_back(std::move(told.notice));
  }
  LogTold(ranks.job().hosts(), notices);
  Result<std::vector<offload::CommitName>> agreed = offload::CommonCommits(held);
  if (!agreed.ok() && agreed.error().code == ErrorCode::kNotFound) {
    agreed = NothingToResume(run, agreed.error().message);
  }
  PENSTOCK_TRY(ranks.Agree(agreed.status()));
  const std::string left = offload::NewerNotice(held, agreed->front());
  if (!left.empty()) LogNotice(left);
  auto share = std::make_unique<zero::CommittedShare>(std::move(mine));
  share->SetCommits(*std::move(agreed));
  return ranks.Agree(OpenResumePoint(run, std::move(share), LogNotice));
}

}  // namespace penstock::train
