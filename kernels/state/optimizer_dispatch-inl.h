// The update of a rule: its vector code for the machine's best instruction set over the whole lines
// of a tile, then the scalar reference over the elements that are left.
//
// Included at the end of a rule's file with vector code, once for each instruction set, and so
// without a guard. The file has included optimizer_loop-inl.h and has defined the rule's direction.
// It names the rule by PENSTOCK_RULE: where that is `Adam##part`, AdamUpdate is defined here, made
// of AdamScalars, AdamDirection and AdamUpdateReference.

#include <cstddef>
#include <cstdint>
#include <span>

// A part of a source file, which no other includes.
// NOLINTBEGIN(google-build-namespaces,misc-definitions-in-headers)

namespace penstock::kernels {
namespace {
using RuleScalars = PENSTOCK_RULE(Scalars);
}  // namespace
}  // namespace penstock::kernels

HWY_BEFORE_NAMESPACE();
namespace penstock::kernels::HWY_NAMESPACE {

size_t UpdateTile(const RuleScalars& scalars, const OptimizerTile& tile, WeightFigures* of_blocks) {
  return UpdateWholeLines<PENSTOCK_RULE(Direction)>(scalars, tile, of_blocks);
}

}  // namespace penstock::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace penstock::kernels {
namespace {
HWY_EXPORT(UpdateTile);
}  // namespace

void PENSTOCK_RULE(Update)(const RuleScalars& scalars, const OptimizerTile& tile,
                           std::span<WeightFigures> of_blocks) {
  const uint64_t n = ElementCountOf<RuleScalars>(tile);
  CheckFigures(of_blocks, n);
  const size_t done = HWY_DYNAMIC_DISPATCH(UpdateTile)(
      scalars, tile, of_blocks.empty() ? nullptr : of_blocks.data());
  if (done == n) return;
  const size_t block = done / kBlockElements;
  // The block's whole lines come first, if it has any.
  const std::span<WeightFigures> rest = of_blocks.empty() ? of_blocks : of_blocks.subspan(block);
  const WeightFigures lines =
      rest.empty() || done % kBlockElements == 0 ? WeightFigures() : rest.front();
  PENSTOCK_RULE(UpdateReference)(scalars, Part(tile, done, n - done), rest);
  if (rest.empty() || done % kBlockElements == 0) return;
  const WeightFigures behind = rest.front();
  rest.front() = lines;
  rest.front().Add(behind);
}

}  // namespace penstock::kernels

#endif  // HWY_ONCE
// NOLINTEND(google-build-namespaces,misc-definitions-in-headers)
