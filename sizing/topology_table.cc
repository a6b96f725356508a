// Enumerates and judges. Reading a file is in topology_table_parse.cc, text and JSON are in
// topology_table_output.cc.
#include "sizing/topology_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "sizing/quantization.h"
#include "sizing/step_work.h"

namespace penstock::train {
namespace {

std::vector<uint64_t> DivisorsOf(uint64_t number) {
  std::vector<uint64_t> divisors;
  for (uint64_t d = 1; d <= number / d; ++d) {
    if (number % d != 0) continue;
    divisors.push_back(d);
    if (d != number / d) divisors.push_back(number / d);
  }
  std::ranges::sort(divisors);
  return divisors;
}

/// Why a row does not fit a GPU; none if it fits or if that is unknown.
std::optional<TopologyReason> MemoryReason(const JudgedTopology& judged, Bytes limit) {
  const TopologyRow& row = judged.row;
  if (row.ran_out_of_memory) {
    std::string text = "it ran out of memory when it was tried";
    if (judged.memory)
      text += fmt::format("; the estimate is {}", ToString(judged.memory->total()));
    return TopologyReason{"memory", text};
  }
  if (row.memory) {
    if (*row.memory <= limit) return std::nullopt;
    return TopologyReason{"memory", fmt::format("it took {} of a GPU, which has {}",
                                                ToString(*row.memory), ToString(limit))};
  }
  if (row.seconds || !judged.memory || judged.memory->total() <= limit) return std::nullopt;
  const TopologyMemory& need = *judged.memory;
  return TopologyReason{
      "memory",
      fmt::format(
          "a GPU needs {} of {}: states {}, checkpoints {}, working {}, buffers {}, runtime {}",
          ToString(need.total()), ToString(limit), ToString(need.states),
          ToString(need.checkpoints), ToString(need.working), ToString(need.buffers),
          ToString(need.runtime))};
}

/// Fills in what follows from a row's shape and time.
void AddSpeed(const ModelShape& shape, JudgedTopology* judged) {
  const Topology& topology = judged->row.topology;
  const StepBatch batch = {.samples = topology.global_batch, .sequence = shape.sequence};
  const StepWork work = WorkOf(shape, batch);
  const auto speed = [&](double flops) {
    return TflopsPerGpu(flops, *judged->seconds, topology.gpus);
  };
  judged->tflops = speed(work.model);
  judged->hardware_tflops = speed(work.hardware);
  judged->earlier_tflops = speed(EarlierMegatronFlops(shape, batch));
}

/// What a table says that its own formula does not.
void WarnOfSpeed(const Cluster& cluster, JudgedTopology* judged) {
  constexpr double kRounding = 0.02;  // of two digits, in TFLOPs and in seconds
  const std::optional<double> stated = judged->row.stated_tflops;
  if (stated && std::abs(*stated - judged->hardware_tflops) > kRounding) {
    judged->warnings.push_back(fmt::format("{:.2f} TFLOPs are stated, the formula gives {:.2f}",
                                           *stated, judged->hardware_tflops));
  }
  if (judged->row.seconds && judged->hardware_tflops > cluster.matrix_tflops) {
    judged->warnings.push_back(
        fmt::format("{:.2f} TFLOPs are more than a GPU's {:.2f}: is GBS or the time wrong?",
                    judged->hardware_tflops, cluster.matrix_tflops));
  }
}

void JudgeShape(const ModelShape& shape, const TopologyJudge& judge, JudgedTopology* judged) {
  const Topology& topology = judged->row.topology;
  judged->memory = EstimateMemory(shape, topology, judge.cluster);
  if (!judged->seconds) judged->seconds = EstimateTime(shape, topology, judge.cluster).total();
  judged->wave_efficiency =
      WaveEfficiency(shape, {.tensor = topology.tensor,
                             .micro_batch = topology.micro_batch,
                             .sequence = shape.sequence,
                             .multiprocessors = judge.cluster.multiprocessors});
  AddSpeed(shape, judged);
  judged->warnings = TopologyWarnings(shape, topology, judge.cluster);
  WarnOfSpeed(judge.cluster, judged);
}

}  // namespace

std::vector<TopologyRow> EnumerateTopologies(const ModelShape& shape,
                                             const TopologySearch& search) {
  std::vector<TopologyRow> rows;
  for (const uint64_t tensor : DivisorsOf(search.gpus)) {
    for (const uint64_t pipeline : DivisorsOf(search.gpus / tensor)) {
      for (const uint64_t micro_batch : search.micro_batches) {
        rows.push_back({.label = {},
                        .shape = shape,
                        .topology = {.gpus = search.gpus,
                                     .data = search.gpus / tensor / pipeline,
                                     .tensor = tensor,
                                     .pipeline = pipeline,
                                     .micro_batch = micro_batch,
                                     .global_batch = search.global_batch}});
      }
    }
  }
  return rows;
}

JudgedTopology JudgeTopology(const TopologyRow& row, const TopologyJudge& judge) {
  JudgedTopology judged{.row = row, .reasons = {}, .warnings = {}, .seconds = row.seconds};
  if (row.shape) {
    judged.reasons = BrokenRules(*row.shape, row.topology, judge.growth);
    JudgeShape(*row.shape, judge, &judged);
  } else {
    judged.reasons = BrokenRules(row.topology, judge.growth);
  }
  const std::optional<TopologyReason> memory = MemoryReason(judged, judge.cluster.memory);
  if (memory) judged.reasons.push_back(*memory);
  if (judged.seconds) {
    judged.samples_per_second = static_cast<double>(row.topology.global_batch) / *judged.seconds;
  }
  return judged;
}

std::vector<JudgedTopology> JudgeTopologies(std::span<const TopologyRow> rows,
                                            const TopologyJudge& judge) {
  std::vector<JudgedTopology> judged;
  judged.reserve(rows.size());
  for (const TopologyRow& row : rows) judged.push_back(JudgeTopology(row, judge));
  const auto others = std::stable_partition(
      judged.begin(), judged.end(), [](const JudgedTopology& row) { return row.possible(); });
  std::stable_sort(judged.begin(), others, [](const JudgedTopology& a, const JudgedTopology& b) {
    return a.seconds.value_or(INFINITY) < b.seconds.value_or(INFINITY);
  });
  return judged;
}

}  // namespace penstock::train
