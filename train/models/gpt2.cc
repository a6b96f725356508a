// One step of GPT-2, module by module. Gradients are added micro-batch by micro-batch, and reduced
// as they complete: ln_f after the head, h.L-1 … h.0 each after its backward, wpe and wte at the
// end. wte's sum gets the head's part first, then the embedding's, each in the order of the
// micro-batches.
#include "train/models/gpt2.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "train/models/gpt2_buffers.h"
#include "train/models/gpt2_layer.h"
#include "train/models/gpt2_spec.h"

namespace penstock::train {
namespace {

using zero::ModuleId;

constexpr double kNoLoss = std::numeric_limits<double>::quiet_NaN();

/// Whether what a call adds to a table is computed first; see OperatorOptions and
/// ModelOperators::EmbeddingBackward. With several ranks, each call has a gradient of its own to
/// add to. The head needs no other operators for a step of one micro-batch: it adds to zeros then.
bool AddsOnce(uint64_t micro_batches, uint64_t ranks) { return micro_batches > 1 && ranks == 1; }

/// A module in use, with its tensors by name.
class HeldModule {
 public:
  static Result<HeldModule> Acquire(zero::Step& step, ModuleId module) {
    PENSTOCK_ASSIGN(zero::Use use, step.Acquire(module));
    const ModuleTensors tensors{&step.layout(), module, use.weights()};
    return HeldModule(tensors, std::move(use));
  }
  /// Gives the tensors somewhere to add the gradient of a micro-batch, until it is added.
  Status BeginGradient(zero::Step& step) {
    PENSTOCK_ASSIGN(tensors_.gradients, step.Gradients(tensors_.module));
    return {};
  }

  const ModuleTensors& tensors() const { return tensors_; }

 private:
  HeldModule(ModuleTensors tensors, zero::Use use) : tensors_(tensors), use_(std::move(use)) {}

  ModuleTensors tensors_;
  zero::Use use_;
};

/// What goes to the device and comes from it in a step, in memory that it copies from and to.
struct Staging {
  device::HostBuffer tokens;   ///< int32: inputs, then targets
  device::HostBuffer largest;  ///< as Gpt2Buffers has them
  device::Event copied;        ///< once reached, the tokens may be overwritten
};

class Gpt2Model final : public Gpt2 {
 public:
  Gpt2Model(const Gpt2Config& config, const BatchShape& shape, kernels::DType dtype,
            kernels::ModelOperators& operators, Gpt2Buffers buffers, Staging staging)
      : modules_(config),
        dtype_(dtype),
        most_micro_batches_(shape.micro_batches),
        micro_batches_(shape.micro_batches),
        micro_batch_(shape.micro_batch),
        ranks_(shape.ranks),
        sequence_(shape.sequence),
        vocabulary_(config.vocab_size),
        operators_(operators),
        buffers_(std::move(buffers)),
        layer_(config, shape, dtype, operators, buffers_.workspace),
        staging_(std::move(staging)) {}
  ~Gpt2Model() override { done_.Wait(); }

  Status ForwardBackward(zero::Step& step, std::span<const int32_t> inputs,
                         std::span<const int32_t> targets) override;
  Result<double> Loss() override;
  ComputePlace place() const override { return place_; }
  std::vector<LayerMagnitudes> Magnitudes() override;

 private:
  /// Takes the number of micro-batches of the step that begins.
  void BeginStep(uint64_t micro_batches);
  uint64_t tokens() const { return micro_batches_ * micro_batch_ * sequence_; }
  uint64_t tokens_of_all_ranks() const { return tokens() * ranks_; }
  kernels::TokenView TokensFrom(uint64_t first) const {
    return {.batch = micro_batch_,
            .sequence = sequence_,
            .data = buffers_.tokens.as<int32_t>() + first};
  }
  float* largest(uint64_t index) const { return buffers_.largest.as<float>() + index; }
  kernels::TokenView inputs(uint64_t micro_batch) const {
    return TokensFrom(micro_batch * micro_batch_ * sequence_);
  }
  kernels::TokenView targets(uint64_t micro_batch) const {
    return TokensFrom(tokens() + micro_batch * micro_batch_ * sequence_);
  }

  /// The input of a layer in a micro-batch, for kernels up to EndKernel.
  std::byte* Checkpoint(uint64_t layer, uint64_t micro_batch, bool write) {
    const uint64_t index = layer * micro_batches_ + micro_batch;
    return buffers_.checkpoints.Access(static_cast<uint32_t>(index), write, *stream_);
  }
  void CopyTokens(device::Stream& stream, std::span<const int32_t> inputs,
                  std::span<const int32_t> targets);
  Status ReportLosses(zero::Step& step);
  /// Says that what follows is computed with this module.
  void Enter(bool backward, uint64_t micro_batch, const ModuleTensors& tensors) {
    place_ = {.backward = backward,
              .module = tensors.module,
              .micro_batch = micro_batch,
              .weights = tensors.weights,
              .gradients = tensors.gradients};
  }
  Status Enqueue(zero::Step& step);
  Status EmbeddingForward(zero::Step& step);
  Status LayerForward(zero::Step& step, uint64_t index);
  Status Head(zero::Step& step);
  Status LayerBackward(zero::Step& step, uint64_t index);
  Status EmbeddingBackward(zero::Step& step);

  const Gpt2Modules modules_;
  const kernels::DType dtype_;
  const uint64_t most_micro_batches_;
  uint64_t micro_batches_;      ///< micro-batches of this step
  const uint64_t micro_batch_;  ///< sequences
  const uint64_t ranks_;
  const uint64_t sequence_;
  const uint64_t vocabulary_;
  kernels::ModelOperators& operators_;
  Gpt2Buffers buffers_;
  Gpt2Layer layer_;
  Staging staging_;
  double loss_ = kNoLoss;             ///< of the last ForwardBackward, once the stream has done it
  device::Stream* stream_ = nullptr;  ///< of the last ForwardBackward
  device::Event done_;                ///< all work of the last ForwardBackward
  ComputePlace place_;
};

Status Gpt2Model::ForwardBackward(zero::Step& step, std::span<const int32_t> inputs,
                                  std::span<const int32_t> targets) {
  const offload::ModelLayout& layout = step.layout().model;
  for (const offload::GroupLayout& group : layout.groups) {
    PENSTOCK_CHECK(group.planes.weight().encoding == EncodingOf(dtype_));
  }
  PENSTOCK_CHECK(layout.modules.size() == modules_.layers + 3);
  BeginStep(inputs.size() / (micro_batch_ * sequence_));
  PENSTOCK_CHECK(inputs.size() == tokens() && targets.size() == tokens());
  stream_ = &step.compute_stream();
  CopyTokens(*stream_, inputs, targets);
  stream_->Zero(buffers_.largest.data(), buffers_.largest.size());
  Status status = Enqueue(step);
  stream_->CopyToHost(staging_.largest.data(), buffers_.largest.data(), buffers_.largest.size());
  done_ = stream_->Record();
  return status;
}

void Gpt2Model::BeginStep(uint64_t micro_batches) {
  PENSTOCK_CHECK(micro_batches > 0 && micro_batches <= most_micro_batches_);
  if (std::exchange(micro_batches_, micro_batches) != micro_batches) {
    buffers_.PlanSteps(modules_.layers, micro_batches);
  }
  buffers_.checkpoints.BeginStep();
}

Result<double> Gpt2Model::Loss() {
  PENSTOCK_CHECK(stream_ != nullptr, "no step was computed");
  PENSTOCK_TRY(stream_->Synchronize());
  PENSTOCK_TRY(buffers_.checkpoints.Synchronize());
  return loss_;
}

std::vector<LayerMagnitudes> Gpt2Model::Magnitudes() {
  const auto* const of_step = staging_.largest.as<float>();
  std::vector<LayerMagnitudes> layers;
  for (uint64_t i = 0; i < modules_.layers; ++i) {
    layers.push_back({.attention = of_step[2 * i + 1], .residual = of_step[2 * i + 2]});
  }
  return layers;
}

/// They are complete on the stream: updates of the step wait for them.
Status Gpt2Model::ReportLosses(zero::Step& step) {
  return step.ReportLosses(tokens_of_all_ranks(), [this](double loss) { loss_ = loss; });
}

void Gpt2Model::CopyTokens(device::Stream& stream, std::span<const int32_t> inputs,
                           std::span<const int32_t> targets) {
  staging_.copied.Wait();
  const std::span<int32_t> staged(staging_.tokens.as<int32_t>(), 2 * tokens());
  std::ranges::copy(inputs, staged.begin());
  std::ranges::copy(targets, staged.subspan(inputs.size()).begin());
  for (const int32_t token : staged) {
    PENSTOCK_CHECK(token >= 0 && static_cast<uint64_t>(token) < vocabulary_, "token {}", token);
  }
  stream.CopyToDevice(buffers_.tokens.data(), staging_.tokens.data(), Bytes{staged.size_bytes()});
  staging_.copied = stream.Record();
}

Status Gpt2Model::Enqueue(zero::Step& step) {
  PENSTOCK_TRY(EmbeddingForward(step));
  for (uint64_t i = 0; i < modules_.layers; ++i) PENSTOCK_TRY(LayerForward(step, i));
  PENSTOCK_TRY(Head(step));
  for (uint64_t i = modules_.layers; i-- > 0;) PENSTOCK_TRY(LayerBackward(step, i));
  return EmbeddingBackward(step);
}

Status Gpt2Model::EmbeddingForward(zero::Step& step) {
  PENSTOCK_ASSIGN(const HeldModule wte, HeldModule::Acquire(step, modules_.wte()));
  PENSTOCK_ASSIGN(const HeldModule wpe, HeldModule::Acquire(step, modules_.wpe()));
  for (uint64_t m = 0; m < micro_batches_; ++m) {
    Enter(false, m, wte.tensors());
    operators_.EmbeddingForward(*stream_, inputs(m), wte.tensors().weight(kTable),
                                wpe.tensors().weight(kTable), layer_.Rows(Checkpoint(0, m, true)));
    buffers_.checkpoints.EndKernel(*stream_);
  }
  return {};
}

Status Gpt2Model::LayerForward(zero::Step& step, uint64_t index) {
  PENSTOCK_ASSIGN(const HeldModule held, HeldModule::Acquire(step, modules_.layer(index)));
  const ModuleTensors& tensors = held.tensors();
  for (uint64_t m = 0; m < micro_batches_; ++m) {
    const std::byte* const x = Checkpoint(index, m, false);
    std::byte* const out =
        index + 1 < modules_.layers ? Checkpoint(index + 1, m, true) : buffers_.outputs[m].data();
    Enter(false, m, tensors);
    layer_.Forward(*stream_, tensors, layer_.Rows(x), layer_.Rows(out), largest(2 * index));
    buffers_.checkpoints.EndKernel(*stream_);
  }
  return {};
}

/// ln_f, logits, loss and back. The gradient is computed into the dead norm buffer, which then
/// changes places with the last layer's output.
Status Gpt2Model::Head(zero::Step& step) {
  {
    PENSTOCK_ASSIGN(HeldModule ln_f, HeldModule::Acquire(step, modules_.ln_f()));
    PENSTOCK_ASSIGN(HeldModule wte, HeldModule::Acquire(step, modules_.wte()));
    PENSTOCK_ASSIGN(double* const losses, step.Losses(micro_batches_));
    const ModuleTensors& norm_tensors = ln_f.tensors();
    const ModuleTensors& table = wte.tensors();
    const auto gradient_scale =
        static_cast<float>(step.loss_scale() / static_cast<double>(tokens_of_all_ranks()));
    Gpt2Workspace& workspace = buffers_.workspace;
    for (uint64_t m = 0; m < micro_batches_; ++m) {
      PENSTOCK_TRY(ln_f.BeginGradient(step));
      PENSTOCK_TRY(wte.BeginGradient(step));
      device::DeviceBuffer& x = buffers_.outputs[m];
      const kernels::TensorView norm = layer_.Rows(workspace.norm.data());
      const kernels::TensorView d_norm = layer_.Rows(workspace.attention.data());
      Enter(false, m, norm_tensors);
      layer_.Norm(*stream_, norm_tensors, kFinalNorm, layer_.Rows(x.data()),
                  largest(2 * modules_.layers));
      Enter(true, m, table);
      operators_.HeadForwardBackward(*stream_, norm, table.weight(kTable), targets(m),
                                     gradient_scale, losses + m, d_norm, table.gradient(kTable));
      Enter(true, m, norm_tensors);
      layer_.NormBackward(*stream_, norm_tensors, kFinalNorm, layer_.Rows(x.data()), d_norm, false,
                          norm);
      std::swap(x, workspace.norm);
      PENSTOCK_TRY(step.AddGradients(modules_.ln_f()));
      PENSTOCK_TRY(step.AddGradients(modules_.wte()));
    }
  }
  PENSTOCK_TRY(ReportLosses(step));
  return step.ReduceGradients(modules_.ln_f());
}

Status Gpt2Model::LayerBackward(zero::Step& step, uint64_t index) {
  {
    PENSTOCK_ASSIGN(HeldModule held, HeldModule::Acquire(step, modules_.layer(index)));
    for (uint64_t m = 0; m < micro_batches_; ++m) {
      PENSTOCK_TRY(held.BeginGradient(step));
      Enter(true, m, held.tensors());
      layer_.Backward(*stream_, held.tensors(), layer_.Rows(Checkpoint(index, m, false)),
                      layer_.Rows(buffers_.outputs[m].data()));
      buffers_.checkpoints.EndKernel(*stream_);
      PENSTOCK_TRY(step.AddGradients(modules_.layer(index)));
    }
  }
  return step.ReduceGradients(modules_.layer(index));
}

Status Gpt2Model::EmbeddingBackward(zero::Step& step) {
  const auto gradients = [&](ModuleId module) -> Result<ModuleTensors> {
    PENSTOCK_ASSIGN(float* sums, step.Gradients(module));
    return ModuleTensors{&step.layout(), module, nullptr, sums};
  };
  for (uint64_t m = 0; m < micro_batches_; ++m) {
    PENSTOCK_ASSIGN(const ModuleTensors d_wte, gradients(modules_.wte()));
    PENSTOCK_ASSIGN(const ModuleTensors d_wpe, gradients(modules_.wpe()));
    Enter(true, m, d_wte);
    operators_.EmbeddingBackward(*stream_, inputs(m), layer_.Rows(buffers_.outputs[m].data()),
                                 AddsOnce(micro_batches_, ranks_), d_wte.gradient(kTable),
                                 d_wpe.gradient(kTable));
    PENSTOCK_TRY(step.AddGradients(modules_.wpe()));
    PENSTOCK_TRY(step.AddGradients(modules_.wte()));
  }
  PENSTOCK_TRY(step.ReduceGradients(modules_.wpe()));
  return step.ReduceGradients(modules_.wte());
}

}  // namespace

kernels::OperatorOptions Gpt2Operators(const Gpt2Config& config, const BatchShape& shape,
                                       kernels::DType dtype, int threads) {
  const uint64_t rows = SaturatingMultiply(shape.micro_batch, shape.sequence);
  const uint64_t width = config.n_embd;
  const uint64_t hidden = config.hidden();
  const auto linear = [&](uint64_t k, uint64_t n) {
    return kernels::LinearCall{.dtype = dtype, .rows = rows, .k = k, .n = n};
  };
  return {
      .calls =
          {
              linear(width, SaturatingMultiply(3, width)),
              linear(width, width),
              linear(width, hidden),
              linear(hidden, width),
              kernels::LinearGeluCall{
                  .dtype = dtype, .rows = rows, .width = width, .hidden = hidden},
              kernels::AttentionCall{.dtype = dtype,
                                     .batch = shape.micro_batch,
                                     .sequence = shape.sequence,
                                     .width = width,
                                     .heads = config.n_head},
              kernels::HeadCall{
                  .dtype = dtype, .rows = rows, .width = width, .vocabulary = config.vocab_size},
              kernels::LayerNormCall{.dtype = dtype, .rows = rows, .width = width},
              kernels::EmbeddingCall{.dtype = dtype, .rows = rows, .width = width},
          },
      // Every tensor of a layer has a multiple of so many elements.
      .weight_unit = std::gcd(width, hidden),
      .adds_once = AddsOnce(shape.micro_batches, shape.ranks),
      .threads = threads};
}

Result<std::unique_ptr<Gpt2>> Gpt2::Create(const Gpt2Config& config, const BatchShape& shape,
                                           kernels::DType dtype, device::Device& device,
                                           kernels::ModelOperators& operators) {
  PENSTOCK_CHECK(shape.micro_batch > 0 && shape.micro_batches > 0 && shape.sequence > 0);
  if (shape.sequence > config.n_positions) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "a sequence of {} tokens does not fit the model's n_positions of {}; choose a "
                     "shorter --sequence-length",
                     shape.sequence, config.n_positions);
  }
  PENSTOCK_ASSIGN(Gpt2Buffers buffers, Gpt2Buffers::Allocate(config, shape, dtype, device));
  Staging staging;
  PENSTOCK_ASSIGN(staging.tokens, device.AllocateHost(buffers.tokens.size()));
  PENSTOCK_ASSIGN(staging.largest, device.AllocateHost(buffers.largest.size()));
  return std::unique_ptr<Gpt2>(std::make_unique<Gpt2Model>(config, shape, dtype, operators,
                                                           std::move(buffers), std::move(staging)));
}

}  // namespace penstock::train
