#include "train/weights/committed_model.h"

#include <fmt/ranges.h>

#include <string>
#include <vector>

#include "offload/uuid.h"
#include "run/committed_run.h"
#include "run/identity/run_identity.h"
#include "train/process/log.h"

namespace penstock::train {
namespace {

/// `uuid` is the state's, the others are the commit's.
Status CheckInfoOf(const RunInfo& info, const std::string& uuid, uint64_t step,
                   const std::string& json, ModelFamilies families) {
  PENSTOCK_TRY(CheckStateOf(info, uuid));
  if (info.kind != RunKind::kTrain) return {};  // its run.json says nothing of the training
  const std::string& state = info.state->first();
  PENSTOCK_ASSIGN(const CommitTexts texts, ReadCommitTexts(json, step, state));
  const Result<ParsedModel> model = ParseModel(info.training.model_json, "of run.json", families);
  if (!model.ok()) {
    return MakeError(ErrorCode::kCorruption,
                     "run.json does not hold the model that step {} in {} was committed with: {}; "
                     "put back what it said",
                     step, state, model.error().message);
  }
  const std::vector<std::string> differences =
      DifferencesFromRun(texts.identity, {.model = model->described.model->Identity(),
                                          .data_order = info.training.data_order,
                                          .seed = info.training.seed,
                                          .sequence_length = info.training.sequence_length});
  if (differences.empty()) return {};
  return MakeError(ErrorCode::kCorruption,
                   "run.json does not say what step {} in {} was committed with: {}; put back what "
                   "it said",
                   step, state, fmt::join(differences, "; "));
}

}  // namespace

Status CheckInfo(const RunInfo& info, const zero::CommittedState& state, ModelFamilies families) {
  const zero::TrainState& train = state.train_state();
  return CheckInfoOf(info, state.uuid(), train.step, train.run_json, families);
}

Status CheckInfo(const RunInfo& info, const offload::WholeState& state) {
  const offload::CommitRecord& commit = state.commit();
  return CheckInfoOf(info, offload::ToString(state.uuid()), commit.head.step, commit.json,
                     AllModelFamilies());
}

Result<std::unique_ptr<zero::CommittedState>> OpenCommit(const RunInfo& info,
                                                         const std::string& run) {
  PENSTOCK_ASSIGN(const StateFiles files, CommittedFiles(info, run));
  PENSTOCK_ASSIGN(auto state, OpenFiles(files));
  PENSTOCK_TRY(CheckInfo(info, *state));
  if (!state->notice().empty()) LogNotice(state->notice());
  return state;
}

}  // namespace penstock::train
