#include "tools/inspect.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "offload/state_names.h"
#include "offload/whole_commit.h"
#include "run/committed_run.h"
#include "run/doubted_commit.h"
#include "run/leftovers.h"
#include "run/rank_reports.h"
#include "run/run_copy.h"
#include "run/run_folder.h"
#include "run/snapshot.h"
#include "train/process/status_line.h"
#include "train/weights/committed_model.h"
#include "zero/states/committed_state.h"

namespace penstock::train {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

/// Lines for tensors whose values are unhealthy.
constexpr size_t kMaxFaults = 40;

/// Lines of a name and a value.
class Lines {
 public:
  template <typename T>
  void Add(const char* name, const T& value) {
    text_ += fmt::format("{:<18}{}\n", name, value);
  }
  std::string Take() { return std::move(text_); }

 private:
  std::string text_;
};

std::string SizeOfFile(const std::string& path) {
  std::error_code error;
  const uint64_t size = std::filesystem::file_size(path, error);
  return error ? "not there" : ToString(Bytes{size});
}

/// A line for each file of a state.
class FileLines {
 public:
  explicit FileLines(Lines& lines) : lines_(lines) {}

  /// `note` follows the size.
  void Add(const char* name, const std::string& path, const std::string& note) {
    lines_.Add(name, fmt::format("{} ({}{})", path, SizeOfFile(path), note));
    listed_.insert(Key(path));
    folders_.insert(fs::path(path).parent_path().string());
  }
  void Add(const char* name, const StateFiles& state, const std::string& note) {
    for (size_t rank = 0; rank < state.ranks.size(); ++rank) {
      for (const std::string& path : state.ranks[rank].paths) {
        Add(name, path, note + RankNote(state, rank));
      }
    }
    uuids_.insert(state.uuid);
  }
  /// The same for the state that is inspected, with the share of each file; none if not known.
  /// `callers`: the callers' files of its commit.
  void AddInspected(const StateFiles& state, const std::vector<double>& shares,
                    const std::vector<std::string>& callers) {
    size_t file = 0;
    for (size_t rank = 0; rank < state.ranks.size(); ++rank) {
      for (const std::string& path : state.ranks[rank].paths) {
        const std::string share =
            shares.size() < 2 ? "" : fmt::format(", {:.1f} % of the state", 100 * shares[file++]);
        Add("state file", path, share + RankNote(state, rank));
      }
    }
    for (const std::string& path : callers) Add("caller's file", path, "");
    uuids_.insert(state.uuid);
  }
  /// What lies beside those that were added.
  void AddOthers() {
    for (const std::string& folder : std::set(folders_)) {
      for (const std::string& path : offload::AllStatesIn(folder)) {
        if (!listed_.contains(Key(path))) Add("beside it", path, IsOurs(path) ? kNoName : kOthers);
      }
    }
  }

 private:
  static constexpr const char* kNoName = "; of this run, but neither it nor a snapshot names it";
  static constexpr const char* kOthers = "; another run's";

  /// The same for all ways to write a path.
  static std::string Key(const std::string& path) {
    std::error_code ignored;
    return fs::weakly_canonical(path, ignored).string();
  }
  bool IsOurs(const std::string& path) const {
    return std::ranges::any_of(
        uuids_, [&](const std::string& uuid) { return path.find(uuid) != std::string::npos; });
  }

  Lines& lines_;
  std::set<std::string> listed_;
  std::set<std::string> folders_;
  std::set<std::string> uuids_;
};

/// What resumes a run.
const char* ResumeOf(RunKind kind) { return kind == RunKind::kTrain ? "--resume" : "run="; }

/// Of `run`, without the one that lies in `inspected`.
void AddSnapshots(const Folder& run, const RunInfo& of_run, const Folder& inspected,
                  FileLines& files) {
  const Result<Folder> snapshots = OpenSnapshotsFolder(run);
  if (!snapshots.ok()) return;
  for (const std::string& name : Snapshots(run)) {
    const Result<Folder> folder = snapshots->OpenFolder(name);
    if (!folder.ok()) continue;
    const Result<bool> is_inspected = inspected.IsAt(folder->path());
    if (is_inspected.ok() && *is_inspected) continue;
    const Result<RunInfo> info = ReadRunInfo(*folder);
    if (info.ok() && info->state)
      files.Add("snapshot", *info->state, fmt::format("; kept as {}", name));
  }
  for (const std::string& name : UnfinishedSnapshots(*snapshots, of_run.run_uuid)) {
    const Result<Folder> folder = snapshots->OpenFolder(name);
    if (!folder.ok()) continue;
    const Result<StateFiles> state = FilesOfUnfinished(*folder);
    if (!state.ok()) continue;
    files.Add(
        "left over", *state,
        fmt::format("; of a snapshot that is being made or was cut off; {} or clean removes it",
                    ResumeOf(of_run.kind)));
  }
}

/// Lists the files on the drives, whether or not they can be read; `state` is null if they cannot.
void AddFiles(const Folder& folder, const RunInfo& info, const zero::CommittedState* state,
              Lines& lines) {
  FileLines files(lines);
  Result<std::vector<std::string>> callers = std::vector<std::string>();
  if (state != nullptr) callers = state->CallerPaths();  // what is wrong with them, the check says
  files.AddInspected(*info.state, state == nullptr ? std::vector<double>() : state->Shares(),
                     callers.ok() ? *callers : std::vector<std::string>());
  for (const StateFiles& state : info.leftovers) {
    files.Add(
        "left over", state,
        fmt::format("; of a move that was cut off; {} or clean removes it", ResumeOf(info.kind)));
  }
  const std::optional<std::string> run = RunOfSnapshot(folder);
  const Result<Folder> around = run ? Folder::Open(*run) : folder.Reopen();
  if (around.ok()) {
    const Result<RunInfo> whole = ReadRunInfo(*around);
    if (run && whole.ok() && whole->state) {
      files.Add("beside it", *whole->state, fmt::format("; of {}, whose snapshot this is", *run));
    }
    AddSnapshots(*around, whole.ok() ? *whole : info, folder, files);
  }
  files.AddOthers();
}

/// What ranks have said of the last failure.
void AddReports(const Folder& run, Lines& lines) {
  const Result<Folder> reports = OpenReportsFolder(run);
  if (!reports.ok()) return;
  const Result<std::vector<FoundFile>> files = ReportFiles(*reports);
  if (!files.ok()) return;
  for (const FoundFile& file : *files) {
    lines.Add("failure report",
              fmt::format("{} ({})", reports->PathOf(file.name), ToString(file.size)));
  }
}

/// "lo int16, exp_avg fp32, exp_avg_sq fp32".
std::string StatesText(const offload::Planes& planes) {
  std::vector<std::string> states;
  for (const offload::Plane& plane : planes.record()) {
    states.push_back(fmt::format("{} {}", ToString(plane.role), ToString(plane.encoding)));
  }
  return fmt::format("{}", fmt::join(states, ", "));
}

/// Of each kind of group: "bf16", "bf16; fp32 (norms, biases)".
template <typename Text>
std::string OfGroups(const offload::ModelLayout& model, Text text) {
  std::vector<std::pair<std::string, std::string>> kinds;  // text, names of groups
  for (const offload::GroupLayout& group : model.groups) {
    const std::string of_group = text(group);
    const auto known = std::ranges::find(kinds, of_group, &decltype(kinds)::value_type::first);
    if (known == kinds.end()) {
      kinds.emplace_back(of_group, group.name);
    } else {
      known->second += ", " + group.name;
    }
  }
  std::vector<std::string> lines;
  for (const auto& [of_group, names] : kinds) {
    lines.push_back(kinds.size() == 1 ? of_group : fmt::format("{} ({})", of_group, names));
  }
  return fmt::format("{}", fmt::join(lines, "; "));
}

void AddState(const zero::CommittedState& state, Lines& lines) {
  const zero::TrainState& train = state.train_state();
  Bytes weight_bytes;
  Bytes record_bytes;
  size_t tiles = 0;
  for (uint32_t rank = 0; rank < state.world_size(); ++rank) {
    weight_bytes += state.shard(rank).weight_bytes();
    record_bytes += state.shard(rank).record_bytes();
    tiles += state.shard(rank).tiles.size();
  }
  lines.Add("committed step", train.step);
  lines.Add("optimizer steps", train.optimizer_steps);
  if (train.skipped_in_a_row > 0) {
    lines.Add("skipped in a row",
              fmt::format("{}, the last steps before it", train.skipped_in_a_row));
  }
  lines.Add("seed", train.seed);
  if (state.world_size() > 1) lines.Add("ranks", state.world_size());
  const offload::ModelLayout& model = state.model();
  const std::string weights = OfGroups(model, [](const offload::GroupLayout& group) {
    return std::string(ToString(group.planes.weight().encoding)) + (group.frozen ? ", frozen" : "");
  });
  const std::string states =
      OfGroups(model, [](const offload::GroupLayout& group) { return StatesText(group.planes); });
  lines.Add("parameters", model.parameters);
  lines.Add("weights", fmt::format("{}, {}", weights, ToString(weight_bytes)));
  lines.Add("optimizer states", fmt::format("{}, {}", states, ToString(record_bytes)));
  lines.Add("modules", model.modules.size());
  lines.Add("tiles", fmt::format("{} of at most {} elements", tiles, state.shard(0).tile_elements));
  lines.Add("slots", state.durable() ? "2 (durable)" : "1 (not durable)");
}

/// "1.50 GiB/ 12.0 GiB" on a terminal, at most ten times a second.
offload::CheckProgress ShowProgress(StatusLine* line) {
  if (::isatty(STDERR_FILENO) == 0) return offload::kNoProgress;
  return [line, last = Clock::time_point()](Bytes done, Bytes total) mutable {
    if (Clock::now() - last < std::chrono::milliseconds(100)) return Status();
    last = Clock::now();
    line->Show(fmt::format("verified {} of {}", ToString(done), ToString(total)));
    return Status();
  };
}

/// What was changed in the run, as run.json says.
void AddChanges(const RunInfo& info, uint64_t committed, Lines& lines) {
  for (const RunChange& change : info.changes) {
    lines.Add("changed", fmt::format("{}, from step {} on{}", ToText(change), change.step + 1,
                                     change.step < committed ? "" : ", which is not committed"));
  }
  for (const StepRange& range : info.skip_steps) {
    lines.Add("passed over", fmt::format("steps {} to {}{}", range.first, range.last,
                                         range.last < committed ? "" : ", when they come"));
  }
}

/// Values that no healthy training has. They are as they were written, and so no damage.
void AddValues(const std::vector<zero::ValueFault>& faults, Lines& lines) {
  const size_t listed = std::min(faults.size(), kMaxFaults);
  for (size_t i = 0; i < listed; ++i) lines.Add("unhealthy values", ToText(faults[i]));
  if (listed < faults.size()) {
    lines.Add("unhealthy values", fmt::format("and of {} more", faults.size() - listed));
  }
}

/// What is in a commit, and whether --resume resumes from it.
struct CommitFinding {
  offload::CommitName name;
  std::vector<std::string> damages;  ///< of its tiles
};

/// A line for each commit, the newest first. `doubted`: see run/doubted_commit.h. `resume`: of the
/// run.
void AddCommits(const std::vector<CommitFinding>& found, const std::optional<uint64_t>& doubted,
                const char* resume, Lines& lines) {
  std::vector<offload::CommitName> names;
  for (const CommitFinding& commit : found) names.push_back(commit.name);
  const CommitFinding* in_use = nullptr;
  const Result<offload::ChosenCommit> taken =
      offload::ChooseCommit({.commits = names,
                             .use = [&](const offload::CommitName& name) -> Status {
                               in_use = &*std::ranges::find(found, name, &CommitFinding::name);
                               return {};
                             },
                             .damages = [&] { return Result(in_use->damages); },
                             .doubted = doubted});
  for (size_t i = 0; i < found.size(); ++i) {
    const auto& [name, damages] = found[i];
    std::string text = fmt::format("of step {}: ", name.step);
    if (damages.empty()) {
      text += "whole";
    } else if (i == 0) {
      text += fmt::format("damaged in {} part{}", damages.size(), damages.size() == 1 ? "" : "s");
    } else {
      // Where the newest commit is whole, that is how it should be, and no drive is at fault.
      text += fmt::format("no longer whole: overwritten or damaged in {} part{}{}", damages.size(),
                          damages.size() == 1 ? "" : "s",
                          found.front().damages.empty() ? "" : ", first " + damages.front());
    }
    if (doubted == name.step && i == 0) text += "; in doubt: a loss after it was not finite";
    if (taken.ok() && taken->name == name) text += fmt::format("; {} resumes from it", resume);
    lines.Add("commit", text);
  }
}

/// Reads the commits before the one in use, which stays.
Status CheckOthers(zero::CommittedState& state, const offload::CheckProgress& progress,
                   std::vector<CommitFinding>& found) {
  const offload::CommitName newest = state.commit();
  for (const offload::CommitName& name : state.commits()) {
    if (name == newest) continue;
    PENSTOCK_TRY(state.Use(name));
    PENSTOCK_ASSIGN(std::vector<std::string> damages, state.DamagedTiles(progress));
    found.push_back({name, std::move(damages)});
  }
  return state.Use(newest);
}

Status Intact(const std::string& run, const std::vector<std::string>& damages) {
  if (damages.empty()) return {};
  return MakeError(ErrorCode::kCorruption, "{}: damaged parts of its state: {}; the first: {}", run,
                   damages.size(), damages.front());
}

}  // namespace

Result<InspectOutcome> RunInspect(const std::string& path) {
  PENSTOCK_ASSIGN(const Folder run, OpenRun(path));
  PENSTOCK_ASSIGN(const RunInfo info, ReadCommittedInfo(run));
  PENSTOCK_ASSIGN(const StateFiles files, CommittedFiles(info, path));
  const auto opened = OpenFiles(files);
  Lines lines;
  AddFiles(run, info, opened.ok() ? opened->get() : nullptr, lines);
  AddReports(run, lines);
  lines.Add("uuid", files.uuid);
  if (!opened.ok()) return InspectOutcome{.text = lines.Take(), .intact = opened.error()};
  zero::CommittedState& state = **opened;
  const Status fits = CheckInfo(info, state);
  StatusLine line(stderr, true);
  const offload::CheckProgress progress = ShowProgress(&line);
  const Clock::time_point start = Clock::now();
  PENSTOCK_ASSIGN(const zero::CommitCheck check, state.Check(progress));
  const double seconds =
      std::max(std::chrono::duration<double>(Clock::now() - start).count(), 1e-9);
  std::vector<CommitFinding> found = {
      {state.commit(),
       {check.damages.begin() + static_cast<ptrdiff_t>(check.in_heads), check.damages.end()}}};
  AddState(state, lines);
  AddChanges(info, state.train_state().step, lines);
  if (info.kind != RunKind::kTrain) lines.Add("run of", ToString(info.kind));
  if (info.kind == RunKind::kTrain)
    lines.Add("data", fmt::format("{} ({}, sequence length {})", info.training.data_path,
                                  info.training.data_order, info.training.sequence_length));
  lines.Add("read", fmt::format("{} at {:.2f} GB/s", ToString(check.read),
                                static_cast<double>(check.read.value) / seconds / 1e9));
  AddValues(check.values, lines);
  PENSTOCK_TRY(CheckOthers(state, progress, found));
  line.Finish();
  AddCommits(found, DoubtedStep(run, files.uuid), ResumeOf(info.kind), lines);
  for (const std::string& damage : check.damages) lines.Add("damaged", damage);
  if (!fits.ok()) {
    lines.Add("damaged", fits.error().message);
  } else if (check.damages.empty()) {
    lines.Add("checksums", "all verified");
  }
  const Status intact = Intact(path, check.damages);
  return InspectOutcome{.text = lines.Take(), .intact = intact.ok() ? fits : intact};
}

}  // namespace penstock::train
