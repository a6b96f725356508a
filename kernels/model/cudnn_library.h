// cuDNN's fused attention, loaded when operators that use it are created.
//
// The library is not linked, because it is large and most runs do not need it. Its graphs are built
// with NVIDIA's cudnn-frontend (headers only), which the build may lack.
//
// Threads: those of the operators. Graphs are run by the thread that feeds the stream.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "base/units.h"
#include "kernels/dtype.h"

namespace penstock::kernels {

/// Causal attention of `heads` heads of `batch` sequences, or its gradient. Scores are scaled by
/// 1 / sqrt(head_size).
struct CudnnAttentionSpec {
  DType dtype = DType::kBFloat16;  ///< not fp32
  uint64_t batch = 0;
  uint64_t sequence = 0;
  uint64_t heads = 0;
  uint64_t head_size = 0;
  uint64_t width = 0;     ///< elements from a row of out to the next; of qkv it is three times that
  bool backward = false;  ///< the gradient, by an algorithm that always gives the same bits
};

/// Addresses of the first sequence's first head, at multiples of 16 bytes.
struct CudnnAttentionData {
  const std::byte* qkv = nullptr;    ///< its queries; keys are `width` elements after them
  std::byte* out = nullptr;          ///< written by forward, read by backward
  const std::byte* d_out = nullptr;  ///< layout of out; only in backward
  /// [batch, heads, sequence]: logarithms of the sums of exponentials. Written by forward, read by
  /// backward.
  float* statistics = nullptr;
  std::byte* d_qkv = nullptr;      ///< layout of qkv; only written by backward
  std::byte* workspace = nullptr;  ///< size given by the graph; overwritten
};

class CudnnAttentionGraph {
 public:
  virtual ~CudnnAttentionGraph() = default;
  virtual Bytes workspace() const = 0;
  /// Enqueues and returns.
  virtual Status Run(cudaStream_t stream, const CudnnAttentionData& data) = 0;
};

class CudnnLibrary {
 public:
  virtual ~CudnnLibrary() = default;
  /// The graph must not outlive the library. Errors: kUnavailable if cuDNN has no kernel for it.
  virtual Result<std::unique_ptr<CudnnAttentionGraph>> MakeAttention(
      const CudnnAttentionSpec& spec) = 0;
  /// "cuDNN 9.19.0"
  virtual std::string name() const = 0;
};

/// Loads libcudnn.so.9 from where the program's libraries are, for the current device; it stays.
/// Errors: kUnavailable if it is not there, does not work, or if the build has no cudnn-frontend.
Result<std::unique_ptr<CudnnLibrary>> LoadCudnn();

/// What to do without it, for messages.
inline constexpr const char* kWithoutCudnn = "or set penstock.attention to \"own\"";

}  // namespace penstock::kernels
