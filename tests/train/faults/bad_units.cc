#include "tests/train/faults/bad_units.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <iterator>

#include "aio/aio.h"
#include "base/check.h"

namespace penstock::train {
namespace {

struct BadUnit {
  std::atomic<bool> bad;
  uint64_t device;
  uint64_t inode;
  uint64_t offset;
};

struct BadUnits {
  std::atomic<size_t> count;
  std::array<BadUnit, 64> units;
};

BadUnits* shared = nullptr;

template <typename Do>
void ForEach(int fd, uint64_t offset, size_t size, Do act) {
  if (shared == nullptr || shared->count == 0) return;
  struct stat info {};
  if (::fstat(fd, &info) != 0) return;
  for (size_t i = 0; i < shared->count; ++i) {
    BadUnit& unit = shared->units[i];
    const bool met = unit.device == info.st_dev && unit.inode == info.st_ino &&
                     unit.offset < offset + size && offset < unit.offset + aio::kDamagedUnit.value;
    if (unit.bad && met) act(unit);
  }
}

bool Meets(int fd, uint64_t offset, size_t size) {
  bool meets = false;
  ForEach(fd, offset, size, [&meets](BadUnit&) { meets = true; });
  return meets;
}

ssize_t Read(int fd, void* buffer, size_t size, off_t offset) {
  if (Meets(fd, static_cast<uint64_t>(offset), size)) {
    errno = EIO;
    return -1;
  }
  return ::syscall(SYS_pread64, fd, buffer, size, offset);
}

size_t SizeOf(const iovec* parts, int count) {
  size_t size = 0;
  for (int i = 0; i < count; ++i) size += parts[i].iov_len;
  return size;
}

// The kernel takes an offset as two halves, of which it uses the first on machines of 64 bits.
ssize_t ReadParts(int fd, const iovec* parts, int count, off_t offset, int flags) {
  if (Meets(fd, static_cast<uint64_t>(offset), SizeOf(parts, count))) {
    errno = EIO;
    return -1;
  }
  return ::syscall(SYS_preadv2, fd, parts, count, offset, off_t{0}, flags);
}

ssize_t WriteParts(int fd, const iovec* parts, int count, off_t offset, int flags) {
  ForEach(fd, static_cast<uint64_t>(offset), SizeOf(parts, count),
          [](BadUnit& unit) { unit.bad = false; });
  return ::syscall(SYS_pwritev2, fd, parts, count, offset, off_t{0}, flags);
}

/// As container runtimes do (seccomp).
void ForbidOtherReads() {
  sock_filter program[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                           BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 1, 0),
                           BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_setup, 0, 1),
                           BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
                           BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog filter = {std::size(program), program};
  PENSTOCK_CHECK(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
                     ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0,
                 "the kernel takes no seccomp filter, without which reads are missed");
}

}  // namespace

void ShareBadUnits() {
  ForbidOtherReads();
  void* const memory =
      ::mmap(nullptr, sizeof(BadUnits), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  PENSTOCK_CHECK(memory != MAP_FAILED);
  shared = static_cast<BadUnits*>(memory);  // zeros are a valid object
}

void ForgetBadUnits() { shared->count = 0; }

void AddBadUnit(int fd, FileOffset offset) {
  struct stat info {};
  PENSTOCK_CHECK(::fstat(fd, &info) == 0);
  const size_t number = shared->count;
  PENSTOCK_CHECK(number < shared->units.size());
  BadUnit& unit = shared->units[number];
  unit.device = info.st_dev;
  unit.inode = info.st_ino;
  unit.offset = offset.value - offset.value % aio::kDamagedUnit.value;
  unit.bad = true;
  shared->count = number + 1;
}

}  // namespace penstock::train

// NOLINTBEGIN(bugprone-reserved-identifier, readability-identifier-naming): libc's names.
extern "C" {
ssize_t pread(int fd, void* buffer, size_t size, off_t offset) {
  return penstock::train::Read(fd, buffer, size, offset);
}
ssize_t pread64(int fd, void* buffer, size_t size, off_t offset) {
  return penstock::train::Read(fd, buffer, size, offset);
}
ssize_t __pread_chk(int fd, void* buffer, size_t size, off_t offset, size_t /*room*/) {
  return penstock::train::Read(fd, buffer, size, offset);
}
ssize_t __pread64_chk(int fd, void* buffer, size_t size, off_t offset, size_t /*room*/) {
  return penstock::train::Read(fd, buffer, size, offset);
}
ssize_t preadv2(int fd, const iovec* parts, int count, off_t offset, int flags) {
  return penstock::train::ReadParts(fd, parts, count, offset, flags);
}
ssize_t preadv64v2(int fd, const iovec* parts, int count, off_t offset, int flags) {
  return penstock::train::ReadParts(fd, parts, count, offset, flags);
}
ssize_t pwritev2(int fd, const iovec* parts, int count, off_t offset, int flags) {
  return penstock::train::WriteParts(fd, parts, count, offset, flags);
}
ssize_t pwritev64v2(int fd, const iovec* parts, int count, off_t offset, int flags) {
  return penstock::train::WriteParts(fd, parts, count, offset, flags);
}
}
// NOLINTEND(bugprone-reserved-identifier, readability-identifier-naming)
