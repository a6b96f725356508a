// How close to the machine's matrix-product rate is a transformer layer on the CPU device?
//
// The ceiling is a 1024 x 1024 x 1024 product in the same dtype and with the same threads, measured
// in the same run (the best of several); every row prints its GFLOP/s and the fraction of that
// ceiling
// ("of_matmul"). Arguments: batch and sequence length; width 384, 6 heads, hidden 1536, vocabulary
// 256. Attention counts the causal half of its products: two of them forward; backward four, and
// the scores computed again. "Layer" is forward and backward of a whole layer in the order of a
// training step, norms, GELU and residuals included (their time counts, their operations do not).
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "device/device.h"
#include "kernels/cpu_parallel.h"
#include "kernels/model/cpu_matmul.h"
#include "kernels/model/model_operators.h"

namespace penstock::kernels {
namespace {

constexpr int kThreads = 2;
constexpr uint64_t kWidth = 384;
constexpr uint64_t kHeads = 6;
constexpr uint64_t kHidden = 1536;
constexpr uint64_t kVocabulary = 256;
constexpr float kEps = 1e-5f;

/// A device with operators and the tensors of one layer, filled with small numbers.
class Layer {
 public:
  Layer(DType dtype, uint64_t batch, uint64_t sequence)
      : dtype_(dtype),
        batch_(batch),
        sequence_(sequence),
        device_(device::CreateCpuDevice({.memory = 1_GiB}).value()),
        stream_(device_->CreateStream("compute").value()),
        operators_(CreateModelOperators(*device_, Options()).value()) {
    x = Activations(kWidth);
    normed = Activations(kWidth);
    qkv = Activations(3 * kWidth);
    attended = Activations(kWidth);
    mid = Activations(kWidth);
    hidden = Activations(kHidden);
    activated = Activations(kHidden);
    out = Activations(kWidth);
    d_out = Activations(kWidth);
    d_narrow = Activations(kWidth);
    d_qkv = Activations(3 * kWidth);
    d_hidden = Activations(kHidden);
    weight_ = Take({kWidth, kHidden}, dtype_);
    bias_ = Take({kHidden}, dtype_);
    d_weight_ = Take({kWidth, kHidden}, DType::kFloat32);
    d_bias_ = Take({kHidden}, DType::kFloat32);
    mean = Take({rows()}, DType::kFloat32);
    rstd = Take({rows()}, DType::kFloat32);
    auto* const of_rows = reinterpret_cast<int32_t*>(Take({rows()}, DType::kFloat32).data);
    std::fill_n(of_rows, rows(), 7);
    targets = {batch, sequence, of_rows};
    loss = reinterpret_cast<double*>(Take({2}, DType::kFloat32).data);
  }

  void Forward() {
    ModelOperators& op = *operators_;
    device::Stream& stream = *stream_;
    op.LayerNormForward(stream, x, Bias(kWidth), Bias(kWidth), kEps, normed, mean, rstd, nullptr);
    op.LinearForward(stream, normed, Weight(kWidth, 3 * kWidth), Bias(3 * kWidth), {}, qkv);
    op.AttentionForward(stream, kHeads, qkv, attended);
    op.LinearForward(stream, attended, Weight(kWidth, kWidth), Bias(kWidth), x, mid);
    op.LayerNormForward(stream, mid, Bias(kWidth), Bias(kWidth), kEps, normed, mean, rstd, nullptr);
    op.LinearGeluForward(stream, normed, Weight(kWidth, kHidden), Bias(kHidden), hidden, activated);
    op.LinearForward(stream, activated, Weight(kHidden, kWidth), Bias(kWidth), mid, out);
  }

  void Backward() {
    operators_->LinearGeluBackwardInput(*stream_, d_out, Weight(kHidden, kWidth), hidden, d_hidden);
    operators_->LinearBackwardWeight(*stream_, activated, d_out, WeightGradient(kHidden, kWidth),
                                     BiasGradient(kWidth));
    BackwardOf(normed, d_hidden, kWidth, kHidden, d_narrow);
    BackwardOfNorm();
    BackwardOf(attended, d_out, kWidth, kWidth, d_narrow);
    operators_->AttentionBackward(*stream_, kHeads, qkv, attended, d_narrow, d_qkv);
    BackwardOf(normed, d_qkv, kWidth, 3 * kWidth, d_narrow);
    BackwardOfNorm();
  }

  ModelOperators& operators() { return *operators_; }
  device::Stream& stream() { return *stream_; }
  uint64_t rows() const { return batch_ * sequence_; }

  // All weights lie in the same place, as do their gradients.
  TensorView Weight(uint64_t k, uint64_t n) const { return {dtype_, {k, n}, weight_.data}; }
  TensorView Bias(uint64_t n) const { return {dtype_, {n}, bias_.data}; }
  TensorView WeightGradient(uint64_t k, uint64_t n) const {
    return {DType::kFloat32, {k, n}, d_weight_.data};
  }
  TensorView BiasGradient(uint64_t n) const { return {DType::kFloat32, {n}, d_bias_.data}; }

  TensorView x, normed, qkv, attended, mid, hidden, activated, out;
  TensorView d_out, d_narrow, d_qkv, d_hidden;
  TensorView mean, rstd;
  TokenView targets;
  double* loss;

 private:
  OperatorOptions Options() const {
    const auto linear = [&](uint64_t k, uint64_t n) { return LinearCall{dtype_, rows(), k, n}; };
    return {.calls = {linear(kWidth, 3 * kWidth), linear(kWidth, kWidth), linear(kWidth, kHidden),
                      linear(kHidden, kWidth), LinearGeluCall{dtype_, rows(), kWidth, kHidden},
                      AttentionCall{dtype_, batch_, sequence_, kWidth, kHeads},
                      HeadCall{dtype_, rows(), kWidth, kVocabulary},
                      LayerNormCall{dtype_, rows(), kWidth}},
            .threads = kThreads};
  }

  TensorView Activations(uint64_t columns) { return Take({batch_, sequence_, columns}, dtype_); }

  TensorView Take(const Shape& shape, DType dtype) {
    const uint64_t n = shape.elements();
    buffers_.push_back(device_->Allocate(n * SizeOf(dtype), "a tensor").value());
    std::byte* data = buffers_.back().data();
    for (uint64_t i = 0; i < n; ++i) {
      const float value = static_cast<float>(i * 2654435761 % 1000) * 1e-4f - 0.05f;
      if (dtype == DType::kFloat32) {
        reinterpret_cast<float*>(data)[i] = value;
      } else {
        reinterpret_cast<BFloat16*>(data)[i] = RoundToBFloat16(value);
      }
    }
    return {dtype, shape, data};
  }

  void BackwardOf(const TensorView& in, const TensorView& d, uint64_t k, uint64_t n,
                  const TensorView& d_in) {
    operators_->LinearBackwardInput(*stream_, d, Weight(k, n), d_in);
    operators_->LinearBackwardWeight(*stream_, in, d, WeightGradient(k, n), BiasGradient(n));
  }
  void BackwardOfNorm() {
    operators_->LayerNormBackward(*stream_, x, Bias(kWidth), mean, rstd, d_narrow, true, d_out,
                                  BiasGradient(kWidth), BiasGradient(kWidth));
  }

  const DType dtype_;
  const uint64_t batch_;
  const uint64_t sequence_;
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<device::Stream> stream_;
  std::unique_ptr<ModelOperators> operators_;
  std::vector<device::DeviceBuffer> buffers_;
  TensorView weight_, bias_, d_weight_, d_bias_;
};

double Seconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// FLOP/s of a large square product: the best of 20.
double MatmulRate(DType dtype) {
  constexpr uint64_t kSize = 1024;
  const Operand matrix{.dtype = dtype, .stride = kSize};
  const auto product = MakeProduct({.m = kSize,
                                    .n = kSize,
                                    .k = kSize,
                                    .a = matrix,
                                    .b = matrix,
                                    .c = matrix,
                                    .threads = kThreads},
                                   BestBf16Arithmetic());
  const auto device = device::CreateCpuDevice({.memory = 64_MiB}).value();
  const auto take = [&](Bytes size) { return device->Allocate(size, "an operand").value(); };
  const Bytes size = kSize * kSize * SizeOf(dtype);
  const auto a = take(size);
  const auto b = take(size);
  const auto c = take(size);
  const auto scratch = take(product->scratch() + 1_B);
  const ThreadCountScope threads(kThreads);
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 20; ++i) {
    best = std::min(best, Seconds([&] {
                      product->Run({.a = a.data(), .b = b.data(), .c = c.data()}, scratch.data());
                    }));
  }
  return 2.0 * kSize * kSize * kSize / best;
}

double Ceiling(DType dtype) {
  static const double fp32 = MatmulRate(DType::kFloat32);
  static const double bf16 = MatmulRate(DType::kBFloat16);
  return dtype == DType::kFloat32 ? fp32 : bf16;
}

using Work = std::function<void(Layer&)>;
/// Operations of one piece of work, from the batch and the sequence length.
using Operations = std::function<double(double, double)>;

void Measure(benchmark::State& state, DType dtype, const Work& work, const Operations& operations) {
  const auto batch = static_cast<uint64_t>(state.range(0));
  const auto sequence = static_cast<uint64_t>(state.range(1));
  Layer layer(dtype, batch, sequence);
  work(layer);
  PENSTOCK_CHECK(layer.stream().Synchronize().ok());
  double best = std::numeric_limits<double>::infinity();
  for (auto _ : state) {
    const double seconds = Seconds([&] {
      work(layer);
      PENSTOCK_CHECK(layer.stream().Synchronize().ok());
    });
    state.SetIterationTime(seconds);
    best = std::min(best, seconds);
  }
  const double done = operations(static_cast<double>(batch), static_cast<double>(sequence));
  state.counters["best_us"] = best * 1e6;
  if (done > 0) {
    state.counters["GFLOP/s"] = done / best * 1e-9;
    state.counters["of_matmul"] = done / best / Ceiling(dtype);
  }
}

double LinearOperations(double batch, double sequence, double k, double n) {
  return 2 * batch * sequence * k * n;
}
double AttentionOperations(double batch, double sequence, double products) {
  return products * batch * sequence * sequence * kWidth;
}

struct Row {
  const char* name;
  Work work;
  Operations operations;
};

const std::vector<Row>& Rows() {
  static const std::vector<Row> rows = {
      {"LinearForward",
       [](Layer& l) {
         l.operators().LinearForward(l.stream(), l.x, l.Weight(kWidth, kHidden), l.Bias(kHidden),
                                     {}, l.hidden);
       },
       [](double b, double t) { return LinearOperations(b, t, kWidth, kHidden); }},
      {"LinearForwardResidual",
       [](Layer& l) {
         l.operators().LinearForward(l.stream(), l.hidden, l.Weight(kHidden, kWidth),
                                     l.Bias(kWidth), l.x, l.out);
       },
       [](double b, double t) { return LinearOperations(b, t, kWidth, kHidden); }},
      {"LinearBackwardInput",
       [](Layer& l) {
         l.operators().LinearBackwardInput(l.stream(), l.d_hidden, l.Weight(kWidth, kHidden),
                                           l.d_narrow);
       },
       [](double b, double t) { return LinearOperations(b, t, kWidth, kHidden); }},
      {"LinearBackwardWeight",
       [](Layer& l) {
         l.operators().LinearBackwardWeight(l.stream(), l.x, l.d_hidden,
                                            l.WeightGradient(kWidth, kHidden),
                                            l.BiasGradient(kHidden));
       },
       [](double b, double t) { return LinearOperations(b, t, kWidth, kHidden); }},
      {"AttentionForward",
       [](Layer& l) { l.operators().AttentionForward(l.stream(), kHeads, l.qkv, l.attended); },
       [](double b, double t) { return AttentionOperations(b, t, 2); }},
      {"AttentionBackward",
       [](Layer& l) {
         l.operators().AttentionBackward(l.stream(), kHeads, l.qkv, l.attended, l.d_narrow,
                                         l.d_qkv);
       },
       [](double b, double t) { return AttentionOperations(b, t, 5); }},
      {"LayerNormForward",
       [](Layer& l) {
         l.operators().LayerNormForward(l.stream(), l.x, l.Bias(kWidth), l.Bias(kWidth), kEps,
                                        l.normed, l.mean, l.rstd, nullptr);
       },
       [](double, double) { return 0.0; }},
      {"LayerNormBackward",
       [](Layer& l) {
         l.operators().LayerNormBackward(l.stream(), l.x, l.Bias(kWidth), l.mean, l.rstd,
                                         l.d_narrow, true, l.d_out, l.BiasGradient(kWidth),
                                         l.BiasGradient(kWidth));
       },
       [](double, double) { return 0.0; }},
      {"LinearGeluForward",
       [](Layer& l) {
         l.operators().LinearGeluForward(l.stream(), l.x, l.Weight(kWidth, kHidden),
                                         l.Bias(kHidden), l.hidden, l.activated);
       },
       [](double b, double t) { return LinearOperations(b, t, kWidth, kHidden); }},
      {"LinearGeluBackwardInput",
       [](Layer& l) {
         l.operators().LinearGeluBackwardInput(l.stream(), l.d_out, l.Weight(kHidden, kWidth),
                                               l.hidden, l.d_hidden);
       },
       [](double b, double t) { return LinearOperations(b, t, kWidth, kHidden); }},
      {"Head",
       [](Layer& l) {
         l.operators().HeadForwardBackward(l.stream(), l.x, l.Weight(kVocabulary, kWidth),
                                           l.targets, 1e-3f, l.loss, l.d_narrow,
                                           l.WeightGradient(kVocabulary, kWidth));
       },
       [](double b, double t) { return 3 * LinearOperations(b, t, kWidth, kVocabulary); }},
      {"Layer",
       [](Layer& l) {
         l.Forward();
         l.Backward();
       },
       [](double b, double t) {
         return 3 * LinearOperations(b, t, kWidth, 4 * kWidth + 2 * kHidden) +
                AttentionOperations(b, t, 7);
       }},
  };
  return rows;
}

void RegisterAll() {
  for (const Row& row : Rows()) {
    for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
      const auto name = std::string(row.name) + "/" + ToString(dtype);
      benchmark::RegisterBenchmark(name.c_str(),
                                   [&row, dtype](benchmark::State& state) {
                                     Measure(state, dtype, row.work, row.operations);
                                   })
          ->ArgNames({"batch", "sequence"})
          ->Args({1, 256})
          ->Args({4, 512})
          ->UseManualTime()
          ->Unit(benchmark::kMicrosecond);
    }
  }
}

}  // namespace
}  // namespace penstock::kernels

int main(int argc, char** argv) {
  penstock::kernels::RegisterAll();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
