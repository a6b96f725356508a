// oneDNN's matrix product behind the interface Product. Private to kernels/model/cpu_matmul*.cc.
#pragma once

#include <dnnl.hpp>
#include <unordered_map>

#include "kernels/model/cpu_matmul.h"

namespace penstock::kernels {

/// Every epilogue but kAccumulate; a and b in what the machine multiplies itself. Scratch is lent
/// by the caller (user scratchpad mode), and fp32 is multiplied as fp32 regardless of the
/// environment.
class NativeProduct final : public Product {
 public:
  explicit NativeProduct(const ProductSpec& spec);

  Bytes scratch() const override { return Bytes{scratch_.get_desc().get_size()}; }
  void Run(const ProductData& data, std::byte* scratch) override;

 private:
  dnnl::matmul matmul_;
  dnnl::memory a_;
  dnnl::memory b_;
  dnnl::memory bias_;
  dnnl::memory residual_;
  dnnl::memory c_;
  dnnl::memory scratch_;
  std::unordered_map<int, dnnl::memory> arguments_;
  dnnl::stream stream_;
};

/// `matrix` from its stored row and column on, as bytes.
inline const std::byte* At(const Operand& matrix, const std::byte* data, uint64_t row,
                           uint64_t column) {
  const uint64_t element =
      matrix.transposed ? column * matrix.stride + row : row * matrix.stride + column;
  return data + element * SizeOf(matrix.dtype).value;
}
inline std::byte* At(const Operand& matrix, std::byte* data, uint64_t row, uint64_t column) {
  return const_cast<std::byte*>(At(matrix, static_cast<const std::byte*>(data), row, column));
}

/// kAccumulate for operands that NativeProduct multiplies; and any product of 16-bit storage in
/// fp32.
std::unique_ptr<Product> MakeAccumulatingProduct(const ProductSpec& spec);
std::unique_ptr<Product> MakeConvertingProduct(const ProductSpec& spec);

}  // namespace penstock::kernels
