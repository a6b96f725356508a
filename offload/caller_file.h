// The caller's file of a commit (docs/run_format.md): a caller's object that is too long for the
// commit's record, beside path 0 of the state. Two files alternate, so that the commit before keeps
// its own. The text of a commit names its file; this says which file that is, and reads, writes and
// removes it.
//
// Threads: any; one at a time for a file that is written or removed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/folder.h"
#include "base/result.h"
#include "base/units.h"

namespace penstock::aio {
class Engine;
}  // namespace penstock::aio

namespace penstock::offload {

inline constexpr Bytes kMaxCallerFile = 256_MiB;
/// The key of a commit's text under which its file is named.
inline constexpr const char* kCallerFileKey = "caller_file";

/// What the text of a commit says of its caller's file.
struct CallerFile {
  Bytes bytes;
  uint64_t checksum = 0;

  bool operator==(const CallerFile&) const = default;
};

/// Returns the value under kCallerFileKey for a file with this content.
std::string CallerFileJson(std::string_view content);
/// Returns what the text of a commit says; none: the commit has no such file. Errors: kCorruption
/// if no writer puts that there.
Result<std::optional<CallerFile>> CallerFileIn(const std::string& json);

/// Returns the path of the file of the commit with this sequence number. `path0`: of the state, or
/// of its unfinished copy.
std::string CallerFilePath(const std::string& path0, uint64_t sequence);

/// Called with the pieces of a file, in their order.
using CallerFileVisitor = std::function<Status(FileOffset offset, std::span<const std::byte>)>;
inline const CallerFileVisitor kNoVisitor = [](FileOffset, std::span<const std::byte>) {
  return Status();
};
/// Reads the file at `path` past the page cache, where that can be dropped, and compares it with
/// `expected`. Errors: kCorruption if it is not there or does not hold, kIo, each naming the file;
/// of `visit`, which then may have seen pieces of a file that does not hold.
Status VisitCallerFile(const std::string& path, const CallerFile& expected,
                       const CallerFileVisitor& visit = kNoVisitor);
/// Writes the file at `path` through `engine`, over what is there, durably. A file that has another
/// name, too, stays as it is under that name. Errors: kOutOfSpace with what is free; kCorruption if
/// the name stands for something else than a file; of I/O.
Status WriteCallerFile(const std::string& path, std::string_view content, aio::Engine& engine);

/// Whether files can be written beside a path 0. Errors: kInvalidArgument if one of their names
/// stands for something else.
Status CheckCallerPlaces(const std::string& path0);

/// Returns the files that are there beside a path 0, and what kills left of copies of them.
/// `path0`: as in CallerFilePath. Errors: of Folder::Look.
Result<std::vector<FoundFile>> FindCallerFiles(const Folder& folder, const std::string& path0);
/// Removes them. What is not there is no error.
Status RemoveCallerFiles(const std::string& path0);
/// The same for the file of one commit.
Status RemoveCallerFile(const std::string& path0, uint64_t sequence);

}  // namespace penstock::offload
