// Tables of topologies: measured ones from a file, or all that a number of GPUs can have; judged
// and sorted by the time of a step.
//
// Values and pure functions. Threads: any.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "sizing/topology_rules.h"

namespace penstock::train {

/// A topology, with what was measured of it.
struct TopologyRow {
  std::string label;  ///< "608": what the file calls it, or its line; empty for those enumerated
  /// None if the file names another width than the model's and no layers.
  std::optional<ModelShape> shape;
  Topology topology;
  std::optional<double> seconds = {};  ///< of a step
  std::optional<Bytes> memory = {};    ///< of a GPU
  bool ran_out_of_memory = false;
  std::optional<double> stated_tflops = {};  ///< what the file says; with recomputation
};

struct TopologyTable {
  std::vector<TopologyRow> rows;
  /// For the user: columns that have no effect.
  std::vector<std::string> notices;
};

/// Reads comma-separated values with a header, columns in any order and letters of any case:
///   DP TP PP MBS GBS          needed; an empty cell is 1, but for GBS
///   nodes or gpus             DP · TP · PP unless given; a node has gpus_per_node
///   hidden layers heads       the model's unless given
///   mem sec_it tflops         measured; "75GB" is 2^30 bytes each, "OOM" means it did not fit; "",
///   "x",
///                             "GB" and "none" are nothing. tflops is also called tflops_seed
///   line                      the row's name
/// `name` is the file's in messages, `shape` the model's. Errors: kInvalidArgument, naming file,
/// line and column: a needed column that is missing, a column that is there twice, a cell that is
/// no number, cells too many or too few, no rows; a width or depth that is not the model's where
/// the model's family has more sizes than those.
Result<TopologyTable> ParseTopologyTable(const std::string& text, const std::string& name,
                                         const ModelShape& shape, const Cluster& cluster);

/// What to enumerate.
struct TopologySearch {
  uint64_t gpus = 1;
  uint64_t global_batch = 1;
  std::vector<uint64_t> micro_batches = {1, 2, 4, 8};
};
/// Returns every DP · TP · PP = gpus with each micro-batch, possible or not.
std::vector<TopologyRow> EnumerateTopologies(const ModelShape& shape, const TopologySearch& search);

/// A row with what follows from it.
struct JudgedTopology {
  TopologyRow row;
  std::vector<TopologyReason> reasons;  ///< none: it is possible
  std::vector<std::string> warnings;
  /// Measured, or else estimated; none if the shape is not known.
  std::optional<double> seconds = {};
  std::optional<TopologyMemory> memory = {};  ///< estimated
  // Of a GPU, 0 where they are not known. The source's TFLOPs are `hardware_tflops`.
  double tflops = 0;           ///< recomputation left out
  double hardware_tflops = 0;  ///< recomputation counted
  double earlier_tflops = 0;   ///< by EarlierMegatronFlops
  double samples_per_second = 0;
  double wave_efficiency = 0;

  bool possible() const { return reasons.empty(); }
};

/// What rows are judged by.
struct TopologyJudge {
  Cluster cluster;
  std::optional<BatchGrowth> growth = {};
};

/// Judges one row. Memory that was measured counts before an estimate, and so does a step that ran.
JudgedTopology JudgeTopology(const TopologyRow& row, const TopologyJudge& judge);

/// Judges all: possible ones first, the fastest first, by seconds a step and not by TFLOPs; then
/// the others, in the order of `rows`.
std::vector<JudgedTopology> JudgeTopologies(std::span<const TopologyRow> rows,
                                            const TopologyJudge& judge);

/// Returns a table of the first `most` possible ones, and what is against the others. Ends with a
/// line break.
std::string TopologiesText(std::span<const JudgedTopology> judged, size_t most = 20);

/// Returns a list of all, in order: {"label", "gpus", "dp", "tp", "pp", "mbs", "gbs", "possible",
/// "reasons", "warnings", "step_s", "measured", "memory_bytes", "estimated_memory_bytes", "tflops",
/// "hardware_tflops", "earlier_tflops", "samples_per_s", "wave_efficiency"} and the shape's
/// "hidden" and "layers"; what is not known is null.
nlohmann::json TopologiesJson(std::span<const JudgedTopology> judged);

}  // namespace penstock::train
