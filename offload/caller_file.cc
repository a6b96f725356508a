#include "offload/caller_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "aio/aio.h"
#include "base/check.h"
#include "base/files.h"
#include "base/mapping.h"
#include "base/strict_json.h"
#include "offload/checksum.h"
#include "offload/state_names.h"

namespace penstock::offload {
namespace {

constexpr Bytes kPiece = 1_MiB;
constexpr size_t kChecksumDigits = 16;

std::string ChecksumText(uint64_t checksum) { return fmt::format("{:016x}", checksum); }

Error NotAsWritten(const std::string& path, const std::string& how) {
  return MakeError(ErrorCode::kCorruption, "the caller's file {} {}", path, how);
}

/// What `path0` and the name of an unfinished copy of it begin with.
std::string StemOf(std::string path0) {
  for (const std::string& ending : {UnfinishedCopy(""), std::string(".state")}) {
    if (path0.ends_with(ending)) path0.resize(path0.size() - ending.size());
  }
  return path0;
}

/// Opens the file, and makes it if it is not there, or if what is there has another name, too.
/// Whose process made it may have been killed before its name was durable.
Result<aio::File> OpenToWrite(const std::string& path) {
  const auto [parent, name] = SplitPath(path);
  PENSTOCK_ASSIGN(const Folder folder, Folder::Open(parent));
  if (HasOtherName(path)) PENSTOCK_TRY(folder.RemoveFile(name));
  PENSTOCK_ASSIGN(const UniqueFd fd, folder.OpenFile(name, O_RDWR | O_CREAT, 0600));
  PENSTOCK_TRY(folder.Sync());
  return aio::File::Reopen(fd.get(), path, /*writable=*/true);
}

Status SetSize(const aio::File& file, const std::string& path, uint64_t size) {
  if (::ftruncate(file.fd(), static_cast<off_t>(size)) == 0) return {};
  return ErrnoError(errno, "cutting " + path);
}

}  // namespace

std::string CallerFileJson(std::string_view content) {
  return fmt::format(R"({{"bytes":{},"xxh3":"{}"}})", content.size(),
                     ChecksumText(Checksum(std::as_bytes(std::span(content)))));
}

Result<std::optional<CallerFile>> CallerFileIn(const std::string& json) {
  using None = std::optional<CallerFile>;
  if (json.find(kCallerFileKey) == std::string::npos) return None();
  nlohmann::json parsed;
  if (ParseStrictly(json, {}, &parsed) || !parsed.is_object()) return None();
  const auto entry = parsed.find(kCallerFileKey);
  if (entry == parsed.end()) return None();
  CallerFile file;
  const bool has_both = entry->is_object() && entry->size() == 2 && entry->contains("bytes") &&
                        entry->contains("xxh3");
  bool holds = has_both && entry->at("bytes").is_number_unsigned() && entry->at("xxh3").is_string();
  if (holds) {
    const auto digits = entry->at("xxh3").get<std::string>();
    file.bytes = Bytes{entry->at("bytes").get<uint64_t>()};
    holds = file.bytes > 0_B && file.bytes <= kMaxCallerFile && digits.size() == kChecksumDigits &&
            digits.find_first_not_of("0123456789abcdef") == std::string::npos;
    if (holds) file.checksum = std::stoull(digits, nullptr, 16);
  }
  if (holds) return std::optional(file);
  return MakeError(ErrorCode::kCorruption,
                   "what the commit says of its caller's file, {}, is not a size of at most {} and "
                   "a checksum",
                   Excerpt(*entry), ToString(kMaxCallerFile));
}

std::string CallerFilePath(const std::string& path0, uint64_t sequence) {
  return fmt::format("{}.caller-{}", StemOf(path0), sequence % 2);
}

Status VisitCallerFile(const std::string& path, const CallerFile& expected,
                       const CallerFileVisitor& visit) {
  const auto [parent, name] = SplitPath(path);
  PENSTOCK_ASSIGN(const Folder folder, Folder::Open(parent));
  const Result<InputFile> file = InputFile::Open(folder, name);
  if (!file.ok() && file.error().code == ErrorCode::kNotFound) {
    return NotAsWritten(path, "is not there");
  }
  PENSTOCK_TRY(file.status());
  if (file->size() < expected.bytes) {
    return NotAsWritten(
        path, fmt::format("has {} bytes of {}", file->size().value, expected.bytes.value));
  }
  ::posix_fadvise(file->fd(), 0, 0, POSIX_FADV_DONTNEED);
  StreamHasher hasher;
  std::vector<std::byte> piece;
  for (Bytes done; done < expected.bytes; done += Bytes{piece.size()}) {
    piece.resize(std::min(expected.bytes - done, kPiece).value);
    PENSTOCK_TRY(file->Read(FileOffset{done.value}, piece));
    hasher.Add(piece);
    PENSTOCK_TRY(visit(FileOffset{done.value}, piece));
  }
  const uint64_t found = hasher.Finish();
  if (found == expected.checksum) return {};
  return NotAsWritten(path, fmt::format("is not as it was written (checksum {}, expected {})",
                                        ChecksumText(found), ChecksumText(expected.checksum)));
}

Status WriteCallerFile(const std::string& path, std::string_view content, aio::Engine& engine) {
  PENSTOCK_CHECK(!content.empty() && content.size() <= kMaxCallerFile.value);
  PENSTOCK_ASSIGN(aio::File file, OpenToWrite(path));
  PENSTOCK_ASSIGN(const Bytes before, file.Size());
  if (Status room = file.Allocate(Bytes{content.size()}); !room.ok()) {
    static_cast<void>(SetSize(file, path, before.value));  // it keeps no space that it does not use
    return room;
  }
  if (before.value > content.size()) PENSTOCK_TRY(SetSize(file, path, content.size()));
  PENSTOCK_ASSIGN(const Mapping piece, Mapping::Create(kPiece));
  for (size_t done = 0; done < content.size();) {
    const std::string_view part = content.substr(done, kPiece.value);
    std::memcpy(piece.data(), part.data(), part.size());
    PENSTOCK_TRY(engine
                     .Submit({.operation = aio::Operation::kWrite,
                              .file = &file,
                              .offset = FileOffset{done},
                              .buffer = {piece.data(), part.size()},
                              .priority = aio::Priority::kWriteBack,
                              .about = [] { return std::string("the caller's file of a commit"); }})
                     .Wait());
    done += part.size();
  }
  return engine.Sync(file);
}

Status CheckCallerPlaces(const std::string& path0) {
  PENSTOCK_ASSIGN(const Folder folder, Folder::Open(SplitPath(path0).first));
  for (const uint64_t sequence : {0, 1}) {
    const std::string path = CallerFilePath(path0, sequence);
    PENSTOCK_ASSIGN(const FolderEntry entry, folder.Look(SplitPath(path).second));
    using Kind = FolderEntry::Kind;
    if (entry.kind == Kind::kNone || entry.kind == Kind::kFile) continue;
    return MakeError(
        ErrorCode::kInvalidArgument,
        "{} is {}, and a commit of this state writes a file of that name; move it away", path,
        entry.kind == Kind::kFolder ? "a folder" : "a link or a device");
  }
  return {};
}

Result<std::vector<FoundFile>> FindCallerFiles(const Folder& folder, const std::string& path0) {
  std::vector<FoundFile> found;
  for (const uint64_t sequence : {0, 1}) {
    const std::string whole = SplitPath(CallerFilePath(path0, sequence)).second;
    for (const std::string& name : {whole, UnfinishedCopy(whole)}) {
      PENSTOCK_ASSIGN(const FolderEntry entry, folder.Look(name));
      if (entry.kind != FolderEntry::Kind::kFile) continue;
      found.push_back({.name = name, .id = entry.id, .size = entry.size});
    }
  }
  return found;
}

Status RemoveCallerFiles(const std::string& path0) {
  PENSTOCK_ASSIGN(const Folder folder, Folder::Open(SplitPath(path0).first));
  PENSTOCK_ASSIGN(const std::vector<FoundFile> files, FindCallerFiles(folder, path0));
  for (const FoundFile& file : files) PENSTOCK_TRY(folder.RemoveFile(file.name, file.id));
  return files.empty() ? Status() : folder.Sync();
}

Status RemoveCallerFile(const std::string& path0, uint64_t sequence) {
  const auto [parent, name] = SplitPath(CallerFilePath(path0, sequence));
  PENSTOCK_ASSIGN(const Folder folder, Folder::Open(parent));
  PENSTOCK_ASSIGN(const FolderEntry entry, folder.Look(name));
  if (entry.kind != FolderEntry::Kind::kFile) return {};
  return folder.RemoveFile(name, entry.id);
}

}  // namespace penstock::offload
