// cuBLASLt's matrices are column-major: it computes cᵀ = bᵀ aᵀ, in which every matrix has the
// layout used here.
#include "kernels/model/cuda_product.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "kernels/model/cuda_plan.h"

namespace penstock::kernels {
namespace {

Status BlasStatus(cublasStatus_t status, const std::string& doing) {
  if (status == CUBLAS_STATUS_SUCCESS) return {};
  const bool memory = status == CUBLAS_STATUS_ALLOC_FAILED;
  return MakeError(memory ? ErrorCode::kOutOfMemory : ErrorCode::kUnavailable, "cuBLASLt: {}: {}",
                   doing, cublasLtGetStatusString(status));
}

uint32_t EpilogueOf(CudaEpilogue epilogue) {
  switch (epilogue) {
    case CudaEpilogue::kBias:
      return CUBLASLT_EPILOGUE_BIAS;
    case CudaEpilogue::kBiasGelu:
      return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case CudaEpilogue::kGeluGradient:
      return CUBLASLT_EPILOGUE_DGELU;
    case CudaEpilogue::kNone:
      break;
  }
  return CUBLASLT_EPILOGUE_DEFAULT;
}

cudaDataType_t TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return CUDA_R_32F;
    case DType::kBFloat16:
      return CUDA_R_16BF;
    case DType::kFloat16:
      return CUDA_R_16F;
  }
  return {};
}

std::string NameOf(const CudaProductSpec& spec) {
  return fmt::format("{} x {} x {} product of {}", spec.m, spec.n, spec.k, ToString(spec.a.dtype));
}

/// The name is made of the spec only in case of a failure: products are run often.
Status BlasStatus(cublasStatus_t status, const CudaProductSpec& spec) {
  return status == CUBLAS_STATUS_SUCCESS ? Status() : BlasStatus(status, NameOf(spec));
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

Result<std::unique_ptr<CudaProduct>> CudaProduct::Create(const CudaBlas& blas,
                                                         const CudaProductSpec& spec) {
  PENSTOCK_ASSIGN(std::unique_ptr<CudaProduct> product, CreateIfAny(blas, spec));
  if (product != nullptr) return product;
  return MakeError(ErrorCode::kUnavailable, "cuBLASLt: {}: it has no algorithm for that",
                   NameOf(spec));
}

Result<std::unique_ptr<CudaProduct>> CudaProduct::CreateIfAny(const CudaBlas& blas,
                                                              const CudaProductSpec& spec) {
  std::unique_ptr<CudaProduct> product(new CudaProduct(blas, spec));
  PENSTOCK_ASSIGN(const bool found, product->Build());
  if (!found) product.reset();
  return product;
}

Result<bool> CudaProduct::Build() {
  PENSTOCK_CHECK(!HasGelu(spec_.epilogue) || (TakesGelu(spec_.b, spec_.c) && spec_.batch == 1));
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
      BlasStatus(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), spec_));
  operation_.reset(operation);
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, auto value) {
    return BlasStatus(cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof(value)),
                      spec_);
  };
  const auto operation_of = [](const CudaOperand& operand) {
    return static_cast<int32_t>(operand.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  };
  PENSTOCK_TRY(set(CUBLASLT_MATMUL_DESC_TRANSA, operation_of(spec_.b)));
  PENSTOCK_TRY(set(CUBLASLT_MATMUL_DESC_TRANSB, operation_of(spec_.a)));
  PENSTOCK_TRY(set(CUBLASLT_MATMUL_DESC_EPILOGUE, EpilogueOf(spec_.epilogue)));
  // Run has the addresses; until then some that are aligned no better than those will be.
  if (HasBias(spec_.epilogue)) {
    const void* const some_bias = blas_.workspace() + bias_alignment_;
    PENSTOCK_TRY(set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, some_bias));
    PENSTOCK_TRY(
        set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<int32_t>(TypeOf(spec_.c.dtype))));
  }
  if (HasGelu(spec_.epilogue)) {
    const void* const some_pre = blas_.workspace() + kCudaGoodAlignment;
    PENSTOCK_TRY(set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, some_pre));
    PENSTOCK_TRY(set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, static_cast<int64_t>(spec_.c.stride)));
  }
  return {};
}

/// A row-major matrix as it lies is a column-major one of `columns` rows.
Result<CudaProduct::Owned<cublasLtMatrixLayout_t>> CudaProduct::MakeLayout(
    const CudaOperand& operand, uint64_t rows, uint64_t columns) const {
  cublasLtMatrixLayout_t layout = nullptr;
  PENSTOCK_TRY(BlasStatus(cublasLtMatrixLayoutCreate(&layout, TypeOf(operand.dtype), columns, rows,
                                                     static_cast<int64_t>(operand.stride)),
                          spec_));
  Owned<cublasLtMatrixLayout_t> owned(layout);
  if (spec_.batch == 1) return owned;
  const auto set = [&](cublasLtMatrixLayoutAttribute_t attribute, auto value) {
    return BlasStatus(cublasLtMatrixLayoutSetAttribute(layout, attribute, &value, sizeof(value)),
                      spec_);
  };
  PENSTOCK_TRY(set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<int32_t>(spec_.batch)));
  PENSTOCK_TRY(
      set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, static_cast<int64_t>(operand.batch_stride)));
  return owned;
}

/// Sums that are split over k may be added up in the workspace, in order; never in order of
/// arrival, and not if a bias or GELU follows in 16 bits, because cuBLASLt then rounds the sum
/// before it. Algorithms read the bias as they write the result: its alignment does not matter
/// separately.
Result<bool> CudaProduct::Choose() {
  cublasLtMatmulPreference_t made = nullptr;
  PENSTOCK_TRY(BlasStatus(cublasLtMatmulPreferenceCreate(&made), spec_));
  const Owned<cublasLtMatmulPreference_t> preference(made);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    return BlasStatus(
        cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof(value)),
        spec_);
  };
  PENSTOCK_TRY(set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kCudaWorkspace.value}));
  const bool may_split = spec_.epilogue == CudaEpilogue::kNone || spec_.c.dtype == DType::kFloat32;
  PENSTOCK_TRY(set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                   static_cast<uint32_t>(may_split ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
                                                   : CUBLASLT_REDUCTION_SCHEME_NONE)));
  const uint32_t result = AlignmentOf(spec_.c);
  PENSTOCK_TRY(set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, AlignmentOf(spec_.b)));
  PENSTOCK_TRY(set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, AlignmentOf(spec_.a)));
  PENSTOCK_TRY(set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, result));
  PENSTOCK_TRY(set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
                   HasBias(spec_.epilogue) ? std::min(result, bias_alignment_) : result));
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(blas_.handle(), operation_.get(), b_.get(), a_.get(), c_.get(),
                                     c_.get(), preference.get(), 1, &found, &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return false;
  // "Impossible", as cuBLASLt may say of an epilogue that others can do without.
  if (status == CUBLAS_STATUS_INVALID_VALUE && HasGelu(spec_.epilogue)) return false;
  PENSTOCK_TRY(BlasStatus(status, spec_));
  algorithm_ = found.algo;
  return count > 0 && found.state == CUBLAS_STATUS_SUCCESS;
}

void CudaProduct::Run(device::CudaStream& stream, const Data& data) {
  PENSTOCK_CHECK((data.bias != nullptr) == HasBias(spec_.epilogue));
  PENSTOCK_CHECK((data.pre_out != nullptr) == (spec_.epilogue == CudaEpilogue::kBiasGelu));
  PENSTOCK_CHECK((data.pre != nullptr) == (spec_.epilogue == CudaEpilogue::kGeluGradient));
  // In place, cuBLASLt rounds to c's dtype before it adds the old value of c, and once more
  // afterwards.
  PENSTOCK_CHECK(data.addend != data.c || spec_.c.dtype == DType::kFloat32,
                 "{}: it is added to what lies in c", NameOf(spec_));
  const std::byte* const pre = data.pre_out != nullptr ? data.pre_out : data.pre;
  const std::byte* const addend = data.addend == nullptr ? data.c : data.addend;
  const auto check = [this](const char* what, const std::byte* address, uint32_t alignment) {
    PENSTOCK_CHECK(reinterpret_cast<uintptr_t>(address) % alignment == 0,
                   "{}: {} does not lie at a multiple of {} bytes", NameOf(spec_), what, alignment);
  };
  check("a", data.a, AlignmentOf(spec_.a));
  check("b", data.b, AlignmentOf(spec_.b));
  check("c", data.c, AlignmentOf(spec_.c));
  check("the addend", addend, AlignmentOf(spec_.c));
  check("the bias", data.bias, bias_alignment_);
  check("what GELU is taken of", pre, kCudaGoodAlignment);
  stream.Launch([&](cudaStream_t handle) -> Status {
    const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const std::byte* address) {
      return BlasStatus(
          cublasLtMatmulDescSetAttribute(operation_.get(), attribute, &address, sizeof(address)),
          spec_);
    };
    if (data.bias != nullptr) PENSTOCK_TRY(set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, data.bias));
    if (pre != nullptr) PENSTOCK_TRY(set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, pre));
    const float beta = data.addend == nullptr ? 0 : 1;
    const cublasStatus_t status =
        cublasLtMatmul(blas_.handle(), operation_.get(), &spec_.alpha, data.b, b_.get(), data.a,
                       a_.get(), &beta, addend, c_.get(), data.c, c_.get(), &algorithm_,
                       blas_.workspace(), kCudaWorkspace.value, handle);
    return BlasStatus(status, spec_);
  });
}

}  // namespace penstock::kernels
