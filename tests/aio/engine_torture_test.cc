// Thousands of random requests under random faults: no byte is lost, doubled or misplaced.
#include <algorithm>
#include <atomic>
#include <map>
#include <random>
#include <vector>

#include "tests/aio/support.h"

namespace penstock::aio {
namespace {

constexpr size_t kCell = 2048;  // what has a version of its own
constexpr size_t kRequests = 3000;
constexpr size_t kAtOnce = 60;  // disjoint requests between two waits
constexpr size_t kRun = 16;     // cells within which each of them stays
constexpr size_t kCells = kAtOnce * kRun;

/// Submits batches of random disjoint requests and knows what every cell must hold.
class Torture {
 public:
  Torture(Engine& engine, const File& file, uint64_t seed)
      : engine_(engine), file_(file), random_(seed), memory_(kCell * kCells) {}

  void Run() {
    for (size_t first = 0; first < kCells; first += kRun) {
      Finish({Operation::kWrite, first, kRun, Transfer(Operation::kWrite, first, kRun)});
    }
    for (size_t done = 0; done < kRequests; done += kAtOnce) RunBatch();
    for (size_t first = 0; first < kCells; first += kRun) {
      Check(first, kRun, Transfer(Operation::kRead, first, kRun));
    }
  }

  size_t wrong_cells() const { return wrong_cells_; }
  size_t callbacks() const { return callbacks_; }
  size_t submitted() const { return submitted_; }

 private:
  struct Piece {
    Operation operation;
    size_t first;
    size_t count;
    Ticket ticket;
  };

  size_t Draw(size_t below) { return std::uniform_int_distribution<size_t>(0, below - 1)(random_); }

  std::span<std::byte> Cells(size_t first, size_t count) {
    return memory_.bytes().subspan(first * kCell, count * kCell);
  }

  Ticket Transfer(Operation operation, size_t first, size_t count) {
    if (operation == Operation::kWrite) NewVersions(first, count);
    return Resubmit(operation, first, count);
  }

  Ticket Resubmit(Operation operation, size_t first, size_t count) {
    if (operation == Operation::kRead) std::ranges::fill(Cells(first, count), std::byte{0xEE});
    ++submitted_;
    Request request = operation == Operation::kRead
                          ? ReadRequest(file_, first * kCell, Cells(first, count))
                          : WriteRequest(file_, first * kCell, Cells(first, count));
    request.priority = static_cast<Priority>(Draw(kPriorityCount));
    request.on_complete = [this](const Status&) { ++callbacks_; };
    return engine_.Submit(std::move(request));
  }

  void NewVersions(size_t first, size_t count) {
    for (size_t cell = first; cell < first + count; ++cell) {
      versions_[cell] = ++last_version_;
      FillPattern(Cells(cell, 1), last_version_);
    }
  }

  /// Random faults make requests fail for good; the caller's cure is to submit them again.
  void Finish(Piece piece) {
    for (int tries = 0; !piece.ticket.Wait().ok(); ++tries) {
      ASSERT_LT(tries, 1000);
      piece.ticket = Resubmit(piece.operation, piece.first, piece.count);
    }
  }

  void Check(size_t first, size_t count, Ticket ticket) {
    Finish({Operation::kRead, first, count, std::move(ticket)});
    for (size_t cell = first; cell < first + count; ++cell) {
      wrong_cells_ += PatternErrors(Cells(cell, 1), versions_[cell]) > 0 ? 1 : 0;
    }
  }

  /// Cuts the file into kAtOnce runs of cells and reads or writes a random part of each.
  void RunBatch() {
    std::vector<Piece> pieces;
    for (size_t run = 0; run < kAtOnce; ++run) {
      const size_t skip = Draw(kRun);
      const size_t first = run * kRun + skip;
      const size_t count = 1 + Draw(kRun - skip);
      const auto operation = static_cast<Operation>(Draw(2));
      pieces.push_back({operation, first, count, Transfer(operation, first, count)});
    }
    std::ranges::shuffle(pieces, random_);
    for (const Piece& piece : pieces) {
      if (piece.operation == Operation::kRead) {
        Check(piece.first, piece.count, piece.ticket);
      } else {
        Finish(piece);
      }
    }
  }

  Engine& engine_;
  const File& file_;
  std::mt19937_64 random_;
  Buffer memory_;
  std::map<size_t, uint64_t> versions_;
  uint64_t last_version_ = 0;
  size_t wrong_cells_ = 0;
  size_t submitted_ = 0;
  std::atomic<size_t> callbacks_{0};
};

FaultPlan RandomFaults() {
  return {.seed = 20'26,
          .error_chance = 0.02,
          .transient_chance = 0.1,
          .short_chance = 0.2,
          .reorder = true};
}

using EngineTorture = EngineTest;
INSTANTIATE_TEST_SUITE_P(Engines, EngineTorture, testing::ValuesIn(EveryEngine()), CaseName);

TEST_P(EngineTorture, NothingIsLostDoubledOrCorrupted) {
  MAKE_ENGINE(engine, {.block_size = 8_KiB, .queue_depth = 16, .faults = RandomFaults()});
  ScratchFile file;
  Torture torture(*engine, file.get(), 1);
  torture.Run();
  engine->Drain();
  EXPECT_EQ(torture.wrong_cells(), 0u);
  EXPECT_EQ(torture.callbacks(), torture.submitted());
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.requests, torture.submitted());
  EXPECT_GT(stats.errors, 0u) << "the plan must have hit something";
  EXPECT_GT(stats.retries, 0u);
  EXPECT_GT(stats.continuations, 0u);
  EXPECT_LE(stats.max_in_flight, 16);
}

}  // namespace
}  // namespace penstock::aio
