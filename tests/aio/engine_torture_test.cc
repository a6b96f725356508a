// Tens of thousands of random requests under random faults and cancels: no byte is lost, doubled or
// misplaced. PENSTOCK_TORTURE_REQUESTS sets their number: CI runs many where no drive takes time
// (tmpfs) and few elsewhere.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <random>
#include <vector>

#include "tests/aio/support.h"

namespace penstock::aio {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kAtOnce = 60;          // requests between two waits, each in a run of its own
constexpr size_t kRun = 8 * kPage;      // of the file; two requests never share a page
constexpr size_t kSlot = kRun + kPage;  // of memory, so that any address is possible

size_t RequestCount() {
  const char* wanted = std::getenv("PENSTOCK_TORTURE_REQUESTS");  // NOLINT(concurrency-mt-unsafe)
  return wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : 3'000;
}

/// Submits batches of random disjoint requests and knows what every byte of the file must be.
class Torture {
 public:
  Torture(Engine& engine, const File& file, uint64_t seed)
      : engine_(engine),
        file_(file),
        random_(seed),
        memory_(kSlot * kAtOnce),
        model_(kRun * kAtOnce) {}

  void Run(size_t requests) {
    ForEveryRun(Operation::kWrite);
    for (size_t done = 0; done < requests; done += kAtOnce) RunBatch();
    ForEveryRun(Operation::kRead);
  }

  size_t wrong_requests() const { return wrong_requests_; }
  size_t callbacks() const { return callbacks_; }
  size_t submitted() const { return submitted_; }

 private:
  struct Piece {
    Operation operation = Operation::kRead;
    size_t offset = 0;  ///< in the file
    std::span<std::byte> memory;
    Ticket ticket;
  };

  size_t Draw(size_t below) { return std::uniform_int_distribution<size_t>(0, below - 1)(random_); }

  std::span<std::byte> Expected(const Piece& piece) {
    return std::span(model_).subspan(piece.offset, piece.memory.size());
  }

  /// A random part of the run: a half on pages, the others anywhere; of these a half at addresses
  /// that let whole pages in the middle go to the drive directly.
  Piece DrawPiece(size_t run) {
    if (Draw(200) == 0) return {.operation = Operation::kSync};
    size_t begin = Draw(kRun);
    size_t size = 1 + Draw(kRun - begin);
    if (Draw(2) == 0) {
      begin = begin / kPage * kPage;
      size = std::min(kRun - begin, AlignUp(Bytes{size}, Bytes{kPage}).value);
    }
    const size_t address = begin % kPage == 0 || Draw(2) == 0 ? begin % kPage : Draw(kPage);
    return {.operation = static_cast<Operation>(Draw(2)),
            .offset = run * kRun + begin,
            .memory = memory_.bytes().subspan(run * kSlot + address, size)};
  }

  void Start(Piece& piece) {
    if (piece.operation == Operation::kWrite) FillPattern(piece.memory, ++last_pattern_);
    Submit(piece);
  }

  void Submit(Piece& piece) {
    if (piece.operation == Operation::kRead) std::ranges::fill(piece.memory, std::byte{0xEE});
    ++submitted_;
    piece.ticket = engine_.Submit({.operation = piece.operation,
                                   .file = &file_,
                                   .offset = FileOffset{piece.offset},
                                   .buffer = piece.memory,
                                   .priority = static_cast<Priority>(Draw(kPriorityCount)),
                                   .on_complete = [this](const Status&) { ++callbacks_; }});
  }

  /// Random faults and cancels make requests fail for good; the caller's cure is to submit them
  /// again.
  void Finish(Piece& piece) {
    for (int tries = 0; !piece.ticket.Wait().ok(); ++tries) {
      ASSERT_LT(tries, 1000);
      Submit(piece);
    }
    if (piece.operation == Operation::kWrite)
      std::ranges::copy(piece.memory, Expected(piece).begin());
    if (!std::ranges::equal(piece.memory, Expected(piece))) ++wrong_requests_;
  }

  void ForEveryRun(Operation operation) {
    for (size_t run = 0; run < kAtOnce; ++run) {
      Piece piece = {.operation = operation,
                     .offset = run * kRun,
                     .memory = memory_.bytes().subspan(run * kSlot, kRun)};
      Start(piece);
      Finish(piece);
    }
  }

  void RunBatch() {
    std::vector<Piece> pieces;
    for (size_t run = 0; run < kAtOnce; ++run) pieces.push_back(DrawPiece(run));
    for (Piece& piece : pieces) Start(piece);
    if (Draw(10) == 0) engine_.Cancel();
    std::ranges::shuffle(pieces, random_);
    for (Piece& piece : pieces) Finish(piece);
  }

  Engine& engine_;
  const File& file_;
  std::mt19937_64 random_;
  Buffer memory_;
  std::vector<std::byte> model_;
  uint64_t last_pattern_ = 0;
  size_t wrong_requests_ = 0;
  size_t submitted_ = 0;
  std::atomic<size_t> callbacks_{0};
};

FaultPlan RandomFaults() {
  return {.seed = 20'26,
          .error_chance = 0.02,
          .transient_chance = 0.1,
          .short_chance = 0.2,
          .delay_chance = 0.05,
          .reorder = true};
}

using EngineTorture = EngineTest;
INSTANTIATE_TEST_SUITE_P(Engines, EngineTorture, testing::ValuesIn(EveryEngine()), CaseName);

TEST_P(EngineTorture, NothingIsLostDoubledOrCorrupted) {
  MAKE_ENGINE(engine, {.block_size = 8_KiB, .queue_depth = 16, .faults = RandomFaults()});
  ScratchFile file;
  Torture torture(*engine, file.get(), 1);
  torture.Run(RequestCount());
  engine->Drain();
  EXPECT_EQ(torture.wrong_requests(), 0u);
  EXPECT_EQ(torture.callbacks(), torture.submitted());
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.requests, torture.submitted());
  EXPECT_GT(stats.errors, 0u) << "the plan must have hit something";
  EXPECT_GT(stats.retries, 0u);
  EXPECT_GT(stats.continuations, 0u);
  EXPECT_GT(stats.syncs, 0u);
  EXPECT_LE(stats.max_in_flight, 16);
}

}  // namespace
}  // namespace penstock::aio
