#include "sizing/topology.h"

#include <algorithm>
#include <cmath>

#include "sizing/quantization.h"
#include "sizing/step_work.h"
#include "sizing/tensor_share.h"

namespace penstock::train {
namespace {

/// What the source measured for CUDA's kernels and libraries on a GPU.
constexpr Bytes kRuntime = 1271_MiB;
/// Buckets of DeepSpeed, buffers of NCCL and what PyTorch's allocator holds beside tensors, as the
/// measured rows of docs/sizing.md show them.
constexpr double kBuffersOfTensors = 0.4;
constexpr Bytes kMaxBuffers = 14_GiB;
/// Of a head, where a shape does not say.
constexpr uint64_t kUsualHeadWidth = 128;

double Real(uint64_t n) { return static_cast<double>(n); }
Bytes WholeBytes(double bytes) {
  return Bytes{bytes < 0x1p64 ? static_cast<uint64_t>(bytes) : kMaxCount};
}

uint64_t PipelineLayers(const ModelShape& shape) { return shape.layers + shape.decoder_layers; }

/// Parameters of the fullest GPU: of an end stage, which has the embedding, or of an inner one.
double FullestParameters(const ModelShape& shape, const Topology& topology,
                         const StageSplit& split) {
  const TensorShare share = ShareOf(shape, topology.tensor);
  const double end = Real(split.end_layers) * Real(share.layer) + Real(share.embedding);
  if (topology.pipeline == 1) return end + (shape.head ? Real(share.embedding) : 0);
  return std::max(end, Real(split.inner_layers) * Real(share.layer));
}

/// Activations of one layer in 16 bits (Korthikanti et al. 2022, equation 2): s b h (10 + 24 / t) +
/// 5 a s² b / t.
double LayerActivations(const ModelShape& shape, const Topology& topology) {
  const double tokens = Real(shape.sequence) * Real(topology.micro_batch);
  const double heads =
      shape.heads == 0 ? std::ceil(Real(shape.width) / kUsualHeadWidth) : Real(shape.heads);
  const double tensor = Real(topology.tensor);
  return tokens * Real(shape.width) * (10 + 24 / tensor) +
         5 * heads * Real(shape.sequence) * tokens / tensor;
}

/// FLOPs of one micro-batch: of one layer with recomputation, and of the logits.
struct MicroBatchWork {
  double layer = 0;
  double logits = 0;
};
MicroBatchWork WorkOfMicroBatch(const ModelShape& shape, const Topology& topology) {
  const StepWork work =
      WorkOf(shape, {.samples = topology.micro_batch, .sequence = shape.sequence});
  // hardware = 4/3 layers + logits, model = layers + logits
  const double layers = 4 * (work.hardware - work.model);
  return {.layer = layers / Real(PipelineLayers(shape)), .logits = work.hardware - layers};
}

/// Seconds in which an all-reduce passes: each rank sends and receives 2 (n - 1) / n of the bytes.
double AllReduce(double bytes, uint64_t ranks, double gbps) {
  return 2 * Real(ranks - 1) / Real(ranks) * bytes / (gbps * 1e9);
}

}  // namespace

uint64_t Topology::product() const {
  return SaturatingMultiply(data, SaturatingMultiply(tensor, pipeline));
}

double Topology::micro_batches() const {
  return Real(global_batch) / (Real(data) * Real(micro_batch));
}

StageSplit SplitLayers(uint64_t layers, uint64_t pipeline) {
  if (pipeline == 1) return {.inner_layers = 0, .end_layers = layers};
  // Two stages are both ends.
  if (pipeline > 2 && (layers + 2) % pipeline == 0) {
    const uint64_t parts = (layers + 2) / pipeline;
    return {.inner_layers = parts, .end_layers = parts - 1};
  }
  const uint64_t most = layers / pipeline + (layers % pipeline == 0 ? 0 : 1);
  return {.inner_layers = most, .end_layers = most, .even = layers % pipeline == 0};
}

TopologyMemory EstimateMemory(const ModelShape& shape, const Topology& topology,
                              const Cluster& cluster) {
  const StageSplit split = SplitLayers(PipelineLayers(shape), topology.pipeline);
  const double parameters = FullestParameters(shape, topology, split);
  // ZeRO stage 1 with Adam: 2 + 2 + 12 / N (Rajbhandari et al. 2020, section 5.1).
  const double bytes =
      2 + 2 + 12 / Real(topology.data) + (cluster.fp32_accumulation ? kFp32AccumulationBytes : 0);
  const double tokens = Real(shape.sequence) * Real(topology.micro_batch);
  const double checkpoint = tokens * Real(shape.width) * 2;
  // The first stage keeps checkpoints of as many micro-batches as there are stages behind it; the
  // last one keeps one's, and logits in 16 bits and in fp32.
  const double in_flight = std::clamp(topology.micro_batches(), 1.0, Real(topology.pipeline));
  const double layers = Real(std::max(split.end_layers, split.inner_layers));
  const double logits = tokens * Real(shape.vocabulary) * 6 / Real(topology.tensor);
  const double first = layers * checkpoint * in_flight;
  const double last = layers * checkpoint + logits;
  TopologyMemory memory = {
      .states = WholeBytes(parameters * bytes),
      .checkpoints = WholeBytes(first),
      .working = WholeBytes(LayerActivations(shape, topology) + std::max(last - first, 0.0)),
      .buffers = 0_B,
      .runtime = kRuntime};
  const Bytes tensors = memory.states + memory.checkpoints + memory.working;
  memory.buffers =
      std::min(kMaxBuffers, WholeBytes(kBuffersOfTensors * static_cast<double>(tensors.value)));
  return memory;
}

TopologyTime EstimateTime(const ModelShape& shape, const Topology& topology,
                          const Cluster& cluster) {
  const StageSplit split = SplitLayers(PipelineLayers(shape), topology.pipeline);
  const MicroBatchWork work = WorkOfMicroBatch(shape, topology);
  const double slowest = std::max(Real(split.inner_layers) * work.layer,
                                  Real(split.end_layers) * work.layer + work.logits);
  const double passes = std::max(topology.micro_batches(), 1.0) + Real(topology.pipeline) - 1;
  // Two in a layer's forward, two in its repetition, two in its backward; 16 bits each.
  const double activations =
      Real(shape.sequence) * Real(topology.micro_batch) * Real(shape.width) * 2;
  const double layers = Real(std::max(split.inner_layers, split.end_layers));
  const double gradients = 4 * FullestParameters(shape, topology, split);
  const double speed = cluster.matrix_tflops * 1e12 *
                       WaveEfficiency(shape, {.tensor = topology.tensor,
                                              .micro_batch = topology.micro_batch,
                                              .sequence = shape.sequence,
                                              .multiprocessors = cluster.multiprocessors});
  const double tensor_gbps =
      topology.tensor > cluster.gpus_per_node ? cluster.network_gbps : cluster.tensor_gbps;
  return {.compute_s = passes * slowest / (Real(topology.tensor) * speed),
          .tensor_s = passes * layers * 6 * AllReduce(activations, topology.tensor, tensor_gbps),
          .data_s = AllReduce(gradients, topology.data, cluster.network_gbps)};
}

}  // namespace penstock::train
