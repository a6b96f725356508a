#include "base/files.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <utility>

namespace penstock {
namespace {

constexpr std::string_view kTemporary = ".tmp-";
// Linux transfers at most 0x7ffff000 bytes a call.
constexpr size_t kMaxTransfer = size_t{1} << 30;
constexpr Bytes kCopied = 1_MiB;  // at once

Result<std::string> ReadText(int fd, const std::string& path, Bytes limit) {
  std::string text;
  std::array<char, size_t{64} << 10> buffer;
  while (true) {
    const ssize_t got = ::read(fd, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoError(errno, fmt::format("cannot read {}", path));
    if (got == 0) return text;
    text.append(buffer.data(), static_cast<size_t>(got));
    if (text.size() > limit.value) {
      return MakeError(ErrorCode::kInvalidArgument, "{} has more than the {} bytes it may have",
                       path, limit.value);
    }
  }
}

/// A descriptor of a regular file.
Result<Bytes> FileSize(int fd, const std::string& path) {
  struct stat info = {};
  if (::fstat(fd, &info) == 0) return Bytes{static_cast<uint64_t>(info.st_size)};
  return ErrnoError(errno, fmt::format("cannot examine {}", path));
}

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

Result<InputFile> InputFile::Open(const Folder& folder, const std::string& name) {
  const std::string path = folder.PathOf(name);
  PENSTOCK_ASSIGN(UniqueFd fd, folder.OpenFile(name, O_RDONLY));
  PENSTOCK_ASSIGN(const Bytes size, FileSize(fd.get(), path));
  return InputFile(path, std::move(fd), size);
}

Status InputFile::Read(FileOffset offset, std::span<std::byte> buffer, PreadFunction pread) const {
  size_t done = 0;
  while (done < buffer.size()) {
    const size_t wanted = std::min(buffer.size() - done, kMaxTransfer);
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

Result<std::string> AbsolutePath(const std::string& path) {
  std::error_code error;
  std::string absolute = std::filesystem::absolute(path, error).string();
  if (!error) return absolute;
  Error gone = ErrnoError(error.value(), fmt::format("finding {} in the working folder", path));
  gone.message += "; was that folder removed? Change into one that exists";
  return gone;
}

Result<std::string> CanonicalPath(const std::string& path) {
  if (path.empty() || path.find('\0') != std::string::npos) {
    return MakeError(ErrorCode::kInvalidArgument, "\"{}\" is no path", path);
  }
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  if (error) return ErrnoError(error.value(), "looking at " + path);
  std::filesystem::path canonical = std::filesystem::weakly_canonical(absolute, error);
  if (error) return ErrnoError(error.value(), "looking at " + path);
  if (!canonical.has_filename() && canonical.has_relative_path()) {
    canonical = canonical.parent_path();
  }
  return canonical.string();
}

Result<std::string> ReadTextFile(const std::string& path, Bytes limit) {
  PENSTOCK_ASSIGN(const InputFile file, InputFile::Open(path));
  return ReadText(file.fd(), path, limit);
}

Result<std::string> ReadTextFile(const Folder& folder, const std::string& name, Bytes limit) {
  PENSTOCK_ASSIGN(const InputFile file, InputFile::Open(folder, name));
  return ReadText(file.fd(), file.path(), limit);
}

Result<std::string> ReadTextFileOrPipe(const std::string& path, Bytes limit) {
  struct stat info = {};
  if (::stat(path.c_str(), &info) != 0 || !S_ISFIFO(info.st_mode)) return ReadTextFile(path, limit);
  // Without O_NONBLOCK: there is nothing to read before its writer has come.
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoError(errno, fmt::format("cannot open {}", path));
  return ReadText(fd.get(), path, limit);
}

Result<std::vector<std::string>> NamesIn(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator it(folder, error);
  for (; !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  if (error) return ErrnoError(error.value(), fmt::format("cannot list folder {}", folder));
  std::ranges::sort(names);
  return names;
}

Status CheckNewFile(const char* option, const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::exists(std::filesystem::symlink_status(path, ignored))) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "{} {}: it exists; remove it or name another file", option, path);
  }
  const std::string folder = SplitPath(path).first;
  if (::access(folder.c_str(), W_OK) == 0) return {};
  return ErrnoError(errno,
                    fmt::format("{} {}: cannot write to the folder {}", option, path, folder));
}

bool IsBlank(std::string_view text) {
  return text.find_first_not_of('\0') == std::string_view::npos;
}

Status CopyBytes(const InputFile& from, Bytes size, OutputFile& to) {
  std::vector<std::byte> buffer;
  for (Bytes done; done < size; done += Bytes{buffer.size()}) {
    buffer.resize(std::min(size - done, kCopied).value);
    PENSTOCK_TRY(from.Read(FileOffset{done.value}, buffer));
    PENSTOCK_TRY(to.Append(buffer));
  }
  return {};
}

bool HasOtherName(const std::string& path) {
  struct stat info {};
  return ::lstat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) && info.st_nlink > 1;
}

Status DropOtherNames(const Folder& folder, const std::string& name) {
  const Result<InputFile> file = InputFile::Open(folder, name);
  if (!file.ok() && file.error().code == ErrorCode::kNotFound) return {};
  PENSTOCK_TRY(file.status());
  struct stat info {};
  if (::fstat(file->fd(), &info) != 0 || info.st_nlink <= 1) return {};
  PENSTOCK_ASSIGN(const std::unique_ptr<OutputFile> copy,
                  OutputFile::Create(folder, name, file->size()));
  PENSTOCK_TRY(CopyBytes(*file, file->size(), *copy));
  return copy->Finish();
}

Result<std::string> TemporaryName(const Folder& folder, const std::string& name) {
  // A file of the first of these names may be what a killed process with our number left behind.
  for (auto number = static_cast<uint64_t>(::getpid());; ++number) {
    std::string free = fmt::format("{}{}{}", name, kTemporary, number);
    PENSTOCK_ASSIGN(const FolderEntry taken, folder.Look(free));
    if (taken.kind == FolderEntry::Kind::kNone) return free;
  }
}

std::string WithoutTemporary(const std::string& name) {
  const size_t end = name.rfind(kTemporary);
  if (end == std::string::npos) return name;
  std::string_view number = name;
  number.remove_prefix(end + kTemporary.size());
  const bool is_number =
      !number.empty() && number.find_first_not_of("0123456789") == std::string_view::npos;
  return is_number ? name.substr(0, end) : name;
}

Result<std::unique_ptr<OutputFile>> OutputFile::Create(const std::string& path, Bytes size,
                                                       IfExists if_exists) {
  const auto [parent, name] = SplitPath(path);
  Result<Folder> folder = Folder::Open(parent);
  if (!folder.ok()) {
    return Error{folder.error().code,
                 fmt::format("cannot create {}: {}", path, folder.error().message)};
  }
  return Create(*folder, name, size, if_exists);
}

Result<std::unique_ptr<OutputFile>> OutputFile::Create(const Folder& folder,
                                                       const std::string& name, Bytes size,
                                                       IfExists if_exists) {
  PENSTOCK_ASSIGN(Folder own, folder.Reopen());
  std::unique_ptr<OutputFile> file(new OutputFile(std::move(own), name, size, if_exists));
  PENSTOCK_TRY(file->Open());
  PENSTOCK_TRY(file->Reserve());
  return file;
}

OutputFile::~OutputFile() {
  if (fd_.valid() && !finished_) static_cast<void>(folder_.RemoveFile(temporary_));
}

Status OutputFile::Open() {
  PENSTOCK_ASSIGN(temporary_, TemporaryName(folder_, name_));
  PENSTOCK_ASSIGN(fd_, folder_.OpenFile(temporary_, O_WRONLY | O_CREAT | O_EXCL));
  return {};
}

Status OutputFile::Reserve() {
  if (size_.value == 0) return {};
  int result = 0;
  do {
    result = ::fallocate(fd_.get(), 0, 0, static_cast<off_t>(size_.value));
  } while (result != 0 && errno == EINTR);
  // Other failures mean that this file system cannot reserve; the writes will tell.
  if (result != 0 && (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)) {
    return ErrnoError(errno, fmt::format("cannot reserve {} bytes for {}", size_.value, path()));
  }
  return {};
}

Status OutputFile::Append(std::span<const std::byte> bytes) {
  PENSTOCK_CHECK(!finished_ && bytes.size() <= (size_ - written_).value);
  while (!bytes.empty()) {
    const size_t wanted = std::min(bytes.size(), kMaxTransfer);
    const ssize_t put =
        ::pwrite(fd_.get(), bytes.data(), wanted, static_cast<off_t>(written_.value));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) {
      return ErrnoError(errno, fmt::format("cannot write {} bytes at offset {} of {}", wanted,
                                           written_.value, folder_.PathOf(temporary_)));
    }
    if (put == 0) {
      return MakeError(ErrorCode::kIo, "a write of {} bytes at offset {} of {} wrote nothing",
                       wanted, written_.value, folder_.PathOf(temporary_));
    }
    written_ += Bytes{static_cast<uint64_t>(put)};
    bytes = bytes.subspan(static_cast<size_t>(put));
  }
  return {};
}

Status OutputFile::Finish() {
  if (::fsync(fd_.get()) != 0) {
    return ErrnoError(errno, fmt::format("cannot synchronise {}", folder_.PathOf(temporary_)));
  }
  PENSTOCK_TRY(Show());
  return folder_.Sync();
}

Status OutputFile::Show() {
  PENSTOCK_CHECK(!finished_ && written_ == size_, "{} of {} bytes of {}", written_.value,
                 size_.value, path());
  PENSTOCK_TRY(if_exists_ == IfExists::kFail ? folder_.Rename(temporary_, name_)
                                             : folder_.Replace(temporary_, name_));
  finished_ = true;
  return {};
}

Status WriteTextFile(const std::string& path, std::string_view text, IfExists if_exists) {
  PENSTOCK_ASSIGN(const std::unique_ptr<OutputFile> file,
                  OutputFile::Create(path, Bytes{text.size()}, if_exists));
  PENSTOCK_TRY(file->Append(std::as_bytes(std::span(text))));
  return file->Finish();
}

Status WriteTextFile(const Folder& folder, const std::string& name, std::string_view text) {
  PENSTOCK_ASSIGN(const std::unique_ptr<OutputFile> file,
                  OutputFile::Create(folder, name, Bytes{text.size()}));
  PENSTOCK_TRY(file->Append(std::as_bytes(std::span(text))));
  return file->Finish();
}

}  // namespace penstock
