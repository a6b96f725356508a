// Is attention in bf16 correct, and how large is its error?
//
// The reference is attention in fp32 by products (penstock's own, without TF32), of the same
// inputs. Each result is compared with it, not with another implementation: two results with an
// error of one rounding each may differ by two. Errors are relative to the row of a head, because
// early keys have gradients ten times as large as typical ones.
#pragma once

#include <span>
#include <string>

#include "base/result.h"
#include "device/device.h"
#include "kernels/model/model_operators.h"
#include "kernels/model/operator_calls.h"

namespace penstock::bench {

/// Distances of a result from the reference.
struct AttentionError {
  /// Root mean square, relative to that of the reference.
  double typical = 0;
  /// The largest of an element, relative to its own size plus the root mean squares of its row in
  /// its head and of all elements. Infinite if one is NaN.
  double largest = 0;
};

struct AttentionErrors {
  AttentionError out, d_query, d_key, d_value;
  /// One line.
  std::string Describe() const;
  /// The worst of the four.
  AttentionError Worst() const;
};

/// Attention in bf16 on the device by `kernel`. `random`: at least 4 · rows · width elements of
/// bf16 on the host, of which q, k, v and the gradient of the output are made. Errors: as of
/// CreateModelOperators.
Result<AttentionErrors> CheckAttention(device::Device& device, const kernels::AttentionCall& call,
                                       kernels::AttentionKernel kernel,
                                       std::span<const uint16_t> random);

}  // namespace penstock::bench
