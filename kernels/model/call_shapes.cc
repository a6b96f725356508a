#include "kernels/model/call_shapes.h"

#include <algorithm>
#include <functional>

#include "base/check.h"

namespace penstock::kernels {
namespace {

constexpr DType kFloat = DType::kFloat32;

/// No size of a call is zero.
bool IsWhole(const EmbeddingCall& call) { return call.rows > 0 && call.width > 0; }
bool IsWhole(const LayerNormCall& call) { return call.rows > 0 && call.width > 0; }
bool IsWhole(const LinearCall& call) { return call.rows > 0 && call.k > 0 && call.n > 0; }
bool IsWhole(const LinearGeluCall& call) {
  return call.rows > 0 && call.width > 0 && call.hidden > 0;
}
bool IsWhole(const AttentionCall& call) {
  return call.batch > 0 && call.sequence > 0 && call.width > 0 && call.heads > 0;
}
bool IsWhole(const HeadCall& call) {
  return call.rows > 0 && call.width > 0 && call.vocabulary > 0;
}

}  // namespace

void CheckVector(const ConstTensorView& vector, DType dtype, uint64_t columns) {
  CheckMatrix(vector, dtype, 1, columns);
}

void CheckMatrix(const ConstTensorView& matrix, DType dtype, uint64_t rows, uint64_t columns) {
  PENSTOCK_CHECK(
      matrix.dtype == dtype && matrix.shape.rows() == rows && matrix.shape.columns() == columns,
      "{} [{}, {}] where {} [{}, {}] is needed", ToString(matrix.dtype), matrix.shape.rows(),
      matrix.shape.columns(), ToString(dtype), rows, columns);
}

EmbeddingCall EmbeddingOf(const TokenView& tokens, const ConstTensorView& rows, DType weights,
                          const ConstTensorView& token_table,
                          const ConstTensorView& position_table) {
  const uint64_t width = rows.shape.columns();
  CheckMatrix(rows, rows.dtype, tokens.rows(), width);
  CheckMatrix(token_table, weights, token_table.shape.rows(), width);
  CheckMatrix(position_table, weights, position_table.shape.rows(), width);
  PENSTOCK_CHECK(position_table.shape.rows() >= tokens.sequence);
  return {.dtype = rows.dtype, .rows = tokens.rows(), .width = width};
}

LayerNormCall LayerNormOf(const ConstTensorView& x, const ConstTensorView& out, DType weights,
                          const ConstTensorView& weight, const ConstTensorView& bias,
                          const ConstTensorView& mean, const ConstTensorView& rstd) {
  const LayerNormCall call{.dtype = x.dtype, .rows = x.shape.rows(), .width = x.shape.columns()};
  CheckMatrix(out, x.dtype, call.rows, call.width);
  CheckVector(weight, weights, call.width);
  CheckVector(bias, weights, call.width);
  CheckVector(mean, kFloat, call.rows);
  CheckVector(rstd, kFloat, call.rows);
  return call;
}

LinearCall LinearOf(const ConstTensorView& x, DType weights, const ConstTensorView& weight,
                    const ConstTensorView& out) {
  const LinearCall call{
      .dtype = x.dtype, .rows = x.shape.rows(), .k = x.shape.columns(), .n = out.shape.columns()};
  CheckMatrix(weight, weights, call.k, call.n);
  CheckMatrix(out, x.dtype, call.rows, call.n);
  return call;
}

void CheckResidual(const LinearCall& call, const ConstTensorView& residual,
                   const ConstTensorView& out) {
  if (residual.data == nullptr) return;
  CheckMatrix(residual, call.dtype, call.rows, call.n);
  PENSTOCK_CHECK(residual.data != out.data, "the residual lies where the output does");
}

AttentionCall AttentionOf(uint64_t heads, const ConstTensorView& qkv, const ConstTensorView& out) {
  PENSTOCK_CHECK(out.shape.rank() == 3, "attention of a tensor of {} sizes", out.shape.rank());
  const AttentionCall call{.dtype = qkv.dtype,
                           .batch = out.shape[0],
                           .sequence = out.shape[1],
                           .width = out.shape[2],
                           .heads = heads};
  CheckMatrix(out, qkv.dtype, call.batch * call.sequence, call.width);
  CheckMatrix(qkv, qkv.dtype, call.batch * call.sequence, 3 * call.width);
  return call;
}

LinearGeluCall LinearGeluOf(const ConstTensorView& narrow, const ConstTensorView& pre,
                            const ConstTensorView& out) {
  const LinearGeluCall call{.dtype = narrow.dtype,
                            .rows = narrow.shape.rows(),
                            .width = narrow.shape.columns(),
                            .hidden = pre.shape.columns()};
  CheckMatrix(pre, narrow.dtype, call.rows, call.hidden);
  CheckMatrix(out, narrow.dtype, call.rows, call.hidden);
  return call;
}

HeadCall HeadOf(const ConstTensorView& x, const ConstTensorView& table, const TokenView& targets,
                const ConstTensorView& d_x, const ConstTensorView& d_table) {
  const HeadCall call{.dtype = x.dtype,
                      .rows = x.shape.rows(),
                      .width = x.shape.columns(),
                      .vocabulary = table.shape.rows()};
  CheckMatrix(table, x.dtype, call.vocabulary, call.width);
  PENSTOCK_CHECK(targets.rows() == call.rows);
  PENSTOCK_CHECK((d_x.data == nullptr) == (d_table.data == nullptr));
  if (d_x.data != nullptr) {
    CheckMatrix(d_x, x.dtype, call.rows, call.width);
    CheckMatrix(d_table, kFloat, call.vocabulary, call.width);
  }
  return call;
}

LinearCall InwardOf(const LinearGeluCall& call) {
  return {.dtype = call.dtype, .rows = call.rows, .k = call.width, .n = call.hidden};
}

LinearCall OutwardOf(const LinearGeluCall& call) {
  return {.dtype = call.dtype, .rows = call.rows, .k = call.hidden, .n = call.width};
}

DType DTypeOf(const OperatorCall& call) {
  return std::visit([](const auto& of_kind) { return of_kind.dtype; }, call);
}

uint64_t RowsOf(const OperatorCall& call) {
  if (const auto* const attention = std::get_if<AttentionCall>(&call)) {
    return attention->batch * attention->sequence;
  }
  return std::visit(
      [](const auto& of_kind) -> uint64_t {
        if constexpr (requires { of_kind.rows; }) return of_kind.rows;
        return 0;
      },
      call);
}

std::string DTypesOf(const OperatorCalls& calls, const std::function<std::string(DType)>& name) {
  std::string names;
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16, DType::kFloat32}) {
    const bool used = std::ranges::any_of(
        calls, [&](const OperatorCall& call) { return DTypeOf(call) == dtype; });
    if (used) names += (names.empty() ? "" : " and ") + name(dtype);
  }
  return names;
}

Status CheckCalls(const OperatorCalls& calls) {
  for (const OperatorCall& call : calls) {
    PENSTOCK_CHECK(std::visit([](const auto& of_kind) { return IsWhole(of_kind); }, call));
    const auto* const attention = std::get_if<AttentionCall>(&call);
    if (attention != nullptr && attention->width % attention->heads != 0) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "operators: width {} is no multiple of {} heads; change one of them",
                       attention->width, attention->heads);
    }
  }
  return {};
}

}  // namespace penstock::kernels
