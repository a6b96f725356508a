// How much of the matrix rate does attention get, penstock's own and cuDNN's, and do they agree?
//
// Heads of GPT-2 1.3 B (32 of 64 elements) and Llama 8 B (32 of 128), 16,384 tokens in sequences of
// 2048, 4096 and 8192. Half of the scores are visible, and backward counts 2.5 times forward.
#include "bench/cuda_attention.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>

#include "bench/cuda_timing.h"
#include "kernels/model/model_operators.h"

namespace penstock::bench {
namespace {

using device::DeviceBuffer;
using kernels::AttentionCall;
using kernels::AttentionKernel;
using kernels::DType;
using kernels::TensorView;

constexpr uint64_t kTokens = 16384;
constexpr uint64_t kHeads = 32;
/// Of each tensor's beginning and end so much is compared.
constexpr Bytes kCompared = 16_MiB;
/// A result is off by as much of its own size and the typical one: some roundings to bf16 (2^-9),
/// as cuDNN's backward reads the rounded output.
constexpr double kTolerance = 1.0 / 32;

struct Case {
  uint64_t head_size;
  uint64_t sequence;

  AttentionCall call() const {
    return {.dtype = DType::kBFloat16,
            .batch = kTokens / sequence,
            .sequence = sequence,
            .width = kHeads * head_size,
            .heads = kHeads};
  }
  Bytes out() const { return kTokens * call().width * 2_B; }
  double operations() const {
    return 4.0 * kTokens * static_cast<double>(sequence * call().width) / 2 / 1e12;
  }
  std::string Name(const char* what, AttentionKernel kernel) const {
    return fmt::format("attention {}, {}, {} x {}, {} tokens", what,
                       kernel == AttentionKernel::kOwn ? "own" : "cudnn", kHeads, head_size,
                       sequence);
  }
};

/// What an implementation has computed.
struct Results {
  DeviceBuffer out;
  DeviceBuffer d_qkv;
};

Result<Results> Measure(device::Device& device, const DeviceBuffer& random, const Case& shape,
                        AttentionKernel kernel, double ceiling) {
  const AttentionCall call = shape.call();
  PENSTOCK_ASSIGN(const auto operators,
                  kernels::CreateModelOperators(device, {.calls = {call}, .attention = kernel}));
  Results results;
  PENSTOCK_ASSIGN(results.out, device.Allocate(shape.out(), "attention"));
  PENSTOCK_ASSIGN(results.d_qkv, device.Allocate(3 * shape.out(), "the gradient of attention"));
  PENSTOCK_ASSIGN(const auto stream, device.CreateStream("compute"));
  const auto view = [&](uint64_t columns, std::byte* data) {
    return TensorView{DType::kBFloat16, {call.batch, call.sequence, columns}, data};
  };
  const TensorView qkv = view(3 * call.width, random.data());
  const TensorView d_out = view(call.width, random.data() + (3 * shape.out()).value);
  const TensorView out = view(call.width, results.out.data());
  const TensorView d_qkv = view(3 * call.width, results.d_qkv.data());
  PENSTOCK_ASSIGN(const double forward,
                  Time(*stream, [&] { operators->AttentionForward(*stream, kHeads, qkv, out); }));
  PENSTOCK_ASSIGN(const double backward, Time(*stream, [&] {
                    operators->AttentionBackward(*stream, kHeads, qkv, out, d_out, d_qkv);
                  }));
  Print(shape.Name("forward", kernel), shape.operations() / forward, "TFLOP/s", ceiling);
  Print(shape.Name("backward", kernel), 2.5 * shape.operations() / backward, "TFLOP/s", ceiling);
  return results;
}

/// The largest distance, in the unit of kTolerance.
double Distance(const uint16_t* a, const uint16_t* b, uint64_t n) {
  const auto value = [](uint16_t bits) { return ToFloat(kernels::BFloat16{bits}); };
  double squares = 0;
  for (uint64_t i = 0; i < n; ++i) squares += value(a[i]) * value(a[i]);
  const double typical = std::sqrt(squares / static_cast<double>(n));
  double most = 0;
  for (uint64_t i = 0; i < n; ++i) {
    const double distance = std::abs(value(a[i]) - value(b[i])) / (std::abs(value(a[i])) + typical);
    // NaN is far.
    if (!(distance <= most)) most = std::isnan(distance) ? INFINITY : distance;
  }
  return most;
}

Result<double> Compare(device::Device& device, const device::HostBuffer& host,
                       const DeviceBuffer& a, const DeviceBuffer& b) {
  PENSTOCK_ASSIGN(const auto stream, device.CreateStream("compare"));
  const Bytes part = std::min(kCompared, a.size());
  double most = 0;
  for (const uint64_t at : {uint64_t{0}, (a.size() - part).value}) {
    stream->CopyToHost(host.data(), a.data() + at, part);
    stream->CopyToHost(host.data() + part.value, b.data() + at, part);
    PENSTOCK_TRY(stream->Synchronize());
    const auto* const first = host.as<uint16_t>();
    most = std::max(most, Distance(first, first + part / 2_B, part / 2_B));
  }
  return most;
}

}  // namespace

Status MeasureAttention(device::Device& device, const DeviceBuffer& room,
                        const device::HostBuffer& host, double ceiling) {
  PENSTOCK_ASSIGN(const auto stream, device.CreateStream("copy-in"));
  stream->CopyToDevice(room.data(), host.data(), room.size());
  PENSTOCK_TRY(stream->Synchronize());
  bool with_cudnn = true;
  for (const uint64_t head_size : {64, 128}) {
    for (const uint64_t sequence : {2048, 4096, 8192}) {
      const Case shape{head_size, sequence};
      PENSTOCK_ASSIGN(const Results own,
                      Measure(device, room, shape, AttentionKernel::kOwn, ceiling));
      if (!with_cudnn) continue;
      const Result<Results> cudnn = Measure(device, room, shape, AttentionKernel::kCudnn, ceiling);
      if (!cudnn.ok()) {
        if (cudnn.error().code != ErrorCode::kUnavailable) return cudnn.error();
        fmt::print("not measured: {}\n", cudnn.error().message);
        with_cudnn = false;
        continue;
      }
      PENSTOCK_ASSIGN(const double out, Compare(device, host, own.out, cudnn->out));
      PENSTOCK_ASSIGN(const double d_qkv, Compare(device, host, own.d_qkv, cudnn->d_qkv));
      fmt::print("own and cudnn differ by {:.4f} (out) and {:.4f} (gradient), at most {:.4f}\n",
                 out, d_qkv, kTolerance);
      if (std::max(out, d_qkv) <= kTolerance) continue;
      return MakeError(ErrorCode::kInvalidArgument, "{}: own and cudnn do not agree",
                       shape.Name("", AttentionKernel::kCudnn));
    }
  }
  return {};
}

}  // namespace penstock::bench
