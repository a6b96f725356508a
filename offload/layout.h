// The place of every element of the model's parameters. Plain values.
//
// ModelLayout describes the whole model, and is the same on every rank: groups, modules and
// tensors. Each module has one flat index: the tensors of its first group, back to back in the
// model's order, padded with zeros to a block; then those of the next group, padded likewise.
// Consecutive groups that are stored alike form a *section* of the module. ShardLayout is what one
// rank holds of it: an equal share of each section, in whole blocks, cut into tiles. A tile is a
// run of consecutive blocks of one module and one group, with at most `tile_elements` elements.
// With one rank the share is the section.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/dtype.h"
#include "base/units.h"
#include "offload/planes.h"

namespace penstock::offload {

enum class ModuleId : uint32_t {};
enum class TileId : uint32_t {};
enum class GroupId : uint32_t {};
constexpr size_t Index(ModuleId id) { return static_cast<size_t>(id); }
constexpr size_t Index(TileId id) { return static_cast<size_t>(id); }
constexpr size_t Index(GroupId id) { return static_cast<size_t>(id); }
/// Consecutive ids, `begin` to `end` - 1, for loops. (The clang-tidy of Debian 12 cannot compile
/// the standard's views.)
template <typename Id>
class IdRange {
 public:
  class Iterator {
   public:
    explicit constexpr Iterator(uint32_t at) : at_(at) {}
    constexpr Id operator*() const { return Id{at_}; }
    constexpr Iterator& operator++() {
      ++at_;
      return *this;
    }
    constexpr bool operator==(const Iterator&) const = default;

   private:
    uint32_t at_;
  };

  constexpr IdRange(uint32_t begin, uint32_t end) : begin_(begin), end_(end) {}
  constexpr Iterator begin() const { return Iterator(begin_); }
  constexpr Iterator end() const { return Iterator(end_); }
  constexpr size_t size() const { return end_ - begin_; }
  constexpr Id operator[](size_t i) const { return Id{begin_ + static_cast<uint32_t>(i)}; }
  /// Returns `count` of them, from number `first` on. Precondition: they exist.
  constexpr IdRange Part(size_t first, size_t count) const {
    PENSTOCK_CHECK(first <= size() && count <= size() - first);
    const uint32_t begin = begin_ + static_cast<uint32_t>(first);
    return {begin, begin + static_cast<uint32_t>(count)};
  }

 private:
  uint32_t begin_;
  uint32_t end_;
};
/// The ids 0 to count - 1.
template <typename Id>
constexpr IdRange<Id> Ids(size_t count) {
  return {0, static_cast<uint32_t>(count)};
}

/// The groups of an ordinary model: biases and norm weights take no weight decay.
inline constexpr GroupId kDecay{0};
inline constexpr GroupId kNoDecay{1};

/// Tensors that are stored and updated alike. Frozen groups come after all others, so that the
/// trained part of a module is the beginning of its flat index.
struct GroupLayout {
  std::string name;  ///< "weight decay", for people
  Planes planes;
  bool frozen = false;           ///< never updated; the weight is the only plane
  uint32_t parameter_group = 0;  ///< the optimizer's group whose scalars update it

  bool StoredLike(const GroupLayout& other) const {
    return planes == other.planes && frozen == other.frozen;
  }
  bool operator==(const GroupLayout&) const = default;
};

/// Returns kDecay and kNoDecay, with the same planes: the only groups that version 1 of the state
/// file knows.
std::vector<GroupLayout> DecayGroups(const Planes& planes);

struct TensorLayout {
  std::string name;             ///< Hugging Face name, "h.0.attn.c_attn.weight"
  std::vector<uint64_t> shape;  ///< row-major
  GroupId group = kDecay;
  uint64_t offset = 0;  ///< first element, in the module's flat index
  uint64_t elements = 0;

  bool operator==(const TensorLayout&) const = default;
};

/// Consecutive blocks of a module's flat index.
struct Range {
  uint64_t begin = 0;     ///< first element: a multiple of a block
  uint64_t elements = 0;  ///< padding included: a multiple of a block

  uint64_t end() const { return begin + elements; }
  bool operator==(const Range&) const = default;
};

/// The part of a module that belongs to one group.
struct GroupSpan {
  GroupId group{};
  Range range;

  bool operator==(const GroupSpan&) const = default;
};

/// Consecutive groups of a module that are stored alike. Ranks share each section.
struct Section {
  std::span<const GroupSpan> spans;
  Range range;
};

struct ModuleLayout {
  std::string name;
  std::vector<TensorLayout> tensors;  ///< in the order of declaration
  std::vector<GroupSpan> spans;       ///< spans of its groups, in order
  uint64_t elements = 0;  ///< elements of the flat index, with padding: a multiple of a block

  /// Indices of the tensors in the order of the flat index: a caller that reads them in this order
  /// reads each tile once.
  std::vector<size_t> TensorsByOffset() const;
  bool operator==(const ModuleLayout&) const = default;
};

struct ModelLayout {
  std::vector<GroupLayout> groups;
  std::vector<ModuleLayout> modules;
  uint64_t parameters = 0;  ///< elements of all tensors, without padding

  const ModuleLayout& module(ModuleId id) const { return modules[Index(id)]; }
  const GroupLayout& group(GroupId id) const { return groups[Index(id)]; }
  /// Elements of all modules, with padding.
  uint64_t elements() const;
  /// Tensors of all modules.
  size_t TensorCount() const;
  /// Returns the number of the module's elements that are not frozen, with padding: the first ones
  /// of its flat index.
  uint64_t TrainedElements(ModuleId id) const;
  /// Returns the section of a module that begins with its span `i`; it borrows the layout.
  /// Precondition: a section begins there.
  Section SectionAt(ModuleId id, size_t i) const;
  /// Returns all of them in the order of the flat index.
  std::vector<Section> SectionsOf(ModuleId id) const;

  /// Returns the rank, of `world_size`, whose share has an element of the module's flat index.
  uint32_t RankAt(ModuleId id, uint64_t element, uint32_t world_size) const;

  /// Whether the other layout has the same tensors at the same places of the same modules, stored
  /// and updated alike. Names of groups do not matter.
  bool HasTensorsOf(const ModelLayout& other) const;
  bool operator==(const ModelLayout&) const = default;
};

/// A tensor of a module as a model declares it.
struct TensorShape {
  std::string name;
  std::vector<uint64_t> shape;
  GroupId group = kDecay;
};
/// Lays a module's tensors out in its flat index. Preconditions: every tensor has elements, and
/// their sum does not overflow.
ModuleLayout MakeModule(std::string name, const std::vector<TensorShape>& tensors);

struct TileLayout {
  ModuleId module{};
  uint64_t begin = 0;     ///< first element, in the module's flat index: a multiple of a block
  uint64_t elements = 0;  ///< a multiple of a block
  GroupId group = kDecay;

  bool operator==(const TileLayout&) const = default;
};

/// Returns a rank's share of a range. Every share has ceil(blocks / world_size) blocks, except the
/// last ones, which may be shorter or empty. Precondition: rank < world_size.
Range ShareOf(const Range& range, uint32_t world_size, uint32_t rank);

struct ShardLayout {
  ModelLayout model;
  uint32_t world_size = 1;
  uint32_t rank = 0;
  uint64_t tile_elements = 0;     ///< elements of the largest possible tile: a multiple of a block
  std::vector<TileLayout> tiles;  ///< ordered by module, then by position
  std::vector<uint32_t> first_tile;  ///< first tile of each module; then the number of tiles

  const TileLayout& tile(TileId id) const { return tiles[Index(id)]; }
  const ModuleLayout& module(ModuleId id) const { return model.module(id); }
  const ModuleLayout& module(TileId id) const { return model.module(tile(id).module); }
  const GroupLayout& group(TileId id) const { return model.group(tile(id).group); }
  const Planes& planes(TileId id) const { return group(id).planes; }
  bool frozen(TileId id) const { return group(id).frozen; }

  IdRange<TileId> Tiles() const { return Ids<TileId>(tiles.size()); }
  /// Returns the tiles of a module's share, in the order of its flat index.
  IdRange<TileId> TilesOf(ModuleId id) const {
    return {first_tile[Index(id)], first_tile[Index(id) + 1]};
  }
  /// Those of them that are updated: they come first.
  IdRange<TileId> TrainedTilesOf(ModuleId id) const;
  size_t TileCount(ModuleId id) const { return TilesOf(id).size(); }
  /// Returns the tile that holds an element of the module's flat index. Precondition: the share has
  /// that element.
  TileId TileAt(ModuleId id, uint64_t element) const;
  // A slot on the device takes the whole weights of a module, one section after the other. Each
  // section has the shares of all ranks one after the other, all equally long. So the slot is in
  // the order of the flat index, and each rank can give its share in place.
  Bytes SlotBytes(ModuleId id) const;
  /// Returns where an element of the module's flat index lies in a slot.
  Bytes SlotOffset(ModuleId id, uint64_t element) const;

  // Sizes of a tile. The gradient has the weight's dtype; a frozen tile has none.
  Bytes WeightBytes(TileId id) const { return planes(id).WeightSize(tile(id).elements); }
  Bytes RecordBytes(TileId id) const { return planes(id).RecordSize(tile(id).elements); }
  Bytes GradientBytes(TileId id) const;
  DType GradientDType(TileId id) const;

  /// Returns the number of elements of all tiles, padding included.
  uint64_t shard_elements() const;
  /// Sizes of all tiles together.
  Bytes weight_bytes() const;
  Bytes record_bytes() const;
  Bytes gradient_bytes() const;
  /// Sizes of the largest tile.
  Bytes largest_weight() const;
  Bytes largest_record() const;
  size_t most_tiles() const;  ///< max number of tiles of a module

  bool operator==(const ShardLayout&) const = default;
};

/// Returns how many tiles MakeShard would make.
uint64_t CountTiles(const ModelLayout& model, uint64_t tile_elements, uint32_t world_size,
                    uint32_t rank);
/// Cuts a rank's share of a model into tiles. Preconditions: tile_elements is a multiple of a
/// block; rank < world_size; the tiles are fewer than 2^32.
ShardLayout MakeShard(ModelLayout model, uint64_t tile_elements, uint32_t world_size = 1,
                      uint32_t rank = 0);

}  // namespace penstock::offload
