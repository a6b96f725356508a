#include "train/trainer/run_facts.h"

#include <algorithm>
#include <utility>

#include "run/identity/run_identity.h"
#include "train/plan/batch_rampup.h"

namespace penstock::train {

TrainOptions CompleteFrom(const RunInfo& info, TrainOptions options) {
  const DataOrder order = info.training.data_order == ToString(DataOrder::kSequential)
                              ? DataOrder::kSequential
                              : DataOrder::kShuffle;
  options.seed = options.seed.value_or(info.training.seed);
  options.data_order = options.data_order.value_or(order);
  options.sequence_length = options.sequence_length.value_or(info.training.sequence_length);
  return options;
}

RunInfo InfoOf(const TrainOptions& options, const TrainJob& job, const std::string& run,
               const StateFiles& state, const std::string& run_uuid) {
  return {.program = PENSTOCK_VERSION,
          .run_uuid = run_uuid,
          .place = run,
          .state = state,
          .training = {.model_json = job.model.config_json,
                       .data_path = job.data_path,
                       .data_order = ToString(*options.data_order),
                       .seed = *options.seed,
                       .sequence_length = job.shape.sequence,
                       .device = device::ToString(job.device)}};
}

std::string IdentityOf(const TrainOptions& options, const TrainJob& job, std::string arithmetic) {
  return ToJson(RunIdentity{.model = job.model.description->Identity(),
                            .data_fingerprint = job.data_fingerprint,
                            .data_order = ToString(*options.data_order),
                            .seed = *options.seed,
                            .sequence_length = job.shape.sequence,
                            .config = job.config,
                            .ranks = job.world.size,
                            .arithmetic = std::move(arithmetic)});
}

Result<uint64_t> ConsumedSamples(const ResumePoint& from, const TrainJob& job) {
  const uint64_t consumed =
      from.consumed_samples.value_or(from.train.step * BatchOf(from.identity));
  // A changed batch begins where the previous one ended.
  if (!job.config.rampup || consumed % (job.config.micro_batch_size * job.world.size) == 0)
    return consumed;
  return MakeError(ErrorCode::kCorruption,
                   "--resume: the commit of step {} says that {} samples were taken, which are no "
                   "whole micro-batches of {} ranks; resume from a snapshot, or start a new run",
                   from.train.step, consumed, job.world.size);
}

uint64_t LastStepOfEpoch(const ResumePoint& from, const TrainJob& job, uint64_t consumed) {
  const uint64_t rows = job.data.rows();
  if (job.config.rampup) {
    return RampupOf(job.config).StepsWithin(rows);
  }
  return from.train.step + (rows - std::min(rows, consumed)) / job.config.train_batch_size;
}

}  // namespace penstock::train
