// Reads that fail as those of a drive with bad blocks do: this test program's pread answers EIO
// where a FailingReads says so.
//
// Include it in one source of a program: it defines pread. Threads: one at a time.
#pragma once

#include <dlfcn.h>
#include <sys/stat.h>
#include <sys/types.h>

#include <cerrno>
#include <cstdint>
#include <string>
#include <vector>

namespace penstock {

class FailingReads {
 public:
  FailingReads() { Current() = this; }
  ~FailingReads() { Current() = nullptr; }
  FailingReads(const FailingReads&) = delete;
  FailingReads& operator=(const FailingReads&) = delete;

  /// Every read of [offset, offset + size) of the file at `path` fails.
  void Fail(const std::string& path, uint64_t offset, uint64_t size) {
    struct stat info {};
    if (::stat(path.c_str(), &info) == 0) bad_.push_back({info.st_ino, offset, size});
  }
  static bool Fails(int fd, uint64_t offset, uint64_t size) {
    struct stat info {};
    if (Current() == nullptr || ::fstat(fd, &info) != 0) return false;
    for (const Range& bad : Current()->bad_) {
      const bool apart = offset + size <= bad.offset || bad.offset + bad.size <= offset;
      if (bad.file == info.st_ino && !apart) return true;
    }
    return false;
  }

 private:
  struct Range {
    ino_t file;
    uint64_t offset;
    uint64_t size;
  };
  static FailingReads*& Current() {
    static FailingReads* current = nullptr;
    return current;
  }
  std::vector<Range> bad_;
};

}  // namespace penstock

// NOLINTNEXTLINE(readability-identifier-naming, misc-definitions-in-headers): the C library's name
extern "C" ssize_t pread(int fd, void* buffer, size_t size, off_t offset) {
  using Function = ssize_t (*)(int, void*, size_t, off_t);
  static const auto real = reinterpret_cast<Function>(::dlsym(RTLD_NEXT, "pread"));
  if (penstock::FailingReads::Fails(fd, static_cast<uint64_t>(offset), size)) {
    errno = EIO;
    return -1;
  }
  return real(fd, buffer, size, offset);
}
