#include "zero/exchange/zero_counts.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/state/state_operators.h"

namespace penstock::zero {
namespace {

using kernels::ZeroCounts;
using offload::Index;
using offload::ModuleId;

}  // namespace

Bytes ZeroCounter::Need(const offload::ShardLayout& layout, const config::Config& config) {
  return Counts(config) ? Bytes{sizeof(ZeroCounts)} * layout.model.TensorCount() : Bytes{};
}

Result<ZeroCounter> ZeroCounter::Create(const offload::ShardLayout& layout,
                                        const config::Config& config, device::Device& device) {
  ZeroCounter counter;
  counter.counts_ = Counts(config);
  PENSTOCK_ASSIGN(counter.device_, device.Allocate(Need(layout, config), "counts of zeros"));
  PENSTOCK_ASSIGN(counter.host_, device.AllocateHost(Need(layout, config)));
  for (const ModuleId id : offload::Ids<ModuleId>(layout.model.modules.size())) {
    std::vector<Part>& parts = counter.parts_.emplace_back();
    uint64_t before = 0;  // trained tiles lie in the sums one after the other
    for (const offload::TileId tile : layout.TrainedTilesOf(id)) {
      const offload::TileLayout& place = layout.tile(tile);
      size_t index = counter.tensors_;
      for (const offload::TensorLayout& tensor : layout.module(id).tensors) {
        const uint64_t begin = std::max(place.begin, tensor.offset);
        const uint64_t end =
            std::min(place.begin + place.elements, tensor.offset + tensor.elements);
        if (begin < end) parts.push_back({index, before + begin - place.begin, end - begin});
        ++index;
      }
      before += place.elements;
    }
    counter.tensors_ += layout.module(id).tensors.size();
  }
  return counter;
}

void ZeroCounter::BeginStep() {
  counts_step_ = counts_ && steps_ % kCountedSteps == 0;
  stream_ = nullptr;
}

void ZeroCounter::Count(ModuleId module, const FinishedSums& finished) {
  if (!counts_step_) return;
  if (stream_ == nullptr) {
    stream_ = finished.stream;
    stream_->Zero(device_.data(), device_.size());
  }
  PENSTOCK_CHECK(stream_ == finished.stream, "gradients of one step on two streams");
  for (const Part& part : parts_[Index(module)]) {
    finished.operators->AddZeroCounts(*stream_, finished.sums + part.begin, part.elements,
                                      device_.as<ZeroCounts>() + part.tensor);
  }
}

Result<std::vector<ZeroCounts>> ZeroCounter::Take() {
  ++steps_;
  if (stream_ == nullptr) return std::vector<ZeroCounts>();
  stream_->CopyToHost(host_.data(), device_.data(), device_.size());
  PENSTOCK_TRY(stream_->Synchronize());
  const auto* const counts = host_.as<ZeroCounts>();
  return std::vector<ZeroCounts>(counts, counts + tensors_);
}

}  // namespace penstock::zero
