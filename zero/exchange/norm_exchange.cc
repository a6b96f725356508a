#include "zero/exchange/norm_exchange.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "zero/shared_sections.h"
#include "zero/states/trust_sums.h"

namespace penstock::zero {
namespace {

using offload::ModuleId;
using offload::ShardLayout;

/// What comes before a rank's block sums: whether all are finite, and its note.
constexpr uint64_t kBefore = 1 + kStepNoteSize;

/// The doubles of a tensor's figures: of its gradient, of its update, and of its zeros.
constexpr uint64_t kOfTensor = 8;

/// Writes them for each tensor; zeros for those that are not there.
void Put(const StepFigures& figures, std::span<double> out) {
  std::ranges::fill(out, 0.0);
  for (size_t i = 0; i < figures.gradients.size(); ++i) {
    const kernels::GradientFigures& of = figures.gradients[i];
    const double values[] = {of.sum_of_squares, of.largest, static_cast<double>(of.nonfinite)};
    std::ranges::copy(values, out.subspan(kOfTensor * i).begin());
  }
  for (size_t i = 0; i < figures.updates.size(); ++i) {
    const kernels::WeightFigures& of = figures.updates[i];
    const double values[] = {of.sum_of_squares, of.update_sum_of_squares, of.largest};
    std::ranges::copy(values, out.subspan(kOfTensor * i + 3).begin());
  }
  for (size_t i = 0; i < figures.zeros.size(); ++i) {
    out[kOfTensor * i + 6] = static_cast<double>(figures.zeros[i].exact);
    out[kOfTensor * i + 7] = static_cast<double>(figures.zeros[i].rounded);
  }
}

/// Adds those of a rank.
void Add(const double* in, StepFigures& figures) {
  for (size_t i = 0; i < figures.gradients.size(); ++i) {
    const double* const of = in + kOfTensor * i;
    figures.gradients[i].Add({.sum_of_squares = of[0],
                              .largest = static_cast<float>(of[1]),
                              .nonfinite = static_cast<uint64_t>(of[2])});
  }
  for (size_t i = 0; i < figures.updates.size(); ++i) {
    const double* const of = in + kOfTensor * i + 3;
    figures.updates[i].Add({.sum_of_squares = of[0],
                            .update_sum_of_squares = of[1],
                            .largest = static_cast<float>(of[2])});
  }
  for (size_t i = 0; i < figures.zeros.size(); ++i) {
    const double* const of = in + kOfTensor * i + 6;
    figures.zeros[i].Add(
        {.exact = static_cast<uint64_t>(of[0]), .rounded = static_cast<uint64_t>(of[1])});
  }
}

constexpr uint64_t kOfTrust = sizeof(kernels::TrustSums) / sizeof(double);

/// That, and the most block sums that a rank has; or the most sums of squares, which travel when
/// the norm has.
uint64_t PartOfNorm(const ShardLayout& layout, bool trust) {
  uint64_t elements = 0;
  for (const ModuleId module : offload::Ids<ModuleId>(layout.model.modules.size())) {
    elements += MostTrainedElements(layout, module);
  }
  return std::max(kBefore + kOfTensor * layout.model.TensorCount() + elements / kBlockElements,
                  trust ? kOfTrust * TrustBlocks::Most(layout) : 0);
}

}  // namespace

Bytes NormExchange::Need(const ShardLayout& layout, bool trust) {
  return Bytes{sizeof(double)} * PartOfNorm(layout, trust) * layout.world_size;
}

Result<NormExchange> NormExchange::Create(const ShardLayout& layout, bool trust,
                                          device::Device& device, RankLink& link) {
  NormExchange exchange(link);
  exchange.part_ = PartOfNorm(layout, trust);
  exchange.tensors_ = layout.model.TensorCount();
  for (const ModuleId module : offload::Ids<ModuleId>(layout.model.modules.size())) {
    for (const SharedSection& section : SharedSectionsOf(layout, module)) {
      if (!section.trained) continue;
      std::vector<uint64_t>& blocks = exchange.blocks_.emplace_back();
      for (uint32_t rank = 0; rank < layout.world_size; ++rank) {
        blocks.push_back(offload::ShareOf(section.section, layout.world_size, rank).elements /
                         kBlockElements);
      }
    }
  }
  PENSTOCK_ASSIGN(exchange.device_,
                  device.Allocate(Need(layout, trust), "block sums of all ranks"));
  PENSTOCK_ASSIGN(exchange.host_, device.AllocateHost(Need(layout, trust)));
  return exchange;
}

Status NormExchange::GatherParts(const char* what) {
  const Bytes part = Bytes{sizeof(double)} * part_;
  const Bytes begin = part * link_->world().rank;
  device::Stream& stream = link_->stream();
  stream.CopyToDevice(device_.data() + begin.value, host_.data() + begin.value, part);
  link_->AllGather(device_.data(), part, what);
  stream.CopyToHost(host_.data(), device_.data(), part * link_->world().size);
  return stream.Synchronize();
}

Result<std::vector<const kernels::TrustSums*>> NormExchange::Gather(
    std::span<const kernels::TrustSums> mine) {
  PENSTOCK_CHECK(mine.size() * kOfTrust <= part_);
  const auto of_rank = [this](uint32_t rank) {
    return reinterpret_cast<kernels::TrustSums*>(host_.as<double>() + part_ * rank);
  };
  std::ranges::copy(mine, of_rank(link_->world().rank));
  PENSTOCK_TRY(GatherParts("norms of tensors"));
  std::vector<const kernels::TrustSums*> all;
  for (uint32_t rank = 0; rank < link_->world().size; ++rank) all.push_back(of_rank(rank));
  return all;
}

Result<GradientNorm::Value> NormExchange::Combine(const GradientNorm::Blocks& mine,
                                                  StepFigures& figures) {
  double* const own = host_.as<double>() + part_ * link_->world().rank;
  const uint64_t before_sums = kBefore + kOfTensor * tensors_;
  PENSTOCK_CHECK(mine.sums.size() + before_sums <= part_);
  own[0] = mine.finite ? 1 : 0;
  std::ranges::copy(note_, own + 1);
  Put(figures, std::span(own + kBefore, kOfTensor * tensors_));
  std::ranges::copy(mine.sums, own + before_sums);
  PENSTOCK_TRY(GatherParts("gradient norm"));
  GradientNorm::Value value;
  std::vector<const double*> next;
  notes_.resize(link_->world().size);
  std::ranges::fill(figures.gradients, kernels::GradientFigures());
  std::ranges::fill(figures.updates, kernels::WeightFigures());
  std::ranges::fill(figures.zeros, kernels::ZeroCounts());
  for (uint32_t rank = 0; rank < link_->world().size; ++rank) {
    const double* const of_rank = host_.as<double>() + part_ * rank;
    value.finite = value.finite && of_rank[0] != 0;
    std::copy_n(of_rank + 1, kStepNoteSize, notes_[rank].begin());
    Add(of_rank + kBefore, figures);
    next.push_back(of_rank + before_sums);
  }
  double sum = 0;
  for (const std::vector<uint64_t>& section : blocks_) {
    for (size_t rank = 0; rank < section.size(); ++rank) {
      for (uint64_t block = 0; block < section[rank]; ++block) sum += *next[rank]++;
    }
  }
  value.norm = std::sqrt(sum);
  return value;
}

}  // namespace penstock::zero
