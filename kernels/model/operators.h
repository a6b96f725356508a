// The transformer's operators, forward and backward, as work on a stream.
//
// All pointers are device memory. Activations and weights are of the operators' dtype (fp32 or
// bf16); weight gradients are fp32 and are *accumulated* into unless said otherwise. Matrices are
// row-major. `rows` is batch * sequence length. Sums over rows and over the sequence are taken in
// fp32 in an order that depends on shapes and the thread count, never on memory or placement. On a
// CPU without bf16 instructions the matrix products compute in fp32 on bf16 storage.
// What a function writes overlaps nothing else that it reads or writes, unless its comment says so.
// On the CUDA device, what lies behind other tensors of a layer does so by a multiple of gcd(C,
// hidden) elements, and a table by a multiple of C; all else begins at a multiple of 16 bytes.
//
// Threads: the functions enqueue and return; call them from the thread that feeds the stream. They
// share one scratch memory, so that all work goes to one stream, or is ordered by events; and they
// must outlive the work that they have enqueued.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "device/device.h"
#include "kernels/dtype.h"

namespace penstock::kernels {

/// The shapes of every call (`rows` is always batch * sequence); scratch memory is sized by them,
/// at creation.
struct OperatorShapes {
  uint64_t batch = 0;     ///< sequences in a micro-batch
  uint64_t sequence = 0;  ///< tokens in a sequence
  uint64_t width = 0;     ///< embedding width, C
  uint64_t heads = 0;     ///< divides width
  uint64_t hidden = 0;    ///< inner width of the MLP, usually 4 C
  uint64_t vocabulary = 0;
};

struct OperatorOptions {
  DType dtype = DType::kFloat32;
  OperatorShapes shapes;
  int threads = 1;  ///< compute threads; part of what fixes the result's bits
};

/// Tokens and targets lie in [0, vocabulary): whoever reads the data checks that.
class Operators {
 public:
  virtual ~Operators() = default;

  /// out[r, c] = token_table[tokens[r], c] + position_table[r % sequence, c]
  virtual void EmbeddingForward(device::Stream& stream, const int32_t* tokens,
                                const std::byte* token_table, const std::byte* position_table,
                                std::byte* out) = 0;
  /// Adds d_out to the rows it came from, in row order. Gradients fp32: [vocabulary, C], [sequence,
  /// C].
  virtual void EmbeddingBackward(device::Stream& stream, const int32_t* tokens,
                                 const std::byte* d_out, float* d_token_table,
                                 float* d_position_table) = 0;

  /// out = (x - mean) * rstd * weight + bias over rows of C; mean and rstd (fp32, [rows]) are kept.
  virtual void LayerNormForward(device::Stream& stream, const std::byte* x, const std::byte* weight,
                                const std::byte* bias, float eps, std::byte* out, float* mean,
                                float* rstd) = 0;
  /// d_x += the gradient through the norm when `add_to_d_x` (a residual branch), else d_x = it.
  virtual void LayerNormBackward(device::Stream& stream, const std::byte* x,
                                 const std::byte* weight, const float* mean, const float* rstd,
                                 const std::byte* d_out, bool add_to_d_x, std::byte* d_x,
                                 float* d_weight, float* d_bias) = 0;

  /// out[rows, n] = x[rows, k] · weight[k, n] + bias[n] (+ residual[rows, n] where given; it may be
  /// `out` itself). The layout of Hugging Face's Conv1D. (k, n), here and below, is a map of the
  /// layer: (C, 3 C), (C, C), (C, hidden) or (hidden, C).
  virtual void LinearForward(device::Stream& stream, const std::byte* x, const std::byte* weight,
                             const std::byte* bias, const std::byte* residual, uint64_t k,
                             uint64_t n, std::byte* out) = 0;
  /// d_x = d_out · weightᵀ
  virtual void LinearBackwardInput(device::Stream& stream, const std::byte* d_out,
                                   const std::byte* weight, uint64_t k, uint64_t n,
                                   std::byte* d_x) = 0;
  /// d_weight[k, n] += xᵀ · d_out, d_bias[n] += column sums of d_out
  virtual void LinearBackwardWeight(device::Stream& stream, const std::byte* x,
                                    const std::byte* d_out, uint64_t k, uint64_t n, float* d_weight,
                                    float* d_bias) = 0;

  /// Causal self-attention. qkv: [batch, sequence, 3, heads, C / heads]; out: [batch, sequence, C];
  /// scores are scaled by 1 / sqrt(C / heads). Probabilities exist for a bounded number of heads at
  /// once; backward computes them again. No row depends on a later token, but where a later value
  /// is NaN or infinite: that may reach earlier rows as well, as NaN.
  virtual void AttentionForward(device::Stream& stream, const std::byte* qkv, std::byte* out) = 0;
  virtual void AttentionBackward(device::Stream& stream, const std::byte* qkv,
                                 const std::byte* d_out, std::byte* d_qkv) = 0;

  /// The map from C to hidden and its activation: pre = x · weight[C, hidden] + bias, out =
  /// gelu(pre), both [rows, hidden]. GELU in its tanh form: x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715
  /// x^3))), of pre as it is stored or as it was before that rounding.
  virtual void LinearGeluForward(device::Stream& stream, const std::byte* x,
                                 const std::byte* weight, const std::byte* bias, std::byte* pre,
                                 std::byte* out) = 0;
  /// Back through the map from hidden to C and the activation before it: d_pre[rows, hidden] =
  /// (d_out[rows, C] · weight[hidden, C]ᵀ) * gelu'(pre). The product may be rounded to the dtype
  /// before it is multiplied.
  virtual void LinearGeluBackwardInput(device::Stream& stream, const std::byte* d_out,
                                       const std::byte* weight, const std::byte* pre,
                                       std::byte* d_pre) = 0;

  /// Language-model head and its backward in one, over chunks of rows, so that the logits never
  /// exist whole: logits = x · tableᵀ; *loss_sum += Σ_r -log softmax(logits)[r, targets[r]] in
  /// double, row order; d_x[rows, C] gets, and to d_table[vocabulary, C] is added chunk by chunk,
  /// the gradient of `gradient_scale` * the summed loss. d_x may be x itself. d_x and d_table may
  /// both be null: then only the loss is computed.
  virtual void HeadForwardBackward(device::Stream& stream, const std::byte* x,
                                   const std::byte* table, const int32_t* targets,
                                   float gradient_scale, double* loss_sum, std::byte* d_x,
                                   float* d_table) = 0;

  /// What the bits of the results depend on besides the data and the shapes, in one line for people
  /// and for comparison: "cpu AVX3, bf16 native, oneDNN 2.7.2 isa 0xe7, 2 threads".
  virtual std::string arithmetic() const = 0;

  /// What the operators took from the device's arena for scratch.
  virtual Bytes scratch_bytes() const = 0;
};

/// Scratch that CreateOperators will allocate, without allocating it: for the plan of a budget.
Result<Bytes> OperatorScratch(device::Kind kind, const OperatorOptions& options);

/// What they take of host memory beside scratch, at most, where the sequence is so long that it
/// counts: on the CPU, the products of attention's blocks. Less than a MiB is not counted, as it is
/// like the program itself. Computed from the shapes, without making anything.
Bytes OperatorHeap(device::Kind kind, const OperatorOptions& options);

/// Operators of the device's kind. Scratch comes out of its arena. Errors: kBudget, kUnavailable.
Result<std::unique_ptr<Operators>> CreateOperators(device::Device& device,
                                                   const OperatorOptions& options);

}  // namespace penstock::kernels
