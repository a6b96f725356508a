#include "zero/states/train_state.h"

namespace penstock::zero {

offload::CommitRecord MakeRecord(const TrainState& state, uint64_t session) {
  return {.head = state, .session = session, .json = state.run_json};
}

TrainState StateOf(const offload::CommitRecord& record) { return {record.head, record.json}; }

}  // namespace penstock::zero
