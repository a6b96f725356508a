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

#include "base/folder.h"
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
  /// One in a folder. Errors: those of Folder::OpenFile.
  static Result<InputFile> Open(const Folder& folder, const std::string& name);

  const std::string& path() const { return path_; }
  int fd() const { return fd_.get(); }
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

/// The path from the root on. Errors: kNotFound where it begins in the working folder and that is
/// gone.
Result<std::string> AbsolutePath(const std::string& path);

/// The text of a regular file, to its end. Errors: those of InputFile; kInvalidArgument for more
/// than `limit` bytes.
Result<std::string> ReadTextFile(const std::string& path, Bytes limit);
Result<std::string> ReadTextFile(const Folder& folder, const std::string& name, Bytes limit);

/// The same of a file, or of a pipe that somebody writes to, as `<(…)` of a shell is; waits for
/// them.
Result<std::string> ReadTextFileOrPipe(const std::string& path, Bytes limit);

/// Whether a text holds nothing to lose: it is empty, or zeros, as of a file whose writing was cut
/// off.
bool IsBlank(std::string_view text);

/// What Finish does where something of the name exists.
enum class IfExists { kReplace, kFail };

/// A file that is being written under a TemporaryName. Finish makes it durable
/// and gives it its name; without Finish nothing is left. Threads: one.
class OutputFile {
 public:
  /// Reserves `size` bytes, where the file system can, so that a full drive shows before the work.
  /// Errors: kNotFound, kPermission, kOutOfSpace.
  static Result<std::unique_ptr<OutputFile>> Create(const std::string& path, Bytes size,
                                                    IfExists if_exists = IfExists::kReplace);
  /// One in a folder, wherever its path leads by now.
  static Result<std::unique_ptr<OutputFile>> Create(const Folder& folder, const std::string& name,
                                                    Bytes size,
                                                    IfExists if_exists = IfExists::kReplace);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  Status Append(std::span<const std::byte> bytes);
  /// Precondition: exactly `size` bytes were appended. Errors: kIo; kInvalidArgument where the name
  /// is taken and must not be replaced.
  Status Finish();

 private:
  OutputFile(Folder folder, std::string name, Bytes size, IfExists if_exists)
      : folder_(std::move(folder)), name_(std::move(name)), size_(size), if_exists_(if_exists) {}
  Status Open();
  Status Reserve();
  std::string path() const { return folder_.PathOf(name_); }

  Folder folder_;
  std::string name_;
  std::string temporary_;
  UniqueFd fd_;
  Bytes size_;
  IfExists if_exists_;
  Bytes written_;
  bool finished_ = false;
};

/// A free name in a folder for what will be called `name`: "<name>.tmp-<number>". A kill leaves a
/// file of such a name behind.
Result<std::string> TemporaryName(const Folder& folder, const std::string& name);
/// What a file of such a name would have been called; other names as they are.
std::string WithoutTemporary(const std::string& name);

/// Writes `text` as one OutputFile.
Status WriteTextFile(const std::string& path, std::string_view text,
                     IfExists if_exists = IfExists::kReplace);
Status WriteTextFile(const Folder& folder, const std::string& name, std::string_view text);

}  // namespace penstock::train
