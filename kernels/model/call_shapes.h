// Derives shapes from the tensors of a call, and the requirements of back ends on all calls of a
// model.
//
// Tensors that do not fit together are a bug of the caller. `weights` is the dtype of the weights,
// or of their gradients.
#pragma once

#include <functional>
#include <string>

#include "base/result.h"
#include "kernels/model/model_operators.h"

namespace penstock::kernels {

EmbeddingCall EmbeddingOf(const TokenView& tokens, const ConstTensorView& rows, DType weights,
                          const ConstTensorView& token_table,
                          const ConstTensorView& position_table);
LayerNormCall LayerNormOf(const ConstTensorView& x, const ConstTensorView& out, DType weights,
                          const ConstTensorView& weight, const ConstTensorView& bias,
                          const ConstTensorView& mean, const ConstTensorView& rstd);
/// `x` and `out` are those of the map, or the gradients there.
LinearCall LinearOf(const ConstTensorView& x, DType weights, const ConstTensorView& weight,
                    const ConstTensorView& out);
AttentionCall AttentionOf(uint64_t heads, const ConstTensorView& qkv, const ConstTensorView& out);
/// `narrow` is [rows, C], `pre` and `out` are [rows, hidden].
LinearGeluCall LinearGeluOf(const ConstTensorView& narrow, const ConstTensorView& pre,
                            const ConstTensorView& out);
HeadCall HeadOf(const ConstTensorView& x, const ConstTensorView& table, const TokenView& targets,
                const ConstTensorView& d_x, const ConstTensorView& d_table);

/// What is added to the output of a map, if it has data: like that, and elsewhere.
void CheckResidual(const LinearCall& call, const ConstTensorView& residual,
                   const ConstTensorView& out);

/// The map before the activation, and the one behind it.
LinearCall InwardOf(const LinearGeluCall& call);
LinearCall OutwardOf(const LinearGeluCall& call);

/// A vector of `columns`, of a dtype.
void CheckVector(const ConstTensorView& vector, DType dtype, uint64_t columns);
/// A matrix of `rows` and `columns`, of a dtype.
void CheckMatrix(const ConstTensorView& matrix, DType dtype, uint64_t rows, uint64_t columns);

DType DTypeOf(const OperatorCall& call);
uint64_t RowsOf(const OperatorCall& call);
/// The dtypes of all calls, as `name` has them: "fp32", or "bf16 and fp32".
std::string DTypesOf(const OperatorCalls& calls, const std::function<std::string(DType)>& name);
/// Errors: kInvalidArgument for heads that do not divide the width.
Status CheckCalls(const OperatorCalls& calls);

}  // namespace penstock::kernels
