#include "kernels/model/cpu_linear.h"

#include <algorithm>

#include "kernels/cpu_parallel.h"
#include "kernels/model/cpu_rows.h"

namespace penstock::kernels {
namespace {

/// Columns that one thread combines at a time.
constexpr uint64_t kColumnGrain = 64;
/// Fewer additions than this are done faster than a second thread is woken.
constexpr uint64_t kWorthSpreading = uint64_t{1} << 15;

}  // namespace

Linear::Linear(const LinearCall& call, int threads, Bf16Arithmetic arithmetic)
    : call_(call), threads_(threads) {
  const auto& [dtype, rows, k, n] = call_;
  const Operand x{.dtype = dtype, .stride = k};
  const Operand out{.dtype = dtype, .stride = n};
  ProductSpec forward{.m = rows,
                      .n = n,
                      .k = k,
                      .a = x,
                      .b = {.dtype = dtype, .stride = n},
                      .c = out,
                      .bias = true,
                      .threads = threads_};
  forward_ = MakeProduct(forward, arithmetic);
  forward.epilogue = Epilogue::kAddResidual;
  forward_residual_ = MakeProduct(forward, arithmetic);
  backward_input_ = MakeProduct({.m = rows,
                                 .n = k,
                                 .k = n,
                                 .a = out,
                                 .b = {.dtype = dtype, .stride = n, .transposed = true},
                                 .c = x,
                                 .threads = threads_},
                                arithmetic);
  backward_weight_ = MakeProduct({.m = k,
                                  .n = n,
                                  .k = rows,
                                  .a = {.dtype = dtype, .stride = k, .transposed = true},
                                  .b = out,
                                  .c = {.dtype = DType::kFloat32, .stride = n},
                                  .epilogue = Epilogue::kAccumulate,
                                  .threads = threads_},
                                 arithmetic);
}

Bytes Linear::scratch() const {
  return std::max({forward_->scratch(), forward_residual_->scratch(), backward_input_->scratch(),
                   backward_weight_->scratch(),
                   Bytes{call_.n * sizeof(float)} * static_cast<uint64_t>(threads_)});
}

void Linear::Forward(const ProductData& data, std::byte* scratch) const {
  Product& product = data.residual == nullptr ? *forward_ : *forward_residual_;
  product.Run(data, scratch);
}

void Linear::BackwardInput(const std::byte* d_out, const std::byte* weight, std::byte* d_x,
                           std::byte* scratch) const {
  backward_input_->Run({.a = d_out, .b = weight, .c = d_x}, scratch);
}

void Linear::BackwardWeight(const std::byte* x, const std::byte* d_out, float* d_weight,
                            float* d_bias, std::byte* scratch) const {
  backward_weight_->Run({.a = x, .b = d_out, .c = reinterpret_cast<std::byte*>(d_weight)}, scratch);
  AccumulateColumnSums(threads_, call_.dtype, d_out, call_.rows, call_.n,
                       reinterpret_cast<float*>(scratch), d_bias);
}

void AccumulateColumnSums(int threads, DType dtype, const std::byte* in, uint64_t rows,
                          uint64_t columns, float* partial, float* to) {
  ParallelParts(threads, [&](int part) {
    float* sums = partial + static_cast<uint64_t>(part) * columns;
    std::fill_n(sums, columns, 0.0f);
    const Range range = PartOf(rows, part, threads);
    for (uint64_t row = range.begin; row < range.end; ++row) {
      AddToFloats(dtype, in + row * columns * SizeOf(dtype).value, sums, columns);
    }
  });
  AccumulatePartials(threads, partial, columns, columns, to);
}

void AccumulatePartials(int threads, const float* partial, uint64_t stride, uint64_t columns,
                        float* to) {
  const bool spread = columns * static_cast<uint64_t>(threads) >= kWorthSpreading;
  ParallelRanges(spread ? threads : 1, columns, kColumnGrain, [&](Range range) {
    for (uint64_t c = range.begin; c < range.end; ++c) {
      float sum = partial[c];
      for (int part = 1; part < threads; ++part) {
        sum += partial[static_cast<uint64_t>(part) * stride + c];
      }
      to[c] += sum;
    }
  });
}

}  // namespace penstock::kernels
