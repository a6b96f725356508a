#include "train/models/gpt2_buffers.h"

#include <algorithm>
#include <string>
#include <utility>

namespace penstock::train {
namespace {

/// Unrounded sizes of the buffers; each is taken once, but for `stream`.
struct Sizes {
  Bytes stream;  ///< a checkpoint, norm, attention, mid
  Bytes qkv;
  Bytes fc;
  Bytes gelu;
  Bytes statistics;  ///< mean, rstd
  Bytes tokens;
  Bytes largest;
  offload::CheckpointStore::Options checkpoints;
};

/// The number of accesses to checkpoints in a step, as Accesses has them.
uint64_t AccessCount(uint64_t layers, uint64_t micro_batches) {
  return SaturatingMultiply(3 * layers, micro_batches);
}
uint64_t KernelCount(uint64_t layers, uint64_t micro_batches) {
  return SaturatingMultiply(2 * layers + 1, micro_batches);
}

/// In a step: the embedding writes the input of the first layer; each layer reads its input and
/// writes that of the next; backward reads them again. A kernel is a layer with a micro-batch.
std::vector<offload::CheckpointAccess> Accesses(uint64_t layers, uint64_t micro_batches) {
  std::vector<offload::CheckpointAccess> accesses;
  accesses.reserve(AccessCount(layers, micro_batches));
  uint32_t kernel = 0;
  const auto add = [&](uint64_t layer, uint64_t micro_batch, bool write) {
    accesses.push_back({.checkpoint = static_cast<uint32_t>(layer * micro_batches + micro_batch),
                        .write = write,
                        .kernel = kernel});
  };
  for (uint64_t m = 0; m < micro_batches; ++m, ++kernel) add(0, m, true);
  for (uint64_t i = 0; i < layers; ++i) {
    for (uint64_t m = 0; m < micro_batches; ++m, ++kernel) {
      add(i, m, false);
      if (i + 1 < layers) add(i + 1, m, true);
    }
  }
  for (uint64_t i = layers; i-- > 0;) {
    for (uint64_t m = 0; m < micro_batches; ++m, ++kernel) add(i, m, false);
  }
  return accesses;
}

/// Without the accesses, whose number may be beyond what there is memory for.
offload::CheckpointStore::Options CheckpointOptions(const Gpt2Config& config,
                                                    const BatchShape& shape, Bytes size) {
  const uint64_t all = SaturatingMultiply(config.n_layer, shape.micro_batches);
  const uint64_t some = std::min(all, shape.micro_batches + 2);
  return {.accesses = {},
          .checkpoints = all,
          .slots = shape.checkpoint_home == Tier::kHost ? some : all,
          .size = size};
}

Sizes SizesOf(const Gpt2Config& config, const BatchShape& shape, kernels::DType dtype) {
  const uint64_t rows = SaturatingMultiply(shape.micro_batch, shape.sequence);
  const Bytes column = kernels::SizeOf(dtype) * rows;
  return {.stream = column * config.n_embd,
          .qkv = column * (3 * config.n_embd),
          .fc = column * std::max(config.hidden(), 3 * config.n_embd),
          .gelu = column * config.hidden(),
          .statistics = Bytes{sizeof(float)} * rows,
          .tokens = Bytes{sizeof(int32_t)} * 2 * shape.micro_batches * rows,
          .largest = Bytes{sizeof(float)} * (2 * config.n_layer + 1),
          .checkpoints = CheckpointOptions(config, shape, column * config.n_embd)};
}

Status AllocateWorkspace(const Sizes& sizes, device::Device& device, Gpt2Workspace& workspace) {
  const std::string what = "a layer's workspace";
  PENSTOCK_ASSIGN(workspace.norm, device.Allocate(sizes.stream, what));
  PENSTOCK_ASSIGN(workspace.attention, device.Allocate(sizes.stream, what));
  PENSTOCK_ASSIGN(workspace.mid, device.Allocate(sizes.stream, what));
  PENSTOCK_ASSIGN(workspace.qkv, device.Allocate(sizes.qkv, what));
  PENSTOCK_ASSIGN(workspace.fc, device.Allocate(sizes.fc, what));
  PENSTOCK_ASSIGN(workspace.gelu, device.Allocate(sizes.gelu, what));
  PENSTOCK_ASSIGN(workspace.mean, device.Allocate(sizes.statistics, what));
  PENSTOCK_ASSIGN(workspace.rstd, device.Allocate(sizes.statistics, what));
  return {};
}

}  // namespace

Result<Gpt2Buffers> Gpt2Buffers::Allocate(const Gpt2Config& config, const BatchShape& shape,
                                          kernels::DType dtype, device::Device& device) {
  Sizes sizes = SizesOf(config, shape, dtype);
  sizes.checkpoints.accesses = Accesses(config.n_layer, shape.micro_batches);
  Gpt2Buffers buffers;
  PENSTOCK_TRY(AllocateWorkspace(sizes, device, buffers.workspace));
  PENSTOCK_ASSIGN(buffers.tokens, device.Allocate(sizes.tokens, "tokens"));
  PENSTOCK_ASSIGN(buffers.largest, device.Allocate(sizes.largest, "largest magnitudes"));
  buffers.outputs.reserve(shape.micro_batches);
  for (uint64_t m = 0; m < shape.micro_batches; ++m) {
    PENSTOCK_ASSIGN(device::DeviceBuffer output,
                    device.Allocate(sizes.stream, "the last layer's output"));
    buffers.outputs.push_back(std::move(output));
  }
  PENSTOCK_ASSIGN(buffers.checkpoints, offload::CheckpointStore::Create(sizes.checkpoints, device));
  return buffers;
}

void Gpt2Buffers::PlanSteps(uint64_t layers, uint64_t micro_batches) {
  checkpoints.PlanSteps(Accesses(layers, micro_batches));
}

ActivationBytes Gpt2::Memory(const Gpt2Config& config, const BatchShape& shape,
                             kernels::DType dtype) {
  const Sizes sizes = SizesOf(config, shape, dtype);
  const auto taken = [](Bytes size) { return AlignUp(size, device::kDeviceAlignment); };
  return {.device = taken(sizes.stream) * (shape.micro_batches + 3) + taken(sizes.qkv) +
                    taken(sizes.fc) + taken(sizes.gelu) + taken(sizes.statistics) * 2 +
                    taken(sizes.tokens) + taken(sizes.largest) +
                    offload::CheckpointStore::DeviceBytes(sizes.checkpoints),
          .host = offload::CheckpointStore::HostBytes(sizes.checkpoints),
          .bookkeeping = sizes.tokens + sizes.largest * 2 +
                         Bytes{sizeof(device::DeviceBuffer)} * shape.micro_batches +
                         offload::CheckpointStore::BookkeepingBytes(
                             sizes.checkpoints, AccessCount(config.n_layer, shape.micro_batches),
                             KernelCount(config.n_layer, shape.micro_batches))};
}

}  // namespace penstock::train
