#include "train/files.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "base/folder.h"

namespace penstock::train {
namespace {

constexpr mode_t kMode = 0666;  // less the umask
// Linux transfers at most 0x7ffff000 bytes a call.
constexpr size_t kLargestTransfer = size_t{1} << 30;

}  // namespace

Result<InputFile> InputFile::Open(const std::string& path) {
  // Without O_NONBLOCK, opening a pipe would wait for its writer.
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return ErrnoError(errno, fmt::format("cannot open {}", path));
  struct stat info = {};
  if (::fstat(fd.get(), &info) != 0) {
    return ErrnoError(errno, fmt::format("cannot examine {}", path));
  }
  if (!S_ISREG(info.st_mode)) {
    return MakeError(ErrorCode::kInvalidArgument, "{} is {}, not a regular file", path,
                     S_ISDIR(info.st_mode) ? "a folder" : "a device, pipe or socket");
  }
  return InputFile(path, std::move(fd), Bytes{static_cast<uint64_t>(info.st_size)});
}

Status InputFile::Read(FileOffset offset, std::span<std::byte> buffer, PreadFunction pread) const {
  size_t done = 0;
  while (done < buffer.size()) {
    const size_t wanted = std::min(buffer.size() - done, kLargestTransfer);
    const ssize_t got =
        pread(fd_.get(), buffer.data() + done, wanted, static_cast<off_t>(offset.value + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      return ErrnoError(errno, fmt::format("cannot read {} bytes at offset {} of {}", wanted,
                                           offset.value + done, path_));
    }
    if (got == 0) {
      return MakeError(ErrorCode::kIo,
                       "{} ends at offset {}, {} bytes before the end of a read: it was {} bytes "
                       "when it was opened and has shrunk since",
                       path_, offset.value + done, buffer.size() - done, size_.value);
    }
    done += static_cast<size_t>(got);
  }
  return {};
}

Result<std::string> ReadTextFile(const std::string& path, Bytes limit) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoError(errno, fmt::format("cannot open {}", path));
  std::string text;
  std::array<char, size_t{64} << 10> buffer;
  while (true) {
    const ssize_t got = ::read(fd.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EISDIR) {
      return MakeError(ErrorCode::kInvalidArgument, "{} is a folder, not a file", path);
    }
    if (got < 0) return ErrnoError(errno, fmt::format("cannot read {}", path));
    if (got == 0) return text;
    text.append(buffer.data(), static_cast<size_t>(got));
    if (text.size() > limit.value) {
      return MakeError(ErrorCode::kInvalidArgument, "{} has more than the {} bytes it may have",
                       path, limit.value);
    }
  }
}

Result<std::unique_ptr<OutputFile>> OutputFile::Create(const std::string& path, Bytes size,
                                                       IfExists if_exists) {
  std::string temporary = fmt::format("{}.tmp-{}", path, ::getpid());
  // A file of this name is what a killed process with our number left behind.
  ::unlink(temporary.c_str());
  UniqueFd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kMode));
  if (!fd.valid()) return ErrnoError(errno, fmt::format("cannot create {}", temporary));
  std::unique_ptr<OutputFile> file(
      new OutputFile(path, std::move(temporary), std::move(fd), size, if_exists));
  PENSTOCK_TRY(file->Reserve());
  return file;
}

OutputFile::~OutputFile() {
  if (!finished_) ::unlink(temporary_.c_str());
}

Status OutputFile::Reserve() {
  if (size_.value == 0) return {};
  int result = 0;
  do {
    result = ::fallocate(fd_.get(), 0, 0, static_cast<off_t>(size_.value));
  } while (result != 0 && errno == EINTR);
  // Other failures mean that this file system cannot reserve; the writes will tell.
  if (result != 0 && (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)) {
    return ErrnoError(errno, fmt::format("cannot reserve {} bytes for {}", size_.value, path_));
  }
  return {};
}

Status OutputFile::Append(std::span<const std::byte> bytes) {
  PENSTOCK_CHECK(!finished_ && bytes.size() <= (size_ - written_).value);
  while (!bytes.empty()) {
    const size_t wanted = std::min(bytes.size(), kLargestTransfer);
    const ssize_t put =
        ::pwrite(fd_.get(), bytes.data(), wanted, static_cast<off_t>(written_.value));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) {
      return ErrnoError(errno, fmt::format("cannot write {} bytes at offset {} of {}", wanted,
                                           written_.value, temporary_));
    }
    if (put == 0) {
      return MakeError(ErrorCode::kIo, "a write of {} bytes at offset {} of {} wrote nothing",
                       wanted, written_.value, temporary_);
    }
    written_ += Bytes{static_cast<uint64_t>(put)};
    bytes = bytes.subspan(static_cast<size_t>(put));
  }
  return {};
}

Status OutputFile::GiveName() {
  const bool keep = if_exists_ == IfExists::kFail;
  int result = ::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, path_.c_str(),
                           keep ? RENAME_NOREPLACE : 0);
  if (result != 0 && keep && errno == EINVAL) {
    // The file system has no such rename; a link never replaces either.
    result = ::link(temporary_.c_str(), path_.c_str());
    if (result == 0) ::unlink(temporary_.c_str());
  }
  if (result == 0) return {};
  if (keep && errno == EEXIST) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "{} was made by somebody else meanwhile, and is not replaced", path_);
  }
  return ErrnoError(errno, fmt::format("cannot rename {} to {}", temporary_, path_));
}

Status OutputFile::Finish() {
  PENSTOCK_CHECK(!finished_ && written_ == size_, "{} of {} bytes of {}", written_.value,
                 size_.value, path_);
  if (::fsync(fd_.get()) != 0) {
    return ErrnoError(errno, fmt::format("cannot synchronise {}", temporary_));
  }
  PENSTOCK_TRY(GiveName());
  finished_ = true;
  const std::string folder = std::filesystem::path(path_).parent_path().string();
  return SyncFolder(folder.empty() ? "." : folder);
}

Status WriteTextFile(const std::string& path, std::string_view text, IfExists if_exists) {
  PENSTOCK_ASSIGN(const std::unique_ptr<OutputFile> file,
                  OutputFile::Create(path, Bytes{text.size()}, if_exists));
  PENSTOCK_TRY(file->Append(std::as_bytes(std::span(text))));
  return file->Finish();
}

}  // namespace penstock::train
