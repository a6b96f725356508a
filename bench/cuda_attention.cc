// How much of the matrix rate do penstock's and cuDNN's attention get, and is each correct?
//
// Heads of models of 1.3 B parameters (32 of 64 elements, 16 of 128) and of Llama 8 B (32 of 128),
// 16,384 tokens in sequences of 2048, 4096 and 8192. Half of the scores are visible, and backward
// counts 2.5 times forward. Results are checked for one sequence of 2048 tokens.
#include "bench/cuda_attention.h"

#include <cstdint>
#include <span>
#include <string>

#include "bench/cuda_attention_check.h"
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
constexpr uint64_t kCheckedTokens = 2048;
constexpr uint64_t kSequences[] = {2048, 4096, 8192};

/// How far results may be off. Computed in double and rounded to bf16 at the same places, typical
/// ones are off by 0.0026, the farthest by 0.007. cuDNN takes a row's Σ p d_p from the rounded
/// output; in rows of few keys it nearly cancels with d_p, and the gradient of a query keeps fewer
/// digits: in 3000 heads, computed likewise, 0.07.
struct Limits {
  double typical;
  double largest;
};
Limits LimitsOf(AttentionKernel kernel) {
  return {1.0 / 256, kernel == AttentionKernel::kOwn ? 1.0 / 64 : 1.0 / 8};
}

struct Heads {
  uint64_t count;
  uint64_t size;
};
constexpr Heads kHeads[] = {{32, 64}, {16, 128}, {32, 128}};

const char* NameOf(AttentionKernel kernel) {
  return kernel == AttentionKernel::kOwn ? "own" : "cudnn";
}

struct Case {
  Heads heads;
  uint64_t sequence;

  AttentionCall call(uint64_t tokens = kTokens) const {
    return {.dtype = DType::kBFloat16,
            .batch = tokens / sequence,
            .sequence = sequence,
            .width = heads.count * heads.size,
            .heads = heads.count};
  }
  Bytes out() const { return kTokens * call().width * 2_B; }
  double operations() const {
    return 4.0 * kTokens * static_cast<double>(sequence * call().width) / 2 / 1e12;
  }
  std::string Name(const char* what, AttentionKernel kernel) const {
    return fmt::format("attention {}, {}, {} x {}, {} tokens", what, NameOf(kernel), heads.count,
                       heads.size, sequence);
  }
};

Status Measure(device::Device& device, const DeviceBuffer& random, const Case& shape,
               AttentionKernel kernel, double ceiling) {
  const AttentionCall call = shape.call();
  PENSTOCK_ASSIGN(const auto operators,
                  kernels::CreateModelOperators(device, {.calls = {call}, .attention = kernel}));
  PENSTOCK_ASSIGN(const auto results, device.Allocate(4 * shape.out(), "results of attention"));
  PENSTOCK_ASSIGN(const auto stream, device.CreateStream("compute"));
  const auto view = [&](uint64_t columns, std::byte* data) {
    return TensorView{DType::kBFloat16, {call.batch, call.sequence, columns}, data};
  };
  const TensorView qkv = view(3 * call.width, random.data());
  const TensorView d_out = view(call.width, random.data() + (3 * shape.out()).value);
  const TensorView out = view(call.width, results.data());
  const TensorView d_qkv = view(3 * call.width, results.data() + shape.out().value);
  PENSTOCK_ASSIGN(const double forward, Time(*stream, [&] {
                    operators->AttentionForward(*stream, call.heads, qkv, out);
                  }));
  PENSTOCK_ASSIGN(const double backward, Time(*stream, [&] {
                    operators->AttentionBackward(*stream, call.heads, qkv, out, d_out, d_qkv);
                  }));
  Print(shape.Name("forward", kernel), shape.operations() / forward, "TFLOP/s", ceiling);
  Print(shape.Name("backward", kernel), 2.5 * shape.operations() / backward, "TFLOP/s", ceiling);
  return {};
}

/// Prints how far results are off, and returns whether that is by no more than rounding.
Result<bool> Check(device::Device& device, std::span<const uint16_t> random, const Heads& heads,
                   AttentionKernel kernel) {
  const AttentionCall call = Case{heads, kCheckedTokens}.call(kCheckedTokens);
  PENSTOCK_ASSIGN(const AttentionErrors errors, CheckAttention(device, call, kernel, random));
  const auto [typical, largest] = LimitsOf(kernel);
  const AttentionError worst = errors.Worst();
  const bool right = worst.typical <= typical && worst.largest <= largest;
  fmt::print("attention, {}, {} x {}, is {}: off by {} (limits {:.4f}, {:.4f})\n", NameOf(kernel),
             heads.count, heads.size, right ? "right" : "wrong", errors.Describe(), typical,
             largest);
  return right;
}

/// Returns whether results are right.
Result<bool> MeasureKernel(device::Device& device, const DeviceBuffer& room,
                           std::span<const uint16_t> random, AttentionKernel kernel,
                           double ceiling) {
  bool right = true;
  for (const Heads& heads : kHeads) {
    for (const uint64_t sequence : kSequences) {
      PENSTOCK_TRY(Measure(device, room, {heads, sequence}, kernel, ceiling));
    }
    PENSTOCK_ASSIGN(const bool as_expected, Check(device, random, heads, kernel));
    right = right && as_expected;
  }
  return right;
}

}  // namespace

Status MeasureAttention(device::Device& device, const DeviceBuffer& room,
                        const device::HostBuffer& host, double ceiling) {
  const std::span random(host.as<const uint16_t>(), room.size() / 2_B);
  PENSTOCK_ASSIGN(bool right, MeasureKernel(device, room, random, AttentionKernel::kOwn, ceiling));
  const Result<bool> cudnn = MeasureKernel(device, room, random, AttentionKernel::kCudnn, ceiling);
  if (cudnn.ok()) {
    right = right && *cudnn;
  } else if (cudnn.error().code == ErrorCode::kUnavailable) {
    fmt::print("not measured: {}\n", cudnn.error().message);
  } else {
    return cudnn.error();
  }
  if (right) return {};
  return MakeError(ErrorCode::kInvalidArgument, "attention: results are off by more than rounding");
}

}  // namespace penstock::bench
