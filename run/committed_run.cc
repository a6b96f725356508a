#include "run/committed_run.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/strict_json.h"
#include "offload/uuid.h"
#include "run/identity/run_identity.h"

namespace penstock::train {
namespace {

namespace fs = std::filesystem;

/// Whether what a commit of a step says of its run is what the training loop puts into one, as far
/// as it is read anywhere.
bool IsOfALoop(const nlohmann::json& texts, uint64_t step) {
  const auto run = texts.find("run");
  if (run == texts.end() || !IsIdentity(*run)) return false;
  const auto consumed = texts.find(kConsumedSamples);
  if (HasRampup(*run) && consumed == texts.end()) return false;
  if (consumed != texts.end() && !consumed->is_number_unsigned()) return false;
  const auto row = texts.find("row");
  if (row == texts.end()) return true;
  if (!row->is_object()) return false;
  const auto of = row->find("step");
  return of != row->end() && of->is_number_unsigned() && *of == step;
}

}  // namespace

Result<CommitTexts> ReadCommitTexts(const std::string& json, uint64_t step,
                                    const std::string& path) {
  const std::string name =
      fmt::format("{}: what the commit of step {} says of its run", path, step);
  PENSTOCK_ASSIGN(const nlohmann::json checked,
                  ParseJsonObject(json, name, ErrorCode::kCorruption));
  if (!IsOfALoop(checked, step)) {
    return MakeError(ErrorCode::kCorruption,
                     "{} is not what a training puts there: an object \"run\" with the arithmetic, "
                     "a \"row\" of that step, and \"{}\" if the batch grows or was changed",
                     name, kConsumedSamples);
  }
  // The keys of a row have an order.
  const auto texts = nlohmann::ordered_json::parse(json);
  CommitTexts read{.identity = texts["run"].dump(),
                   .row = texts.contains("row") ? texts["row"].dump() : std::string()};
  if (texts.contains(kConsumedSamples)) {
    read.consumed_samples = texts[kConsumedSamples].get<uint64_t>();
  }
  return read;
}

Status CheckStateOf(const RunInfo& info, const std::string& uuid) {
  if (info.state && uuid == info.state->uuid) return {};
  return MakeError(ErrorCode::kCorruption,
                   "run.json names the state {}, and {} is of the state {}: another run's file is "
                   "in its place, or run.json was changed; put back what was there",
                   info.state->uuid, info.state->first(), uuid);
}

Status CheckIsThere(const StateFiles& files, const std::string& run) {
  for (const std::string& path : files.all()) {
    std::error_code ignored;
    if (fs::exists(fs::symlink_status(path, ignored))) continue;
    return MakeError(ErrorCode::kNotFound,
                     "{} is not there, which has the newest commit of {}: mount its drive if it is "
                     "not mounted, or put the file back",
                     path, run);
  }
  return {};
}

Result<std::unique_ptr<zero::CommittedState>> OpenFiles(const StateFiles& files,
                                                        offload::StateLock lock) {
  auto state = zero::CommittedState::Open(files.paths(), lock);
  if (!state.ok()) return NamingHost(state.error(), files);
  return state;
}

Result<offload::WholeState> OpenCommitToCopy(const RunInfo& info, offload::StateLock lock) {
  Result<offload::WholeState> state = offload::WholeState::Open(info.state->paths(), lock);
  if (!state.ok()) return NamingHost(state.error(), *info.state);
  PENSTOCK_TRY(CheckStateOf(info, offload::ToString(state->uuid())));
  return state;
}

}  // namespace penstock::train
