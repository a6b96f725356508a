// When requests end and who hears of it, for every engine: callbacks, drains, syncs, cancels,
// several threads, and the end of the engine itself; with and without faults that it has to hide.
#include <gmock/gmock.h>

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/aio/support.h"

namespace penstock::aio {
namespace {

using EngineRequests = EngineTest;
INSTANTIATE_TEST_SUITE_P(Engines, EngineRequests, testing::ValuesIn(EveryEngine()), CaseName);
INSTANTIATE_TEST_SUITE_P(Faulty, EngineRequests, testing::ValuesIn(EveryEngineWithHarmlessFaults()),
                         CaseName);

TEST_P(EngineRequests, CallbacksNeverRunAtTheSameTime) {
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

TEST_P(EngineRequests, AnEngineMayEndAsSoonAsItsLastRequestIsComplete) {
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

TEST_P(EngineRequests, CallbackRunsOnceAfterItsTicketIsDone) {
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

TEST_P(EngineRequests, CallbackMaySubmitTheNextRequest) {
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

TEST_P(EngineRequests, SeveralThreadsMayWaitForOneTicket) {
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

TEST_P(EngineRequests, SeveralThreadsMaySubmit) {
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

TEST_P(EngineRequests, DestructionCompletesEverything) {
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

TEST_P(EngineRequests, DestructionAwaitsWhatCallbacksStillSubmit) {
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

TEST_P(EngineRequests, DrainAwaitsEveryEarlierRequestAndItsCallback) {
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

TEST_P(EngineRequests, SyncMakesDurableOrNamesTheFile) {
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

TEST_P(EngineRequests, SyncsAreRequestsAmongOthers) {
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

TEST_P(EngineRequests, CancelEndsEveryRequestAndServesLaterOnes) {
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

TEST_P(EngineRequests, SeveralThreadsMayCancelRegisterAndSubmit) {
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
