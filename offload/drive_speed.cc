#include "offload/drive_speed.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "base/check.h"
#include "base/mapping.h"
#include "base/random.h"

namespace penstock::offload {
namespace {

using Clock = std::chrono::steady_clock;

constexpr Bytes kPiece = 4_MiB;
constexpr size_t kPiecesInFlight = 4;
constexpr uint64_t kDataSeed = 1;
constexpr auto kPatience = std::chrono::milliseconds(300);

/// One direction, piece after piece, a few of them in flight.
class TimedPass {
 public:
  TimedPass(aio::Engine& engine, const aio::File& file, const Mapping& memory)
      : engine_(engine), file_(file), memory_(memory) {}

  /// Bytes a second. `moved` gets how many bytes there were.
  Result<double> Run(aio::Operation operation, Bytes size, Bytes& moved) {
    const Clock::time_point start = Clock::now();
    std::vector<aio::Ticket> tickets;
    Bytes at;
    Status status;
    while (status.ok() && at < size && Clock::now() - start < kPatience) {
      if (tickets.size() >= kPiecesInFlight) {
        status = tickets[tickets.size() - kPiecesInFlight].Wait();
      }
      const Bytes piece = std::min(kPiece, size - at);
      tickets.push_back(Submit(operation, at, piece, tickets.size() % kPiecesInFlight));
      at += piece;
    }
    PENSTOCK_TRY(aio::WaitAll(tickets));
    moved = at;
    const std::chrono::duration<double> took = Clock::now() - start;
    return static_cast<double>(at.value) / std::max(took.count(), 1e-9);
  }

 private:
  aio::Ticket Submit(aio::Operation operation, Bytes at, Bytes size, size_t buffer) {
    return engine_.Submit({.operation = operation,
                           .file = &file_,
                           .offset = FileOffset{at.value},
                           .buffer = {memory_.data() + buffer * kPiece.value, size.value}});
  }

  aio::Engine& engine_;
  const aio::File& file_;
  const Mapping& memory_;
};

}  // namespace

Result<double> MeasureSpeed(aio::Engine& engine, const aio::File& file, Bytes size) {
  PENSTOCK_CHECK(size.value > 0);
  PENSTOCK_ASSIGN(const Mapping memory, Mapping::Create(kPiece * kPiecesInFlight));
  FillRandom(kDataSeed, {memory.data(), memory.size().value});
  TimedPass pass(engine, file, memory);
  Bytes written;
  Bytes read;
  PENSTOCK_ASSIGN(const double write_speed, pass.Run(aio::Operation::kWrite, size, written));
  PENSTOCK_ASSIGN(const double read_speed, pass.Run(aio::Operation::kRead, written, read));
  return 2 / (1 / write_speed + 1 / read_speed);
}

}  // namespace penstock::offload
