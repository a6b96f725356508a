#include "aio/write_damage.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "aio/block_transfer.h"
#include "base/check.h"

namespace penstock::aio {
namespace {

/// The part of a block within one unit: where in the block, and how long.
struct Part {
  size_t begin = 0;
  size_t size = 0;
};

Part PartIn(const BlockOperation& block, FileOffset unit) {
  const uint64_t begin = std::max(unit.value, block.offset.value);
  const uint64_t end =
      std::min(unit.value + kDamagedUnit.value, block.offset.value + block.data.size());
  return {static_cast<size_t>(begin - block.offset.value), static_cast<size_t>(end - begin)};
}

/// Moves bytes between the block's file and `data`, in the place of the block's byte `begin`.
void MoveAt(const BlockOperation& block, Operation operation, uint64_t begin,
            std::span<std::byte> data) {
  BlockOperation moved = block;
  moved.operation = operation;
  moved.offset = FileOffset{block.offset.value + begin};
  moved.data = data;
  const int64_t result = Transfer(moved);
  PENSTOCK_CHECK(result == static_cast<int64_t>(data.size()),
                 "a test's damage: {} of {} bytes at offset {}: {}", ToString(operation),
                 data.size(), moved.offset.value, result);
}

bool EndsBefore(const BlockOperation& block, uint64_t end) {
  if (!block.memory.empty()) return block.memory.size() < end;
  struct stat info {};
  return ::fstat(block.fd, &info) != 0 || static_cast<uint64_t>(info.st_size) < end;
}

/// Writes `part` of the block over the unit after its own, in `data` or in the file.
void WriteOverNext(const BlockOperation& block, const Part& part, std::byte* data,
                   std::byte* scratch) {
  const uint64_t next = part.begin + kDamagedUnit.value;
  if (next < block.data.size()) {
    const size_t size = std::min<size_t>(part.size, block.data.size() - next);
    std::memcpy(data + next, block.data.data() + part.begin, size);
    return;
  }
  if (EndsBefore(block, block.offset.value + next + part.size)) return;
  std::memcpy(scratch, block.data.data() + part.begin, part.size);
  MoveAt(block, Operation::kWrite, next, {scratch, part.size});
}

}  // namespace

bool IsDamage(Fault::Kind kind) { return kind >= Fault::Kind::kLost; }

bool Holds(const BlockOperation& block, FileOffset offset) {
  return offset.value >= block.offset.value &&
         offset.value - block.offset.value < block.data.size();
}

Damage DamageOf(const Fault& fault, const BlockOperation& block) {
  const uint64_t first = block.offset.value / kDamagedUnit.value;
  const uint64_t last = (block.offset.value + block.data.size() - 1) / kDamagedUnit.value;
  const uint64_t unit =
      fault.at ? fault.at->value / kDamagedUnit.value : std::min(first + fault.unit, last);
  return {fault.kind, FileOffset{unit * kDamagedUnit.value}};
}

WriteDamage::WriteDamage(int queue_depth, std::function<void(int fd, FileOffset unit)> on_bad_unit)
    : on_bad_unit_(std::move(on_bad_unit)), data_(static_cast<size_t>(queue_depth)) {}

WriteDamage::FileId WriteDamage::IdOf(int fd) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return {};
  return {info.st_dev, info.st_ino};
}

std::pair<uint64_t, uint64_t> WriteDamage::UnitsOf(const BlockOperation& block) {
  const uint64_t end = block.offset.value + block.data.size();
  return {block.offset.value / kDamagedUnit.value,
          (end + kDamagedUnit.value - 1) / kDamagedUnit.value};
}

bool WriteDamage::Do(const Damage& damage, BlockOperation& write) {
  if (damage.kind == Fault::Kind::kLost) return false;
  if (damage.kind == Fault::Kind::kBad) {
    bad_[IdOf(write.fd)].insert(damage.unit.value / kDamagedUnit.value);
    if (on_bad_unit_) on_bad_unit_(write.fd, damage.unit);
    return true;
  }
  // A unit in front, for what goes elsewhere.
  const Bytes size = AlignUp(Bytes{write.data.size()}, kDamagedUnit) + kDamagedUnit;
  Result<Mapping> memory = Mapping::Create(size);
  PENSTOCK_CHECK(memory.ok(), "a test's damage: no memory");
  Mapping& kept = data_[write.slot] = *std::move(memory);
  std::byte* const data = kept.data() + kDamagedUnit.value;
  std::memcpy(data, write.data.data(), write.data.size());
  const Part part = PartIn(write, damage.unit);
  if (damage.kind == Fault::Kind::kFlip) {
    data[part.begin + part.size / 2] ^= std::byte{4};
  } else {
    // The new memory is zeros, as what a file does not hold yet.
    if (!EndsBefore(write, write.offset.value + part.begin + part.size)) {
      MoveAt(write, Operation::kRead, part.begin, {kept.data(), part.size});
    }
    std::memcpy(data + part.begin, kept.data(), part.size);
  }
  if (damage.kind == Fault::Kind::kAway) WriteOverNext(write, part, data, kept.data());
  write.data = {data, write.data.size()};
  return true;
}

bool WriteDamage::IsBad(const BlockOperation& read) const {
  if (bad_.empty()) return false;
  const auto file = bad_.find(IdOf(read.fd));
  if (file == bad_.end()) return false;
  const auto [first, end] = UnitsOf(read);
  const auto found = file->second.lower_bound(first);
  return found != file->second.end() && *found < end;
}

void WriteDamage::Heal(const BlockOperation& write) {
  if (bad_.empty()) return;
  std::set<uint64_t>& units = bad_[IdOf(write.fd)];
  const auto [first, end] = UnitsOf(write);
  units.erase(units.lower_bound(first), units.lower_bound(end));
}

}  // namespace penstock::aio
