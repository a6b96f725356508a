#include "front/reference.h"

#include <array>
#include <cstring>

#include "config/config.h"
#include "kernels/state/block_sums.h"

namespace penstock::front {
namespace {

Status CheckMoment(const char* name, bool needed, const kernels::PlaneView& given) {
  if (needed == !given.empty()) return {};
  return MakeError(ErrorCode::kInvalidArgument, "the rule has {} {}, and {} was given",
                   needed ? "an" : "no", name, needed ? "none" : "one");
}

/// Checks that there is one master: an fp32 weight itself, a bf16 weight with lo, an fp16 weight
/// with master.
Status CheckMaster(const kernels::OptimizerTile& elements) {
  const bool lo = !elements.lo.empty();
  const bool master = !elements.master.empty();
  const Encoding weight = elements.weight.encoding();
  const bool right = weight == Encoding::kFloat32    ? !lo && !master
                     : weight == Encoding::kBFloat16 ? lo && !master
                                                     : !lo && master;
  if (right) return {};
  return MakeError(ErrorCode::kInvalidArgument, "weights of {} have {}; give that and nothing else",
                   ToString(weight),
                   weight == Encoding::kFloat32    ? "no master beside them"
                   : weight == Encoding::kBFloat16 ? "the lower halves of their masters (lo)"
                                                   : "an fp32 master");
}

}  // namespace

Status UpdateElements(const std::string& config_text, const GroupScalars& scalars, uint64_t t,
                      double grad_scale, const kernels::OptimizerTile& elements) {
  PENSTOCK_ASSIGN(const config::Config config, config::ParseConfig({{"config", config_text}}, 1));
  PENSTOCK_ASSIGN(const kernels::OptimizerHyperparameters hyper,
                  WithScalars(config.optimizer.hyper, scalars));
  if (kernels::HasTrustRatio(hyper)) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "the rule {} needs the norms of whole tensors; it has no form for elements",
                     config.optimizer.type);
  }
  if (t == 0) return MakeError(ErrorCode::kInvalidArgument, "updates are counted from 1");
  const kernels::RuleMoments moments = kernels::MomentsOf(hyper);
  PENSTOCK_TRY(CheckMoment("exp_avg", moments.exp_avg, elements.exp_avg));
  PENSTOCK_TRY(CheckMoment("exp_avg_sq", moments.exp_avg_sq, elements.exp_avg_sq));
  PENSTOCK_TRY(CheckMaster(elements));
  kernels::Update(kernels::MakeScalars(hyper, scalars.lr, t, grad_scale), elements);
  return {};
}

bool SumBlocks(const void* values, DType dtype, uint64_t count, double* sums) {
  const uint64_t whole = count / kBlockElements;
  bool finite = kernels::BlockSums(values, dtype, whole * kBlockElements, std::span(sums, whole));
  const uint64_t rest = count % kBlockElements;
  if (rest == 0) return finite;
  alignas(64) std::array<std::byte, kBlockElements * sizeof(float)> block{};
  const auto* bytes = static_cast<const std::byte*>(values);
  std::memcpy(block.data(), bytes + (SizeOf(dtype) * (whole * kBlockElements)).value,
              (SizeOf(dtype) * rest).value);
  finite &= kernels::BlockSums(block.data(), dtype, kBlockElements, std::span(sums + whole, 1));
  return finite;
}

}  // namespace penstock::front
