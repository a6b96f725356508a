#include "zero/exchange/gradient_exchange.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace penstock::zero {
namespace {

using offload::Index;
using offload::ShardLayout;

Bytes Floats(uint64_t elements) { return Bytes{sizeof(float)} * elements; }

/// Sizes of buffers, in elements.
struct ExchangeSizes {
  std::vector<uint64_t> whole;
  std::vector<uint64_t> sums;
  uint64_t arriving = 0;
  // Of each module.
  std::vector<std::vector<size_t>> wholes_of;
  std::vector<size_t> sums_of;
};

ExchangeSizes SizesOf(const ModelSpec& model, const ShardLayout& layout,
                      uint32_t repeated_buffers) {
  ExchangeSizes sizes;
  std::optional<size_t> shared_sums;
  std::vector<size_t> shared_wholes;
  uint64_t piece = 0;
  for (const ModuleId id : offload::Ids<ModuleId>(model.modules.size())) {
    const uint64_t whole = WholeGradientElements(layout, id);
    const uint64_t sums = MostTrainedElements(layout, id);
    for (const SharedSection& section : SharedSectionsOf(layout, id)) {
      if (section.trained) piece = std::max(piece, std::min(section.share, kExchangePiece));
    }
    const bool repeated = model.modules[Index(id)].repeated;
    if (!repeated || !shared_sums) {
      const uint32_t buffers = repeated ? repeated_buffers : 1;
      std::vector<size_t> own;
      for (uint32_t i = 0; i < buffers; ++i) {
        own.push_back(sizes.whole.size());
        sizes.whole.push_back(0);
      }
      sizes.sums.push_back(0);
      if (repeated) {
        shared_wholes = own;
        shared_sums = sizes.sums.size() - 1;
      }
      sizes.wholes_of.push_back(std::move(own));
      sizes.sums_of.push_back(sizes.sums.size() - 1);
    } else {
      sizes.wholes_of.push_back(shared_wholes);
      sizes.sums_of.push_back(*shared_sums);
    }
    for (const size_t i : sizes.wholes_of.back()) {
      sizes.whole[i] = std::max(sizes.whole[i], whole);
    }
    uint64_t& most = sizes.sums[sizes.sums_of.back()];
    most = std::max(most, sums);
  }
  sizes.arriving = layout.world_size * piece;
  return sizes;
}

Bytes Aligned(Bytes size) { return AlignUp(size, device::kDeviceAlignment); }

}  // namespace

Bytes GradientExchange::DeviceNeed(const ModelSpec& model, const ShardLayout& layout,
                                   const ExchangeOptions& options) {
  const ExchangeSizes sizes = SizesOf(model, layout, options.repeated_buffers);
  Bytes need = Aligned(SizeOf(options.dtype) * sizes.arriving);
  if (options.dtype != DType::kFloat32) need += Aligned(SizeOf(options.dtype) * sizes.arriving);
  for (const uint64_t elements : sizes.whole) need += Aligned(Floats(elements));
  for (const uint64_t elements : sizes.sums) need += Aligned(Floats(elements));
  return need;
}

Result<std::unique_ptr<GradientExchange>> GradientExchange::Create(
    const ModelSpec& model, const ShardLayout& layout, const ExchangeOptions& options,
    device::Device& device, const kernels::StateOperators& operators, RankLink& link) {
  const ExchangeSizes sizes = SizesOf(model, layout, options.repeated_buffers);
  std::unique_ptr<GradientExchange> exchange(new GradientExchange(link, options));
  PENSTOCK_ASSIGN(exchange->operators_, operators.WithThreads(1));
  for (const uint64_t elements : sizes.whole) {
    PENSTOCK_ASSIGN(device::DeviceBuffer buffer,
                    device.Allocate(Floats(elements), "the gradient of a micro-batch"));
    exchange->wholes_.push_back({.buffer = std::move(buffer)});
  }
  for (const uint64_t elements : sizes.sums) {
    PENSTOCK_ASSIGN(device::DeviceBuffer buffer,
                    device.Allocate(Floats(elements), "sums of gradients"));
    exchange->sums_.push_back({.buffer = std::move(buffer)});
  }
  const Bytes pieces = SizeOf(options.dtype) * sizes.arriving;
  PENSTOCK_ASSIGN(exchange->arriving_, device.Allocate(pieces, "gradients of the other ranks"));
  if (options.dtype != DType::kFloat32) {
    PENSTOCK_ASSIGN(exchange->rounded_, device.Allocate(pieces, "gradients for the other ranks"));
  }
  for (const ModuleId id : offload::Ids<ModuleId>(model.modules.size())) {
    Module module{.name = model.modules[Index(id)].name,
                  .what = "gradient of " + model.modules[Index(id)].name,
                  .whole_size = Floats(WholeGradientElements(layout, id)),
                  .sums_size = Floats(MostTrainedElements(layout, id)),
                  .wholes = sizes.wholes_of[Index(id)],
                  .sums = sizes.sums_of[Index(id)]};
    for (const SharedSection& section : SharedSectionsOf(layout, id)) {
      if (section.trained) module.sections.push_back(section);
    }
    exchange->modules_.push_back(std::move(module));
  }
  return exchange;
}

GradientExchange::Whole* GradientExchange::OpenOf(ModuleId module) {
  for (const size_t i : modules_[Index(module)].wholes) {
    if (wholes_[i].module == module) return &wholes_[i];
  }
  return nullptr;
}

Result<float*> GradientExchange::Buffer(ModuleId module, device::Stream& compute) {
  const Module& entry = modules_[Index(module)];
  if (const Whole* open = OpenOf(module)) return open->buffer.as<float>();
  const Sums& sums = sums_[entry.sums];
  Whole& whole = wholes_[entry.wholes[turn_++ % entry.wholes.size()]];
  if (whole.module || (sums.module && sums.module != module)) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "module {} has gradients while those of module {} are not reduced; repeated "
                     "modules share their buffers: reduce the gradients of one before the next",
                     entry.name, modules_[Index(whole.module ? *whole.module : *sums.module)].name);
  }
  compute.Wait(whole.sent);
  compute.Zero(whole.buffer.data(), entry.whole_size);
  whole.module = module;
  return whole.buffer.as<float>();
}

GradientExchange::Outgoing GradientExchange::RoundPiece(const float* first, uint64_t share,
                                                        uint64_t piece) {
  if (dtype_ == DType::kFloat32) {
    return {.data = reinterpret_cast<const std::byte*>(first), .stride = Floats(share)};
  }
  const Bytes stride = SizeOf(dtype_) * piece;
  for (uint32_t rank = 0; rank < link_.world().size; ++rank) {
    operators_->RoundGradients(link_.stream(), first + rank * share, dtype_, piece,
                               rounded_.data() + (stride * rank).value);
  }
  return {.data = rounded_.data(), .stride = stride};
}

void GradientExchange::Exchange(const Module& module, const SharedSection& section,
                                const float* whole, float* sums) {
  const uint32_t ranks = link_.world().size;
  for (uint64_t done = 0; done < section.share; done += kExchangePiece) {
    const uint64_t piece = std::min(kExchangePiece, section.share - done);
    const Outgoing sent = RoundPiece(whole + section.section.begin + done, section.share, piece);
    link_.AllToAll(sent.data, sent.stride, arriving_.data(), SizeOf(dtype_) * piece, module.what);
    const uint64_t mine = section.mine - std::min(section.mine, done);
    operators_->AddInOrder(
        link_.stream(), sums + done, std::min(piece, mine),
        {.data = arriving_.data(), .dtype = dtype_, .stride = piece, .count = ranks});
  }
}

Status GradientExchange::Add(ModuleId module, device::Stream& compute) {
  Whole* const whole = OpenOf(module);
  if (whole == nullptr) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "a gradient of module {} was added that was not computed; ask for its buffer "
                     "and compute it first",
                     modules_[Index(module)].name);
  }
  if (order_ == config::GradientOrder::kGlobal) Send(module, *whole, compute);
  return {};
}

void GradientExchange::Send(ModuleId module, Whole& whole, device::Stream& compute) {
  const Module& entry = modules_[Index(module)];
  device::Stream& stream = link_.stream();
  stream.Name(entry.what);
  Sums& sums = sums_[entry.sums];
  if (!sums.module) stream.Zero(sums.buffer.data(), entry.sums_size);
  sums.module = module;
  stream.Wait(compute.Record());
  float* part = sums.buffer.as<float>();
  for (const SharedSection& section : entry.sections) {
    Exchange(entry, section, whole.buffer.as<float>(), part);
    part += section.mine;
  }
  whole.sent = stream.Record();
  whole.module.reset();
}

Result<FinishedSums> GradientExchange::Finish(ModuleId module, device::Stream& compute) {
  if (Whole* const whole = OpenOf(module)) Send(module, *whole, compute);
  Sums& sums = sums_[modules_[Index(module)].sums];
  if (sums.module != module) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "the gradients of module {} were reduced, and it has none in this step; ask "
                     "for its sums and compute them first",
                     modules_[Index(module)].name);
  }
  sums.module.reset();
  return FinishedSums{
      .sums = sums.buffer.as<float>(), .stream = &link_.stream(), .operators = operators_.get()};
}

void GradientExchange::EndStep() {
  for (Whole& whole : wholes_) whole.module.reset();
  for (Sums& sums : sums_) sums.module.reset();
  turn_ = 0;
}

}  // namespace penstock::zero
