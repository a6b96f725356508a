// The transformer's operators, forward and backward, as work on a stream.
//
// All tensors are device memory. Activations and weights are of one dtype; weight
// gradients are fp32 and are *accumulated* into unless said otherwise: what a call adds is computed
// first, and then added with one addition to each element (but see EmbeddingBackward and
// OperatorOptions::adds_once).
// `rows` is batch * sequence; a tensor of rows may have the two as separate sizes. Sums over rows
// and over the sequence are taken in fp32 in an order that depends on shapes and the thread count,
// never on memory or placement. On a CPU, matrix products compute in fp32 on
// fp16 storage, and on bf16 storage where it has no bf16 instructions. The output of a function
// overlaps nothing else that it reads or writes, unless its comment says so. On the CUDA device,
// weights, biases and their gradients begin at multiples of OperatorOptions::weight_unit elements
// after a multiple of 16 bytes, and a table at a multiple of its width; everything else begins at a
// multiple of 16 bytes.
//
// Shapes are those of a call in OperatorOptions::calls, and tensors fit together; anything else is
// a bug.
//
// Threads: the functions enqueue and return; call them from the thread that feeds the stream. They
// share one scratch memory, so all work must go to one stream, or be ordered by events. The
// operators must outlive the work that they have enqueued.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "device/device.h"
#include "kernels/model/operator_calls.h"
#include "kernels/model/tensor_view.h"

namespace penstock::kernels {

struct OperatorOptions {
  OperatorCalls calls;  ///< all calls that will be made; repeats have no effect
  /// See above; 0: weights begin at a multiple of 16 bytes, or of their rows after one.
  uint64_t weight_unit = 0;
  /// Whether the head, too, computes what a call adds first, from zero: needed where several
  /// micro-batches add to the same gradients, so that the sum is that of the gradients of each. A
  /// head of more than one chunk of rows then takes scratch of the size of the table's fp32
  /// gradient. Otherwise the head adds chunk by chunk, which is the same where the gradients are
  /// zero before.
  bool adds_once = false;
  /// kCudnn: of bf16 or fp16, on a CUDA device, for heads of a multiple of 8 elements, at most 256.
  AttentionKernel attention = AttentionKernel::kOwn;
  int threads = 1;  ///< compute threads; the result's bits depend on them
};

/// Tokens and targets lie in [0, vocabulary), which the reader of the data checks.
class ModelOperators {
 public:
  virtual ~ModelOperators() = default;

  /// out[r, c] = token_table[tokens[r], c] + position_table[r % sequence, c]. Tables:
  /// [vocabulary, C], and [positions, C] with at least as many positions as the sequence has.
  virtual void EmbeddingForward(device::Stream& stream, const TokenView& tokens,
                                const ConstTensorView& token_table,
                                const ConstTensorView& position_table, const TensorView& out) = 0;
  /// Adds d_out to the rows of the fp32 gradients it came from, in row order: row by row to what
  /// lies there; or, if `adds_once`, what the call adds is computed first, from zero. Both are the
  /// same where the gradients are zero before.
  virtual void EmbeddingBackward(device::Stream& stream, const TokenView& tokens,
                                 const ConstTensorView& d_out, bool adds_once,
                                 const TensorView& d_token_table,
                                 const TensorView& d_position_table) = 0;

  /// out = (x - mean) * rstd * weight + bias over rows of C; mean and rstd (fp32, [rows]) are kept.
  /// Where `largest` is given: *largest = max(*largest, |x|) over all of x; infinite if an element
  /// is not finite.
  virtual void LayerNormForward(device::Stream& stream, const ConstTensorView& x,
                                const ConstTensorView& weight, const ConstTensorView& bias,
                                float eps, const TensorView& out, const TensorView& mean,
                                const TensorView& rstd, float* largest) = 0;
  /// d_x += the gradient through the norm when `add_to_d_x` (a residual branch), else d_x = it.
  virtual void LayerNormBackward(device::Stream& stream, const ConstTensorView& x,
                                 const ConstTensorView& weight, const ConstTensorView& mean,
                                 const ConstTensorView& rstd, const ConstTensorView& d_out,
                                 bool add_to_d_x, const TensorView& d_x, const TensorView& d_weight,
                                 const TensorView& d_bias) = 0;

  /// out[rows, n] = x[rows, k] · weight[k, n] + bias[n] (+ residual[rows, n] if it has data, and
  /// does not lie where `out` does). The layout of Hugging Face's Conv1D.
  virtual void LinearForward(device::Stream& stream, const ConstTensorView& x,
                             const ConstTensorView& weight, const ConstTensorView& bias,
                             const ConstTensorView& residual, const TensorView& out) = 0;
  /// d_x = d_out · weightᵀ
  virtual void LinearBackwardInput(device::Stream& stream, const ConstTensorView& d_out,
                                   const ConstTensorView& weight, const TensorView& d_x) = 0;
  /// d_weight[k, n] += xᵀ · d_out, d_bias[n] += column sums of d_out
  virtual void LinearBackwardWeight(device::Stream& stream, const ConstTensorView& x,
                                    const ConstTensorView& d_out, const TensorView& d_weight,
                                    const TensorView& d_bias) = 0;

  /// Causal self-attention. qkv: [batch, sequence, 3 C], that is [batch, sequence, 3, heads, C /
  /// heads]; out: [batch, sequence, C]; scores are scaled by 1 / sqrt(C / heads). Probabilities
  /// exist for a bounded number of heads at once; backward computes them again. No row depends on a
  /// later token, except that a later value that is NaN or infinite may reach earlier rows as NaN.
  virtual void AttentionForward(device::Stream& stream, uint64_t heads, const ConstTensorView& qkv,
                                const TensorView& out) = 0;
  /// `out` is what AttentionForward has made of `qkv`, in its latest call for these shapes; neither
  /// has changed or moved since.
  virtual void AttentionBackward(device::Stream& stream, uint64_t heads, const ConstTensorView& qkv,
                                 const ConstTensorView& out, const ConstTensorView& d_out,
                                 const TensorView& d_qkv) = 0;

  /// A linear map and its activation: pre = x · weight[C, hidden] + bias, out = gelu(pre), both
  /// [rows, hidden]. GELU in its tanh form: x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), of pre
  /// as it is stored, or as it was before that rounding.
  virtual void LinearGeluForward(device::Stream& stream, const ConstTensorView& x,
                                 const ConstTensorView& weight, const ConstTensorView& bias,
                                 const TensorView& pre, const TensorView& out) = 0;
  /// Goes back through the map after it and the activation: d_pre[rows, hidden] = (d_out[rows, C] ·
  /// weight[hidden, C]ᵀ) * gelu'(pre). The product may be rounded to the dtype before it is
  /// multiplied.
  virtual void LinearGeluBackwardInput(device::Stream& stream, const ConstTensorView& d_out,
                                       const ConstTensorView& weight, const ConstTensorView& pre,
                                       const TensorView& d_pre) = 0;

  /// Language-model head and its backward in one, over chunks of rows, so that the logits never
  /// exist whole: logits = x · tableᵀ; *loss_sum += Σ_r -log softmax(logits)[r, targets[r]] in
  /// double, row order; the gradient of `gradient_scale` * the summed loss is written to d_x[rows,
  /// C], and added to d_table[vocabulary, C]. d_x may be x itself. If d_x and
  /// d_table both have no data, only the loss is computed.
  virtual void HeadForwardBackward(device::Stream& stream, const ConstTensorView& x,
                                   const ConstTensorView& table, const TokenView& targets,
                                   float gradient_scale, double* loss_sum, const TensorView& d_x,
                                   const TensorView& d_table) = 0;

  /// *first = min(*first, base + i), of the first element i of x that is not within [-limit, limit]
  /// (NaN is not), if there is one. To search for where numbers leave their range; no part of a
  /// model.
  virtual void FindBeyond(device::Stream& stream, const ConstTensorView& x, float limit,
                          uint64_t base, uint64_t* first) = 0;

  /// Returns what the bits of the results depend on besides the data and the shapes, in one line
  /// for people and for comparison: "cpu AVX3, bf16 native, oneDNN 2.7.2 isa 0xe7, 2 threads".
  virtual std::string arithmetic() const = 0;

  /// Returns what the operators took from the device's arena for scratch.
  virtual Bytes scratch_bytes() const = 0;
};

/// Returns the scratch that CreateModelOperators will allocate, for the plan of a budget: the max
/// over the calls, because calls do not overlap.
Result<Bytes> OperatorScratch(device::Kind kind, const OperatorOptions& options);

/// Returns what the operators take of host memory beside scratch, at most: on the CPU, the products
/// of attention's blocks for long sequences. Less than a MiB is not counted; it belongs to the
/// program itself. Computed from the shapes, without making anything.
Bytes OperatorHeap(device::Kind kind, const OperatorOptions& options);

/// Creates operators of the device's kind, for the calls in `options`. Scratch comes out of the
/// device's arena. Errors: kBudget, kUnavailable; kInvalidArgument for heads that do not divide the
/// width, and for attention that OperatorOptions::attention cannot compute.
Result<std::unique_ptr<ModelOperators>> CreateModelOperators(device::Device& device,
                                                             const OperatorOptions& options);

}  // namespace penstock::kernels
