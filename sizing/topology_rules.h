// Which topologies are possible, and which are possible but unwise.
//
// Pure functions. Threads: any.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sizing/batch_rampup.h"
#include "sizing/topology.h"

namespace penstock::train {

/// Why a topology is not possible.
struct TopologyReason {
  /// "gpus", "batch", "ramp-up", "heads", "width", "layers" or "memory": what kind of reason.
  std::string_view rule;
  std::string text;
};

/// Returns all reasons but memory, none if there are none:
///   gpus     DP · TP · PP is the number of GPUs
///   batch    GBS is a multiple of DP · MBS
///   ramp-up  so is each batch of `growth` up to GBS, if the batch grows
///   heads    TP divides the heads, if the shape has them
///   width    TP divides h
///   layers   no more stages than layers
std::vector<TopologyReason> BrokenRules(const ModelShape& shape, const Topology& topology,
                                        const std::optional<BatchGrowth>& growth);

/// Returns the rules that need no shape: gpus, batch and ramp-up.
std::vector<TopologyReason> BrokenRules(const Topology& topology,
                                        const std::optional<BatchGrowth>& growth);

/// Returns the first batch of `growth` up to `end` that is no multiple of `unit` (DP · MBS), or
/// `end` if the increments miss it; none if all fit.
std::optional<uint64_t> FirstUnevenBatch(const BatchGrowth& growth, uint64_t end, uint64_t unit);

/// Returns what makes a possible topology slow: stages of different size, tensor parallelism beyond
/// a node, a pipeline that is never full, sizes that do not suit the matrix units.
std::vector<std::string> TopologyWarnings(const ModelShape& shape, const Topology& topology,
                                          const Cluster& cluster);

}  // namespace penstock::train
