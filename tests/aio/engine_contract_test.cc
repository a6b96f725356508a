// What every engine promises while nothing goes wrong, with and without faults that it has to hide.
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/aio/support.h"

namespace penstock::aio {
namespace {

using EngineContract = EngineTest;
INSTANTIATE_TEST_SUITE_P(Engines, EngineContract, testing::ValuesIn(EveryEngine()), CaseName);
INSTANTIATE_TEST_SUITE_P(Faulty, EngineContract, testing::ValuesIn(EveryEngineWithHarmlessFaults()),
                         CaseName);

/// Writes a pattern of `size` bytes at `offset`, reads it into other memory and compares.
void RoundTrip(Engine& engine, const File& file, uint64_t offset, size_t size, uint64_t seed) {
  Buffer out(size);
  FillPattern(out.bytes(), seed);
  ASSERT_OK(engine.Submit(WriteRequest(file, offset, out.bytes())).Wait());
  Buffer in(size);
  ASSERT_OK(engine.Submit(ReadRequest(file, offset, in.bytes())).Wait());
  EXPECT_EQ(PatternErrors(in.bytes(), seed), 0u) << size << " bytes at " << offset;
}

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

TEST_P(EngineContract, CallbacksNeverRunAtTheSameTime) {
  MAKE_ENGINE(engine, {.block_size = 4_KiB, .queue_depth = 16});
  ScratchFile file;
  Buffer buffer(64 * 4096);
  std::atomic<int> running{0};
  std::atomic<int> overlaps{0};
  for (int round = 0; round < 10; ++round) {
    for (size_t i = 0; i < 64; ++i) {
      Request request = WriteRequest(file.get(), i * 4096, buffer.bytes().subspan(i * 4096, 4096));
      request.on_complete = [&](const Status&) {
        overlaps += running.fetch_add(1) > 0 ? 1 : 0;
        std::this_thread::yield();
        --running;
      };
      engine->Submit(std::move(request));
    }
  }
  engine->Drain();
  EXPECT_EQ(overlaps, 0);
}

TEST_P(EngineContract, AnEngineMayEndAsSoonAsItsLastRequestIsComplete) {
  for (int round = 0; round < 50; ++round) {
    std::unique_ptr<Engine> engine = Make();
    if (engine == nullptr) return;
    ScratchFile file;
    Buffer buffer(4096);
    std::promise<void> completed;
    Request request = WriteRequest(file.get(), 0, buffer.bytes());
    request.on_complete = [&](const Status&) { completed.set_value(); };
    // Its owner learns of the end while the thread that submitted may still be on its way out.
    std::thread owner([&] {
      completed.get_future().wait();
      engine.reset();
    });
    engine->Submit(std::move(request));
    owner.join();
  }
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
    ASSERT_TRUE(std::ranges::equal(in.bytes().subspan(i * kStride, kSize),
                                   out.bytes().subspan(i * kStride, kSize)))
        << "request " << i;
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

TEST_P(EngineContract, CallbackRunsOnceAfterItsTicketIsDone) {
  MAKE_ENGINE(engine);
  ScratchFile file;
  Buffer buffer(100);
  std::promise<Ticket> ticket;
  std::atomic<int> calls{0};
  std::atomic<bool> done_before{false};
  Request request = WriteRequest(file.get(), 0, buffer.bytes());
  request.on_complete = [&, held = ticket.get_future().share()](const Status& outcome) {
    ++calls;
    done_before = outcome.ok() && held.get().done();
  };
  ticket.set_value(engine->Submit(std::move(request)));
  engine->Drain();
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(done_before);
}

TEST_P(EngineContract, CallbackMaySubmitTheNextRequest) {
  MAKE_ENGINE(engine);
  ScratchFile file;
  Buffer buffer(4096);
  std::atomic<int> remaining{50};
  std::promise<void> finished;
  std::function<void(const Status&)> next = [&](const Status& outcome) {
    if (!outcome.ok() || --remaining == 0) return finished.set_value();
    Request request = WriteRequest(file.get(), 0, buffer.bytes());
    request.on_complete = next;
    engine->Submit(std::move(request));
  };
  Request first = WriteRequest(file.get(), 0, buffer.bytes());
  first.on_complete = next;
  engine->Submit(std::move(first));
  finished.get_future().wait();
  EXPECT_EQ(remaining, 0);
}

TEST_P(EngineContract, SeveralThreadsMayWaitForOneTicket) {
  MAKE_ENGINE(engine);
  ScratchFile file;
  Buffer buffer(1 << 20);
  const Ticket ticket = engine->Submit(WriteRequest(file.get(), 0, buffer.bytes()));
  std::atomic<int> succeeded{0};
  std::vector<std::thread> waiters;
  for (int i = 0; i < 4; ++i) {
    waiters.emplace_back([&] { succeeded += ticket.Wait().ok() ? 1 : 0; });
  }
  for (std::thread& waiter : waiters) waiter.join();
  EXPECT_EQ(succeeded, 4);
  EXPECT_TRUE(ticket.done());
}

TEST_P(EngineContract, SeveralThreadsMaySubmit) {
  MAKE_ENGINE(engine, {.block_size = 4_KiB, .queue_depth = 4});
  ScratchFile file;
  std::vector<std::thread> submitters;
  for (uint64_t i = 0; i < 4; ++i) {
    submitters.emplace_back([&, i] {
      for (uint64_t j = 0; j < 10; ++j) {
        RoundTrip(*engine, file.get(), (i * 10 + j) * 12'288, 10'000, i * 10 + j);
      }
    });
  }
  for (std::thread& submitter : submitters) submitter.join();
  EXPECT_EQ(engine->stats().requests, 80u);
}

TEST_P(EngineContract, DestructionCompletesEverything) {
  std::unique_ptr<Engine> engine = Make({.block_size = 4_KiB, .queue_depth = 2});
  if (engine == nullptr) return;
  ScratchFile file;
  Buffer buffer(20'000);
  std::atomic<int> completed{0};
  std::vector<Ticket> tickets;
  for (int i = 0; i < 50; ++i) {
    Request request = WriteRequest(file.get(), 0, buffer.bytes());
    request.on_complete = [&](const Status&) { ++completed; };
    tickets.push_back(engine->Submit(std::move(request)));
  }
  engine.reset();
  EXPECT_EQ(completed, 50);
  for (const Ticket& ticket : tickets) EXPECT_TRUE(ticket.done());
  EXPECT_OK(WaitAll(tickets));
}

TEST_P(EngineContract, DestructionAwaitsWhatCallbacksStillSubmit) {
  std::unique_ptr<Engine> engine = Make();
  if (engine == nullptr) return;
  Engine* raw = engine.get();
  ScratchFile file;
  Buffer buffer(4096);
  std::atomic<int> second{0};
  Request request = WriteRequest(file.get(), 0, buffer.bytes());
  request.on_complete = [&](const Status&) {
    Request again = ReadRequest(file.get(), 0, buffer.bytes());
    again.on_complete = [&](const Status& outcome) { second += outcome.ok() ? 1 : 0; };
    raw->Submit(std::move(again));
  };
  engine->Submit(std::move(request));
  engine.reset();
  EXPECT_EQ(second, 1);
}

TEST_P(EngineContract, DrainAwaitsEveryEarlierRequestAndItsCallback) {
  MAKE_ENGINE(engine, {.block_size = 4_KiB, .queue_depth = 2});
  engine->Drain();
  ScratchFile file;
  Buffer buffer(20'000);
  std::atomic<int> completed{0};
  for (int i = 0; i < 30; ++i) {
    Request request = WriteRequest(file.get(), 0, buffer.bytes());
    request.on_complete = [&](const Status&) { ++completed; };
    engine->Submit(std::move(request));
  }
  engine->Drain();
  EXPECT_EQ(completed, 30);
}

TEST_P(EngineContract, SyncMakesDurableOrNamesTheFile) {
  MAKE_ENGINE(engine);
  ScratchFile file;
  Buffer buffer(4096);
  ASSERT_OK(engine->Submit(WriteRequest(file.get(), 0, buffer.bytes())).Wait());
  EXPECT_OK(engine->Sync(file.get()));
  EXPECT_EQ(engine->stats().syncs, 1u);
  const File closed = File::Adopt(UniqueFd(), "closed-file", 1_B);
  const Status failed = engine->Sync(closed);
  EXPECT_THAT(MessageOf(failed), testing::HasSubstr("closed-file"));
  EXPECT_EQ(engine->stats().syncs, 1u);
}

TEST_P(EngineContract, SyncsAreRequestsAmongOthers) {
  MAKE_ENGINE(engine, {.block_size = 4_KiB, .queue_depth = 2});
  ScratchFile file;
  Buffer buffer(20'000);
  std::vector<Ticket> tickets;
  for (int i = 0; i < 10; ++i) {
    tickets.push_back(engine->Submit(WriteRequest(file.get(), 0, buffer.bytes())));
    tickets.push_back(engine->Submit({.operation = Operation::kSync, .file = &file.get()}));
  }
  EXPECT_OK(WaitAll(tickets));
  EXPECT_EQ(engine->stats().syncs, 10u);
  EXPECT_EQ(engine->stats().requests, 20u);
}

TEST_P(EngineContract, CancelEndsEveryRequestAndServesLaterOnes) {
  MAKE_ENGINE(engine, {.block_size = 4_KiB, .queue_depth = 1});
  engine->Cancel();
  ScratchFile file;
  Buffer buffer(1 << 18);
  int cancelled = 0;
  // An engine may be done with all of it before the cancel; not every time.
  for (int round = 0; round < 100 && cancelled == 0; ++round) {
    std::atomic<int> completed{0};
    std::vector<Ticket> tickets;
    for (int i = 0; i < 50; ++i) {
      Request request = WriteRequest(file.get(), 0, buffer.bytes());
      request.on_complete = [&](const Status&) { ++completed; };
      tickets.push_back(engine->Submit(std::move(request)));
    }
    engine->Cancel();
    engine->Drain();
    ASSERT_EQ(completed, 50);
    for (const Ticket& ticket : tickets) {
      const Status outcome = ticket.Wait();
      if (outcome.ok()) continue;
      ++cancelled;
      EXPECT_EQ(outcome.error().code, ErrorCode::kCancelled);
      EXPECT_THAT(outcome.error().message, testing::HasSubstr("write of 262144 bytes at offset 0"));
    }
  }
  EXPECT_GT(cancelled, 0);
  RoundTrip(*engine, file.get(), 0, 10'000, 1);
}

TEST_P(EngineContract, SeveralThreadsMayCancelRegisterAndSubmit) {
  MAKE_ENGINE(engine, {.block_size = 4_KiB, .queue_depth = 4});
  ScratchFile file;
  std::vector<std::thread> threads;
  std::atomic<int> ended{0};
  for (uint64_t i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] {
      Buffer buffer(10'000);
      for (uint64_t j = 0; j < 50; ++j) {
        const Status outcome =
            engine->Submit(WriteRequest(file.get(), i * 12'288, buffer.bytes())).Wait();
        ended += outcome.ok() || outcome.error().code == ErrorCode::kCancelled ? 1 : 0;
      }
    });
    threads.emplace_back([&] {
      ScratchFile own;
      for (int j = 0; j < 20; ++j) {
        const auto registration = engine->RegisterFile(own.get());
        EXPECT_TRUE(registration.ok());
        engine->Cancel();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ended, 100);
}

}  // namespace
}  // namespace penstock::aio
