#include "tests/train/models/bigram.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/random.h"

namespace penstock::train {
namespace {

using zero::ModuleId;

constexpr ModuleId kEmbedding{0};
constexpr ModuleId kHead{1};

struct BigramConfig {
  uint64_t vocabulary = 0;
  uint64_t width = 0;
  uint64_t context = 0;
};

/// loss = mean of -log softmax(head · table[token])[target]. What a micro-batch adds to a sum is
/// computed first, from zero.
class Bigram final : public Model {
 public:
  Bigram(const BigramConfig& config, const BatchShape& shape, device::DeviceBuffer activations)
      : vocabulary_(config.vocabulary),
        width_(config.width),
        micro_batch_tokens_(shape.micro_batch * shape.sequence),
        activations_(std::move(activations)),
        logits_(config.vocabulary) {}

  Status ForwardBackward(zero::Step& step, std::span<const int32_t> inputs,
                         std::span<const int32_t> targets) override {
    inputs_.assign(inputs.begin(), inputs.end());
    targets_.assign(targets.begin(), targets.end());
    stream_ = static_cast<device::CpuStream*>(&step.compute_stream());
    PENSTOCK_TRY(Use(step, kEmbedding, [this](const float* table) { LookUp(table); }));
    PENSTOCK_TRY(Use(step, kHead, [this](const float* head) { ComputeLoss(head); }));
    stream_->Call([this, report = step.LossReporter()] { report(MeanLoss()); });
    PENSTOCK_ASSIGN(float* const d_head, step.Gradients(kHead));
    PENSTOCK_TRY(Use(step, kHead, [this, d_head](const float* head) { Back(head, d_head); }));
    PENSTOCK_TRY(step.ReduceGradients(kHead));
    PENSTOCK_ASSIGN(float* const d_table, step.Gradients(kEmbedding));
    stream_->Launch([this, d_table] { AddRows(d_table); });
    return step.ReduceGradients(kEmbedding);
  }

  ComputePlace place() const override { return {}; }
  Result<double> Loss() override {
    PENSTOCK_TRY(stream_->Synchronize());
    return MeanLoss();
  }

 private:
  double MeanLoss() const { return loss_ / static_cast<double>(inputs_.size()); }
  template <typename Kernel>
  Status Use(zero::Step& step, ModuleId module, Kernel kernel) {
    PENSTOCK_ASSIGN(const zero::Use use, step.Acquire(module));
    stream_->Launch(
        [weights = use.weights(), kernel] { kernel(reinterpret_cast<const float*>(weights)); });
    return {};
  }
  /// The row of a token; later its gradient.
  std::span<float> Row(size_t token) {
    return std::span(activations_.as<float>(), inputs_.size() * width_)
        .subspan(token * width_, width_);
  }
  void LookUp(const float* table) {
    for (size_t i = 0; i < inputs_.size(); ++i) {
      std::copy_n(table + static_cast<size_t>(inputs_[i]) * width_, width_, Row(i).begin());
    }
  }
  /// Sets logits_ to log softmax of a row.
  void Predict(const float* head, std::span<const float> row) {
    double sum = 0;
    for (uint64_t v = 0; v < vocabulary_; ++v) {
      logits_[v] = 0;
      for (uint64_t c = 0; c < width_; ++c) logits_[v] += head[v * width_ + c] * row[c];
      sum += std::exp(double{logits_[v]});
    }
    for (float& logit : logits_) logit -= static_cast<float>(std::log(sum));
  }
  void ComputeLoss(const float* head) {
    loss_ = 0;
    for (size_t first = 0; first < inputs_.size(); first += micro_batch_tokens_) {
      double of_micro_batch = 0;
      for (size_t i = first; i < first + micro_batch_tokens_; ++i) {
        Predict(head, Row(i));
        of_micro_batch -= logits_[static_cast<size_t>(targets_[i])];
      }
      loss_ += of_micro_batch;
    }
  }
  void Back(const float* head, float* d_head) {
    AddByMicroBatch(d_head, [&](size_t i, std::span<float> sums) { BackRow(i, head, sums); });
  }
  /// Computes the gradient of a token's row in its place, and adds to that of the head.
  void BackRow(size_t i, const float* head, std::span<float> d_head) {
    Predict(head, Row(i));
    const std::vector<float> row(Row(i).begin(), Row(i).end());
    std::ranges::fill(Row(i), 0.0F);
    for (uint64_t v = 0; v < vocabulary_; ++v) {
      const bool is_target = std::cmp_equal(v, targets_[i]);
      const float d_logit =
          (std::exp(logits_[v]) - (is_target ? 1.0F : 0.0F)) / static_cast<float>(inputs_.size());
      for (uint64_t c = 0; c < width_; ++c) {
        Row(i)[c] += d_logit * head[v * width_ + c];
        d_head[v * width_ + c] += d_logit * row[c];
      }
    }
  }
  void AddRows(float* d_table) {
    AddByMicroBatch(d_table, [this](size_t i, std::span<float> sums) {
      for (uint64_t c = 0; c < width_; ++c) {
        sums[static_cast<size_t>(inputs_[i]) * width_ + c] += Row(i)[c];
      }
    });
  }
  /// Adds to `sums` what add(token, sums) adds for the tokens of each micro-batch.
  template <typename Add>
  void AddByMicroBatch(float* sums, Add add) {
    std::vector<float> of_micro_batch(vocabulary_ * width_);
    for (size_t first = 0; first < inputs_.size(); first += micro_batch_tokens_) {
      std::ranges::fill(of_micro_batch, 0.0F);
      for (size_t i = first; i < first + micro_batch_tokens_; ++i) add(i, of_micro_batch);
      for (size_t k = 0; k < of_micro_batch.size(); ++k) sums[k] += of_micro_batch[k];
    }
  }

  const uint64_t vocabulary_;
  const uint64_t width_;
  const uint64_t micro_batch_tokens_;
  device::DeviceBuffer activations_;  ///< fp32 [tokens, width]
  std::vector<float> logits_;
  std::vector<int32_t> inputs_;
  std::vector<int32_t> targets_;
  double loss_ = 0;  ///< sum over the tokens
  device::CpuStream* stream_ = nullptr;
};

class DescribedBigram final : public ModelDescription {
 public:
  explicit DescribedBigram(const BigramConfig& config) : config_(config) {}

  ModelSizes sizes() const override {
    return {.vocabulary = config_.vocabulary, .positions = config_.context};
  }
  zero::ModelSpec Spec() const override {
    const std::vector<uint64_t> shape = {config_.vocabulary, config_.width};
    return {
        .modules = {{"table", {{"table.weight", shape}}}, {"head", {{"lm_head.weight", shape}}}},
        .step = {{kEmbedding, false}, {kHead, false}, {kHead, true}},
        .gradients = {kHead, kEmbedding}};
  }
  zero::TensorSource Initialization(uint64_t seed) const override {
    return [seed](ModuleId module, size_t, uint64_t begin, std::span<float> values) {
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] =
            static_cast<float>(0.1 * StandardNormal(seed, offload::Index(module), begin + i));
      }
      return Status();
    };
  }
  ActivationBytes Activations(const BatchShape& shape, kernels::DType) const override {
    const Bytes rows = RowBytes(shape);
    return {.device = rows, .bookkeeping = Bytes{2 * sizeof(int32_t)} * Tokens(shape)};
  }
  kernels::OperatorOptions Operators(const BatchShape&, kernels::DType,
                                     int threads) const override {
    return {.threads = threads};
  }
  Result<std::unique_ptr<Model>> Create(const BatchShape& shape, kernels::DType,
                                        device::Device& device,
                                        kernels::ModelOperators&) const override {
    PENSTOCK_ASSIGN(device::DeviceBuffer rows, device.Allocate(RowBytes(shape), "rows"));
    return std::unique_ptr<Model>(std::make_unique<Bigram>(config_, shape, std::move(rows)));
  }
  std::string Identity() const override {
    return nlohmann::json{
        {"model_type", "bigram"}, {"vocab_size", config_.vocabulary}, {"width", config_.width}}
        .dump();
  }

 private:
  static uint64_t Tokens(const BatchShape& shape) {
    return shape.micro_batches * shape.micro_batch * shape.sequence;
  }
  Bytes RowBytes(const BatchShape& shape) const {
    return AlignUp(Bytes{sizeof(float)} * config_.width * Tokens(shape), device::kDeviceAlignment);
  }

  const BigramConfig config_;
};

class Family final : public ModelFamily {
 public:
  std::string_view model_type() const override { return "bigram"; }
  const TensorNames& names() const override {
    static constexpr TensorNames kNames = {.prefix = "bigram.", .embedding = "table.weight"};
    return kNames;
  }
  Result<DescribedModel> Read(ConfigReader& config) const override {
    BigramConfig read = {.vocabulary = 256, .width = 4, .context = 8};
    PENSTOCK_TRY(config.ReadSize({.name = "vocab_size", .most = 1000}, &read.vocabulary));
    PENSTOCK_TRY(config.ReadSize({.name = "width", .most = 1000}, &read.width));
    PENSTOCK_TRY(config.ReadSize({.name = "context", .most = 1000}, &read.context));
    return DescribedModel{.model = std::make_shared<DescribedBigram>(read),
                          .notices = config.TakeNotices("a bigram", {})};
  }
  void CompleteExport(nlohmann::json& config) const override {
    config["architectures"] = {"BigramModel"};
  }
};

}  // namespace

const ModelFamily& BigramFamily() {
  static const Family kFamily;
  return kFamily;
}

}  // namespace penstock::train
