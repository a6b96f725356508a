// The optimizers on the GPU. Every bit is the CPU's: each operation is the one that the rules'
// headers state, in round-to-nearest arithmetic that the compiler may not contract.
#include "kernels/state/cuda_optimizer.h"

#include <bit>
#include <type_traits>

#include "kernels/cuda_elements.cuh"
#include "kernels/cuda_launch.cuh"
#include "kernels/cuda_reduce.cuh"
#include "kernels/state/optimizer_rule.h"

namespace penstock::kernels {
namespace {

/// Updates the moments that the rule has and returns what the weight goes along.
__device__ float Direct(const AdamScalars& s, float g, float& m, float& v) {
  m = __fmaf_rn(g, s.one_minus_beta1, __fmul_rn(m, s.beta1));
  v = __fmaf_rn(__fmul_rn(g, g), s.one_minus_beta2, __fmul_rn(v, s.beta2));
  return __fdiv_rn(m, __fmaf_rn(__fsqrt_rn(v), s.rsqrt_bias2, s.eps));
}

__device__ float Direct(const LionScalars& s, float g, float& m, float&) {
  const float c = __fmaf_rn(g, s.one_minus_beta1, __fmul_rn(m, s.beta1));
  m = __fmaf_rn(g, s.one_minus_beta2, __fmul_rn(m, s.beta2));
  return c == 0 || isnan(c) ? c : copysignf(1, c);
}

__device__ float Direct(const AdagradScalars& s, float g, float&, float& sum) {
  sum = __fmaf_rn(g, g, sum);
  return __fdiv_rn(g, __fadd_rn(__fsqrt_rn(sum), s.eps));
}

__device__ float Direct(const LambScalars& s, float g, float& m, float& v) {
  m = __fmaf_rn(g, s.one_minus_beta1, __fmul_rn(m, s.beta1));
  v = __fmaf_rn(__fmul_rn(g, g), s.one_minus_beta2, __fmul_rn(v, s.beta2));
  return __fdiv_rn(m, __fadd_rn(__fsqrt_rn(v), s.eps));
}

/// The master as a float, or split.
struct WholeWeights {
  float* weight;
  __device__ static WholeWeights Of(const StatePart& part) {
    return {reinterpret_cast<float*>(part.weight)};
  }
  __device__ float Load(uint64_t i) const { return weight[i]; }
  __device__ void Store(uint64_t i, float value) const { weight[i] = value; }
};
/// A whole master, and the weight that is rounded from it.
template <typename Half>
struct CopiedWeights {
  float* master;
  Half* weight;
  __device__ static CopiedWeights Of(const StatePart& part) {
    return {reinterpret_cast<float*>(part.master), reinterpret_cast<Half*>(part.weight)};
  }
  __device__ float Load(uint64_t i) const { return master[i]; }
  __device__ void Store(uint64_t i, float value) const {
    master[i] = value;
    Round(value, weight[i]);
  }
  __device__ static void Round(float value, BFloat16& to) { to = RoundToBFloat16(value); }
  __device__ static void Round(float value, Float16& to) { to = Float16{RoundToFloat16(value)}; }
};
struct SplitWeights {
  BFloat16* hi;
  int16_t* lo;
  __device__ static SplitWeights Of(const StatePart& part) {
    return {reinterpret_cast<BFloat16*>(part.weight), reinterpret_cast<int16_t*>(part.lo)};
  }
  __device__ float Load(uint64_t i) const { return Join(SplitMaster{hi[i], lo[i]}); }
  __device__ void Store(uint64_t i, float value) const {
    const SplitMaster split = Split(value);
    hi[i] = split.hi;
    lo[i] = split.lo;
  }
};

__device__ float RoundMoment(float value, uint32_t, float*) { return value; }
__device__ BFloat16 RoundMoment(float value, uint32_t random, BFloat16*) {
  return RoundStochastically(value, random);
}

/// One moment; null if the rule does not have it.
template <typename T>
struct Moment {
  T* values;
  __device__ float Load(uint64_t i) const { return values == nullptr ? 0 : ToFloat(values[i]); }
  __device__ void Store(uint64_t i, float value, uint32_t random) const {
    if (values != nullptr) values[i] = RoundMoment(value, random, values);
  }
};

/// The planes of a part, as what they are.
template <typename Weights, typename T, typename Gradient>
struct PartPlanes {
  explicit __device__ PartPlanes(const StatePart& part)
      : weights(Weights::Of(part)),
        exp_avg{reinterpret_cast<T*>(part.exp_avg)},
        exp_avg_sq{reinterpret_cast<T*>(part.exp_avg_sq)},
        gradient(reinterpret_cast<const Gradient*>(part.gradient)) {}
  Weights weights;
  Moment<T> exp_avg;
  Moment<T> exp_avg_sq;
  const Gradient* gradient;
};

/// A master before and after its update.
struct BeforeAndAfter {
  float before = 0;
  float after = 0;
};

template <typename Scalars, typename Planes>
__device__ BeforeAndAfter UpdateElement(uint64_t i, const Scalars& s, Decay decay,
                                        const StochasticRounding& rounding, const Planes& planes) {
  float w = planes.weights.Load(i);
  const float before = w;
  float m = planes.exp_avg.Load(i);
  float v = planes.exp_avg_sq.Load(i);
  float g = __fmul_rn(ToFloat(planes.gradient[i]), s.grad_scale);
  if (decay == Decay::kL2) g = __fmaf_rn(w, s.decay, g);
  float d = Direct(s, g, m, v);
  if (decay == Decay::kInUpdate) d = __fmaf_rn(w, s.decay, d);
  if (decay == Decay::kDecoupled) w = __fmaf_rn(w, s.decay, w);
  w = __fmaf_rn(d, s.negative_step_size, w);
  planes.weights.Store(i, w);
  const uint32_t random = RoundingBits(rounding.key, rounding.first_element + i);
  planes.exp_avg.Store(i, m, random & 0xffff);
  planes.exp_avg_sq.Store(i, v, random >> 16);
  return {before, w};
}

/// Returns the scalars of a tensor.
template <typename Scalars>
__device__ Scalars OfTensor(Scalars s, uint64_t tensor, const float* step_sizes) {
  if constexpr (std::is_same_v<Scalars, LambScalars>) {
    if (step_sizes != nullptr && tensor != kNoTensor) s.negative_step_size = step_sizes[tensor];
  }
  return s;
}

/// A block of elements to a block of threads, whose figures are added in the same order each time.
template <typename Scalars, typename Weights, typename T, typename Gradient>
__global__ void UpdateKernel(const StatePart* parts, uint64_t count, Scalars s, Decay decay,
                             uint64_t rounding_key, const float* step_sizes,
                             WeightFigures* of_blocks) {
  const StatePart part = parts[PartWithBlock(parts, count, blockIdx.x)];
  const PartPlanes<Weights, T, Gradient> planes(part);
  const StochasticRounding rounding{rounding_key, part.first_element};
  s = OfTensor(s, part.tensor, step_sizes);
  float squares = 0, update_squares = 0;
  unsigned largest = 0;
  const uint64_t begin = (blockIdx.x - part.first_block) * kBlockElements;
  for (uint64_t i = begin + threadIdx.x; i < begin + kBlockElements && i < part.elements;
       i += blockDim.x) {
    const BeforeAndAfter weight = UpdateElement(i, s, decay, rounding, planes);
    const float update = __fadd_rn(weight.after, -weight.before);
    squares = __fmaf_rn(weight.after, weight.after, squares);
    update_squares = __fmaf_rn(update, update, update_squares);
    largest = Maximum()(largest, std::bit_cast<uint32_t>(weight.after) & 0x7fffffffU);
  }
  if (part.tensor == kNoTensor) return;  // as all threads of the block do
  squares = SumOverBlock(squares);
  update_squares = SumOverBlock(update_squares);
  largest = ReduceBlock(largest, Maximum());
  if (threadIdx.x == 0)
    of_blocks[blockIdx.x] = {squares, update_squares, std::bit_cast<float>(largest)};
}

/// Partial sums of a block of elements, as of the block sums of gradients.
constexpr unsigned kPartials = 16;

/// 16 threads to a block of elements: thread j takes elements j, j + 16, … in order.
template <typename Weights, typename T, typename Gradient>
__global__ void LambSumsKernel(const StatePart* parts, uint64_t count, uint64_t blocks,
                               LambScalars s, TrustSums* of_blocks) {
  const uint64_t thread = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const uint64_t block = thread / kPartials;
  double of_weights = 0, of_updates = 0;
  if (block < blocks) {
    const StatePart part = parts[PartWithBlock(parts, count, block)];
    const PartPlanes<Weights, T, Gradient> planes(part);
    const uint64_t begin = (block - part.first_block) * kBlockElements;
    for (uint64_t i = begin + thread % kPartials; i < begin + kBlockElements && i < part.elements;
         i += kPartials) {
      const float w = planes.weights.Load(i);
      float m = planes.exp_avg.Load(i);
      float v = planes.exp_avg_sq.Load(i);
      float u = Direct(s, __fmul_rn(ToFloat(planes.gradient[i]), s.grad_scale), m, v);
      if (s.decay != 0) u = __fmaf_rn(w, s.decay, u);
      of_weights = fma(double{w}, double{w}, of_weights);
      of_updates = fma(double{u}, double{u}, of_updates);
    }
  }
  // Addition commutes, so that both sides of a pair get s[j] + s[j + distance].
  for (unsigned distance = kPartials / 2; distance > 0; distance /= 2) {
    of_weights += __shfl_xor_sync(kAllLanes, of_weights, distance);
    of_updates += __shfl_xor_sync(kAllLanes, of_updates, distance);
  }
  if (block < blocks && thread % kPartials == 0) of_blocks[block] = {of_weights, of_updates};
}

/// Calls `f<Weights, T, Gradient>()` with how the tile has its master, moments and gradient.
template <typename F>
void WithPlanes(const OptimizerTile& tile, F f) {
  const auto with_gradient = [&]<typename Weights, typename T>() {
    switch (tile.gradient_dtype) {
      case DType::kBFloat16:
        return f.template operator()<Weights, T, BFloat16>();
      case DType::kFloat16:
        return f.template operator()<Weights, T, Float16>();
      case DType::kFloat32:
        return f.template operator()<Weights, T, float>();
    }
  };
  const auto with_moments = [&]<typename Weights>() {
    if (HasBFloat16Moments(tile)) {
      with_gradient.template operator()<Weights, BFloat16>();
    } else {
      with_gradient.template operator()<Weights, float>();
    }
  };
  if (!tile.lo.empty()) {
    with_moments.template operator()<SplitWeights>();
  } else if (tile.weight.Has(Encoding::kBFloat16)) {
    with_moments.template operator()<CopiedWeights<BFloat16>>();
  } else if (tile.weight.Has(Encoding::kFloat16)) {
    with_moments.template operator()<CopiedWeights<Float16>>();
  } else {
    with_moments.template operator()<WholeWeights>();
  }
}

template <typename Scalars>
void LaunchUpdate(device::CudaStream& stream, const Scalars& scalars, const PartsUpdate& update,
                  const StateParts& parts, WeightFigures* of_blocks) {
  ElementCountOf<Scalars>(parts.kind);
  WithPlanes(parts.kind, [&]<typename Weights, typename T, typename Gradient>() {
    Launch(stream, "an update", UpdateKernel<Scalars, Weights, T, Gradient>,
           LaunchShape{parts.blocks, dim3(kThreads)}, parts.parts, parts.count, scalars,
           Rule<Scalars>::DecayOf(scalars), update.rounding_key, update.step_sizes, of_blocks);
  });
}

}  // namespace

void CudaUpdate(device::CudaStream& stream, const PartsUpdate& update, const StateParts& parts,
                WeightFigures* of_blocks) {
  std::visit([&](const auto& of_rule) { LaunchUpdate(stream, of_rule, update, parts, of_blocks); },
             update.scalars);
}

void CudaSumForTrust(device::CudaStream& stream, const OptimizerScalars& scalars,
                     const StateParts& parts, TrustSums* of_blocks) {
  const auto* const lamb = std::get_if<LambScalars>(&scalars);
  PENSTOCK_CHECK(lamb != nullptr, "a rule without a trust ratio was asked for its sums");
  ElementCountOf<LambScalars>(parts.kind);
  WithPlanes(parts.kind, [&]<typename Weights, typename T, typename Gradient>() {
    Launch(stream, "sums for trust ratios", LambSumsKernel<Weights, T, Gradient>,
           OneThreadEach(parts.measured_blocks * kPartials), parts.parts, parts.count,
           parts.measured_blocks, *lamb, of_blocks);
  });
}

}  // namespace penstock::kernels
