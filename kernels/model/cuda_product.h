// One matrix product by cuBLASLt, for one shape: chosen once, run any number of times.
//
// c = alpha a b + addend, row-major, then what the epilogue says, with sums in fp32 (fp32 operands
// without TF32). The algorithm is chosen when the product is made, from the shape, the GPU and the
// library alone, among those that give the same bits on every run; so results do not depend on
// addresses.
//
// Threads: Run by the thread that feeds the stream. A product uses the whole workspace, so that all
// go to one stream, or are ordered by events.
#pragma once

#include <cublasLt.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/result.h"
#include "device/device.h"
#include "kernels/model/cuda_operand.h"

namespace penstock::kernels {

/// cuBLASLt, and the workspace that the products of one set of operators share.
class CudaBlas {
 public:
  static Result<std::unique_ptr<CudaBlas>> Create(std::byte* workspace);
  ~CudaBlas();
  CudaBlas(const CudaBlas&) = delete;
  CudaBlas& operator=(const CudaBlas&) = delete;

  cublasLtHandle_t handle() const { return handle_; }
  /// Returns the workspace of kCudaWorkspace bytes.
  std::byte* workspace() const { return workspace_; }

 private:
  CudaBlas(cublasLtHandle_t handle, std::byte* workspace)
      : handle_(handle), workspace_(workspace) {}
  cublasLtHandle_t handle_;
  std::byte* const workspace_;
};

/// What becomes of alpha a b + addend on its way into c.
enum class CudaEpilogue {
  kNone,
  kBias,          ///< bias is added to every row
  kBiasGelu,      ///< bias is added; pre gets the result, c its GELU
  kGeluGradient,  ///< it is multiplied by the derivative of GELU at pre
};
inline bool HasBias(CudaEpilogue epilogue) {
  return epilogue == CudaEpilogue::kBias || epilogue == CudaEpilogue::kBiasGelu;
}
/// Needs weights and a result that allow it (TakesGelu), and no batch.
inline bool HasGelu(CudaEpilogue epilogue) {
  return epilogue == CudaEpilogue::kBiasGelu || epilogue == CudaEpilogue::kGeluGradient;
}

struct CudaProductSpec {
  uint64_t m = 0;
  uint64_t n = 0;
  uint64_t k = 0;
  uint64_t batch = 1;
  CudaOperand a;  ///< [m, k]; stored [k, m] if transposed
  CudaOperand b;  ///< [k, n]; stored [n, k] if transposed
  CudaOperand c;  ///< [m, n]
  /// A bias is of c's dtype, and its unit is that of b. `pre` lies like c.
  CudaEpilogue epilogue = CudaEpilogue::kNone;
  float alpha = 1;
};

class CudaProduct {
 public:
  /// Errors: kUnavailable, also where cuBLASLt has no algorithm for it.
  static Result<std::unique_ptr<CudaProduct>> Create(const CudaBlas& blas,
                                                     const CudaProductSpec& spec);
  /// Null where cuBLASLt has no algorithm for it.
  static Result<std::unique_ptr<CudaProduct>> CreateIfAny(const CudaBlas& blas,
                                                          const CudaProductSpec& spec);

  struct Data {
    const std::byte* a;
    const std::byte* b;
    std::byte* c;
    const std::byte* bias = nullptr;    ///< [n]; given exactly where the epilogue has it
    const std::byte* addend = nullptr;  ///< like c; may be c if that is fp32
    std::byte* pre_out = nullptr;       ///< given exactly with kBiasGelu
    const std::byte* pre = nullptr;     ///< given exactly with kGeluGradient
  };
  /// Each operand lies as its spec says.
  void Run(device::CudaStream& stream, const Data& data);

 private:
  struct Deleter {
    void operator()(cublasLtMatmulDesc_t operation) const { cublasLtMatmulDescDestroy(operation); }
    void operator()(cublasLtMatrixLayout_t layout) const { cublasLtMatrixLayoutDestroy(layout); }
    void operator()(cublasLtMatmulPreference_t preference) const {
      cublasLtMatmulPreferenceDestroy(preference);
    }
  };
  template <typename T>
  using Owned = std::unique_ptr<std::remove_pointer_t<T>, Deleter>;

  CudaProduct(const CudaBlas& blas, const CudaProductSpec& spec);
  /// Whether cuBLASLt has an algorithm for it.
  Result<bool> Build();
  Status Describe();
  Result<Owned<cublasLtMatrixLayout_t>> MakeLayout(const CudaOperand& operand, uint64_t rows,
                                                   uint64_t columns) const;
  Result<bool> Choose();

  const CudaBlas& blas_;
  const CudaProductSpec spec_;
  const uint32_t bias_alignment_;  ///< bytes
  Owned<cublasLtMatmulDesc_t> operation_;
  Owned<cublasLtMatrixLayout_t> a_, b_, c_;
  cublasLtMatmulAlgo_t algorithm_{};
};

}  // namespace penstock::kernels
