// Updates of a tile store that a test makes itself.
#pragma once

#include <optional>

#include "offload/tile_store.h"
#include "tests/deadline.h"

namespace penstock::offload {

/// The next update that the store gives; none where it gives none in time.
inline std::optional<TileUpdate> AwaitUpdate(TileStore& store) {
  std::optional<TileUpdate> update;
  static_cast<void>(BecomesTrue([&] { return (update = store.TryTakeUpdate()).has_value(); }));
  return update;
}

}  // namespace penstock::offload
