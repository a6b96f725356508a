// How much of the bus do copies from and to the slab get, how much of the matrix rate do GELU
// with its products, attention and the head get, and what does a vocabulary cost that is no
// multiple of 64?
//
// The ceilings are measured in the same run: one large copy each way, and the largest product of a
// layer. Operands are random, as zeros make a GPU faster than it is. Copies are of tiles of 2 MiB
// (a million 16-bit weights) in memory that is registered once, as the engine makes them. Prints a
// table. Needs a GPU with 8 GiB and 2 GiB of host memory.
//
//   cuda_bench [--attention-only]
#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>

#include "bench/cuda_attention.h"
#include "bench/cuda_timing.h"
#include "device/device.h"
#include "kernels/model/cuda_gelu.h"
#include "kernels/model/model_operators.h"

namespace penstock {
namespace {

using bench::Print;
using bench::Time;
using device::DeviceBuffer;
using device::Stream;
using kernels::DType;
using kernels::HeadCall;
using kernels::LinearCall;
using kernels::LinearGeluCall;
using kernels::Shape;
using kernels::TensorView;

constexpr Bytes kSlab = 1_GiB;
constexpr Bytes kTile = 2_MiB;
constexpr uint64_t kBatch = 4;
constexpr uint64_t kSequence = 2048;
constexpr uint64_t kWidth = 4096;
constexpr uint64_t kHidden = 4 * kWidth;
constexpr uint64_t kRows = kBatch * kSequence;

struct Slab {
  device::HostBuffer host;
  DeviceBuffer device;
};

/// Calls copy(offset, size) for all of the slab in pieces.
void InPieces(Bytes piece, const std::function<void(uint64_t, Bytes)>& copy) {
  for (Bytes at; at < kSlab; at += piece) copy(at.value, piece);
}

Status MeasureCopies(device::Device& device, const Slab& slab) {
  PENSTOCK_ASSIGN(const auto in, device.CreateStream("copy-in"));
  PENSTOCK_ASSIGN(const auto out, device.CreateStream("copy-out"));
  const auto to_device = [&](uint64_t at, Bytes size) {
    in->CopyToDevice(slab.device.data() + at, slab.host.data() + at, size);
  };
  const auto to_host = [&](uint64_t at, Bytes size) {
    out->CopyToHost(slab.host.data() + at, slab.device.data() + at, size);
  };
  const double gigabytes = static_cast<double>(kSlab.value) / 1e9;
  PENSTOCK_ASSIGN(const double in_whole, Time(*in, [&] { InPieces(kSlab, to_device); }));
  PENSTOCK_ASSIGN(const double out_whole, Time(*out, [&] { InPieces(kSlab, to_host); }));
  PENSTOCK_ASSIGN(const double in_tiles, Time(*in, [&] { InPieces(kTile, to_device); }));
  PENSTOCK_ASSIGN(const double out_tiles, Time(*out, [&] { InPieces(kTile, to_host); }));
  // Each direction has its half of the slab.
  PENSTOCK_ASSIGN(const double both, Time(*in, [&] {
                    for (Bytes at; at < Bytes{kSlab.value / 2}; at += kTile) {
                      to_device(at.value, kTile);
                      to_host(at.value + kSlab.value / 2, kTile);
                    }
                    in->Wait(out->Record());
                  }));
  Print("to the device, one copy", gigabytes / in_whole, "GB/s", gigabytes / in_whole);
  Print("to the host, one copy", gigabytes / out_whole, "GB/s", gigabytes / out_whole);
  Print("to the device, tiles", gigabytes / in_tiles, "GB/s", gigabytes / in_whole);
  Print("to the host, tiles", gigabytes / out_tiles, "GB/s", gigabytes / out_whole);
  Print("both ways at once, tiles", gigabytes / both, "GB/s",
        gigabytes / in_whole + gigabytes / out_whole);
  return {};
}

/// Elements of the layer's matrices, one after the other in the slab's copy on the device.
struct Matrices {
  std::byte* next;
  TensorView Take(const Shape& shape) {
    std::byte* const matrix = next;
    next += shape.elements() * SizeOf(DType::kBFloat16).value;
    return As(shape, matrix);
  }
  /// What lies there, as a tensor of that shape.
  static TensorView As(const Shape& shape, std::byte* data) {
    return {DType::kBFloat16, shape, data};
  }
};

/// Returns the ceiling: the rate of the largest product.
Result<double> MeasureProducts(device::Device& device, const Slab& slab) {
  PENSTOCK_ASSIGN(
      const auto operators,
      kernels::CreateModelOperators(
          device, {.calls = {LinearCall{DType::kBFloat16, kRows, kWidth, kHidden},
                             LinearCall{DType::kBFloat16, kRows, kHidden, kWidth},
                             LinearGeluCall{DType::kBFloat16, kRows, kWidth, kHidden}}}));
  PENSTOCK_ASSIGN(const auto stream, device.CreateStream("compute"));
  stream->CopyToDevice(slab.device.data(), slab.host.data(), kSlab);
  Matrices matrices{slab.device.data()};
  const TensorView x = matrices.Take({kBatch, kSequence, kWidth});
  const TensorView weight = matrices.Take({kWidth, kHidden});
  const TensorView back = Matrices::As({kHidden, kWidth}, weight.data);
  const TensorView bias = matrices.Take({kHidden});
  const TensorView hidden = matrices.Take({kBatch, kSequence, kHidden});
  const TensorView activated = matrices.Take({kBatch, kSequence, kHidden});
  const double product = 2.0 * kRows * kWidth * kHidden / 1e12;
  PENSTOCK_ASSIGN(const double matrix, Time(*stream, [&] {
                    operators->LinearForward(*stream, x, weight, bias, {}, hidden);
                  }));
  PENSTOCK_ASSIGN(const double gelu, Time(*stream, [&] {
                    operators->LinearGeluForward(*stream, x, weight, bias, hidden, activated);
                  }));
  PENSTOCK_ASSIGN(const double gelu_gradient, Time(*stream, [&] {
                    operators->LinearGeluBackwardInput(*stream, x, back, hidden, activated);
                  }));
  // The same with GELU as a kernel of its own: on some GPUs that may be faster.
  auto& queue = static_cast<device::CudaStream&>(*stream);
  constexpr uint64_t kElements = kRows * kHidden;
  PENSTOCK_ASSIGN(const double apart, Time(*stream, [&] {
                    operators->LinearForward(*stream, x, weight, bias, {}, hidden);
                    kernels::CudaGeluForward(queue, DType::kBFloat16, kElements, hidden.data,
                                             activated.data);
                  }));
  PENSTOCK_ASSIGN(const double gradient_apart, Time(*stream, [&] {
                    operators->LinearBackwardInput(*stream, x, back, activated);
                    kernels::CudaGeluBackward(queue, DType::kBFloat16, kElements, hidden.data,
                                              activated.data, activated.data);
                  }));
  const double ceiling = product / matrix;
  fmt::print("{}\n", operators->arithmetic());
  Print("matrix product with bias, bf16", ceiling, "TFLOP/s", ceiling);
  Print("the same, and GELU", product / gelu, "TFLOP/s", ceiling);
  Print("the same, GELU in a kernel of its own", product / apart, "TFLOP/s", ceiling);
  Print("product and gradient of GELU", product / gelu_gradient, "TFLOP/s", ceiling);
  Print("the same, in a kernel of its own", product / gradient_apart, "TFLOP/s", ceiling);
  return ceiling;
}

/// The head's three products of all rows, and what lies between them.
Status MeasureHead(device::Device& device, const Slab& slab, uint64_t vocabulary, double ceiling) {
  PENSTOCK_ASSIGN(const auto operators,
                  kernels::CreateModelOperators(
                      device, {.calls = {HeadCall{DType::kBFloat16, kRows, kWidth, vocabulary}}}));
  PENSTOCK_ASSIGN(const DeviceBuffer d_table,
                  device.Allocate(vocabulary * kWidth * 4_B, "the gradient of the table"));
  PENSTOCK_ASSIGN(const DeviceBuffer targets, device.Allocate(kRows * 4_B, "targets"));
  PENSTOCK_ASSIGN(const DeviceBuffer loss, device.Allocate(8_B, "the loss"));
  PENSTOCK_ASSIGN(const auto stream, device.CreateStream("compute"));
  stream->CopyToDevice(slab.device.data(), slab.host.data(), kSlab);
  for (const DeviceBuffer* zeros : {&d_table, &targets, &loss}) {
    stream->Zero(zeros->data(), zeros->size());
  }
  Matrices matrices{slab.device.data()};
  const TensorView x = matrices.Take({kBatch, kSequence, kWidth});
  const TensorView table = matrices.Take({vocabulary, kWidth});
  const TensorView d_x = matrices.Take({kBatch, kSequence, kWidth});
  PENSTOCK_ASSIGN(const double took, Time(*stream, [&] {
                    operators->HeadForwardBackward(
                        *stream, x, table, {kBatch, kSequence, targets.as<int32_t>()}, 1,
                        loss.as<double>(), d_x,
                        {DType::kFloat32, {vocabulary, kWidth}, d_table.data()});
                  }));
  const double products = 3 * 2.0 * kRows * kWidth * static_cast<double>(vocabulary) / 1e12;
  Print(fmt::format("head, vocabulary {}", vocabulary), products / took, "TFLOP/s", ceiling);
  return {};
}

Status Run(bool attention_only) {
  PENSTOCK_ASSIGN(const auto device, device::CreateCudaDevice({.memory = 4_GiB}));
  fmt::print("{}\n", device->name());
  Slab slab;
  PENSTOCK_ASSIGN(slab.host, device->AllocateHost(kSlab));
  PENSTOCK_ASSIGN(slab.device, device->Allocate(kSlab, "the slab's copy"));
  // bf16 of magnitude 1/2 to 2, either sign.
  uint64_t state = 1;
  for (uint64_t i = 0; i < kSlab / 2_B; ++i) {
    state = state * 6364136223846793005 + 1442695040888963407;
    slab.host.as<uint16_t>()[i] = static_cast<uint16_t>(0x3f00 | (state >> 33 & 0x80ff));
  }
  if (!attention_only) PENSTOCK_TRY(MeasureCopies(*device, slab));
  PENSTOCK_ASSIGN(const double ceiling, MeasureProducts(*device, slab));
  if (!attention_only) {
    // GPT-2's, and the next multiple of 64.
    PENSTOCK_TRY(MeasureHead(*device, slab, 50257, ceiling));
    PENSTOCK_TRY(MeasureHead(*device, slab, 50304, ceiling));
  }
  return bench::MeasureAttention(*device, slab.device, slab.host, ceiling);
}

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) try {
  const bool attention_only = argc == 2 && std::strcmp(argv[1], "--attention-only") == 0;
  if (argc > 1 && !attention_only) {
    std::fprintf(stderr, "usage: cuda_bench [--attention-only]\n");
    return 2;
  }
  const penstock::Status status = penstock::Run(attention_only);
  if (status.ok()) return 0;
  std::fprintf(stderr, "cuda_bench: %s\n", status.error().message.c_str());
  return 3;
} catch (const std::exception& exception) {
  std::fprintf(stderr, "cuda_bench: %s\n", exception.what());
  return 3;
}
