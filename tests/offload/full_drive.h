// A drive without a free block: this test program's fallocate answers ENOSPC while a FullDrive
// lives, for all that a file does not hold yet.
//
// Include it in one source of a program: it defines fallocate. Threads: one at a time.
#pragma once

#include <dlfcn.h>
#include <sys/stat.h>
#include <sys/types.h>

#include <cerrno>

namespace penstock {

class FullDrive {
 public:
  FullDrive() { Current() = this; }
  ~FullDrive() { Current() = nullptr; }
  FullDrive(const FullDrive&) = delete;
  FullDrive& operator=(const FullDrive&) = delete;

  static bool Refuses(int fd, off_t end) {
    struct stat info {};
    return Current() != nullptr && ::fstat(fd, &info) == 0 && end > info.st_size;
  }

 private:
  static FullDrive*& Current() {
    static FullDrive* current = nullptr;
    return current;
  }
};

}  // namespace penstock

// NOLINTNEXTLINE(readability-identifier-naming, misc-definitions-in-headers): the C library's name
extern "C" int fallocate(int fd, int mode, off_t offset, off_t size) {
  using Function = int (*)(int, int, off_t, off_t);
  static const auto real = reinterpret_cast<Function>(::dlsym(RTLD_NEXT, "fallocate"));
  if (penstock::FullDrive::Refuses(fd, offset + size)) {
    errno = ENOSPC;
    return -1;
  }
  return real(fd, mode, offset, size);
}
