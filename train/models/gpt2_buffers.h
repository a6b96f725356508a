// The device memory of a GPT-2 step: checkpoints, one layer's workspace, tokens. Private to
// train/models.
//
// With R = micro_batch · sequence rows, at most M micro-batches in a step, L layers, width C,
// hidden width H, S bytes an element, and A(n) = n rounded up to kDeviceAlignment, they are
//   M A(R C S)                                   the last output, whose place its gradient takes
//   + K A(R C S)                                 checkpoints: the input of each layer. K = L M or,
//                                                at home on the host, at most M + 2
//   + 3 A(R C S)                                 norm, attention, mid
//   + A(3 R C S) + A(R max(H, 3C) S) + A(R H S)  qkv, fc (where d_qkv goes), gelu
//   + 2 A(4 R)                                   mean, rstd
//   + A(8 M R)                                   tokens
//   + A(4 (2 L + 1))                             largest magnitudes
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "device/device.h"
#include "kernels/dtype.h"
#include "offload/checkpoint_store.h"
#include "train/models/gpt2.h"

namespace penstock::train {

/// What one layer needs for one micro-batch; used again by the next. Matrices are of the compute
/// dtype. gpt2_layer.cc says what each holds when.
struct Gpt2Workspace {
  device::DeviceBuffer norm;  ///< [R, C]; as large as a checkpoint, and may change places with one
  device::DeviceBuffer attention;  ///< [R, C]
  device::DeviceBuffer mid;        ///< [R, C], the residual stream between attention and MLP
  device::DeviceBuffer qkv;        ///< [R, 3C]
  device::DeviceBuffer fc;         ///< [R, max(H, 3C)]
  device::DeviceBuffer gelu;       ///< [R, H]
  device::DeviceBuffer mean;       ///< fp32 [R], of the norm computed last
  device::DeviceBuffer rstd;       ///< fp32 [R]
};

/// Owns all of it.
struct Gpt2Buffers {
  Gpt2Workspace workspace;
  std::vector<device::DeviceBuffer> outputs;  ///< of the last layer, [M] of [R, C]
  device::DeviceBuffer tokens;                ///< int32 [2, M, R]: inputs, targets
  /// fp32 [2 L + 1], of the residual stream in a step: behind the embedding, and of each layer
  /// behind attention and behind the layer.
  device::DeviceBuffer largest;
  offload::CheckpointStore checkpoints;  ///< inputs of layers, [L, M] of [R, C]
  // A step of fewer micro-batches uses the first of them, as if M were that number.

  /// Planned for steps of shape.micro_batches. Errors: kBudget, kOutOfMemory.
  static Result<Gpt2Buffers> Allocate(const Gpt2Config& config, const BatchShape& shape,
                                      kernels::DType dtype, device::Device& device);
  /// Between steps: plans for steps of so many micro-batches, no more than the buffers are for.
  void PlanSteps(uint64_t layers, uint64_t micro_batches);
};

}  // namespace penstock::train
