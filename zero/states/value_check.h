// Finds values that no healthy training has: not finite, or weights beyond a million.
//
// Such a commit is intact, but a training that resumes from it is lost. So readers of a commit
// report it (`penstock inspect`, `penstock export`).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "base/mutex.h"
#include "offload/layout.h"
#include "zero/model.h"

namespace penstock::zero {

enum class StateKind;

/// Weights of larger magnitude are reported. Those of trained models are far below.
inline constexpr float kLargeWeight = 1e6F;

/// What was seen of values. Threads: one.
struct ValueCounts {
  uint64_t not_finite = 0;
  uint64_t large = 0;  ///< finite, and beyond kLargeWeight
  float largest = 0;   ///< the largest magnitude of these

  void Add(std::span<const float> values);
  void Add(const ValueCounts& other);
};

/// What is wrong with one state of a tensor.
struct ValueFault {
  std::string tensor;
  StateKind kind{};
  uint64_t elements = 0;  ///< of the tensor
  ValueCounts counts;
};
/// "h.0.ln_1.weight: of 64 weights 3 are not finite, and 2 beyond 1e+06, up to 3.1e+30".
std::string ToText(const ValueFault& fault);

/// Looks at the values of a model, tile by tile. Threads: any number.
class ValueCheck {
 public:
  explicit ValueCheck(const offload::ModelLayout& model) : model_(model) {}

  /// Looks at a tile of any rank of the model. Precondition: no encoding of the tile has scales.
  void AddTile(const offload::ShardLayout& shard, offload::TileId tile,
               std::span<const std::byte> weight, std::span<const std::byte> record)
      EXCLUDES(mutex_);
  /// Returns what is wrong, in the order of the model. Of moments large values are not reported.
  std::vector<ValueFault> Faults() const EXCLUDES(mutex_);

 private:
  using Place = std::tuple<ModuleId, size_t, StateKind>;  ///< a state of a module's tensor

  const offload::ModelLayout& model_;
  mutable Mutex mutex_;
  std::map<Place, ValueCounts> found_ GUARDED_BY(mutex_);
};

}  // namespace penstock::zero
