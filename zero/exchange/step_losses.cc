#include "zero/exchange/step_losses.h"

#include <limits>
#include <utility>

#include "base/check.h"

namespace penstock::zero {
namespace {

constexpr double kNotThere = std::numeric_limits<double>::quiet_NaN();

}  // namespace

Result<std::unique_ptr<StepLosses>> StepLosses::Create(uint64_t micro_batches,
                                                       device::Device& device, RankLink* link) {
  std::unique_ptr<StepLosses> losses(new StepLosses(micro_batches, link));
  const Bytes size = DeviceNeed(micro_batches, losses->ranks());
  PENSTOCK_ASSIGN(losses->device_, device.Allocate(size, "losses"));
  PENSTOCK_ASSIGN(losses->host_, device.AllocateHost(size));
  losses->ordered_.resize(micro_batches * losses->ranks());
  static_cast<void>(losses->TakeInOrder(micro_batches));
  return losses;
}

double* StepLosses::OnDevice(uint64_t micro_batches, device::Stream& compute) {
  PENSTOCK_CHECK(micro_batches <= most_);
  micro_batches_ = micro_batches;
  double* const mine = device_.as<double>() + micro_batches_ * rank();
  if (!std::exchange(zeroed_, true)) {
    compute.Zero(reinterpret_cast<std::byte*>(mine), DeviceNeed(micro_batches_, 1));
  }
  return mine;
}

void StepLosses::Share(device::Stream& compute,
                       std::function<void(std::span<const double> losses)> arrived) {
  device::Stream* stream = &compute;
  if (link_ != nullptr) {
    stream = &link_->stream();
    stream->Wait(compute.Record());
    link_->AllGather(device_.data(), DeviceNeed(micro_batches_, 1), "losses");
  }
  stream->CopyToHost(host_.data(), device_.data(), DeviceNeed(micro_batches_, ranks()));
  stream->Call([this, count = micro_batches_, arrived = std::move(arrived)] {
    arrived(TakeInOrder(count));
  });
}

/// After a failure of the stream nothing is copied: the losses must not be those of an older step.
std::span<const double> StepLosses::TakeInOrder(uint64_t micro_batches) {
  for (uint64_t batch = 0; batch < micro_batches; ++batch) {
    for (uint32_t rank = 0; rank < ranks(); ++rank) {
      double& loss = host_.as<double>()[rank * micro_batches + batch];
      ordered_[batch * ranks() + rank] = std::exchange(loss, kNotThere);
    }
  }
  return std::span(ordered_).first(micro_batches * ranks());
}

}  // namespace penstock::zero
