#include "offload/state_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <optional>

#include "offload/state_file.h"

namespace penstock::offload {

Result<std::unique_ptr<StateReader>> StateReader::Open(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoError(errno, "opening state file " + path);
  PENSTOCK_TRY(LockFile(fd.get(), false, path));
  std::unique_ptr<StateReader> reader(new StateReader(path, std::move(fd)));
  PENSTOCK_TRY(reader->ReadHead());
  PENSTOCK_TRY(reader->ReadCommit());
  return reader;
}

Status StateReader::ReadAt(FileOffset offset, std::span<std::byte> bytes) const {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = ::pread(fd_.get(), bytes.data() + done, bytes.size() - done,
                              static_cast<off_t>(offset.value + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      return ErrnoError(errno, fmt::format("reading {} at offset {}", path_, offset.value + done));
    }
    if (n == 0) {
      return MakeError(ErrorCode::kCorruption,
                       "state file {} ends at offset {}, inside what its header names", path_,
                       offset.value + done);
    }
    done += static_cast<size_t>(n);
  }
  return {};
}

Status StateReader::ReadHead() {
  const auto named = [&](const Error& error) {
    return MakeError(error.code, "state file {}: {}", path_, error.message);
  };
  std::vector<std::byte> head(kHeaderBytes.value);
  PENSTOCK_TRY(ReadAt(FileOffset{}, head));
  const Result<Bytes> size = HeadBytes(head);
  if (!size.ok()) return named(size.error());
  struct stat info {};
  if (::fstat(fd_.get(), &info) != 0) return ErrnoError(errno, "looking at " + path_);
  if (*size > Bytes{static_cast<uint64_t>(info.st_size)}) {
    return MakeError(ErrorCode::kCorruption, "state file {} is shorter than its head", path_);
  }
  head.resize(size->value);
  PENSTOCK_TRY(ReadAt(FileOffset{}, head));
  Result<StateHeader> header = DecodeHead(head);
  if (!header.ok()) return named(header.error());
  header_ = std::move(header).value();
  return {};
}

Status StateReader::ReadCommit() {
  std::optional<CommitRecord> newest;
  std::optional<Error> damage;
  for (FileOffset place : header_.geometry.commit_offset) {
    std::vector<std::byte> bytes(header_.geometry.commit_bytes.value);
    PENSTOCK_TRY(ReadAt(place, bytes));
    Result<CommitRecord> record = DecodeCommit(header_.uuid, bytes);
    if (!record.ok()) {
      if (record.error().code != ErrorCode::kNotFound) damage = record.error();
      continue;
    }
    if (record->tiles.size() != header_.layout.tiles.size()) {
      damage = MakeError(ErrorCode::kCorruption, "a commit names {} tiles where the file has {}",
                         record->tiles.size(), header_.layout.tiles.size());
      continue;
    }
    if (!newest || record->sequence > newest->sequence) newest = std::move(record).value();
  }
  if (newest) {
    commit_ = std::move(*newest);
    return {};
  }
  if (damage) {
    return MakeError(ErrorCode::kCorruption, "state file {}: {}; there is no other commit", path_,
                     damage->message);
  }
  return MakeError(ErrorCode::kNotFound,
                   "state file {} holds no commit: the run ended before its first one", path_);
}

Status StateReader::ReadTile(TileId tile, TileBytes& bytes) const {
  const TileLayout& place = header_.layout.tile(tile);
  const CommittedTile& committed = commit_.tiles[Index(tile)];
  const StateGeometry& plan = header_.geometry;
  const FileOffset weight_at =
      plan.weights_offset[committed.slot] + header_.tiles[Index(tile)].weight;
  const FileOffset record_at =
      plan.records_offset[committed.slot] + header_.tiles[Index(tile)].record;
  bytes.weight.resize(header_.layout.WeightBytes(place.elements).value);
  bytes.record.resize(header_.layout.RecordBytes(place.elements).value);
  PENSTOCK_TRY(ReadAt(weight_at, bytes.weight));
  PENSTOCK_TRY(ReadAt(record_at, bytes.record));
  const uint64_t seed = TileSeed(header_.uuid, tile, committed.version);
  const bool weight_holds = WeightChecksum(seed, bytes.weight) == committed.checksums.weight;
  const bool record_holds = RecordChecksum(seed, header_.layout.dtype, place.elements,
                                           bytes.record) == committed.checksums.record;
  if (weight_holds && record_holds) return {};
  return MakeError(
      ErrorCode::kCorruption,
      "checksum of the {} of tile {} (module {}, version {}) does not hold: {} at offset "
      "{}; the data was damaged after it was committed",
      weight_holds ? "record" : "weight", Index(tile), header_.layout.module(place.module).name,
      committed.version, path_, (weight_holds ? record_at : weight_at).value);
}

}  // namespace penstock::offload
