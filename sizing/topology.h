// How a cluster's GPUs share one training: data, tensor and pipeline parallelism, and what such a
// topology takes in memory and time.
//
// The estimates are those of a training as Megatron-DeepSpeed runs it: 16-bit weights, ZeRO stage 1
// over the data-parallel ranks, activation checkpoints at each layer, embedding and head split over
// the tensor-parallel ranks and held by the first and the last stage (docs/sizing.md has the
// formulas, and how well they meet measured runs). Pure functions. Threads: any.
#pragma once

#include <cstdint>

#include "base/units.h"
#include "sizing/model_shape.h"

namespace penstock::train {

/// How a training is shared. All are at least 1.
struct Topology {
  uint64_t gpus = 1;          ///< what the cluster has; a topology should use all
  uint64_t data = 1;          ///< DP
  uint64_t tensor = 1;        ///< TP
  uint64_t pipeline = 1;      ///< PP
  uint64_t micro_batch = 1;   ///< MBS, samples
  uint64_t global_batch = 1;  ///< GBS, samples of a step

  /// Returns DP · TP · PP.
  uint64_t product() const;
  /// Returns how many micro-batches pass through a pipeline in a step; a part counts.
  double micro_batches() const;
};

/// A GPU and its neighbours. The speeds are those with which the estimate of a step's time meets
/// the measured rows of docs/sizing.md best: A100 with 80 GB, eight in a node.
struct Cluster {
  uint64_t gpus_per_node = 8;
  Bytes memory = 80_GiB;           ///< of a GPU
  uint64_t multiprocessors = 108;  ///< of a GPU
  /// Whether 16-bit gradients are added up in fp32, as with bf16: 4 more bytes a parameter.
  bool fp32_accumulation = false;
  double matrix_tflops = 245;  ///< of a GPU in large matrix products, all multiprocessors busy
  double tensor_gbps = 50;  ///< of a GPU to others of its node in all-reduces, 10^9 bytes a second
  double network_gbps = 5;  ///< of a GPU to those of other nodes
};

/// How layers are spread over the stages of a pipeline.
struct StageSplit {
  uint64_t inner_layers = 0;  ///< of a stage that is neither the first nor the last
  uint64_t end_layers = 0;    ///< of the first stage, which has the embedding too
  bool even = true;           ///< no stage has less work than others by a layer or more
};
/// With PP above 2, embedding and head count as a layer each where (l + 2) is a multiple of it.
/// Else ceil(l / PP) layers go into each stage until none are left.
StageSplit SplitLayers(uint64_t layers, uint64_t pipeline);

/// What the fullest GPU takes.
struct TopologyMemory {
  Bytes states;       ///< weights 2, gradients 2, states 12 / DP bytes a parameter
  Bytes checkpoints;  ///< of all micro-batches that are on their way through the pipeline
  Bytes working;      ///< activations of the layer that is computed, and logits
  Bytes buffers;      ///< what DeepSpeed, NCCL and the allocator hold beside tensors
  Bytes runtime;      ///< the GPU's own libraries

  Bytes total() const { return states + checkpoints + working + buffers + runtime; }
};
TopologyMemory EstimateMemory(const ModelShape& shape, const Topology& topology,
                              const Cluster& cluster);

/// Seconds of a step.
struct TopologyTime {
  double compute_s = 0;  ///< of the slowest stage, with the pipeline filling and draining
  double tensor_s = 0;   ///< all-reduces of activations between tensor-parallel ranks
  double data_s = 0;     ///< all-reduce of gradients between data-parallel ranks

  double total() const { return compute_s + tensor_s + data_s; }
};
TopologyTime EstimateTime(const ModelShape& shape, const Topology& topology,
                          const Cluster& cluster);

}  // namespace penstock::train
