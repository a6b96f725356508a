// Opening files and reserving space, with the failures that environments have in store.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "tests/aio/support.h"

namespace penstock::aio {
namespace {

using testing::HasSubstr;

int reservations = 0;  // calls of fallocate that reserve

/// A file system of its own, mounted for a test; not to be had without privileges.
class Mount {
 public:
  Mount(const char* type, const char* data) {
    std::string path = testing::TempDir() + "/penstock-mount-XXXXXX";
    if (::mkdtemp(path.data()) == nullptr) return;
    path_ = path;
    mounted_ = ::mount("none", path_.c_str(), type, 0, data) == 0;
    if (!mounted_) why_not_ = std::generic_category().message(errno);
  }
  ~Mount() {
    if (mounted_) ::umount2(path_.c_str(), MNT_DETACH);
    if (!path_.empty()) ::rmdir(path_.c_str());
  }
  Mount(const Mount&) = delete;
  Mount& operator=(const Mount&) = delete;

  bool MakeReadOnly() {
    return ::mount("none", path_.c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr) == 0;
  }
  bool mounted() const { return mounted_; }
  std::string why_not() const { return "mounting a file system for the test: " + why_not_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::string why_not_;
  bool mounted_ = false;
};

void ExpectError(const Status& status, ErrorCode code, const std::string& path,
                 const std::string& reason) {
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, code) << status.error().message;
  EXPECT_THAT(status.error().message, HasSubstr(path));
  EXPECT_THAT(status.error().message, HasSubstr(reason));
}

TEST(TemporaryFolder, HasDirectIoSoThatTheTestsUseIt) {
  const ScratchFile file(true);
  if (!file.result().ok())
    GTEST_SKIP() << "the tests run buffered: " << file.result().error().message;
}

TEST(File, AMissingPathIsNotFound) {
  const ScratchPath path;
  ExpectError(File::Open(path.str(), {}).status(), ErrorCode::kNotFound, path.str(),
              "No such file");
  const std::string below = path.str() + "/below";
  ExpectError(File::Open(below, {.create = true, .writable = true}).status(), ErrorCode::kNotFound,
              below, "No such file");
}

TEST(File, AnOpenFileIsOpenedOnceMoreAfterItsPathChanged) {
  ScratchFile scratch;
  ASSERT_OK(scratch.get().Allocate(8_KiB));
  const int fd = scratch.get().buffered_fd();
  ASSERT_EQ(::unlink(scratch.path().c_str()), 0);
  const auto file = File::Reopen(fd, "its name", /*writable=*/true);
  ASSERT_OK(file.status());
  EXPECT_EQ(file->path(), "its name");
  EXPECT_EQ(file->alignment(), scratch.get().alignment());
  EXPECT_NE(file->fd(), fd);
  struct stat first {};
  struct stat again {};
  ASSERT_EQ(::fstat(fd, &first), 0);
  ASSERT_EQ(::fstat(file->fd(), &again), 0);
  EXPECT_EQ(again.st_ino, first.st_ino);
  EXPECT_EQ(::pwrite(file->buffered_fd(), "x", 1, 0), 1);
}

TEST(File, AnOpenFileWithoutDirectIoIsOpenedOnceMoreBuffered) {
  const UniqueFd fd(::open("/proc/self/status", O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(fd.valid());
  const auto file = File::Reopen(fd.get(), "status", /*writable=*/false);
  ASSERT_OK(file.status());
  EXPECT_EQ(file->alignment(), 1_B);
  std::array<char, 4> bytes{};
  EXPECT_EQ(::pread(file->fd(), bytes.data(), bytes.size(), 0), 4);
}

TEST(File, WhatIsNoDescriptorIsNotOpenedOnceMore) {
  ExpectError(File::Reopen(-1, "its name", false).status(), ErrorCode::kIo, "its name",
              "Bad file descriptor");
}

TEST(File, CreatingWhatExistsFailsAndLeavesItAlone) {
  ScratchFile file;
  ASSERT_OK(file.get().Allocate(8_KiB));
  const auto again = File::Open(file.path(), {.create = true, .writable = true, .direct = false});
  ExpectError(again.status(), ErrorCode::kIo, file.path(), "File exists");
  EXPECT_EQ(*file.get().Size(), 8_KiB);
}

TEST(File, ACreatedFileIsPrivateAndEmpty) {
  ScratchFile file;
  struct stat info {};
  ASSERT_EQ(::stat(file.path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777u, 0600u);
  EXPECT_EQ(*file.get().Size(), 0_B);
  EXPECT_EQ(file.get().path(), file.path());
}

TEST(File, AReadOnlyFileSystemRefusesWriters) {
  Mount mount("tmpfs", "size=1m");
  if (!mount.mounted()) GTEST_SKIP() << mount.why_not();
  const std::string path = mount.path() + "/file";
  ASSERT_TRUE(File::Open(path, {.create = true, .writable = true, .direct = false}).ok());
  ASSERT_TRUE(mount.MakeReadOnly());
  ExpectError(File::Open(path, {.writable = true, .direct = false}).status(),
              ErrorCode::kPermission, path, "Read-only file system");
  EXPECT_TRUE(File::Open(path, {.direct = false}).ok());
}

TEST(File, AFileSystemWithoutDirectIoIsUnavailableAndKeepsNoFile) {
  Mount mount("ramfs", nullptr);
  if (!mount.mounted()) GTEST_SKIP() << mount.why_not();
  const std::string path = mount.path() + "/file";
  ExpectError(File::Open(path, {.create = true, .writable = true}).status(),
              ErrorCode::kUnavailable, path, "does not support direct I/O");
  EXPECT_NE(::access(path.c_str(), F_OK), 0) << "the file that was created must be gone";
  EXPECT_TRUE(File::Open(path, {.create = true, .writable = true, .direct = false}).ok());
}

TEST(File, AlignmentIsOneWithoutDirectIoAndAPowerOfTwoOfSectorsWithIt) {
  ScratchFile buffered(false);
  EXPECT_EQ(buffered.get().alignment(), 1_B);
  ScratchFile direct(true);
  if (!direct.result().ok()) GTEST_SKIP() << direct.result().error().message;
  const uint64_t alignment = direct.get().alignment().value;
  EXPECT_GE(alignment, 512u);
  EXPECT_EQ(alignment & (alignment - 1), 0u);
}

TEST(File, AllocateReservesBlocksAndSetsTheSize) {
  ScratchFile file;
  ASSERT_OK(file.get().Allocate(1_MiB));
  EXPECT_EQ(*file.get().Size(), 1_MiB);
  struct stat info {};
  ASSERT_EQ(::stat(file.path().c_str(), &info), 0);
  EXPECT_GE(info.st_blocks * 512, 1 << 20);
  EXPECT_OK(file.get().Allocate(0_B));
  EXPECT_OK(file.get().Allocate(512_KiB));
  EXPECT_EQ(*file.get().Size(), 1_MiB) << "a smaller reservation shrinks nothing";
}

TEST(File, AllocateAsksForNothingThatIsReservedAlready) {
  ScratchFile file;
  ASSERT_OK(file.get().Allocate(1_MiB));
  reservations = 0;
  ASSERT_OK(file.get().Allocate(1_MiB));
  EXPECT_EQ(reservations, 0) << "of space that is there";
  // Longer, by less than a MiB.
  ASSERT_OK(file.get().Allocate(1_MiB + 64_KiB));
  EXPECT_EQ(reservations, 1);
  EXPECT_EQ(*file.get().Size(), 1_MiB + 64_KiB);
  struct stat info {};
  ASSERT_EQ(::stat(file.path().c_str(), &info), 0);
  EXPECT_GE(info.st_blocks * 512, (1 << 20) + (64 << 10));
}

TEST(File, AllocateFillsTheHolesOfAFile) {
  ScratchFile file;
  ASSERT_OK(file.get().Allocate(1_MiB));
  const int punched = ::fallocate(file.get().fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                  256 << 10, 128 << 10);
  if (punched != 0) GTEST_SKIP() << "no holes here: error " << errno;
  reservations = 0;
  ASSERT_OK(file.get().Allocate(1_MiB));
  EXPECT_EQ(reservations, 1);
  struct stat info {};
  ASSERT_EQ(::stat(file.path().c_str(), &info), 0);
  EXPECT_GE(info.st_blocks * 512, 1 << 20);
}

TEST(File, AllocateMovesTheEndWhereBlocksLieBeyondItAndAHoleBefore) {
  ScratchFile file;
  ASSERT_OK(file.get().Allocate(512_KiB));
  const int fd = file.get().fd();
  if (::fallocate(fd, FALLOC_FL_KEEP_SIZE, 512 << 10, 512 << 10) != 0 ||
      ::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 256 << 10, 128 << 10) != 0) {
    GTEST_SKIP() << "no holes here, or no blocks beyond the end: error " << errno;
  }
  ASSERT_OK(file.get().Allocate(1_MiB));
  EXPECT_EQ(*file.get().Size(), 1_MiB);
}

// XFS would take up to 8 GiB for the time of a reservation of what is there.
TEST(File, WhatIsReservedIsKeptOnAFullDrive) {
  constexpr uint64_t kXfs = 0x58465342;
  struct statfs where {};
  ASSERT_EQ(::statfs(testing::TempDir().c_str(), &where), 0);
  if (static_cast<uint64_t>(where.f_type) != kXfs) GTEST_SKIP() << "the temporary folder is no XFS";
  const auto free = [&] {
    ::statfs(testing::TempDir().c_str(), &where);
    return Bytes{static_cast<uint64_t>(where.f_bavail) * static_cast<uint64_t>(where.f_bsize)};
  };
  if (free() > 4_GiB) GTEST_SKIP() << "the drive is too large to be filled: " << ToString(free());
  ScratchFile state;
  ASSERT_OK(state.get().Allocate(256_MiB));
  ScratchFile rest;
  ASSERT_OK(rest.get().Allocate(free() - 20_MiB));
  ASSERT_LT(free(), 32_MiB);
  EXPECT_OK(state.get().Allocate(256_MiB));
}

TEST(File, AllocatingMoreThanIsFreeNamesBothAndTakesNothing) {
  ScratchFile file;
  ExpectError(file.get().Allocate(Bytes{uint64_t{1} << 60}), ErrorCode::kOutOfSpace, file.path(),
              "1152921504606846976 bytes more are needed and ");
  EXPECT_FALSE(file.get().Allocate(Bytes{UINT64_MAX}).ok());
  EXPECT_EQ(*file.get().Size(), 0_B);
}

TEST(File, AReservationThatFailsHalfwayGivesBackWhatItTook) {
  Mount mount("tmpfs", "size=1m");
  if (!mount.mounted()) GTEST_SKIP() << mount.why_not();
  auto file =
      File::Open(mount.path() + "/file", {.create = true, .writable = true, .direct = false});
  ASSERT_TRUE(file.ok());
  // Half a MiB of data behind a hole of one: the sum looks as if it fitted, and does not.
  ASSERT_EQ(::fallocate(file->fd(), 0, 1 << 20, 512 << 10), 0);
  ASSERT_EQ(::ftruncate(file->fd(), 3 << 19), 0);
  ExpectError(file->Allocate(1_MiB), ErrorCode::kOutOfSpace, file->path(), "free space");
  EXPECT_EQ(*file->Size(), Bytes{3 << 19});
}

TEST(File, AMemoryFileCanBeReservedAndTransferred) {
  File file = File::Adopt(UniqueFd(::memfd_create("drive", MFD_CLOEXEC)), "memory drive", 4_KiB);
  EXPECT_EQ(file.alignment(), 4_KiB);
  EXPECT_EQ(file.path(), "memory drive");
  ASSERT_OK(file.Allocate(1_MiB));
  const auto engine = CreateEngine({.simulate = SimulatedDrive{.latency_us = 1}});
  ASSERT_TRUE(engine.ok());
  Buffer buffer(1 << 20);
  FillPattern(buffer.bytes(), 9);
  ASSERT_OK((*engine)->Submit(WriteRequest(file, 0, buffer.bytes())).Wait());
  FillPattern(buffer.bytes(), 10);
  ASSERT_OK((*engine)->Submit(ReadRequest(file, 0, buffer.bytes())).Wait());
  EXPECT_EQ(PatternErrors(buffer.bytes(), 9), 0u);
}

TEST(File, OneInMemoryHasWhatWasWrittenToItByCopiesAndByCalls) {
  File file = File::InMemory("memory drive", 4_KiB).value();
  EXPECT_TRUE(file.memory().empty());
  ASSERT_OK(file.Allocate(Bytes{(1 << 20) + 1000}));
  EXPECT_EQ(file.memory().size(), (1U << 20) + 1000);
  const auto engine = CreateEngine({.simulate = SimulatedDrive{.latency_us = 1}}).value();
  Buffer buffer(1 << 20);
  FillPattern(buffer.bytes(), 9);
  ASSERT_OK(engine->Submit(WriteRequest(file, 500, buffer.bytes())).Wait());
  Buffer read(1 << 20);
  ASSERT_EQ(::pread(file.fd(), read.bytes().data(), 1 << 20, 500), 1 << 20);
  EXPECT_EQ(PatternErrors(read.bytes(), 9), 0U);
  FillPattern(buffer.bytes(), 10);
  ASSERT_EQ(::pwrite(file.fd(), buffer.bytes().data(), 1 << 20, 1000), 1 << 20);
  ASSERT_OK(engine->Submit(ReadRequest(file, 1000, read.bytes())).Wait());
  EXPECT_EQ(PatternErrors(read.bytes(), 10), 0U);
}

TEST(File, OneInMemoryEndsWhereOtherFilesEnd) {
  File file = File::InMemory("memory drive", 4_KiB).value();
  ASSERT_OK(file.Allocate(8_KiB));
  ASSERT_OK(file.Allocate(Bytes{5000}));  // takes nothing back
  EXPECT_EQ(file.memory().size(), 8192U);
  const File moved = std::move(file);
  const auto engine = CreateEngine({.simulate = SimulatedDrive{.latency_us = 1}}).value();
  Buffer buffer(4096);
  FillPattern(buffer.bytes(), 3);
  ASSERT_OK(engine->Submit(WriteRequest(moved, 4096, buffer.bytes())).Wait());
  ExpectError(engine->Submit(ReadRequest(moved, 6000, buffer.bytes())).Wait(), ErrorCode::kIo,
              "memory drive", "the file ends before");
  // A write makes a file longer.
  ASSERT_OK(engine->Submit(WriteRequest(moved, 6000, buffer.bytes())).Wait());
  EXPECT_EQ(*moved.Size(), Bytes{6000 + 4096});
  Buffer read(4096);
  ASSERT_OK(engine->Submit(ReadRequest(moved, 6000, read.bytes())).Wait());
  EXPECT_EQ(std::memcmp(read.bytes().data(), buffer.bytes().data(), 4096), 0);
}

using FileSpace = EngineTest;
INSTANTIATE_TEST_SUITE_P(Engines, FileSpace, testing::ValuesIn(EveryEngine()), CaseName);

TEST_P(FileSpace, AWriteOntoAFullDriveIsOutOfSpaceAndNotSilent) {
  MAKE_ENGINE(engine, {.block_size = 64_KiB});
  Mount mount("tmpfs", "size=1m");
  if (!mount.mounted()) GTEST_SKIP() << mount.why_not();
  auto file =
      File::Open(mount.path() + "/file", {.create = true, .writable = true, .direct = false});
  ASSERT_TRUE(file.ok());
  Buffer buffer(2 << 20);
  ExpectError(engine->Submit(WriteRequest(*file, 0, buffer.bytes())).Wait(), ErrorCode::kOutOfSpace,
              file->path(), "No space left on device");
}

TEST(LargeRequest, MayExceedTwoGiB) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the sanitizer's shadow of 2 GiB would need more memory than a test may take";
#endif
  const Folded folded(4 << 20, 513);
  ASSERT_TRUE(folded.ok());
  // A hole in a memory file: read without a page of it being made.
  const File file = File::Adopt(UniqueFd(::memfd_create("hole", MFD_CLOEXEC)), "hole", 4_KiB);
  ASSERT_EQ(::ftruncate(file.fd(), static_cast<off_t>(folded.bytes().size() + 4096)), 0);
  for (const EngineKind kind : {EngineKind::kUring, EngineKind::kLibaio, EngineKind::kThreads}) {
    const auto engine = CreateEngine({.kind = kind, .block_size = 16_MiB, .queue_depth = 4});
    if (!engine.ok() && engine.error().code == ErrorCode::kUnavailable) continue;
    ASSERT_TRUE(engine.ok());
    ASSERT_OK((*engine)->Submit(ReadRequest(file, 4096, folded.bytes())).Wait());
    EXPECT_EQ((*engine)->stats().read_bytes, folded.bytes().size());
    EXPECT_GT((*engine)->stats().read_bytes, uint64_t{1} << 31);
  }
}

}  // namespace
}  // namespace penstock::aio

// Counts the calls of everything that is linked into this program. libc's names.
// NOLINTBEGIN(readability-inconsistent-declaration-parameter-name)
extern "C" {
int fallocate(int fd, int mode, off_t offset, off_t size) {
  penstock::aio::reservations += mode == 0 ? 1 : 0;
  return static_cast<int>(::syscall(SYS_fallocate, fd, mode, offset, size));
}
int fallocate64(int fd, int mode, off64_t offset, off64_t size) {
  return fallocate(fd, mode, offset, size);
}
}
// NOLINTEND(readability-inconsistent-declaration-parameter-name)
