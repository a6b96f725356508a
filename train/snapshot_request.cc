#include "train/snapshot_request.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "train/files.h"
#include "train/snapshot.h"

namespace penstock::train {
namespace {

namespace fs = std::filesystem;

constexpr Bytes kLargestMessage = 64_KiB;
constexpr std::string_view kRequest = ".request";

std::string RequestPath(const std::string& run, const std::string& name) {
  return SnapshotFolder(run, fmt::format(".{}{}", name, kRequest));
}
std::string FailurePath(const std::string& run, const std::string& name) {
  return SnapshotFolder(run, "." + name + ".failed");
}

bool IsHeld(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  return fd.valid() && ::flock(fd.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

}  // namespace

Result<SnapshotRequest> SnapshotRequest::Make(const std::string& run, const std::string& name) {
  std::error_code error;
  fs::create_directories(SnapshotsFolder(run), error);
  if (error) return ErrnoError(error.value(), "creating " + SnapshotsFolder(run));
  const std::string path = RequestPath(run, name);
  if (IsHeld(path)) {
    return MakeError(ErrorCode::kUnavailable,
                     "another process is asking for the snapshot {} of {}; wait for it, or take "
                     "another name",
                     name, run);
  }
  fs::remove(FailurePath(run, name), error);
  // It is locked before it has its name: the training never sees one that looks abandoned.
  const std::string temporary = fmt::format("{}.tmp-{}", path, ::getpid());
  UniqueFd fd(::open(temporary.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (!fd.valid()) return ErrnoError(errno, "creating " + temporary);
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) return ErrnoError(errno, "locking " + temporary);
  fs::rename(temporary, path, error);
  if (error) {
    ::unlink(temporary.c_str());
    return ErrnoError(error.value(), "naming " + path);
  }
  return SnapshotRequest(run, name, std::move(fd));
}

bool SnapshotRequest::answered() const {
  std::error_code ignored;
  return !fs::exists(RequestPath(run_, name_), ignored);
}

Status SnapshotRequest::Answer() const {
  const std::string failure = FailurePath(run_, name_);
  const Result<std::string> why = ReadTextFile(failure, kLargestMessage);
  if (!why.ok()) return {};
  std::error_code ignored;
  fs::remove(failure, ignored);
  return MakeError(ErrorCode::kIo, "snapshot {}: {}", name_, *why);
}

void SnapshotRequest::TakeBack() const {
  std::error_code ignored;
  fs::remove(RequestPath(run_, name_), ignored);
}

std::vector<std::string> RequestedSnapshots(const std::string& run) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator it(SnapshotsFolder(run), error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    const fs::path path = it->path();
    if (path.extension() != kRequest || !IsHeld(path.string())) continue;
    names.push_back(path.stem().string().substr(1));
  }
  std::ranges::sort(names);
  return names;
}

bool AnswerRequest(const std::string& run, const std::string& name, const Status& taken) {
  // Who asked finds the reason here; where it cannot be written, the snapshot is just missing.
  if (!taken.ok()) (void)WriteTextFile(FailurePath(run, name), taken.error().message);
  std::error_code error;
  fs::remove(RequestPath(run, name), error);
  return !error;
}

}  // namespace penstock::train
