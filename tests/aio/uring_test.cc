// What only io_uring has: registered buffers and files, and polling for completions.
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "aio/uring_drive.h"
#include "aio/uring_facts.h"
#include "aio/uring_registrations.h"
#include "tests/aio/support.h"

namespace penstock::aio {
namespace {

using testing::HasSubstr;

/// A ring of its own; skipped where there is none.
class UringRegistrationsTest : public testing::Test {
 protected:
  void SetUp() override {
    const int result = io_uring_queue_init(4, &ring_, 0);
    if (result < 0) GTEST_SKIP() << "io_uring_queue_init: errno " << -result;
    registrations_.emplace(&ring_);
  }
  void TearDown() override {
    if (registrations_) io_uring_queue_exit(&ring_);
  }

  io_uring ring_{};
  std::optional<UringRegistrations> registrations_;
};

TEST_F(UringRegistrationsTest, ABlockIsFixedWhereItLiesWhollyInOnePiece) {
  Buffer buffer(16 * 4096);
  const auto bytes = buffer.bytes();
  // Out of order, with a gap of one page.
  const std::array<std::span<std::byte>, 2> memory = {bytes.subspan(8 * 4096, 4096),
                                                      bytes.first(7 * 4096)};
  EXPECT_EQ(registrations_->BufferIndex(bytes.first(10)), std::nullopt);
  const auto line = registrations_->RegisterBuffers(memory);
  ASSERT_TRUE(line.ok()) << line.error().message;
  EXPECT_EQ(*line, "aio buffers are registered: 32.0 KiB, pieces: 2");
  EXPECT_EQ(registrations_->BufferIndex(bytes.first(7 * 4096)), 0);
  EXPECT_EQ(registrations_->BufferIndex(bytes.subspan(7 * 4096 - 1, 1)), 0);
  EXPECT_EQ(registrations_->BufferIndex(bytes.subspan(8 * 4096, 4096)), 1);
  EXPECT_EQ(registrations_->BufferIndex(bytes.subspan(8 * 4096 - 1, 2)), std::nullopt);
  EXPECT_EQ(registrations_->BufferIndex(bytes.subspan(7 * 4096 - 1, 2)), std::nullopt);
  EXPECT_EQ(registrations_->BufferIndex(bytes.subspan(9 * 4096, 1)), std::nullopt);
}

TEST_F(UringRegistrationsTest, MoreThanAGiBIsCutIntoPieces) {
  // Shared mappings of one small file, so that 1 GiB of addresses costs no memory.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the sanitizer's shadow of 1 GiB would need more memory than a test may take";
#endif
  const Folded folded(4 << 20, 257);
  ASSERT_TRUE(folded.ok());
  const auto line = registrations_->RegisterBuffers(std::array{folded.bytes()});
  if (!line.ok()) GTEST_SKIP() << line.error().message;
  EXPECT_THAT(*line, HasSubstr("pieces: 2"));
  const size_t piece = kMaxPiece.value;
  EXPECT_EQ(registrations_->BufferIndex(folded.bytes().subspan(piece - 1, 1)), 0);
  EXPECT_EQ(registrations_->BufferIndex(folded.bytes().subspan(piece, 1)), 1);
  EXPECT_EQ(registrations_->BufferIndex(folded.bytes().subspan(piece - 1, 2)), std::nullopt);
}

TEST_F(UringRegistrationsTest, ANumberThatStandsForAnotherFileByNowIsLookedUpAgain) {
  ScratchFile first(false);
  ScratchFile second(false);
  const int fd = ::dup(first.get().fd());
  const UniqueFd owner(fd);
  registrations_->AddFile(fd);
  ASSERT_EQ(::dup2(second.get().fd(), fd), fd);
  registrations_->AddFile(fd);
  char byte = 'x';
  io_uring_sqe* entry = io_uring_get_sqe(&ring_);
  io_uring_prep_write(entry, registrations_->FileIndex(fd).value(), &byte, 1, 0);
  io_uring_sqe_set_flags(entry, IOSQE_FIXED_FILE);
  ASSERT_EQ(io_uring_submit_and_wait(&ring_, 1), 1);
  EXPECT_EQ(*first.get().Size(), 0_B);
  EXPECT_EQ(*second.get().Size(), 1_B);
}

TEST_F(UringRegistrationsTest, FilesTakePlacesAndGiveThemBack) {
  ScratchFile first;
  ScratchFile second;
  registrations_->AddFile(first.get().fd());
  registrations_->AddFile(first.get().fd());
  registrations_->AddFile(second.get().fd());
  EXPECT_EQ(registrations_->FileIndex(first.get().fd()), 0);
  EXPECT_EQ(registrations_->FileIndex(second.get().fd()), 1);
  registrations_->RemoveFile(first.get().fd());
  registrations_->RemoveFile(first.get().fd());
  EXPECT_EQ(registrations_->FileIndex(first.get().fd()), std::nullopt);
  registrations_->AddFile(-1);
  EXPECT_EQ(registrations_->FileIndex(-1), std::nullopt);
  ScratchFile third;
  registrations_->AddFile(third.get().fd());
  EXPECT_EQ(registrations_->FileIndex(third.get().fd()), 0);
}

TEST(Registration, EnginesWithoutItSaySoOrFailAsAsked) {
  Buffer buffer(4096);
  const std::array memory = {buffer.bytes()};
  for (const EngineKind kind : {EngineKind::kLibaio, EngineKind::kThreads}) {
    const auto automatic = CreateEngine({.kind = kind});
    ASSERT_TRUE(automatic.ok());
    EXPECT_THAT((*automatic)->RegisterBuffers(memory).value(), HasSubstr("are not registered"));
    const auto on = CreateEngine({.kind = kind, .registered_buffers = Registration::kOn});
    ASSERT_TRUE(on.ok());
    const auto refused = (*on)->RegisterBuffers(memory);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable);
    EXPECT_THAT(refused.error().message, HasSubstr(ToString(kind)));
  }
  const auto off = CreateEngine({.registered_buffers = Registration::kOff});
  ASSERT_TRUE(off.ok());
  EXPECT_EQ((*off)->RegisterBuffers(memory).value(), "");
}

/// A write of `data` to the beginning of `fd`.
BlockOperation WriteOf(int fd, std::span<std::byte> data, uint32_t slot = 0) {
  return {.operation = Operation::kWrite, .fd = fd, .data = data, .alignment = 1_B, .slot = slot};
}

TEST(UringDrive, ABlockThatIsPreparedStaysWithItsFileWhenThatIsTakenBack) {
  for (const bool sqpoll : {false, true}) {
    auto drive = UringDrive::Create({.queue_depth = 2, .sqpoll = sqpoll});
    if (!drive.ok()) GTEST_SKIP() << drive.error().message;
    ScratchFile file(false);
    ScratchFile other(false);
    Buffer buffer(4096);
    ASSERT_OK((*drive)->RegisterFile(file.get()));
    (*drive)->Submit(WriteOf(file.get().fd(), buffer.bytes()));
    (*drive)->UnregisterFile(file.get().fd());
    ASSERT_OK((*drive)->RegisterFile(other.get()));  // takes the place
    std::vector<BlockResult> results;
    while (results.empty()) (*drive)->Reap(true, results);
    EXPECT_EQ(results[0].result, 4096);
    EXPECT_EQ(*file.get().Size(), 4_KiB);
    EXPECT_EQ(*other.get().Size(), 0_B);
  }
}

TEST(Sqpoll, TheQueueMayBeFullWhileThePollerHoldsIt) {
  auto drive = UringDrive::Create({.queue_depth = 3, .sqpoll = true});
  if (!drive.ok()) GTEST_SKIP() << drive.error().message;
  const UniqueFd file(::memfd_create("file", MFD_CLOEXEC));
  Buffer buffer(512);
  // A block is complete before its entry is given back, so the next ones may find no room. More
  // blocks than the queue holds find it full without a race.
  constexpr uint32_t kBlocks = 7;
  for (uint32_t i = 0; i < kBlocks; ++i) (*drive)->Submit(WriteOf(file.get(), buffer.bytes(), i));
  std::vector<BlockResult> results;
  while (results.size() < kBlocks) (*drive)->Reap(true, results);
  for (const BlockResult& result : results) EXPECT_EQ(result.result, 512);
}

TEST(Sqpoll, EveryDepthServesSeveralSubmittersOfABufferedFile) {
  for (const int depth : {1, 3, 7, 31}) {
    const auto engine = CreateEngine({.block_size = 4_KiB, .queue_depth = depth, .sqpoll = true});
    if (!engine.ok()) GTEST_SKIP() << engine.error().message;
    ScratchFile file(false);
    std::vector<std::thread> submitters;
    std::atomic<int> failures{0};
    for (uint64_t i = 0; i < 3; ++i) {
      submitters.emplace_back([&, i] {
        Buffer buffer(16 * 4096);
        for (int round = 0; round < 30; ++round) {
          const Status outcome =
              (*engine)->Submit(WriteRequest(file.get(), i << 20, buffer.bytes())).Wait();
          failures += outcome.ok() ? 0 : 1;
        }
      });
    }
    for (std::thread& submitter : submitters) submitter.join();
    EXPECT_EQ(failures, 0);
  }
}

class Iopoll : public testing::Test {
 protected:
  void SetUp() override {
    auto engine = CreateEngine({.block_size = 4_KiB, .queue_depth = 4, .iopoll = true});
    if (!engine.ok()) GTEST_SKIP() << engine.error().message;
    engine_ = std::move(engine).value();
  }
  std::unique_ptr<Engine> engine_;
};

TEST_F(Iopoll, BufferedFilesAndSyncsAreServed) {
  ScratchFile file;
  Buffer out(20'000);
  FillPattern(out.bytes(), 1);
  ASSERT_OK(engine_->Submit(WriteRequest(file.get(), 3, out.bytes())).Wait());
  ASSERT_OK(engine_->Sync(file.get()));
  Buffer in(20'000);
  ASSERT_OK(engine_->Submit(ReadRequest(file.get(), 3, in.bytes())).Wait());
  EXPECT_EQ(PatternErrors(in.bytes(), 1), 0u);
}

TEST_F(Iopoll, ADirectFileIsRegisteredOrTheErrorSaysWhatTheDriveLacks) {
  ScratchFile file(true);
  if (!file.result().ok()) GTEST_SKIP() << file.result().error().message;
  const auto registration = engine_->RegisterFile(file.get());
  if (registration.ok()) GTEST_SKIP() << "this drive has polled queues, or does not say";
  EXPECT_EQ(registration.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(registration.error().message, HasSubstr("iopoll on " + file.path()));
  EXPECT_THAT(registration.error().message, HasSubstr("polled queues"));
  ScratchFile buffered(false);
  EXPECT_TRUE(engine_->RegisterFile(buffered.get()).ok());
}

TEST_F(Iopoll, DirectFilesAreServedOrTheErrorSaysWhatTheDriveLacks) {
  ScratchFile file(true);
  if (!file.result().ok()) GTEST_SKIP() << file.result().error().message;
  Buffer out(20'000);
  FillPattern(out.bytes(), 1);
  Buffer in(20'000);
  for (const Request& request :
       {WriteRequest(file.get(), 0, out.bytes()), ReadRequest(file.get(), 0, in.bytes())}) {
    const Status outcome = engine_->Submit(request).Wait();
    if (outcome.ok()) continue;
    EXPECT_THAT(MessageOf(outcome), HasSubstr("polled queues"));
    GTEST_SKIP() << MessageOf(outcome);
  }
  EXPECT_EQ(PatternErrors(in.bytes(), 1), 0u);
}

TEST(UringFactsTest, AreThoseOfARingThatCanBeMade) {
  io_uring ring{};
  io_uring_params params{};
  const int result = io_uring_queue_init_params(1, &ring, &params);
  if (result == 0) io_uring_queue_exit(&ring);
  const UringFacts facts = ReadUringFacts();
  EXPECT_EQ(facts.error_number, result < 0 ? -result : 0);
  EXPECT_EQ(facts.features.size(), static_cast<size_t>(__builtin_popcount(params.features)));
  const bool single = (params.features & IORING_FEAT_SINGLE_MMAP) != 0;
  EXPECT_EQ(std::ranges::count(facts.features, "single_mmap"), single ? 1 : 0);
}

}  // namespace
}  // namespace penstock::aio
