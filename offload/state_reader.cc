#include "offload/state_reader.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <functional>

#include "base/check.h"
#include "base/file_lock.h"
#include "base/folder.h"
#include "offload/state_path.h"
#include "offload/uuid.h"

namespace penstock::offload {

namespace {

/// Whether a head could not be found where there may be one.
bool MayBeMade(const Result<FoundHead>& head) { return !head.ok() && IsReadDamage(head.error()); }

bool SaysUnfinished(const Result<FoundHead>& head) {
  return !head.ok() && head.error().code == ErrorCode::kNotFound;
}

}  // namespace

StateReader::~StateReader() {
  for (const File& file : files_) UnlockFile(file.fd.get());
}

Result<std::unique_ptr<StateReader>> StateReader::Open(const std::vector<std::string>& paths,
                                                       StateLock lock) {
  PENSTOCK_ASSIGN(std::unique_ptr<StateReader> reader, OpenToAgree(paths, lock));
  if (!reader->commits_.empty()) return reader;
  return MakeError(ErrorCode::kNotFound,
                   "state file {} holds no commit: the run ended before its first one",
                   paths.front());
}

Result<std::unique_ptr<StateReader>> StateReader::OpenToAgree(const std::vector<std::string>& paths,
                                                              StateLock lock) {
  PENSTOCK_CHECK(!paths.empty());
  std::unique_ptr<StateReader> reader(new StateReader());
  PENSTOCK_TRY(reader->OpenFirst(paths, lock));
  PENSTOCK_TRY(reader->CheckIsFirst(paths));
  // If it holds no commit there is none, even if the others hold one.
  PENSTOCK_TRY(reader->ReadCommits());
  if (!reader->commits_.empty()) PENSTOCK_TRY(reader->OpenOthers(paths, lock));
  return reader;
}

Status StateReader::Use(const CommitName& name) {
  const auto held = std::ranges::find_if(commits_, [&name](const HeldCommit& commit) {
    return commit.name.step == name.step && commit.name.session == name.session &&
           (name.sequence == 0 || commit.sequence == name.sequence);
  });
  if (held == commits_.end()) {
    return MakeError(ErrorCode::kNotFound, "state file {} does not hold the commit of step {}",
                     files_.front().path, name.step);
  }
  if (held->sequence == commit_.sequence) return {};
  const FileOffset place = header_.geometry.commit_offset[held->sequence % 2];
  PENSTOCK_ASSIGN(commit_, ReadCommit(place));
  return {};
}

StateHeader StateReader::File::Take(FoundHead head) {
  geometry = head.header.geometry;
  notice = std::move(head.notice);
  return std::move(head.header);
}

/// If neither of its heads can be used, one of the other files has their content. A file that
/// begins with a mark is opened in the same way: a commit in it proves that it was finished.
Status StateReader::OpenFirst(const std::vector<std::string>& paths, StateLock lock) {
  PENSTOCK_ASSIGN(File first, OpenFile(paths.front(), lock));
  Result<FoundHead> head = FindHead(first.open(), Finished::kUnknown);
  if (SaysUnfinished(head)) {
    unfinished_ = head.error();
    head = FindHead(first.open(), Finished::kYes);
  }
  for (size_t i = 1; MayBeMade(head) && i < paths.size(); ++i) {
    const Result<UniqueFd> fd = OpenFileAt(paths[i], O_RDONLY);
    if (!fd.ok()) continue;
    const Result<FoundHead> sibling = FindHead({fd->get(), paths[i]}, Finished::kUnknown);
    if (!sibling.ok() || sibling->header.paths != paths.size()) continue;
    head = HeadFromSibling(first.open(), sibling->header, 0, head.error());
  }
  if (!head.ok()) return unfinished_.value_or(head.error());
  header_ = first.Take(*std::move(head));
  files_.push_back(std::move(first));
  return {};
}

Status StateReader::CheckIsFirst(const std::vector<std::string>& paths) const {
  if (header_.path == 0 && header_.paths == paths.size()) return {};
  return MakeError(ErrorCode::kCorruption,
                   "state file {} is number {} of {}, where the first of {} was expected; name all "
                   "files of the state in their order",
                   paths.front(), header_.path + 1, header_.paths, paths.size());
}

Result<StateReader::File> StateReader::OpenOther(const std::string& path, StateLock lock) const {
  const Status not_open = CheckNotOpen(path);
  Result<File> file = not_open.ok() ? OpenFile(path, lock) : not_open.error();
  if (file.ok() || file.error().code != ErrorCode::kNotFound) return file;
  // The header of the first file was written when all others were finished.
  return MakeError(ErrorCode::kCorruption, "{}; the state is not whole without that file",
                   file.error().message);
}

Status StateReader::OpenOthers(const std::vector<std::string>& paths, StateLock lock) {
  for (size_t i = 1; i < paths.size(); ++i) {
    PENSTOCK_ASSIGN(File file, OpenOther(paths[i], lock));
    // The header of the first file was written when all others were finished.
    Result<FoundHead> head = FindHead(file.open(), Finished::kYes);
    if (MayBeMade(head)) {
      head = HeadFromSibling(file.open(), header_, static_cast<uint32_t>(i), head.error());
    }
    PENSTOCK_TRY(head.status());
    const StateHeader header = file.Take(*std::move(head));
    if (header.uuid != header_.uuid || header.path != i) {
      return MakeError(ErrorCode::kCorruption,
                       "state file {} is number {} of the state {}, where number {} of {} was "
                       "expected; the state is not whole without that file",
                       paths[i], header.path + 1, ToString(header.uuid), i + 1,
                       ToString(header_.uuid));
    }
    if (header.paths != header_.paths || header.layout != header_.layout ||
        header.tiles != header_.tiles || header.geometry.slots != header_.geometry.slots ||
        header.geometry.guards != header_.geometry.guards ||
        header.geometry.commit_json != header_.geometry.commit_json) {
      return MakeError(ErrorCode::kCorruption,
                       "state file {} has another layout than {}, the first of its state", paths[i],
                       paths.front());
    }
    files_.push_back(std::move(file));
  }
  return {};
}

Status StateReader::CheckNotOpen(const std::string& path) const {
  PENSTOCK_ASSIGN(const FileId wanted, IdAt(path));
  for (const File& file : files_) {
    PENSTOCK_ASSIGN(const FileId open, IdOf(file.fd.get(), file.path));
    if (open != wanted) continue;
    return MakeError(ErrorCode::kCorruption,
                     "state file {} is named twice among the files of the state; name each once, "
                     "in their order",
                     path);
  }
  return {};
}

Result<StateReader::File> StateReader::OpenFile(const std::string& path, StateLock lock) {
  File file{.path = path};
  bool exclusive = lock == StateLock::kExclusive;
  const auto open = [&path](int flags) {
    return UnsharedFd::Open([&] { return OpenFileAt(path, flags); });
  };
  Result<UnsharedFd> opened = open(exclusive ? O_RDWR : O_RDONLY);  // as locks need it
  if (exclusive && !opened.ok() && opened.error().code == ErrorCode::kPermission) {
    exclusive = false;
    opened = open(O_RDONLY);
  }
  PENSTOCK_ASSIGN(file.fd, std::move(opened));
  if (lock != StateLock::kHeld) PENSTOCK_TRY(LockFile(file.fd.get(), exclusive, path));
  // A commit that was written and not synchronised could still be lost, after its slots' neighbours
  // were written over.
  if (lock == StateLock::kExclusive && ::fdatasync(file.fd.get()) != 0) {
    return ErrnoError(errno, "synchronising " + path);
  }
  return file;
}

std::string StateReader::notice() const {
  std::vector<std::string> notices;
  if (!notice_.empty()) notices.push_back(notice_);
  for (const File& file : files_) {
    if (!file.notice.empty()) notices.push_back(file.notice);
  }
  return fmt::format("{}", fmt::join(notices, "; "));
}

std::vector<std::byte> StateReader::Head(size_t path) const {
  return EncodeHead(HeaderOfPath(header_, static_cast<uint32_t>(path)));
}

std::vector<std::string> StateReader::CheckHeads() const {
  std::vector<std::string> damages;
  if (!notice_.empty()) damages.push_back(notice_);
  for (size_t i = 0; i < files_.size(); ++i) {
    const File& file = files_[i];
    const std::vector<std::string> heads =
        HeadDamages(file.open(), HeaderOfPath(header_, static_cast<uint32_t>(i)));
    damages.insert(damages.end(), heads.begin(), heads.end());
    for (const FileOffset place : file.geometry.commit_offset) CheckPlace(file, place, damages);
  }
  return damages;
}

void StateReader::CheckPlace(const File& file, FileOffset place,
                             std::vector<std::string>& damages) const {
  std::vector<std::byte> bytes(file.geometry.commit_bytes.value);
  const bool first = &file == &files_.front();
  const Status read = ReadAt(file.open(), place, bytes);
  if (!read.ok()) {
    if (!first) damages.push_back("a commit place: " + read.error().message);
    return;  // notice_ says so of the first file
  }
  std::vector<std::byte> expected;
  if (first) {
    const Result<CommitRecord> record = ParseCommit(place, bytes);
    if (record.ok()) {
      expected = EncodeCommit(Identity(), *record);
    } else if (record.error().code != ErrorCode::kNotFound) {
      return;  // notice_ says so
    }
  }
  expected.resize(bytes.size());
  const auto at = std::ranges::mismatch(bytes, expected).in1;
  if (at == bytes.end()) return;
  damages.push_back(fmt::format("a commit place, {} at offset {}: it should be zero there",
                                file.path,
                                place.value + static_cast<uint64_t>(at - bytes.begin())));
}

Status StateReader::CheckCommit(FileOffset place, const CommitRecord& record) const {
  if (record.tiles.size() != header_.layout.tiles.size()) {
    return MakeError(ErrorCode::kCorruption, "it names {} tiles where the file has {}",
                     record.tiles.size(), header_.layout.tiles.size());
  }
  if (place != header_.geometry.commit_offset[record.sequence % 2]) {
    return MakeError(ErrorCode::kCorruption, "number {} belongs in the other place",
                     record.sequence);
  }
  for (const TileId tile : layout().Tiles()) {
    const CommittedTile& named = record.tiles[Index(tile)];
    if (layout().frozen(tile) && (named.version != 0 || named.slot != 0)) {
      return MakeError(ErrorCode::kCorruption, "it names an update of tile {}, which is frozen",
                       Index(tile));
    }
  }
  const auto slots = static_cast<uint32_t>(header_.geometry.slots);
  if (std::ranges::all_of(record.tiles, [slots](const auto& tile) { return tile.slot < slots; })) {
    return {};
  }
  return MakeError(ErrorCode::kCorruption, "it names slot 1 where the file has one slot");
}

Result<CommitRecord> StateReader::ParseCommit(FileOffset place,
                                              std::span<const std::byte> bytes) const {
  Result<CommitRecord> record = DecodeCommit(Identity(), bytes);
  const Status fits = record.ok() ? CheckCommit(place, *record) : Status();
  if (!fits.ok()) record = fits.error();
  if (record.ok()) return record;
  return MakeError(record.error().code, "the commit place at offset {} does not hold ({})",
                   place.value, record.error().message);
}

Result<std::vector<std::byte>> StateReader::ReadPlace(FileOffset place) const {
  std::vector<std::byte> bytes(header_.geometry.commit_bytes.value);
  const Status read = ReadAt(files_.front().open(), place, bytes);
  if (read.ok()) return bytes;
  return MakeError(read.error().code, "the commit place at offset {} cannot be read ({})",
                   place.value, read.error().message);
}

Result<CommitRecord> StateReader::ReadCommit(FileOffset place) const {
  PENSTOCK_ASSIGN(const std::vector<std::byte> bytes, ReadPlace(place));
  return ParseCommit(place, bytes);
}

Status StateReader::ReadCommits() {
  const std::string& path = files_.front().path;
  std::string damage;
  bool cut_off = false;
  for (FileOffset place : header_.geometry.commit_offset) {
    Result<CommitRecord> record = ReadCommit(place);
    if (record.ok()) {
      commits_.push_back({{record->head.step, record->session}, record->sequence});
      if (record->sequence > commit_.sequence) commit_ = std::move(record).value();
    } else if (record.error().code != ErrorCode::kNotFound) {
      damage += record.error().message + "; ";
      cut_off = cut_off || record.error().code != ErrorCode::kIo;
    }
  }
  std::ranges::sort(commits_, std::ranges::greater(), &HeldCommit::sequence);
  if (commits_.empty() && damage.empty() && unfinished_) return *unfinished_;
  if (commits_.empty() && damage.empty() && !files_.front().notice.empty()) {
    return MakeError(ErrorCode::kCorruption,
                     "{}; neither place holds a commit: what damaged the head may have taken them",
                     files_.front().notice);
  }
  if (damage.empty()) return {};
  if (commits_.empty()) {
    return MakeError(cut_off ? ErrorCode::kCorruption : ErrorCode::kIo,
                     "state file {}: {}there is no other commit", path, damage);
  }
  notice_ = fmt::format(
      "state file {}: {}{}the commit of step {} in the other place holds, and --resume starts "
      "from it",
      path, damage,
      cut_off ? "a commit was cut off there when the run was killed, or it was damaged since; "
              : "",
      commit_.head.step);
  return {};
}

FileOffset StateReader::OffsetOf(Part part, TileId tile) const {
  const TilePlace& at = header_.tiles[Index(tile)];
  return PartOffset(files_[at.path].geometry, at, part,
                    static_cast<int>(commit_.tiles[Index(tile)].slot));
}

std::string StateReader::Describe(Part part, TileId tile) const {
  return fmt::format("the {} of tile {} (module {}, version {}), {}",
                     part == Part::kWeight ? "weight" : "record", Index(tile),
                     layout().module(tile).name, commit_.tiles[Index(tile)].version,
                     Where(part, tile));
}

std::string StateReader::Where(Part part, TileId tile) const {
  return fmt::format("{} at offset {}", files_[header_.tiles[Index(tile)].path].path,
                     OffsetOf(part, tile).value);
}

Status StateReader::VerifyPart(Part part, TileId tile, std::span<const std::byte> bytes) const {
  const CommittedTile& committed = commit_.tiles[Index(tile)];
  const uint64_t seed = TileSeed(header_.uuid, layout(), tile, committed.version);
  const bool holds =
      part == Part::kWeight
          ? WeightChecksum(seed, bytes) == committed.checksums.weight
          : RecordChecksum(seed, layout(), tile, bytes) == committed.checksums.record;
  if (holds) return {};
  return DamagedPart(layout(), part, tile, committed.version, Where(part, tile));
}

Status StateReader::VisitCaller(const CallerFileVisitor& visit) const {
  PENSTOCK_ASSIGN(const std::optional<CallerFile> file, caller_file());
  return file ? VisitCallerFile(caller_path(), *file, visit) : Status();
}

Result<std::string> StateReader::ReadCaller() const {
  std::string content;
  PENSTOCK_TRY(VisitCaller([&](FileOffset, std::span<const std::byte> piece) -> Status {
    content.append(reinterpret_cast<const char*>(piece.data()), piece.size());
    return {};
  }));
  return content;
}

Status StateReader::ReadTile(TileId tile, TileBytes& bytes) const {
  const File& file = files_[header_.tiles[Index(tile)].path];
  bytes.weight.resize(layout().WeightBytes(tile).value);
  bytes.record.resize(layout().RecordBytes(tile).value);
  PENSTOCK_TRY(ReadAt(file.open(), OffsetOf(Part::kWeight, tile), bytes.weight));
  PENSTOCK_TRY(ReadAt(file.open(), OffsetOf(Part::kRecord, tile), bytes.record));
  PENSTOCK_TRY(VerifyPart(Part::kWeight, tile, bytes.weight));
  return VerifyPart(Part::kRecord, tile, bytes.record);
}

}  // namespace penstock::offload
