#include "train/run/committed_run.h"

#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "base/strict_json.h"
#include "offload/uuid.h"
#include "train/process/log.h"
#include "train/run/run_identity.h"

namespace penstock::train {

namespace {

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

/// `uuid` is the state's, the others are the commit's.
Status CheckInfoOf(const RunInfo& info, const std::string& uuid, uint64_t step,
                   const std::string& json, ModelFamilies families) {
  const std::string& state = info.state.first();
  if (uuid != info.state.uuid) {
    return MakeError(
        ErrorCode::kCorruption,
        "run.json names the state {}, and {} is of the state {}: another run's file is "
        "in its place, or run.json was changed; put back what was there",
        info.state.uuid, state, uuid);
  }
  PENSTOCK_ASSIGN(const CommitTexts texts, ReadCommitTexts(json, step, state));
  const Result<ParsedModel> model = ParseModel(info.model_json, "of run.json", families);
  if (!model.ok()) {
    return MakeError(ErrorCode::kCorruption,
                     "run.json does not hold the model that step {} in {} was committed with: {}; "
                     "put back what it said",
                     step, state, model.error().message);
  }
  const std::vector<std::string> differences =
      DifferencesFromRun(texts.identity, {.model = model->described.model->Identity(),
                                          .data_order = info.data_order,
                                          .seed = info.seed,
                                          .sequence_length = info.sequence_length});
  if (differences.empty()) return {};
  return MakeError(ErrorCode::kCorruption,
                   "run.json does not say what step {} in {} was committed with: {}; put back what "
                   "it said",
                   step, state, fmt::join(differences, "; "));
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

Status CheckInfo(const RunInfo& info, const zero::CommittedState& state, ModelFamilies families) {
  const zero::TrainState& train = state.train_state();
  return CheckInfoOf(info, state.uuid(), train.step, train.run_json, families);
}

Result<std::unique_ptr<zero::CommittedState>> OpenFiles(const StateFiles& files,
                                                        offload::StateLock lock) {
  auto state = zero::CommittedState::Open(files.paths(), lock);
  if (!state.ok()) return NamingHost(state.error(), files);
  return state;
}

Result<std::unique_ptr<zero::CommittedState>> OpenCommit(const RunInfo& info) {
  PENSTOCK_ASSIGN(auto state, OpenFiles(info.state));
  PENSTOCK_TRY(CheckInfo(info, *state));
  if (!state->notice().empty()) LogNotice(state->notice());
  return state;
}

Result<offload::WholeState> OpenCommitToCopy(const RunInfo& info, offload::StateLock lock,
                                             ModelFamilies families) {
  Result<offload::WholeState> state = offload::WholeState::Open(info.state.paths(), lock);
  if (!state.ok()) return NamingHost(state.error(), info.state);
  const offload::CommitRecord& commit = state->commit();
  PENSTOCK_TRY(
      CheckInfoOf(info, offload::ToString(state->uuid()), commit.head.step, commit.json, families));
  return state;
}

}  // namespace penstock::train
