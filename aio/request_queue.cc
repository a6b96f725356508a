#include "aio/request_queue.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"

namespace penstock::aio {
namespace {

constexpr auto kStateRead = static_cast<size_t>(Priority::kStateRead);
constexpr auto kWriteBack = static_cast<size_t>(Priority::kWriteBack);

/// State reads wait for the memory that write-backs hold, and for none of the reads behind them.
bool FreesMemory(const Request& request) {
  return request.priority == Priority::kWriteBack && request.operation == Operation::kWrite;
}

}  // namespace

void RequestQueue::Push(std::shared_ptr<PendingRequest> request) {
  request->plan = PlanBlocks(request->request, block_size_);
  classes_[static_cast<size_t>(request->request.priority)].push_back(std::move(request));
}

bool RequestQueue::empty() const {
  return std::all_of(classes_.begin(), classes_.end(),
                     [](const auto& requests) { return requests.empty(); });
}

size_t RequestQueue::ChooseClass() const {
  size_t highest = 0;
  while (classes_[highest].empty()) {
    ++highest;
    PENSTOCK_CHECK(highest < classes_.size(), "a block was cut from an empty queue");
  }
  const auto& write_backs = classes_[kWriteBack];
  if (highest == kStateRead && write_backs_out_ < write_back_places_ && !write_backs.empty() &&
      FreesMemory(write_backs.front()->request)) {
    return kWriteBack;
  }
  size_t chosen = highest;
  for (size_t lower = highest + 1; lower < classes_.size(); ++lower) {
    if (classes_[lower].empty() || passed_over_[lower] < kStarvationBound) continue;
    const bool older =
        chosen == highest || classes_[lower].front()->sequence < classes_[chosen].front()->sequence;
    if (older) chosen = lower;
  }
  return chosen;
}

Block RequestQueue::Cut() {
  const size_t chosen = ChooseClass();
  for (size_t lower = chosen + 1; lower < classes_.size(); ++lower) {
    if (!classes_[lower].empty()) ++passed_over_[lower];
  }
  passed_over_[chosen] = 0;

  auto& requests = classes_[chosen];
  PendingRequest& request = *requests.front();
  if (FreesMemory(request.request)) ++write_backs_out_;
  const BlockPart part = BlockAt(request.plan, request.cut);
  Block block{.request = requests.front(),
              .begin = request.cut,
              .size = part.size,
              .buffered = part.buffered};
  request.cut += part.size;
  ++request.open_blocks;
  if (request.cut == request.plan.size) requests.pop_front();
  return block;
}

void RequestQueue::GiveBack(const Block& block) {
  if (FreesMemory(block.request->request)) --write_backs_out_;
}

void RequestQueue::Abandon(const PendingRequest& request) {
  // Only the front of a class can be cut in part.
  auto& requests = classes_[static_cast<size_t>(request.request.priority)];
  if (!requests.empty() && requests.front().get() == &request) requests.pop_front();
}

std::vector<std::shared_ptr<PendingRequest>> RequestQueue::TakeAll() {
  std::vector<std::shared_ptr<PendingRequest>> all;
  for (auto& requests : classes_) {
    std::ranges::move(requests, std::back_inserter(all));
    requests.clear();
  }
  return all;
}

}  // namespace penstock::aio
