#include "run/state_owner.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/files.h"
#include "base/strict_json.h"

namespace penstock::train {
namespace {

constexpr std::string_view kPrefix = "penstock-";
constexpr std::string_view kState = ".state";
constexpr std::string_view kOwner = ".run";
/// What programs of the package have written in a folder of a run's states, instead.
constexpr const char* kOlderOwner = "run.name";
constexpr Bytes kMaxOwnerSize = 64_KiB;

/// "penstock-<UUID>.run" of "penstock-<UUID>.state"; empty for a file of another name.
std::string OwnerName(const std::string& state) {
  if (!state.starts_with(kPrefix) || !state.ends_with(kState)) return {};
  return state.substr(0, state.size() - kState.size()).append(kOwner);
}

/// The run that a file names: a JSON text, or, in what the package wrote, the value of "run".
std::string NamedRun(const Folder& folder, const std::string& name) {
  const Result<std::string> text = ReadTextFile(folder, name, kMaxOwnerSize);
  nlohmann::json said;
  if (!text.ok() || ParseStrictly(*text, {}, &said)) return {};
  if (said.is_object() && said.contains("run")) said = nlohmann::json(said["run"]);
  return said.is_string() ? said.get<std::string>() : std::string();
}

bool IsStateName(const std::string& name) {
  return name.starts_with(kPrefix) && name.ends_with(kState);
}

/// The states in a folder that belong to the run at `run`. `below`: look into the folders in it in
/// which the package had its states.
void FindOrphans(const Folder& folder, const std::string& run, bool below,
                 std::vector<std::string>* found) {
  const Result<std::vector<std::string>> names = folder.List();
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    const bool own =
        IsStateName(name) && std::ranges::find(*names, OwnerName(name)) != names->end();
    if (own && NamedRun(folder, OwnerName(name)) == run) found->push_back(folder.PathOf(name));
    const bool older = !below && IsStateName(name) && NamedRun(folder, kOlderOwner) == run;
    if (older) found->push_back(folder.PathOf(name));
    if (!below || !name.starts_with(kPrefix)) continue;
    const Result<Folder> inner = folder.OpenFolder(name);
    if (inner.ok()) FindOrphans(*inner, run, false, found);
  }
}

Status WriteOwner(const StateFiles& state, const Folder& run) {
  const auto [path, name] = SplitPath(state.first());
  const std::string owner = OwnerName(name);
  PENSTOCK_ASSIGN(const bool in_run, run.IsAt(path));
  if (in_run || owner.empty()) return {};
  PENSTOCK_ASSIGN(const Folder folder, Folder::Open(path));
  if (NamedRun(folder, owner) == run.path()) return {};
  return WriteTextFile(folder, owner, nlohmann::json(run.path()).dump() + "\n");
}

}  // namespace

void NoteOwner(const StateFiles& state, const Folder& run, const Notify& notify) {
  const Status written = WriteOwner(state, run);
  if (written.ok()) return;
  notify(fmt::format("if {} is lost, a new training there will not notice {}: {}", run.path(),
                     state.first(), written.error().message));
}

std::string OwnerOf(const StateFiles& state) {
  if (state.ranks.empty()) return {};
  const auto [path, name] = SplitPath(state.first());
  const std::string owner = OwnerName(name);
  const Result<Folder> folder = Folder::Open(path);
  return owner.empty() || !folder.ok() ? std::string() : NamedRun(*folder, owner);
}

Result<std::optional<OwnerFiles>> FindOwner(const StateFiles& state,
                                            const std::vector<std::string>& runs) {
  using None = std::optional<OwnerFiles>;
  if (state.ranks.empty()) return None();
  const auto [path, state_name] = SplitPath(state.first());
  const std::string owner = OwnerName(state_name);
  Result<Folder> folder = Folder::Open(path);
  if (owner.empty() || !folder.ok()) return None();
  OwnerFiles found{.folder = *std::move(folder), .files = {}};
  PENSTOCK_ASSIGN(const std::vector<std::string> names, found.folder.List());
  for (const std::string& name : names) {
    if (WithoutTemporary(name) != owner) continue;
    PENSTOCK_ASSIGN(const FolderEntry entry, found.folder.Look(name));
    if (entry.kind != FolderEntry::Kind::kFile) continue;
    const std::string run = NamedRun(found.folder, name);
    const bool names_run = !run.empty() && std::ranges::find(runs, run) != runs.end();
    // A file that was being written has the UUID of the state, and may still be empty.
    if (!names_run && name == owner) continue;
    found.files.push_back({.name = name, .id = entry.id, .size = entry.size});
  }
  if (found.files.empty()) return None();
  return std::optional(std::move(found));
}

Result<std::vector<OwnerFiles>> FindOlderFolders(const StateFiles& state,
                                                 const std::vector<std::string>& runs) {
  std::vector<OwnerFiles> found;
  for (const std::string& file : state.all()) {
    const std::string path = SplitPath(file).first;
    Result<Folder> folder = Folder::Open(path);
    const bool of_run = std::ranges::find(runs, path) != runs.end();
    if (of_run || !folder.ok() || !SplitPath(path).second.starts_with(kPrefix)) continue;
    PENSTOCK_ASSIGN(const FolderEntry entry, folder->Look(kOlderOwner));
    found.push_back({.folder = *std::move(folder), .files = {}});
    if (entry.kind != FolderEntry::Kind::kFile) continue;
    if (std::ranges::find(runs, NamedRun(found.back().folder, kOlderOwner)) == runs.end()) continue;
    found.back().files.push_back({.name = kOlderOwner, .id = entry.id, .size = entry.size});
  }
  return found;
}

Status CheckNoOrphan(const std::string& run, const std::vector<std::string>& nvme_paths,
                     const std::vector<StateFiles>& known) {
  std::vector<std::string> states;
  for (const std::string& path : nvme_paths) {
    const Result<Folder> folder = Folder::Open(path);
    if (folder.ok()) FindOrphans(*folder, run, true, &states);
  }
  for (const StateFiles& state : known) {
    std::erase_if(states, [&](const std::string& path) { return path == state.first(); });
  }
  if (states.empty()) return {};
  return MakeError(ErrorCode::kNotFound,
                   "no run is in {} that has a commit, but {} {} of a training whose folder was "
                   "there; if that was moved, resume it at its new place, or name another folder "
                   "for a new training; else put it back; removing the state deletes its commits",
                   run, fmt::join(states, " and "), states.size() == 1 ? "is" : "are");
}

}  // namespace penstock::train
