#include "train/gpt2_buffers.h"

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
  Bytes loss;
  uint64_t checkpoints;
};

Sizes SizesOf(const Gpt2Config& config, const Gpt2Shape& shape, kernels::DType dtype) {
  const uint64_t rows = shape.micro_batch * shape.sequence;
  const Bytes column = kernels::SizeOf(dtype) * rows;
  return {.stream = column * config.n_embd,
          .qkv = column * (3 * config.n_embd),
          .fc = column * std::max(config.hidden(), 3 * config.n_embd),
          .gelu = column * config.hidden(),
          .statistics = Bytes{sizeof(float)} * rows,
          .tokens = Bytes{sizeof(int32_t)} * (2 * shape.micro_batches * rows),
          .loss = Bytes{sizeof(double)},
          .checkpoints = (config.n_layer + 1) * shape.micro_batches};
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

Result<Gpt2Buffers> Gpt2Buffers::Allocate(const Gpt2Config& config, const Gpt2Shape& shape,
                                          kernels::DType dtype, device::Device& device) {
  const Sizes sizes = SizesOf(config, shape, dtype);
  Gpt2Buffers buffers;
  buffers.micro_batches = shape.micro_batches;
  PENSTOCK_TRY(AllocateWorkspace(sizes, device, buffers.workspace));
  PENSTOCK_ASSIGN(buffers.tokens, device.Allocate(sizes.tokens, "tokens"));
  PENSTOCK_ASSIGN(buffers.loss, device.Allocate(sizes.loss, "the loss"));
  for (uint64_t i = 0; i < sizes.checkpoints; ++i) {
    PENSTOCK_ASSIGN(device::DeviceBuffer checkpoint,
                    device.Allocate(sizes.stream, "activation checkpoints"));
    buffers.checkpoints.push_back(std::move(checkpoint));
  }
  return buffers;
}

Bytes Gpt2::ActivationBytes(const Gpt2Config& config, const Gpt2Shape& shape,
                            kernels::DType dtype) {
  const Sizes sizes = SizesOf(config, shape, dtype);
  const auto taken = [](Bytes size) { return AlignUp(size, device::kDeviceAlignment); };
  return taken(sizes.stream) * (sizes.checkpoints + 3) + taken(sizes.qkv) + taken(sizes.fc) +
         taken(sizes.gelu) + taken(sizes.statistics) * 2 + taken(sizes.tokens) + taken(sizes.loss);
}

}  // namespace penstock::train
