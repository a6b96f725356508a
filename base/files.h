// Reads and writes files other than states: whole ranges in, whole files out.
//
// Buffered I/O for data, models and exports; training states go through aio. Every call continues
// after an interruption or a short transfer. An OutputFile appears under its name complete, and
// durable unless the caller cannot wait, or not at all.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/folder.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "base/units.h"

namespace penstock {

/// The signature of pread, so that a test can put an interrupted or a short one in its place.
using PreadFunction = ssize_t (*)(int fd, void* buffer, size_t bytes, off_t offset);

/// A regular file, open for reading. Threads: any number may read.
class InputFile {
 public:
  /// Errors: kNotFound, kPermission; kInvalidArgument if it is not a regular file.
  static Result<InputFile> Open(const std::string& path);
  /// Opens a file in a folder. Errors: those of Folder::OpenFile.
  static Result<InputFile> Open(const Folder& folder, const std::string& name);

  const std::string& path() const { return path_; }
  int fd() const { return fd_.get(); }
  /// Returns the size that the file had when it was opened.
  Bytes size() const { return size_; }
  /// Fills `buffer` from `offset` on. Errors: kIo, also if the file ends before the buffer does.
  Status Read(FileOffset offset, std::span<std::byte> buffer, PreadFunction pread = ::pread) const;

 private:
  InputFile(std::string path, UniqueFd fd, Bytes size)
      : path_(std::move(path)), fd_(std::move(fd)), size_(size) {}

  std::string path_;
  UniqueFd fd_;
  Bytes size_;
};

/// Returns the absolute path. Errors: kNotFound if the path is relative and the working folder is
/// gone.
Result<std::string> AbsolutePath(const std::string& path);
/// Returns a path absolute and without links; it need not exist. Errors: kInvalidArgument for what
/// is no path; of looking at it.
Result<std::string> CanonicalPath(const std::string& path);

/// Returns the text of a regular file. Errors: those of InputFile; kInvalidArgument for more than
/// `limit` bytes.
Result<std::string> ReadTextFile(const std::string& path, Bytes limit);
Result<std::string> ReadTextFile(const Folder& folder, const std::string& name, Bytes limit);

/// The same for a file or a pipe, such as a shell's `<(…)`; waits for the pipe's writer.
Result<std::string> ReadTextFileOrPipe(const std::string& path, Bytes limit);

/// Whether a text holds nothing worth keeping: it is empty, or zeros, as in a file whose writing
/// was cut off.
bool IsBlank(std::string_view text);

/// Returns the names in a folder, sorted. Errors: of listing it.
Result<std::vector<std::string>> NamesIn(const std::string& folder);

/// Refuses a file that could not be written at the end of the work, or would replace something.
/// `option` names it. Errors: kInvalidArgument if it exists; kNotFound, kPermission of its folder.
Status CheckNewFile(const char* option, const std::string& path);

/// What Finish does if a file of that name exists.
enum class IfExists { kReplace, kFail };

/// A file that is being written under a TemporaryName. Finish makes it durable
/// and gives it its name; without Finish or Show nothing is left. Threads: one.
class OutputFile {
 public:
  /// Reserves `size` bytes, if the file system can, so that a full drive is noticed before the
  /// work. Errors: kNotFound, kPermission, kOutOfSpace.
  static Result<std::unique_ptr<OutputFile>> Create(const std::string& path, Bytes size,
                                                    IfExists if_exists = IfExists::kReplace);
  /// The same for a file in a folder, wherever the folder's path leads by now.
  static Result<std::unique_ptr<OutputFile>> Create(const Folder& folder, const std::string& name,
                                                    Bytes size,
                                                    IfExists if_exists = IfExists::kReplace);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  Status Append(std::span<const std::byte> bytes);
  /// Precondition: exactly `size` bytes were appended. Errors: kIo; kInvalidArgument if the name is
  /// taken and must not be replaced.
  Status Finish();
  /// The same without waiting for a drive: if the system ends, the file may be gone, or empty.
  Status Show();

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

/// Appends the first `size` bytes of a file to another. Errors: of reading; of OutputFile::Append.
Status CopyBytes(const InputFile& from, Bytes size, OutputFile& to);

/// Whether a file has another name as well (a hard link): what is written into it is seen there.
bool HasOtherName(const std::string& path);
/// If a file has another name, puts a copy in its place, durably: what is written into that is not
/// seen there. A missing file is no error. Errors: of opening it and of OutputFile.
Status DropOtherNames(const Folder& folder, const std::string& name);

/// Returns a free name in a folder for a file that will be called `name`: "<name>.tmp-<number>". A
/// kill leaves a file of such a name behind.
Result<std::string> TemporaryName(const Folder& folder, const std::string& name);
/// Returns the final name of a file with such a temporary name; returns other names as they are.
std::string WithoutTemporary(const std::string& name);

/// Writes `text` as one OutputFile.
Status WriteTextFile(const std::string& path, std::string_view text,
                     IfExists if_exists = IfExists::kReplace);
Status WriteTextFile(const Folder& folder, const std::string& name, std::string_view text);

}  // namespace penstock
