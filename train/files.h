// Files that the trainer reads and writes itself: whole ranges in, whole files out.
//
// Buffered I/O for data, models and exports; training states go through aio. Every call goes on
// after an interruption or a short transfer. An OutputFile appears under its name complete and
// durable, or not at all.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/unique_fd.h"
#include "base/units.h"

namespace penstock::train {

/// pread's shape, so that a test can put an interrupted or a short one in its place.
using PreadFunction = ssize_t (*)(int fd, void* buffer, size_t bytes, off_t offset);

/// A regular file, open for reading. Threads: any number may read.
class InputFile {
 public:
  /// Errors: kNotFound, kPermission; kInvalidArgument for what is not a regular file.
  static Result<InputFile> Open(const std::string& path);

  const std::string& path() const { return path_; }
  /// Its size when it was opened.
  Bytes size() const { return size_; }
  /// Fills `buffer` from `offset` on. Errors: kIo, also where the file ends before the buffer does.
  Status Read(FileOffset offset, std::span<std::byte> buffer, PreadFunction pread = ::pread) const;

 private:
  InputFile(std::string path, UniqueFd fd, Bytes size)
      : path_(std::move(path)), fd_(std::move(fd)), size_(size) {}

  std::string path_;
  UniqueFd fd_;
  Bytes size_;
};

/// The text of a file or pipe, to its end. Errors: kNotFound, kPermission, kIo; kInvalidArgument
/// for a folder, or for more than `limit` bytes.
Result<std::string> ReadTextFile(const std::string& path, Bytes limit);

/// What Finish does where something of the name exists.
enum class IfExists { kReplace, kFail };

/// A file that is being written under "<path>.tmp-<pid>". Finish makes it durable and gives it its
/// name; without Finish nothing is left. One writer for a path at a time. Threads: one.
class OutputFile {
 public:
  /// Reserves `size` bytes, where the file system can, so that a full drive shows before the work.
  /// Errors: kNotFound, kPermission, kOutOfSpace.
  static Result<std::unique_ptr<OutputFile>> Create(const std::string& path, Bytes size,
                                                    IfExists if_exists = IfExists::kReplace);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  Status Append(std::span<const std::byte> bytes);
  /// Precondition: exactly `size` bytes were appended. Errors: kIo; kInvalidArgument where the name
  /// is taken and must not be replaced.
  Status Finish();

 private:
  OutputFile(std::string path, std::string temporary, UniqueFd fd, Bytes size, IfExists if_exists)
      : path_(std::move(path)),
        temporary_(std::move(temporary)),
        fd_(std::move(fd)),
        size_(size),
        if_exists_(if_exists) {}
  Status Reserve();
  Status GiveName();

  std::string path_;
  std::string temporary_;
  UniqueFd fd_;
  Bytes size_;
  IfExists if_exists_;
  Bytes written_;
  bool finished_ = false;
};

/// Writes `text` as one OutputFile.
Status WriteTextFile(const std::string& path, std::string_view text,
                     IfExists if_exists = IfExists::kReplace);

}  // namespace penstock::train
