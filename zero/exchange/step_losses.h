// The losses of a step's micro-batches, on the device and, from all ranks, on the host.
//
// Kernels add the loss of micro-batch j to the j-th double. When the forward is done, every rank
// gets those of all ranks in the order of the global batch: j · W + q is micro-batch j of rank q of
// W. So their sum is the same for every number of ranks.
//
// Threads: the one that feeds the compute stream.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "device/device.h"
#include "zero/exchange/rank_link.h"

namespace penstock::zero {

class StepLosses {
 public:
  /// What they take of the device. `micro_batches`: the most that a step has of a rank.
  static Bytes DeviceNeed(uint64_t micro_batches, uint32_t ranks) {
    return Bytes{sizeof(double)} * micro_batches * ranks;
  }
  /// What they take of the host: what arrives, and the same in order.
  static Bytes HostNeed(uint64_t micro_batches, uint32_t ranks) {
    return DeviceNeed(micro_batches, ranks) * 2;
  }
  /// `link`: to the other ranks, if there are any; outlives them. Errors: kBudget; kOutOfMemory.
  static Result<std::unique_ptr<StepLosses>> Create(uint64_t micro_batches, device::Device& device,
                                                    RankLink* link);

  /// Returns this rank's losses on the device, [micro_batches], zeroed at the first call of a step.
  /// `micro_batches`: those of the step, alike on all ranks and in all calls; no more than in
  /// Create.
  double* OnDevice(uint64_t micro_batches, device::Stream& compute);
  /// Says that they are complete on the compute stream. `arrived` is called with those of all ranks
  /// when they are on the host, from a thread of the device, and once; after a failure of the
  /// device they are NaN.
  void Share(device::Stream& compute, std::function<void(std::span<const double> losses)> arrived);
  void EndStep() { zeroed_ = false; }

 private:
  StepLosses(uint64_t most, RankLink* link) : most_(most), micro_batches_(most), link_(link) {}
  uint32_t ranks() const { return link_ == nullptr ? 1 : link_->world().size; }
  uint32_t rank() const { return link_ == nullptr ? 0 : link_->world().rank; }
  /// Puts what has arrived into the order of the global batch, and NaN in its place.
  std::span<const double> TakeInOrder(uint64_t micro_batches);

  const uint64_t most_;     ///< micro-batches in a step
  uint64_t micro_batches_;  ///< of this step
  RankLink* const link_;
  bool zeroed_ = false;
  // Each begins with those of the step.
  device::DeviceBuffer device_;  ///< [ranks, micro_batches]
  device::HostBuffer host_;      ///< the same; NaN but between arrival and report
  std::vector<double> ordered_;  ///< [micro_batches, ranks]
};

}  // namespace penstock::zero
