// The update of a rule: its vector code for the machine's best instruction set over the whole lines
// of a tile, then the scalar reference over the elements that are left.
//
// Included at the end of a rule's file with vector code, once for each instruction set, and so
// without a guard. The file has included optimizer_loop-inl.h and has defined the rule's direction.
// It names the rule by PENSTOCK_RULE: where that is `Adam##part`, AdamUpdate is defined here, made
// of AdamScalars, AdamDirection and AdamUpdateReference.

#include <cstddef>
#include <cstdint>

namespace penstock::kernels {
namespace {
using RuleScalars = PENSTOCK_RULE(Scalars);
}  // namespace
}  // namespace penstock::kernels

HWY_BEFORE_NAMESPACE();
namespace penstock::kernels::HWY_NAMESPACE {

size_t UpdateTile(const RuleScalars& scalars, const OptimizerTile& tile) {
  return UpdateWholeLines<PENSTOCK_RULE(Direction)>(scalars, tile);
}

}  // namespace penstock::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace penstock::kernels {
namespace {
HWY_EXPORT(UpdateTile);
}  // namespace

void PENSTOCK_RULE(Update)(const RuleScalars& scalars, const OptimizerTile& tile) {
  const size_t done = HWY_DYNAMIC_DISPATCH(UpdateTile)(scalars, tile);
  const uint64_t n = ElementCountOf<RuleScalars>(tile);
  if (done < n) PENSTOCK_RULE(UpdateReference)(scalars, Part(tile, done, n - done));
}

}  // namespace penstock::kernels

#endif  // HWY_ONCE
