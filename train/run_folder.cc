#include "train/run_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/folder.h"
#include "base/unique_fd.h"
#include "train/files.h"
#include "train/strict_json.h"

namespace penstock::train {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int kInfoVersion = 1;
constexpr Bytes kLargestInfo = 64_MiB;  // it holds a config.json

constexpr std::string_view kInfoName = "run.json";
constexpr std::string_view kMetricsName = "metrics.jsonl";
constexpr std::string_view kSummaryName = "summary.json";
constexpr std::array kFileNames = {kInfoName, kMetricsName, kSummaryName};

std::string InfoPath(const fs::path& folder) { return (folder / kInfoName).string(); }

/// "state.penstock" for RUN/state.penstock, everything else unchanged: a run whose state lies in
/// RUN can be moved.
Json RelativeTo(const fs::path& folder, const std::vector<std::string>& paths) {
  Json relative = Json::array();
  for (const std::string& path : paths) {
    const fs::path parent = fs::path(path).parent_path();
    std::error_code ignored;
    const bool inside = fs::equivalent(parent, folder, ignored);
    relative.push_back(inside ? fs::path(path).filename().string() : path);
  }
  return relative;
}

StateFiles StateFilesOf(const nlohmann::json& json, const fs::path& folder) {
  StateFiles state{.uuid = json.at("state_uuid").get<std::string>()};
  for (const auto& entry : json.at("state_paths")) {
    const fs::path path = entry.get<std::string>();
    state.paths.push_back((path.is_absolute() ? path : folder / path).string());
  }
  return state;
}

}  // namespace

std::string RunFolder::MetricsPathIn(const std::string& run) {
  return (fs::path(run) / kMetricsName).string();
}
std::string RunFolder::SummaryPath() const { return (fs::path(path_) / kSummaryName).string(); }

Result<RunFolder> RunFolder::Create(const std::string& path) {
  std::error_code error;
  fs::path absolute = fs::absolute(path, error).lexically_normal();
  if (!absolute.has_filename()) absolute = absolute.parent_path();
  if (fs::exists(fs::symlink_status(absolute, error))) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "--out {}: it exists already; go on from its last commit with --resume, name "
                     "another folder, or remove it",
                     path);
  }
  PENSTOCK_TRY(MakeFolders(absolute.parent_path().string()).status());
  // create_directory accepts a folder that appeared meanwhile; the run must be the one that made
  // it.
  if (!fs::create_directory(absolute, error)) {
    return ErrnoError(error ? error.value() : EEXIST, "creating " + absolute.string());
  }
  PENSTOCK_ASSIGN(RunLock lock, RunLock::Take(absolute.string()));
  RunFolder folder(absolute.string(), std::move(lock), true);
  PENSTOCK_TRY(SyncFolder(absolute.parent_path().string()));
  return folder;
}

Result<RunFolder> RunFolder::Open(const std::string& path) {
  std::error_code error;
  const fs::path absolute = fs::canonical(path, error);
  if (error) return ErrnoError(error.value(), "looking at " + path);
  PENSTOCK_ASSIGN(RunLock lock, RunLock::Take(absolute.string()));
  return RunFolder(absolute.string(), std::move(lock), false);
}

RunFolder::RunFolder(RunFolder&& other) noexcept
    : path_(std::move(other.path_)),
      lock_(std::move(other.lock_)),
      remove_(std::exchange(other.remove_, false)) {}

RunFolder::~RunFolder() {
  if (!remove_) return;
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

Status RunFolder::WriteInfo(const RunInfo& info) const { return WriteRunInfo(path_, info); }

Status WriteRunInfo(const std::string& folder, const RunInfo& info) {
  Json leftovers = Json::array();
  for (const StateFiles& state : info.leftovers) {
    leftovers.push_back(
        {{"state_paths", RelativeTo(folder, state.paths)}, {"state_uuid", state.uuid}});
  }
  Json json = {
      {"version", kInfoVersion},
      {"program", info.version},
      {"state_paths", RelativeTo(folder, info.state.paths)},
      {"state_uuid", info.state.uuid},
      {"leftovers", leftovers},
      {"seed", info.seed},
      {"device", info.device},
      {"sequence_length", info.sequence_length},
      {"data", {{"path", info.data_path}, {"order", info.data_order}}},
      {"model", info.model_json},
  };
  if (info.rows_from) json["rows_from"] = *info.rows_from;
  return WriteTextFile(InfoPath(folder), json.dump(2) + "\n");
}

Status CopyRows(const std::string& from_run, const std::string& to_run) {
  const std::string from = RunFolder::MetricsPathIn(from_run);
  const std::string to = RunFolder::MetricsPathIn(to_run);
  const std::string temporary = fmt::format("{}.tmp-{}", to, ::getpid());
  std::error_code error;
  if (!fs::exists(from, error)) return WriteTextFile(to, "");
  fs::copy_file(from, temporary, fs::copy_options::overwrite_existing, error);
  if (!error) {
    const UniqueFd copy(::open(temporary.c_str(), O_RDONLY | O_CLOEXEC));
    if (!copy.valid() || ::fdatasync(copy.get()) != 0) error.assign(errno, std::system_category());
  }
  if (!error) fs::rename(temporary, to, error);
  if (!error) return SyncFolder(to_run);
  std::error_code ignored;
  fs::remove(temporary, ignored);
  return ErrnoError(error.value(), fmt::format("copying {} to {}", from, to));
}

Status RunFolder::WriteSummary(const std::string& text) const {
  return WriteTextFile(SummaryPath(), text);
}

Result<std::vector<std::string>> FilesOfRun(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code error;
  fs::directory_iterator it(folder, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    const std::string name = it->path().filename().string();
    // "<name>.tmp-<pid>" is what a killed process left of an OutputFile.
    const std::string whole = name.substr(0, name.find(".tmp-"));
    const bool ours = std::find(kFileNames.begin(), kFileNames.end(), whole) != kFileNames.end();
    if (ours && name != kInfoName) files.push_back((fs::path(folder) / name).string());
  }
  if (error) return ErrnoError(error.value(), "listing " + folder);
  std::sort(files.begin(), files.end());
  files.push_back(InfoPath(folder));
  return files;
}

Result<RunInfo> ReadRunInfo(const std::string& folder) {
  const std::string path = InfoPath(folder);
  const Result<std::string> text = ReadTextFile(path, kLargestInfo);
  if (!text.ok() && text.error().code == ErrorCode::kNotFound) {
    return MakeError(ErrorCode::kNotFound,
                     "{} is not there: {} is not the folder of a run that penstock train made",
                     path, folder);
  }
  PENSTOCK_TRY(text.status());
  PENSTOCK_ASSIGN(const nlohmann::json json, ParseJsonObject(*text, path, ErrorCode::kCorruption));
  try {
    if (json.at("version").get<int>() != kInfoVersion) {
      return MakeError(ErrorCode::kCorruption, "{}: version {} is not known to this program", path,
                       json.at("version").dump());
    }
    RunInfo info;
    info.version = json.at("program").get<std::string>();
    info.state = StateFilesOf(json, folder);
    if (info.state.paths.empty()) {
      return MakeError(ErrorCode::kCorruption, "{} is damaged: it names no state file", path);
    }
    for (const auto& entry : json.value("leftovers", nlohmann::json::array())) {
      info.leftovers.push_back(StateFilesOf(entry, folder));
    }
    if (json.contains("rows_from")) info.rows_from = json["rows_from"].get<std::string>();
    info.seed = json.at("seed").get<uint64_t>();
    info.device = json.at("device").get<std::string>();
    info.sequence_length = json.at("sequence_length").get<uint64_t>();
    info.data_path = json.at("data").at("path").get<std::string>();
    info.data_order = json.at("data").at("order").get<std::string>();
    info.model_json = json.at("model").get<std::string>();
    return info;
  } catch (const nlohmann::json::exception& error) {
    return MakeError(ErrorCode::kCorruption, "{} is damaged: {}", path, error.what());
  }
}

}  // namespace penstock::train
