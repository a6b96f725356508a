#include "aio/throttled_drive.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace penstock::aio {

SpeedModel::Time SpeedModel::Enter(Operation operation, Bytes size, Time now) {
  const bool read_pipe = operation == Operation::kRead || speed_.shared;
  const double gbps = read_pipe ? speed_.read_gbps : speed_.write_gbps;
  // One GB/s is one byte a nanosecond.
  const double passing_ns = gbps > 0 ? static_cast<double>(size.value) / gbps : 0;
  const std::chrono::duration<double, std::nano> passing(passing_ns);
  const std::chrono::duration<double, std::micro> latency(speed_.latency_us);

  Time& free = pipe_free_[read_pipe ? 0 : 1];
  free = std::max(free, now) + std::chrono::duration_cast<std::chrono::nanoseconds>(passing);
  return free + std::chrono::duration_cast<std::chrono::nanoseconds>(latency);
}

ThrottledDrive::ThrottledDrive(std::unique_ptr<ThreadDrive> base, const SimulatedDrive& speed,
                               int queue_depth)
    : base_(std::move(base)), model_(speed), due_(static_cast<size_t>(queue_depth)) {}

void ThrottledDrive::Submit(const BlockOperation& block) {
  due_[block.slot] =
      model_.Enter(block.operation, Bytes{block.data.size()}, std::chrono::steady_clock::now());
  base_->Submit(block);
}

void ThrottledDrive::ReportDue(std::vector<BlockResult>& results) {
  const auto now = std::chrono::steady_clock::now();
  while (!waiting_.empty() && waiting_.front().due <= now) {
    std::pop_heap(waiting_.begin(), waiting_.end(), DueLater);
    results.push_back(waiting_.back().result);
    waiting_.pop_back();
  }
}

void ThrottledDrive::Reap(bool wait, std::vector<BlockResult>& results) {
  // What is due goes before moving the bytes of the next block.
  ReportDue(results);
  if (!wait || !results.empty()) return;
  std::optional<SpeedModel::Time> deadline;
  if (!waiting_.empty()) deadline = waiting_.front().due;
  std::vector<BlockResult> moved;
  base_->ReapUntil(deadline, moved);
  for (const BlockResult& result : moved) {
    waiting_.push_back({due_[result.slot], result});
    std::push_heap(waiting_.begin(), waiting_.end(), DueLater);
  }
  ReportDue(results);
}

}  // namespace penstock::aio
