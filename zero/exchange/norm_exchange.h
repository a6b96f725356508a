// The gradient norm over all ranks: each gives the block sums of its share, and all combine them in
// the order of the flat index, as a rank that holds everything would. The figures by tensor go with
// them. So do, later in the step, the sums of squares of rules with trust ratios.
//
// A step sends N / 512 bytes in all, of N elements, and 64 bytes a tensor and rank; with trust
// ratios, N / 256 bytes and 32 bytes a tensor more at the most.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "device/device.h"
#include "kernels/state/lamb.h"
#include "offload/layout.h"
#include "zero/exchange/rank_link.h"
#include "zero/gradient_norm.h"
#include "zero/states/tensor_figures.h"
#include "zero/step_note.h"

namespace penstock::zero {

class NormExchange {
 public:
  /// What it takes of the device, and the same once more of the host. `trust`: for a rule with
  /// trust ratios.
  static Bytes Need(const offload::ShardLayout& layout, bool trust);
  /// The link outlives it. Errors: kBudget; kOutOfMemory.
  static Result<NormExchange> Create(const offload::ShardLayout& layout, bool trust,
                                     device::Device& device, RankLink& link);

  /// Gives this rank's blocks and figures and waits for those of the others; makes `figures` those
  /// of all. Figures that are not there on one rank are on none. Errors: of the link.
  Result<GradientNorm::Value> Combine(const GradientNorm::Blocks& mine, StepFigures& figures);
  /// Gives this rank's sums of a first pass, and waits for those of the others. Returns all, by
  /// rank, valid until the next call of this or of Combine. Errors: of the link.
  Result<std::vector<const kernels::TrustSums*>> Gather(std::span<const kernels::TrustSums> mine);
  /// Sets what the next Combine tells the other ranks; returns what the last one told, by rank.
  void SetNote(const StepNote& note) { note_ = note; }
  std::span<const StepNote> notes() const { return notes_; }

 private:
  explicit NormExchange(RankLink& link) : link_(&link) {}

  /// Gathers every rank's part of the buffer, whose own is filled.
  Status GatherParts(const char* what);

  RankLink* link_;
  /// For each trained section, in the order of the flat index, the number of blocks that each rank
  /// has of it.
  std::vector<std::vector<uint64_t>> blocks_;
  /// Doubles of a rank: whether all is finite, its note, the figures of its tensors, and its block
  /// sums; or its sums of squares, if these take more.
  uint64_t part_ = 0;
  uint64_t tensors_ = 0;
  device::DeviceBuffer device_;  ///< [ranks, part]
  device::HostBuffer host_;      ///< the same
  StepNote note_{};
  std::vector<StepNote> notes_;  ///< notes by rank
};

}  // namespace penstock::zero
