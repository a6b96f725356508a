// What a commit keeps of a training beside the tiles.
#pragma once

#include <cstdint>
#include <string>

#include "offload/commit_record.h"

namespace penstock::zero {

/// The head of a commit's record, and the text that goes with it.
struct TrainState : offload::CommitHead {
  std::string run_json;  ///< the trainer's own: model, data and config identities
};

offload::CommitRecord MakeRecord(const TrainState& state, uint64_t session);
TrainState StateOf(const offload::CommitRecord& record);

}  // namespace penstock::zero
