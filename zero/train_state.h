// The counts of a training, which a commit keeps beside the tiles.
#pragma once

#include <cstdint>
#include <string>

namespace penstock::zero {

struct TrainState {
  uint64_t step = 0;             ///< steps done, skipped ones included
  uint64_t optimizer_steps = 0;  ///< updates applied: the rule's t and the scheduler's count
  uint64_t skipped_in_a_row = 0;
  uint64_t seed = 0;
  uint32_t compute_threads = 0;
  std::string run_json;  ///< the trainer's own: model, data and config identities
};

}  // namespace penstock::zero
