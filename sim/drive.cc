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
  waiting_[static_cast<size_t>(priority)].push_back(
      std::make_shared<Request>(Request{operation, size, blocks, std::move(done)}));
  Fill();
}

void Drive::Fill() {
  for (auto& queue : waiting_) {
    while (!queue.empty() && on_drive_ < speed_.queue_depth) {
      const std::shared_ptr<Request> request = queue.front();
      Enter(request);
      if (request->waiting.value == 0) queue.pop_front();
    }
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
  ++on_drive_;
  clock_.After(free + speed_.latency - clock_.now(), [this, request]() {
    --on_drive_;
    const bool last = --request->blocks == 0;
    Fill();
    if (last) request->done();
  });
}

}  // namespace penstock::sim
