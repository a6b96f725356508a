#include "aio/stall_watch.h"

#include <utility>

#include "aio/completion.h"
#include "base/check.h"

namespace penstock::aio {
namespace {

double InSeconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

}  // namespace

StallWatch::StallWatch(size_t slots, std::chrono::nanoseconds stall_after, std::string drive)
    : stall_after_(stall_after), drive_(std::move(drive)), held_(slots) {}

void StallWatch::Submitted(const BlockOperation& block, Time now) {
  PENSTOCK_CHECK(block.slot < held_.size() && block.request != nullptr, "slot {}", block.slot);
  held_[block.slot] = {block.request, block.offset, Bytes{block.data.size()}, now};
}

bool StallWatch::Returned(uint32_t slot, Time now) {
  PENSTOCK_CHECK(slot < held_.size(), "slot {}", slot);
  held_[slot].request = nullptr;
  last_return_ = now;
  if (!stall_ || stall_->slot != slot || stall_->until) return false;
  stall_->until = now;
  return true;
}

std::string StallWatch::Look(Time now) {
  const bool late = last_look_ && now - *last_look_ > 2 * period();
  last_look_ = now;
  if (stall_ && stall_->until) {
    const Stall over = *std::exchange(stall_, std::nullopt);
    return fmt::format("the drive answers again: {} ended after {:.3g} s", over.block,
                       InSeconds(*over.until - over.since));
  }
  return stall_ || late ? std::string() : LookForStall(now);
}

std::string StallWatch::LookForStall(Time now) {
  const Held* oldest = nullptr;
  size_t stalled = 0;
  for (const Held& held : held_) {
    if (held.request == nullptr || now - held.since < stall_after_) continue;
    ++stalled;
    if (oldest == nullptr || held.since < oldest->since) oldest = &held;
  }
  if (oldest == nullptr) return {};
  std::string block = Describe(*oldest->request, oldest->offset, oldest->size);
  if (oldest->request->about) block += fmt::format(" ({})", oldest->request->about());
  stall_ = Stall{
      .slot = static_cast<uint32_t>(oldest - held_.data()), .block = block, .since = oldest->since};
  const bool others = last_return_ && now - *last_return_ < stall_after_;
  return fmt::format(
      "the drive does not answer{}: {} has been with {} for {:.3g} s{}; see the kernel log for the "
      "state of the drive; the wait continues",
      others ? ", though it answers others" : "", block, drive_, InSeconds(now - oldest->since),
      stalled == 1 ? "" : fmt::format(", and {} more with it", stalled - 1));
}

}  // namespace penstock::aio
