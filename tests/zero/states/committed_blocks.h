// What a rank has committed, block by block, so that shares can be put together and compared.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "offload/state_reader.h"
#include "zero/states/committed_state.h"
#include "zero/states/tile_planes.h"

namespace penstock::zero {

/// All states of each block, by module and by the block's first element in the module's flat index.
using CommittedBlocks = std::map<std::pair<size_t, uint64_t>, std::vector<float>>;

/// Reads the newest commit of one rank's files.
inline CommittedBlocks ReadBlocks(const std::vector<std::string>& paths) {
  CommittedBlocks blocks;
  const auto reader = offload::StateReader::Open(paths, offload::StateLock::kHeld);
  EXPECT_TRUE(reader.ok()) << reader.error().message;
  if (!reader.ok()) return blocks;
  const offload::ShardLayout& layout = (*reader)->layout();
  for (const offload::TileId tile : layout.Tiles()) {
    offload::StateReader::TileBytes bytes;
    EXPECT_TRUE((*reader)->ReadTile(tile, bytes).ok());
    for (uint64_t begin = 0; begin < layout.tile(tile).elements; begin += kBlockElements) {
      std::vector<float>& values =
          blocks[{offload::Index(layout.tile(tile).module), layout.tile(tile).begin + begin}];
      for (const StateKind kind : StatesOf(layout.group(tile))) {
        std::vector<float> state(kBlockElements);
        LoadState(kind, layout, tile, bytes.weight.data(), bytes.record.data(), begin, state);
        values.insert(values.end(), state.begin(), state.end());
      }
    }
  }
  return blocks;
}

}  // namespace penstock::zero
