// Where every element of the model's parameters belongs: modules, tensors, tiles. A plain value.
//
// Each module has one flat index: its tensors with weight decay, back to back in the model's order,
// padded with zeros to a block; then those without, padded likewise. A tile is a run of blocks of
// one module, of one parameter group and of at most `tile_elements`. Shards (one for each rank) end
// on blocks; with one rank the shard is the module. Computed by zero/partitioner.h.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/units.h"

namespace penstock::offload {

enum class ModuleId : uint32_t {};
enum class TileId : uint32_t {};
constexpr size_t Index(ModuleId id) { return static_cast<size_t>(id); }
constexpr size_t Index(TileId id) { return static_cast<size_t>(id); }

enum class ParameterGroup : uint8_t { kDecay = 0, kNoDecay = 1 };
inline constexpr size_t kGroupCount = 2;

struct TensorLayout {
  std::string name;             ///< Hugging Face name, "h.0.attn.c_attn.weight"
  std::vector<uint64_t> shape;  ///< row-major
  ParameterGroup group = ParameterGroup::kDecay;
  uint64_t offset = 0;  ///< first element, in the module's flat index
  uint64_t elements = 0;

  bool operator==(const TensorLayout&) const = default;
};

struct ModuleLayout {
  std::string name;
  std::vector<TensorLayout> tensors;  ///< in the order they were declared
  uint64_t elements = 0;  ///< of the flat index, padding included: a multiple of a block
  TileId first_tile{};
  uint32_t tile_count = 0;

  /// Indices of the tensors in the order of the flat index: who reads them so reads each tile once.
  std::vector<size_t> TensorsByOffset() const;
  bool operator==(const ModuleLayout&) const = default;
};

struct TileLayout {
  ModuleId module{};
  uint64_t begin = 0;     ///< first element, in the module's flat index: a multiple of a block
  uint64_t elements = 0;  ///< a multiple of a block
  ParameterGroup group = ParameterGroup::kDecay;

  bool operator==(const TileLayout&) const = default;
};

/// The moments that the optimizer keeps of every element.
struct Moments {
  bool exp_avg = true;
  bool exp_avg_sq = true;
  DType dtype = DType::kFloat32;  ///< or kBFloat16

  bool operator==(const Moments&) const = default;
};

/// What a tile's record may hold. The values are part of the state file's format.
enum class RecordKind : uint8_t { kLo = 1, kExpAvg = 2, kExpAvgSq = 3 };

/// A state in a tile's record: one value of `element` bytes for each element of the tile.
struct RecordState {
  RecordKind kind{};
  Bytes element;
};

/// The states of a record, in the order in which they lie in it.
class RecordStates {
 public:
  void Add(const RecordState& state) { states_[count_++] = state; }
  const RecordState* begin() const { return states_.data(); }
  const RecordState* end() const { return begin() + count_; }

 private:
  std::array<RecordState, 3> states_{};
  size_t count_ = 0;
};

struct Layout {
  DType dtype = DType::kFloat32;  ///< of the weights that the model computes with
  Moments moments;
  uint64_t tile_elements = 0;  ///< the largest tile
  std::vector<ModuleLayout> modules;
  std::vector<TileLayout> tiles;  ///< by module, then by position
  uint64_t parameters = 0;        ///< elements of all tensors, without padding

  const ModuleLayout& module(ModuleId id) const { return modules[Index(id)]; }
  const TileLayout& tile(TileId id) const { return tiles[Index(id)]; }
  /// The tile that holds an element of the module's flat index.
  TileId TileAt(ModuleId id, uint64_t element) const;
  uint64_t elements() const;      ///< with padding
  uint64_t largest_tile() const;  ///< elements of the largest tile
  uint64_t most_tiles() const;    ///< of a module

  // A tile has two parts. The *weight* part is what the model computes with: bf16 hi, or the fp32
  // master. The *record* is the rest, state behind state: lo in bf16 training, then the moments.
  Bytes WeightBytes(uint64_t elements) const { return SizeOf(dtype) * elements; }
  RecordStates States() const;
  Bytes RecordBytes(uint64_t elements) const;
  Bytes GradientBytes(uint64_t elements) const { return SizeOf(dtype) * elements; }

  /// Whether the other has the same tensors at the same places of the same modules, and the same
  /// moments of them, in whatever tiles.
  bool HasTensorsOf(const Layout& other) const;
  bool operator==(const Layout&) const = default;
};

}  // namespace penstock::offload
