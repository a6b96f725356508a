#include "sim/drive.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace penstock::sim {

Seconds TimeOf(const DriveSpeed& drive, double read_bytes, double write_bytes) {
  const auto time = [](double bytes, double speed) { return speed > 0 ? bytes / speed : 0; };
  if (drive.shared) return time(read_bytes + write_bytes, drive.read_bytes_a_second);
  return std::max(time(read_bytes, drive.read_bytes_a_second),
                  time(write_bytes, drive.write_bytes_a_second));
}

void Drive::Submit(aio::Operation operation, Bytes size, aio::Priority priority,
                   std::function<void()> done) {
  PENSTOCK_CHECK(size.value > 0);
  const uint64_t blocks = (size.value + speed_.block.value - 1) / speed_.block.value;
  (operation == aio::Operation::kRead ? read_bytes_ : write_bytes_) += size.value;
  waiting_[static_cast<size_t>(priority)].push_back(std::make_shared<Request>(
      Request{operation, size, blocks, submitted_++, priority, std::move(done)}));
  Fill();
}

/// Chooses like aio/request_queue.h. Precondition: a class waits.
size_t Drive::NextClass() const {
  constexpr auto kWriteBack = static_cast<size_t>(aio::Priority::kWriteBack);
  size_t highest = 0;
  while (waiting_[highest].empty()) ++highest;
  if (highest == static_cast<size_t>(aio::Priority::kStateRead) && !waiting_[kWriteBack].empty() &&
      write_backs_on_drive_ < speed_.queue_depth / 2) {
    return kWriteBack;
  }
  size_t chosen = highest;
  for (size_t lower = highest + 1; lower < waiting_.size(); ++lower) {
    if (waiting_[lower].empty() || passed_over_[lower] < aio::kStarvationBound) continue;
    const bool older = waiting_[lower].front()->sequence < waiting_[chosen].front()->sequence;
    if (chosen == highest || older) chosen = lower;
  }
  return chosen;
}

void Drive::Fill() {
  const auto waits = [](const auto& queue) { return !queue.empty(); };
  while (on_drive_ < speed_.queue_depth && std::ranges::any_of(waiting_, waits)) {
    const size_t chosen = NextClass();
    for (size_t lower = chosen + 1; lower < waiting_.size(); ++lower) {
      if (!waiting_[lower].empty()) ++passed_over_[lower];
    }
    passed_over_[chosen] = 0;
    const std::shared_ptr<Request> request = waiting_[chosen].front();
    Enter(request);
    if (request->waiting.value == 0) waiting_[chosen].pop_front();
  }
}

void Drive::Enter(const std::shared_ptr<Request>& request) {
  const Bytes block = std::min(request->waiting, speed_.block);
  request->waiting = request->waiting - block;
  const bool read_pipe = request->operation == aio::Operation::kRead || speed_.shared;
  const double rate = read_pipe ? speed_.read_bytes_a_second : speed_.write_bytes_a_second;
  Seconds& free = pipe_free_[read_pipe ? 0 : 1];
  free = std::max(free, clock_.now());
  if (rate > 0) free += static_cast<double>(block.value) / rate;
  const int write_back = request->priority == aio::Priority::kWriteBack ? 1 : 0;
  ++on_drive_;
  write_backs_on_drive_ += write_back;
  clock_.After(free + speed_.latency - clock_.now(), [this, request, write_back]() {
    --on_drive_;
    write_backs_on_drive_ -= write_back;
    const bool last = --request->blocks == 0;
    Fill();
    if (last) request->done();
  });
}

}  // namespace penstock::sim
