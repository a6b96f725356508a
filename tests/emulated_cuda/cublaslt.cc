// The part of cuBLASLt that penstock calls, on the CPU: linked in place of libcublasLt. Matrices
// are column-major; sums are in fp32. It refuses shapes that do not fit, what its documentation
// says of the input of GELU, algorithms that would give other bits from run to run, operands that
// lie elsewhere than on the device, overlap the result, or are aligned worse than was said when the
// algorithm was chosen, and less workspace than was said there, which it overwrites. In place
// (c is d) it rounds what it adds to c, and their sum, as an H200's kernels do ("badd").
#include "tests/emulated_cuda/cublaslt.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/dtype.h"
#include "tests/emulated_cuda/cudart.h"

namespace {

using penstock::kernels::BFloat16;

struct Operation {
  int32_t transpose_a = CUBLAS_OP_N;
  int32_t transpose_b = CUBLAS_OP_N;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  int32_t bias_type = -1;
  void* aux = nullptr;
  int64_t aux_stride = 0;
};

struct Layout {
  cudaDataType type;
  uint64_t rows;
  uint64_t columns;
  int64_t stride;
  int32_t batch = 1;
  int64_t batch_stride = 0;
};

/// What CUDA calls opaque holds one of ours.
template <typename T, typename Opaque>
T& In(Opaque* opaque) {
  return *reinterpret_cast<T*>(opaque);
}
template <typename Opaque, typename T>
Opaque* AsOpaque(T* made) {
  return reinterpret_cast<Opaque*>(made);
}

template <typename T>
cublasStatus_t Set(T& to, const void* value, size_t size) {
  if (size != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, value, size);
  return CUBLAS_STATUS_SUCCESS;
}

float Read(cudaDataType type, const void* data, int64_t at) {
  if (type == CUDA_R_32F) return static_cast<const float*>(data)[at];
  const auto* const bits = static_cast<const uint16_t*>(data) + at;
  return type == CUDA_R_16F ? ToFloat(penstock::kernels::Float16{*bits}) : ToFloat(BFloat16{*bits});
}
void Write(cudaDataType type, void* data, int64_t at, float value) {
  if (type == CUDA_R_32F) {
    static_cast<float*>(data)[at] = value;
    return;
  }
  static_cast<uint16_t*>(data)[at] = type == CUDA_R_16F
                                         ? penstock::kernels::RoundToFloat16(value)
                                         : penstock::kernels::RoundToBFloat16(value).bits;
}
float Rounded(cudaDataType type, float value) {
  char rounded[sizeof(float)];
  Write(type, rounded, 0, value);
  return Read(type, rounded, 0);
}
/// Bytes from one matrix of a batch to the next.
int64_t Apart(const Layout& layout) {
  return layout.batch_stride * (layout.type == CUDA_R_32F ? 4 : 2);
}

bool HasAux(uint32_t epilogue) {
  return epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS || epilogue == CUBLASLT_EPILOGUE_DGELU;
}
bool HasBias(uint32_t epilogue) {
  return epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS || epilogue == CUBLASLT_EPILOGUE_BIAS;
}

std::atomic<cublasStatus_t> answer_to_gelu = CUBLAS_STATUS_SUCCESS;
std::atomic<cublasStatus_t> answer_to_gradient = CUBLAS_STATUS_SUCCESS;

/// What the preference says, kept in the algorithm that is chosen. Alignments are in bytes.
struct Promises {
  uint32_t a = 0, b = 0, c = 0, d = 0, bias = 0;
  uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
  uint64_t workspace = 0;
};

/// Bytes from the first to behind the last element of all matrices.
size_t Reach(const Layout& layout) {
  const uint64_t elements =
      static_cast<uint64_t>(layout.batch - 1) * static_cast<uint64_t>(layout.batch_stride) +
      (layout.columns - 1) * static_cast<uint64_t>(layout.stride) + layout.rows;
  return elements * (layout.type == CUDA_R_32F ? 4 : 2);
}
/// Of an address, up to 16.
uint32_t AlignmentAt(const void* data) {
  const uint64_t bits = reinterpret_cast<uintptr_t>(data) | 16;
  return static_cast<uint32_t>(bits & (~bits + 1));
}
bool Overlap(const void* a, size_t a_size, const void* b, size_t b_size) {
  const auto from_a = reinterpret_cast<uintptr_t>(a), from_b = reinterpret_cast<uintptr_t>(b);
  return from_a < from_b + b_size && from_b < from_a + a_size;
}
bool Lies(const void* data, const Layout& layout, uint32_t alignment) {
  return reinterpret_cast<uintptr_t>(data) % std::max(1U, alignment) == 0 &&
         penstock::emulated_cuda::IsOnDevice(data, Reach(layout));
}

float TanhOf(float x) { return std::tanh(0.7978845608f * (x + 0.044715f * x * x * x)); }
float Gelu(float x) { return x / 2 * (1 + TanhOf(x)); }
float GeluDerivative(float x) {
  const float t = TanhOf(x);
  return (1 + t) / 2 + x / 2 * (1 - t * t) * 0.7978845608f * (1 + 3 * 0.044715f * x * x);
}

struct Product {
  Operation operation;
  Layout a, b, c, d;
  float alpha, beta;
  const char *a_data, *b_data, *c_data;
  char* d_data;

  uint64_t Inner() const { return operation.transpose_a == CUBLAS_OP_N ? a.columns : a.rows; }
  bool Fits() const {
    const bool a_as_it_is = operation.transpose_a == CUBLAS_OP_N;
    const bool b_as_it_is = operation.transpose_b == CUBLAS_OP_N;
    const auto whole = [](const Layout& layout) {
      return layout.stride >= static_cast<int64_t>(layout.rows);
    };
    return (a_as_it_is ? a.rows : a.columns) == d.rows &&
           (b_as_it_is ? b.columns : b.rows) == d.columns &&
           (b_as_it_is ? b.rows : b.columns) == Inner() && a.type == b.type && c.rows == d.rows &&
           c.columns == d.columns && c.type == d.type && a.batch == d.batch && b.batch == d.batch &&
           c.batch == d.batch && whole(a) && whole(b) && whole(c) && whole(d);
  }
  bool FitsEpilogue() const {
    const bool known = operation.epilogue == CUBLASLT_EPILOGUE_DEFAULT ||
                       HasAux(operation.epilogue) || HasBias(operation.epilogue);
    const bool aux =
        !HasAux(operation.epilogue) ||
        (operation.aux_stride % 8 == 0 && operation.aux_stride >= static_cast<int64_t>(d.rows) &&
         d.batch == 1 && operation.aux != nullptr);
    const bool bias = !HasBias(operation.epilogue) ||
                      (operation.bias != nullptr && operation.bias_type == d.type);
    return known && aux && bias;
  }

  size_t BiasBytes() const { return d.rows * (d.type == CUDA_R_32F ? 4 : 2); }
  bool Lie(const Promises& promises) const {
    return Lies(a_data, a, promises.a) && Lies(b_data, b, promises.b) &&
           (beta == 0 || Lies(c_data, c, promises.c)) && Lies(d_data, d, promises.d) &&
           (!HasAux(operation.epilogue) || Lies(operation.aux, d, 16)) &&
           (!HasBias(operation.epilogue) ||
            (penstock::emulated_cuda::IsOnDevice(operation.bias, BiasBytes()) &&
             AlignmentAt(operation.bias) >= promises.bias));
  }
  /// Blocks read operands while others write the result: c alone may be d.
  bool ResultIsApart() const {
    const auto from_d = [this](const void* data, size_t size) {
      return !Overlap(d_data, Reach(d), data, size);
    };
    return from_d(a_data, Reach(a)) && from_d(b_data, Reach(b)) &&
           (beta == 0 || c_data == d_data || from_d(c_data, Reach(c))) &&
           (!HasAux(operation.epilogue) || from_d(operation.aux, Reach(d))) &&
           (!HasBias(operation.epilogue) || from_d(operation.bias, BiasBytes()));
  }

  void Run() const {
    for (int32_t i = 0; i < d.batch; ++i) RunMatrix(i);
  }
  void RunMatrix(int32_t matrix) const {
    const char* const from_a = a_data + matrix * Apart(a);
    const char* const from_b = b_data + matrix * Apart(b);
    const char* const from_c = c_data + matrix * Apart(c);
    char* const to = d_data + matrix * Apart(d);
    const uint64_t rows = d.rows, inner = Inner();
    std::vector<float> left(rows * inner);  // column-major
    for (uint64_t k = 0; k < inner; ++k) {
      for (uint64_t r = 0; r < rows; ++r) {
        left[k * rows + r] = Read(a.type, from_a, At(a, operation.transpose_a, r, k));
      }
    }
    std::vector<float> sums(rows);
    for (uint64_t column = 0; column < d.columns; ++column) {
      std::ranges::fill(sums, 0.0f);
      for (uint64_t k = 0; k < inner; ++k) {
        const float right = Read(b.type, from_b, At(b, operation.transpose_b, k, column));
        for (uint64_t r = 0; r < rows; ++r) sums[r] += left[k * rows + r] * right;
      }
      for (uint64_t r = 0; r < rows; ++r) {
        const auto at = static_cast<int64_t>(r + column * static_cast<uint64_t>(d.stride));
        const float value = alpha * sums[r];
        const auto in_c = static_cast<int64_t>(r + column * static_cast<uint64_t>(c.stride));
        // Where beta is 0, c is not read: it may be NaN.
        const float addend = beta == 0 ? 0 : beta * Read(c.type, from_c, in_c);
        if (beta != 0 && from_c == to) {
          const float rounded = Rounded(d.type, Epilogue(value, r, column));
          Write(d.type, to, at, rounded + addend);
        } else {
          Write(d.type, to, at, Epilogue(value + addend, r, column));
        }
      }
    }
  }
  static int64_t At(const Layout& layout, int32_t transpose, uint64_t row, uint64_t column) {
    if (transpose != CUBLAS_OP_N) std::swap(row, column);
    return static_cast<int64_t>(row) + static_cast<int64_t>(column) * layout.stride;
  }
  float Epilogue(float value, uint64_t row, uint64_t column) const {
    if (HasBias(operation.epilogue)) {
      value += Read(d.type, operation.bias, static_cast<int64_t>(row));
    }
    const int64_t at =
        static_cast<int64_t>(row) + static_cast<int64_t>(column) * operation.aux_stride;
    if (operation.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS) {
      Write(d.type, operation.aux, at, value);
      return Gelu(value);
    }
    if (operation.epilogue == CUBLASLT_EPILOGUE_DGELU) {
      return value * GeluDerivative(Read(d.type, operation.aux, at));
    }
    return value;
  }
};

}  // namespace

void penstock::emulated_cuda::AnswerToGelu(cublasStatus_t status) { answer_to_gelu = status; }
void penstock::emulated_cuda::AnswerToGradientOfGelu(cublasStatus_t status) {
  answer_to_gradient = status;
}

extern "C" {

size_t cublasLtGetVersion() { return 0; }
const char* cublasLtGetStatusString(cublasStatus_t) { return "an error of the emulation"; }

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  static char any;
  *handle = reinterpret_cast<cublasLtHandle_t>(&any);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t) { return CUBLAS_STATUS_SUCCESS; }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* made, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  *made = AsOpaque<cublasLtMatmulDescOpaque_t>(new Operation);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t made) {
  delete &In<Operation>(made);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t made,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t size) {
  auto& operation = In<Operation>(made);
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return Set(operation.transpose_a, value, size);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return Set(operation.transpose_b, value, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return Set(operation.epilogue, value, size);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return Set(operation.bias, value, size);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return Set(operation.bias_type, value, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      return Set(operation.aux, value, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      return Set(operation.aux_stride, value, size);
    default:
      return CUBLAS_STATUS_INVALID_VALUE;
  }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t stride) {
  *made = AsOpaque<cublasLtMatrixLayoutOpaque_t>(
      new Layout{.type = type, .rows = rows, .columns = columns, .stride = stride});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t made) {
  delete &In<Layout>(made);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t made,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* value, size_t size) {
  auto& layout = In<Layout>(made);
  if (attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT) return Set(layout.batch, value, size);
  if (attribute == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET) {
    return Set(layout.batch_stride, value, size);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* made) {
  *made = AsOpaque<cublasLtMatmulPreferenceOpaque_t>(new Promises);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t made) {
  delete &In<Promises>(made);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t made,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t size) {
  auto& promises = In<Promises>(made);
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return Set(promises.workspace, value, size);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return Set(promises.reductions, value, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return Set(promises.a, value, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return Set(promises.b, value, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return Set(promises.c, value, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return Set(promises.d, value, size);
    default:
      return CUBLAS_STATUS_INVALID_VALUE;
  }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t* found, int* count) {
  const Product product{.operation = In<Operation>(operation),
                        .a = In<Layout>(a),
                        .b = In<Layout>(b),
                        .c = In<Layout>(c),
                        .d = In<Layout>(d)};
  *count = 0;
  if (!product.Fits() || wanted < 1) return CUBLAS_STATUS_INVALID_VALUE;
  if (!product.FitsEpilogue()) return CUBLAS_STATUS_NOT_SUPPORTED;
  Promises promises = In<Promises>(preference);
  // Sums in an undefined order, and sums in 16 bits.
  if ((promises.reductions & ~uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE}) != 0) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const uint32_t epilogue = product.operation.epilogue;
  const cublasStatus_t answer =
      epilogue == CUBLASLT_EPILOGUE_DGELU ? answer_to_gradient.load() : answer_to_gelu.load();
  if (HasAux(epilogue) && answer != CUBLAS_STATUS_SUCCESS) {
    return answer == penstock::emulated_cuda::kNoneFound ? CUBLAS_STATUS_SUCCESS : answer;
  }
  promises.bias = AlignmentAt(product.operation.bias);
  static_assert(sizeof(Promises) <= sizeof(found->algo));
  std::memcpy(&found->algo, &promises, sizeof(Promises));
  found->state = CUBLAS_STATUS_SUCCESS;
  *count = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t operation, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_size, cudaStream_t stream) {
  const Product product{.operation = In<Operation>(operation),
                        .a = In<Layout>(a_layout),
                        .b = In<Layout>(b_layout),
                        .c = In<Layout>(c_layout),
                        .d = In<Layout>(d_layout),
                        .alpha = *static_cast<const float*>(alpha),
                        .beta = *static_cast<const float*>(beta),
                        .a_data = static_cast<const char*>(a),
                        .b_data = static_cast<const char*>(b),
                        .c_data = static_cast<const char*>(c),
                        .d_data = static_cast<char*>(d)};
  const auto& promises = In<const Promises>(algorithm);
  const bool works = workspace_size >= promises.workspace &&
                     reinterpret_cast<uintptr_t>(workspace) % 256 == 0 &&
                     penstock::emulated_cuda::IsOnDevice(workspace, workspace_size);
  if (!product.Fits() || !product.FitsEpilogue() || !product.Lie(promises) ||
      !product.ResultIsApart() || !works) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  penstock::emulated_cuda::Enqueue(stream, [product, workspace, workspace_size] {
    // Its first and last bytes: sums are there, or anything.
    const size_t some = std::min(workspace_size, size_t{64} << 10);
    std::memset(workspace, 0xff, some);
    std::memset(static_cast<char*>(workspace) + workspace_size - some, 0xff, some);
    product.Run();
  });
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
