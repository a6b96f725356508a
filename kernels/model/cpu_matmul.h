// Matrix products of the CPU operators: c = a · b with what follows it, on oneDNN.
//
// A Product is made once for its shapes and types, and owns no memory of the operands' size: its
// scratch is a stated number of bytes that the caller lends to every run. Three kinds exist behind
// the one interface: oneDNN's own product; one that adds to fp32 what it has computed apart; and
// one that computes in fp32 on 16-bit storage, for fp16, and for bf16 on machines without bf16
// instructions.
//
// Where an operand has gaps between its rows, and for the third kind, oneDNN uses its gemm, which
// packs blocks of both operands into buffers from the heap and frees them after each run: bounded
// by its block sizes, some MiB for each thread, in any scratch mode.
//
// Threads: a Product may be run by one thread at a time; it uses OpenMP's pool of that thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/units.h"
#include "kernels/dtype.h"

namespace penstock::kernels {

/// How bf16 matrices are multiplied: accumulation is in fp32 either way.
enum class Bf16Arithmetic {
  kNative,   ///< uses the bf16 instructions
  kConvert,  ///< panels are converted to fp32 first
};

/// What this machine (and the limit that oneDNN's environment puts on it) can do.
Bf16Arithmetic BestBf16Arithmetic();
/// Whether matrices of `dtype` are converted to fp32 before they are multiplied. Those of fp16 are
/// on every machine, because AVX512-FP16 adds up in fp16 as well.
bool Converts(DType dtype, Bf16Arithmetic arithmetic);

/// A row-major matrix in memory.
struct Operand {
  DType dtype = DType::kFloat32;
  /// Elements from one stored row to the next.
  uint64_t stride = 0;
  /// The product uses the transpose of what is stored. Not for c.
  bool transposed = false;
};

enum class Epilogue {
  kStore,        ///< c = a · b (+ bias)
  kAddInPlace,   ///< c = c + a · b (+ bias), rounded once
  kAddResidual,  ///< c = residual + a · b (+ bias), rounded once; residual is laid out as c is
  kAccumulate,  ///< c += a · b, where a · b does not depend on c: it is computed first. c is fp32
};

/// c[m, n] from a[m, k] and b[k, n], after transposition; a and b are of one dtype.
struct ProductSpec {
  uint64_t m = 0;
  uint64_t n = 0;
  uint64_t k = 0;
  Operand a;
  Operand b;
  Operand c;
  bool bias = false;  ///< [n], of the dtype of a and b
  Epilogue epilogue = Epilogue::kStore;
  int threads = 1;
};

struct ProductData {
  const std::byte* a = nullptr;
  const std::byte* b = nullptr;
  std::byte* c = nullptr;
  const std::byte* bias = nullptr;
  const std::byte* residual = nullptr;
};

class Product {
 public:
  virtual ~Product() = default;
  /// Bytes that a run may overwrite at `scratch`, which is aligned to ScratchCursor::kAlignment.
  virtual Bytes scratch() const = 0;
  virtual void Run(const ProductData& data, std::byte* scratch) = 0;
};

/// Cuts scratch memory into aligned pieces; both the size and the addresses come from it.
class ScratchCursor {
 public:
  static constexpr Bytes kAlignment = 256_B;

  /// Returns the offset of the next `size` bytes.
  uint64_t Take(Bytes size) {
    const uint64_t offset = used_.value;
    used_ += AlignUp(size, kAlignment);
    return offset;
  }
  Bytes used() const { return used_; }

 private:
  Bytes used_;
};

/// Throws dnnl::error when oneDNN has no implementation or no memory.
std::unique_ptr<Product> MakeProduct(const ProductSpec& spec, Bf16Arithmetic arithmetic);

}  // namespace penstock::kernels
