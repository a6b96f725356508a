#include "offload/state_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <optional>

#include "base/check.h"
#include "offload/state_file.h"

namespace penstock::offload {

Result<std::unique_ptr<StateReader>> StateReader::Open(const std::vector<std::string>& paths,
                                                       StateLock lock) {
  PENSTOCK_CHECK(!paths.empty());
  std::unique_ptr<StateReader> reader(new StateReader());
  PENSTOCK_ASSIGN(File first, OpenFile(paths.front(), lock, reader->header_));
  reader->files_.push_back(std::move(first));
  PENSTOCK_TRY(reader->OpenOthers(paths, lock));
  PENSTOCK_TRY(reader->ReadCommit());
  return reader;
}

Status StateReader::OpenOthers(const std::vector<std::string>& paths, StateLock lock) {
  if (header_.path != 0 || header_.paths != paths.size()) {
    return MakeError(ErrorCode::kCorruption,
                     "state file {} is number {} of {}, where the first of {} was expected; name "
                     "all files of the state in their order",
                     paths.front(), header_.path + 1, header_.paths, paths.size());
  }
  for (size_t i = 1; i < paths.size(); ++i) {
    StateHeader header;
    PENSTOCK_ASSIGN(File file, OpenFile(paths[i], lock, header));
    if (header.uuid != header_.uuid || header.path != i) {
      return MakeError(ErrorCode::kCorruption,
                       "state file {} is number {} of the state {}, where number {} of {} was "
                       "expected; the state is not whole without that file",
                       paths[i], header.path + 1, ToString(header.uuid), i + 1,
                       ToString(header_.uuid));
    }
    files_.push_back(std::move(file));
  }
  return {};
}

Result<StateReader::File> StateReader::OpenFile(const std::string& path, StateLock lock,
                                                StateHeader& header) {
  File file{.path = path, .fd = UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC))};
  if (!file.fd.valid()) return ErrnoError(errno, "opening state file " + path);
  if (lock != StateLock::kHeld) {
    PENSTOCK_TRY(LockFile(file.fd.get(), lock == StateLock::kExclusive, path));
  }
  PENSTOCK_ASSIGN(header, ReadHead(file));
  file.geometry = header.geometry;
  return file;
}

Status StateReader::ReadAt(const File& file, FileOffset offset, std::span<std::byte> bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = ::pread(file.fd.get(), bytes.data() + done, bytes.size() - done,
                              static_cast<off_t>(offset.value + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      return ErrnoError(errno,
                        fmt::format("reading {} at offset {}", file.path, offset.value + done));
    }
    if (n == 0) {
      return MakeError(ErrorCode::kCorruption,
                       "state file {} ends at offset {}, inside what its header names", file.path,
                       offset.value + done);
    }
    done += static_cast<size_t>(n);
  }
  return {};
}

Result<StateHeader> StateReader::ReadHead(const File& file) {
  const auto named = [&](const Error& error) {
    return MakeError(error.code, "state file {}: {}", file.path, error.message);
  };
  std::vector<std::byte> head(kHeaderBytes.value);
  PENSTOCK_TRY(ReadAt(file, FileOffset{}, head));
  const Result<Bytes> size = HeadBytes(head);
  if (!size.ok()) return named(size.error());
  struct stat info {};
  if (::fstat(file.fd.get(), &info) != 0) return ErrnoError(errno, "looking at " + file.path);
  if (*size > Bytes{static_cast<uint64_t>(info.st_size)}) {
    return MakeError(ErrorCode::kCorruption, "state file {} is shorter than its head", file.path);
  }
  head.resize(size->value);
  PENSTOCK_TRY(ReadAt(file, FileOffset{}, head));
  Result<StateHeader> header = DecodeHead(head);
  if (!header.ok()) return named(header.error());
  return header;
}

Status StateReader::ReadCommit() {
  const File& file = files_.front();
  std::optional<CommitRecord> newest;
  std::optional<Error> damage;
  for (FileOffset place : header_.geometry.commit_offset) {
    std::vector<std::byte> bytes(header_.geometry.commit_bytes.value);
    PENSTOCK_TRY(ReadAt(file, place, bytes));
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
    return MakeError(ErrorCode::kCorruption, "state file {}: {}; there is no other commit",
                     file.path, damage->message);
  }
  return MakeError(ErrorCode::kNotFound,
                   "state file {} holds no commit: the run ended before its first one", file.path);
}

Status StateReader::ReadTile(TileId tile, TileBytes& bytes) const {
  const TileLayout& place = header_.layout.tile(tile);
  const CommittedTile& committed = commit_.tiles[Index(tile)];
  const TilePlace& at = header_.tiles[Index(tile)];
  const File& file = files_[at.path];
  const auto slot = static_cast<int>(committed.slot);
  const FileOffset weight_at = PartOffset(file.geometry, at, Part::kWeight, slot);
  const FileOffset record_at = PartOffset(file.geometry, at, Part::kRecord, slot);
  bytes.weight.resize(header_.layout.WeightBytes(place.elements).value);
  bytes.record.resize(header_.layout.RecordBytes(place.elements).value);
  PENSTOCK_TRY(ReadAt(file, weight_at, bytes.weight));
  PENSTOCK_TRY(ReadAt(file, record_at, bytes.record));
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
      committed.version, file.path, (weight_holds ? record_at : weight_at).value);
}

}  // namespace penstock::offload
