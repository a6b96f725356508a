#include "zero/states/start_team.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/cpu_quota.h"
#include "base/cpu_set.h"
#include "base/for_each_index.h"
#include "base/result.h"
#include "base/units.h"

namespace penstock::zero {
namespace {

/// The least that is worth a thread, and what one takes at a time.
constexpr Bytes kPiece = 64_MiB;

}  // namespace

int StartThreads() {
  const int cpus = std::max(static_cast<int>(UsableCpus().size()), 1);
  const std::optional<double> quota = CpuQuota();
  if (!quota) return cpus;
  return std::clamp(static_cast<int>(std::floor(*quota)), 1, cpus);
}

void TakePages(std::span<std::byte> memory, int threads) {
  const size_t pieces = (memory.size() + kPiece.value - 1) / kPiece.value;
  static_cast<void>(ForEachIndex(pieces, threads, [&](size_t i) -> Status {
    std::span<std::byte> piece = memory.subspan(i * kPiece.value);
    piece = piece.first(std::min<size_t>(piece.size(), kPiece.value));
#ifdef MADV_POPULATE_WRITE
    static_cast<void>(::madvise(piece.data(), piece.size(), MADV_POPULATE_WRITE));
#endif
    return {};
  }));
}

}  // namespace penstock::zero
