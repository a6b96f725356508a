// Which bytes every engine moves and how it cuts and counts them, while nothing goes wrong; with
// and without faults that it has to hide. When requests end: engine_requests_test.cc.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/file_lock.h"
#include "tests/aio/support.h"
#include "tests/temp_folder.h"

namespace penstock::aio {
namespace {

using EngineContract = EngineTest;
INSTANTIATE_TEST_SUITE_P(Engines, EngineContract, testing::ValuesIn(EveryEngine()), CaseName);
INSTANTIATE_TEST_SUITE_P(Faulty, EngineContract, testing::ValuesIn(EveryEngineWithHarmlessFaults()),
                         CaseName);

TEST_P(EngineContract, ReadsSeeWhatWasWrittenAtAnySizeAndOffset) {
  MAKE_ENGINE(engine, {.block_size = 8_KiB, .queue_depth = 4});
  ScratchFile file;
  const std::vector<size_t> sizes = {1, 511, 4096, 8191, 8192, 8193, 3 * 8192 + 7, 300'001};
  uint64_t seed = 0;
  for (size_t size : sizes) {
    RoundTrip(*engine, file.get(), seed * 1'000'003, size, seed);
    ++seed;
  }
}

TEST_P(EngineContract, DirectIoTakesOddMultiplesOfTheAlignment) {
  MAKE_ENGINE(engine, {.block_size = 8_KiB, .queue_depth = 4});
  ScratchFile file(true);
  if (!file.result().ok()) GTEST_SKIP() << file.result().error().message;
  const uint64_t unit = file.get().alignment().value;
  for (uint64_t count : {1, 3, 17, 64}) {
    RoundTrip(*engine, file.get(), 5 * unit, count * unit, count);
  }
}

TEST_P(EngineContract, ARegisteredFileIsServedAsAnyOtherUntilAndAfterItIsTakenBack) {
  MAKE_ENGINE(engine, {.block_size = 8_KiB, .queue_depth = 4});
  ScratchFile file;
  {
    Result<FileRegistration> registration = engine->RegisterFile(file.get());
    ASSERT_TRUE(registration.ok()) << registration.error().message;
    const FileRegistration moved = std::move(registration).value();
    RoundTrip(*engine, file.get(), 0, 5 * 8192, 1);
    RoundTrip(*engine, file.get(), 4000, 40'000, 2);
    EXPECT_OK(engine->Sync(file.get()));
  }
  RoundTrip(*engine, file.get(), 0, 40'000, 3);
}

/// Locks a file that an engine has registered, leaves a child that waits for the end of a pipe, and
/// is killed.
void LockAndBeKilled(const EngineCase& engine_case, const std::string& path, const int (&pipe)[2]) {
  const Result<std::unique_ptr<Engine>> engine = engine_case.make({.block_size = 8_KiB});
  const Result<File> file = File::Open(path, {.writable = true, .direct = false});
  if (!engine.ok() || !file.ok()) ::_exit(1);
  const Result<FileRegistration> registration = (*engine)->RegisterFile(*file);
  if (!registration.ok() || !LockFile(file->fd(), true, path).ok()) ::_exit(1);
  if (::fork() == 0) {
    ::close(pipe[1]);
    char byte = 0;
    static_cast<void>(!::read(pipe[0], &byte, 1));
    ::_exit(0);
  }
  ::raise(SIGKILL);
}

TEST_P(EngineContract, AChildOfAKilledProcessKeepsNoLockOfARegisteredFile) {
  {
    MAKE_ENGINE(engine, {.block_size = 8_KiB});  // its threads must not be there at the fork
  }
  const TempFolder folder;
  const std::string path = folder.Write("file", "bytes");
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  const pid_t process = ::fork();
  if (process == 0) LockAndBeKilled(GetParam(), path, pipe);
  int status = 0;
  ASSERT_EQ(::waitpid(process, &status, 0), process);
  EXPECT_TRUE(WIFSIGNALED(status));
  const UniqueFd again(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  EXPECT_OK(LockFile(again.get(), true, path));
  ::close(pipe[0]);
  ::close(pipe[1]);
}

TEST_P(EngineContract, TakingAFileBackDisturbsNoBlockThatIsOnItsWay) {
  MAKE_ENGINE(engine, {.block_size = 4_KiB, .queue_depth = 16});
  ScratchFile file;
  ScratchFile other;
  Buffer out(64 * 4096);
  FillPattern(out.bytes(), 1);
  for (int round = 0; round < 20; ++round) {
    auto registration = engine->RegisterFile(file.get());
    ASSERT_TRUE(registration.ok());
    std::vector<Ticket> tickets;
    for (size_t i = 0; i < 64; ++i) {
      tickets.push_back(
          engine->Submit(WriteRequest(file.get(), i * 4096, out.bytes().subspan(i * 4096, 4096))));
    }
    registration = FileRegistration();
    // Takes the place that has become free.
    const auto next = engine->RegisterFile(other.get());
    ASSERT_OK(WaitAll(tickets));
  }
  EXPECT_EQ(*other.get().Size(), 0_B) << "a block went into the file that took the place";
  Buffer in(64 * 4096);
  ASSERT_OK(engine->Submit(ReadRequest(file.get(), 0, in.bytes())).Wait());
  EXPECT_EQ(PatternErrors(in.bytes(), 1), 0u);
}

TEST_P(EngineContract, MemoryIsRegisteredOnceAndNotEmpty) {
  const EngineCase& engine_case = GetParam();
  const auto engine = engine_case.make({});
  if (!engine.ok()) GTEST_SKIP() << engine.error().message;
  const auto empty = (*engine)->RegisterBuffers({});
  ASSERT_FALSE(empty.ok());
  EXPECT_EQ(empty.error().code, ErrorCode::kInvalidArgument);
  Buffer buffer(4096);
  const std::array memory = {buffer.bytes()};
  ASSERT_TRUE((*engine)->RegisterBuffers(memory).ok());
  const auto again = (*engine)->RegisterBuffers(memory);
  ASSERT_FALSE(again.ok());
  EXPECT_EQ(again.error().code, ErrorCode::kInvalidArgument);
}

TEST_P(EngineContract, OffsetsBeyondFourGiBReachTheirPlace) {
  MAKE_ENGINE(engine, {.block_size = 4_KiB, .queue_depth = 4});
  ScratchFile file;
  const uint64_t far = (5_GiB).value + 4096;
  RoundTrip(*engine, file.get(), far, 40'000, 1);
  Buffer low(40'000);
  ASSERT_OK(engine->Submit(ReadRequest(file.get(), far % (4_GiB).value, low.bytes())).Wait());
  EXPECT_THAT(std::vector<std::byte>(low.bytes().begin(), low.bytes().end()),
              testing::Each(std::byte{0}));
}

/// A file of 64 KiB and what it must hold.
class Modelled {
 public:
  explicit Modelled(Engine& engine) : engine_(engine), model_(kSize), memory_(kSize + 2 * kMargin) {
    FillPattern(model_, 1);
    EXPECT_EQ(::pwrite(file_.get().buffered_fd(), model_.data(), kSize, 0), ssize_t{kSize});
  }

  /// One write or read at any offset, size and address.
  void Step(std::mt19937& random) {
    const auto draw = [&](size_t below) {
      return std::uniform_int_distribution<size_t>(0, below - 1)(random);
    };
    const size_t offset = draw(kSize);
    const size_t size = 1 + draw(kSize - offset);
    // Half of the addresses allow the middle of the request to be direct.
    const size_t address = draw(2) == 0 ? draw(kMargin) : offset % kMargin;
    const auto bytes = memory_.bytes().subspan(address, size);
    FillPattern(memory_.bytes(), random());
    const std::vector<std::byte> before(memory_.bytes().begin(), memory_.bytes().end());
    if (draw(2) == 0) {
      ASSERT_OK(engine_.Submit(WriteRequest(file_.get(), offset, bytes)).Wait());
      ASSERT_TRUE(std::ranges::equal(memory_.bytes(), before)) << "a write changed its buffer";
      std::ranges::copy(bytes, model_.begin() + static_cast<std::ptrdiff_t>(offset));
    } else {
      ASSERT_OK(engine_.Submit(ReadRequest(file_.get(), offset, bytes)).Wait());
      ASSERT_TRUE(std::ranges::equal(bytes, std::span(model_).subspan(offset, size)));
      ASSERT_TRUE(std::equal(before.begin(), before.begin() + static_cast<std::ptrdiff_t>(address),
                             memory_.bytes().begin()));
      ASSERT_TRUE(std::ranges::equal(std::span(before).subspan(address + size),
                                     memory_.bytes().subspan(address + size)));
    }
  }

  /// Compares the whole file, read past the engine.
  void Check() {
    std::vector<std::byte> found(kSize);
    EXPECT_EQ(::pread(file_.get().buffered_fd(), found.data(), kSize, 0), ssize_t{kSize});
    EXPECT_TRUE(std::ranges::equal(found, model_));
    EXPECT_EQ(file_.get().Size().value(), Bytes{kSize}) << "a write reached behind its end";
  }

 private:
  static constexpr size_t kSize = 64 << 10;
  static constexpr size_t kMargin = 8192;

  Engine& engine_;
  ScratchFile file_;
  std::vector<std::byte> model_;
  Buffer memory_;
};

TEST_P(EngineContract, AnyOffsetSizeAndAddressTouchesItsBytesAndNoOthers) {
  MAKE_ENGINE(engine, {.block_size = 8_KiB, .queue_depth = 8});
  Modelled modelled(*engine);
  std::mt19937 random(7);
  for (int i = 0; i < 200; ++i) {
    modelled.Step(random);
    if (HasFatalFailure()) return;
    if (i % 20 == 0) modelled.Check();
  }
  modelled.Check();
}

/// Which bytes are not those that were written, and how many of them are zero; empty where all are.
std::string Difference(std::span<const std::byte> found, std::span<const std::byte> written) {
  size_t first = found.size();
  size_t last = 0;
  size_t zeros = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    if (found[i] == written[i]) continue;
    first = std::min(first, i);
    last = i;
    if (found[i] == std::byte{}) ++zeros;
  }
  if (first == found.size()) return "";
  return fmt::format("bytes {} to {} differ, {} are zero", first, last, zeros);
}

/// `count` writes, then as many reads, all submitted before any is waited for.
void ManyRequests(Engine& engine, size_t count) {
  ScratchFile file;
  // Not a multiple of any alignment; each in pages of its own.
  constexpr size_t kSize = 20'000;
  constexpr size_t kStride = 20'480;
  Buffer out(count * kStride);
  FillPattern(out.bytes(), 1);
  std::vector<Ticket> tickets;
  for (size_t i = 0; i < count; ++i) {
    tickets.push_back(engine.Submit(
        WriteRequest(file.get(), i * kStride, out.bytes().subspan(i * kStride, kSize))));
  }
  ASSERT_OK(WaitAll(tickets));
  tickets.clear();
  Buffer in(count * kStride);
  for (size_t i = 0; i < count; ++i) {
    tickets.push_back(engine.Submit(
        ReadRequest(file.get(), i * kStride, in.bytes().subspan(i * kStride, kSize))));
  }
  ASSERT_OK(WaitAll(tickets));
  for (size_t i = 0; i < count; ++i) {
    const auto written = out.bytes().subspan(i * kStride, kSize);
    std::vector<std::byte> again(kSize);
    const ssize_t size =
        ::pread(file.get().buffered_fd(), again.data(), kSize, static_cast<off_t>(i * kStride));
    ASSERT_EQ(Difference(in.bytes().subspan(i * kStride, kSize), written), "")
        << "request " << i << "; the page cache has (" << size
        << " bytes): " << Difference(again, written);
  }
}

TEST_P(EngineContract, ManyRequestsAtQueueDepthOneKeepOneBlockInFlight) {
  MAKE_ENGINE(engine, {.block_size = 8_KiB, .queue_depth = 1});
  ManyRequests(*engine, 60);
  EXPECT_EQ(engine->stats().max_in_flight, 1);
}

TEST_P(EngineContract, ManyRequestsFillTheQueueAndNeverMoreThanThat) {
  MAKE_ENGINE(engine, {.block_size = 4_KiB, .queue_depth = 32});
  ManyRequests(*engine, 200);
  EXPECT_LE(engine->stats().max_in_flight, 32);
  EXPECT_GE(engine->stats().max_in_flight, 5) << "a request of five blocks fits into the queue";
}

TEST_P(EngineContract, SubmittingSinglyAndWithoutOverlapChangesNothing) {
  for (const bool single_submit : {false, true}) {
    for (const bool overlap_events : {false, true}) {
      MAKE_ENGINE(engine, {.block_size = 4_KiB,
                           .queue_depth = 8,
                           .single_submit = single_submit,
                           .overlap_events = overlap_events});
      ManyRequests(*engine, 40);
      EXPECT_LE(engine->stats().max_in_flight, 8);
    }
  }
}

TEST_P(EngineContract, StatsCountBytesBlocksAndRequests) {
  MAKE_ENGINE(engine, {.block_size = 4_KiB, .queue_depth = 4});
  ScratchFile file;
  Buffer buffer(10'000);
  ASSERT_OK(engine->Submit(WriteRequest(file.get(), 0, buffer.bytes())).Wait());
  ASSERT_OK(engine->Submit(ReadRequest(file.get(), 0, buffer.bytes().first(4097))).Wait());
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.write_bytes, 10'000u);
  EXPECT_EQ(stats.read_bytes, 4097u);
  EXPECT_EQ(stats.blocks, 3u + 2u);
  EXPECT_EQ(stats.requests, 2u);
  EXPECT_EQ(stats.errors, 0u);
}

}  // namespace
}  // namespace penstock::aio
