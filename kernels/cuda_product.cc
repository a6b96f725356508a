// cuBLASLt's matrices are column-major: it is asked for cᵀ = bᵀ aᵀ, in which every matrix lies as
// it does here.
#include "kernels/cuda_product.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "kernels/cuda_plan.h"

namespace penstock::kernels {
namespace {

Status BlasStatus(cublasStatus_t status, const std::string& doing) {
  if (status == CUBLAS_STATUS_SUCCESS) return {};
  const bool memory = status == CUBLAS_STATUS_ALLOC_FAILED;
  return MakeError(memory ? ErrorCode::kOutOfMemory : ErrorCode::kUnavailable, "cuBLASLt: {}: {}",
                   doing, cublasLtGetStatusString(status));
}

cudaDataType_t TypeOf(DType dtype) {
  PENSTOCK_CHECK(dtype != DType::kFloat16);
  return dtype == DType::kFloat32 ? CUDA_R_32F : CUDA_R_16BF;
}

}  // namespace

Result<std::unique_ptr<CudaBlas>> CudaBlas::Create(std::byte* workspace) {
  cublasLtHandle_t handle = nullptr;
  PENSTOCK_TRY(BlasStatus(cublasLtCreate(&handle), "starting"));
  return std::unique_ptr<CudaBlas>(new CudaBlas(handle, workspace));
}

CudaBlas::~CudaBlas() { static_cast<void>(cublasLtDestroy(handle_)); }

CudaProduct::CudaProduct(const CudaBlas& blas, const CudaProductSpec& spec)
    : blas_(blas),
      spec_(spec),
      bias_alignment_(AlignmentOf({.dtype = spec.c.dtype, .unit = spec.b.unit})) {}

std::string CudaProduct::Name() const {
  return fmt::format("{} x {} x {} product of {}", spec_.m, spec_.n, spec_.k,
                     ToString(spec_.a.dtype));
}

Result<std::unique_ptr<CudaProduct>> CudaProduct::Create(const CudaBlas& blas,
                                                         const CudaProductSpec& spec) {
  std::unique_ptr<CudaProduct> product(new CudaProduct(blas, spec));
  PENSTOCK_TRY(product->Build());
  return product;
}

Status CudaProduct::Build() {
  PENSTOCK_TRY(Describe());
  const auto stored = [this](const CudaOperand& operand, uint64_t rows, uint64_t columns) {
    return operand.transposed ? MakeLayout(operand, columns, rows)
                              : MakeLayout(operand, rows, columns);
  };
  PENSTOCK_ASSIGN(a_, stored(spec_.a, spec_.m, spec_.k));
  PENSTOCK_ASSIGN(b_, stored(spec_.b, spec_.k, spec_.n));
  PENSTOCK_ASSIGN(c_, stored(spec_.c, spec_.m, spec_.n));
  return Choose();
}

Status CudaProduct::Describe() {
  cublasLtMatmulDesc_t operation = nullptr;
  PENSTOCK_TRY(
      BlasStatus(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), Name()));
  operation_.reset(operation);
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, auto value) {
    return BlasStatus(cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof(value)),
                      Name());
  };
  const auto operation_of = [](const CudaOperand& operand) {
    return static_cast<int32_t>(operand.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  };
  PENSTOCK_TRY(set(CUBLASLT_MATMUL_DESC_TRANSA, operation_of(spec_.b)));
  PENSTOCK_TRY(set(CUBLASLT_MATMUL_DESC_TRANSB, operation_of(spec_.a)));
  if (!spec_.bias) return {};
  PENSTOCK_TRY(set(CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<uint32_t>(CUBLASLT_EPILOGUE_BIAS)));
  // Run has the bias; until then an address that is aligned no better than that.
  const void* const some_bias = blas_.workspace() + bias_alignment_;
  PENSTOCK_TRY(set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, some_bias));
  return set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<int32_t>(TypeOf(spec_.c.dtype)));
}

/// A row-major matrix as it lies is a column-major one of `columns` rows.
Result<CudaProduct::Owned<cublasLtMatrixLayout_t>> CudaProduct::MakeLayout(
    const CudaOperand& operand, uint64_t rows, uint64_t columns) const {
  cublasLtMatrixLayout_t layout = nullptr;
  PENSTOCK_TRY(BlasStatus(cublasLtMatrixLayoutCreate(&layout, TypeOf(operand.dtype), columns, rows,
                                                     static_cast<int64_t>(operand.stride)),
                          Name()));
  Owned<cublasLtMatrixLayout_t> owned(layout);
  if (spec_.batch == 1) return owned;
  const auto set = [&](cublasLtMatrixLayoutAttribute_t attribute, auto value) {
    return BlasStatus(cublasLtMatrixLayoutSetAttribute(layout, attribute, &value, sizeof(value)),
                      Name());
  };
  PENSTOCK_TRY(set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<int32_t>(spec_.batch)));
  PENSTOCK_TRY(
      set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, static_cast<int64_t>(operand.batch_stride)));
  return owned;
}

/// Sums that are split over k may be added up in the workspace, in order; never by whoever is
/// first. Algorithms read the bias as they write the result: it has no alignment of its own.
Status CudaProduct::Choose() {
  cublasLtMatmulPreference_t made = nullptr;
  PENSTOCK_TRY(BlasStatus(cublasLtMatmulPreferenceCreate(&made), Name()));
  const Owned<cublasLtMatmulPreference_t> preference(made);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    return BlasStatus(
        cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof(value)),
        Name());
  };
  PENSTOCK_TRY(set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kCudaWorkspace.value}));
  PENSTOCK_TRY(set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                   static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)));
  const uint32_t result = AlignmentOf(spec_.c);
  PENSTOCK_TRY(set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, AlignmentOf(spec_.b)));
  PENSTOCK_TRY(set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, AlignmentOf(spec_.a)));
  PENSTOCK_TRY(set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, result));
  PENSTOCK_TRY(set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
                   spec_.bias ? std::min(result, bias_alignment_) : result));
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(blas_.handle(), operation_.get(), b_.get(), a_.get(), c_.get(),
                                     c_.get(), preference.get(), 1, &found, &count);
  if (status != CUBLAS_STATUS_NOT_SUPPORTED) PENSTOCK_TRY(BlasStatus(status, Name()));
  if (count == 0 || found.state != CUBLAS_STATUS_SUCCESS) {
    return MakeError(ErrorCode::kUnavailable, "cuBLASLt: {}: it has no algorithm for that", Name());
  }
  algorithm_ = found.algo;
  return {};
}

void CudaProduct::Run(device::CudaStream& stream, const Data& data) {
  PENSTOCK_CHECK((data.bias != nullptr) == spec_.bias);
  const std::byte* const addend = data.addend == nullptr ? data.c : data.addend;
  const auto check = [this](const char* what, const std::byte* address, uint32_t alignment) {
    PENSTOCK_CHECK(reinterpret_cast<uintptr_t>(address) % alignment == 0,
                   "{}: {} does not lie at a multiple of {} bytes", Name(), what, alignment);
  };
  check("a", data.a, AlignmentOf(spec_.a));
  check("b", data.b, AlignmentOf(spec_.b));
  check("c", data.c, AlignmentOf(spec_.c));
  check("the addend", addend, AlignmentOf(spec_.c));
  check("the bias", data.bias, bias_alignment_);
  stream.Launch([&](cudaStream_t handle) -> Status {
    if (spec_.bias) {
      PENSTOCK_TRY(BlasStatus(
          cublasLtMatmulDescSetAttribute(operation_.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                         &data.bias, sizeof(data.bias)),
          Name()));
    }
    const float beta = data.addend == nullptr ? 0 : 1;
    const cublasStatus_t status =
        cublasLtMatmul(blas_.handle(), operation_.get(), &spec_.alpha, data.b, b_.get(), data.a,
                       a_.get(), &beta, addend, c_.get(), data.c, c_.get(), &algorithm_,
                       blas_.workspace(), kCudaWorkspace.value, handle);
    return status == CUBLAS_STATUS_SUCCESS ? Status() : BlasStatus(status, Name());
  });
}

}  // namespace penstock::kernels
