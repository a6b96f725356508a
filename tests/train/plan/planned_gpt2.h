// A small GPT-2 and a configuration, as plans take them.
#pragma once

#include <memory>
#include <string>

#include "config/config.h"
#include "train/models/registry.h"
#include "train/plan/budget.h"

namespace penstock::train {

class PlannedGpt2 {
 public:
  /// `config`: JSON of DeepSpeed, without the micro-batch.
  explicit PlannedGpt2(const std::string& json, uint64_t ranks = 1)
      : model_(ParseModel(R"({"model_type": "gpt2", "n_layer": 4, "n_embd": 128, "n_head": 4,
                              "n_positions": 64, "vocab_size": 256})",
                          "test")
                   .value()
                   .described.model),
        spec_(model_->Spec()),
        config_(config::ParseConfig({{"test", json}}, ranks).value()) {
    config_.compute_threads = 1;
    config_.optimizer_threads = 1;
    shape_ = {.micro_batch = config_.micro_batch_size,
              .micro_batches = config_.gradient_accumulation_steps,
              .sequence = 32,
              .checkpoint_home = config_.activation_home};
  }

  const config::Config& config() const { return config_; }
  /// It borrows `config`, which differs from this one's in what plans vary.
  PlannedTraining Training(const config::Config& config) {
    shape_.micro_batch = config.micro_batch_size;
    shape_.micro_batches = config.gradient_accumulation_steps;
    shape_.checkpoint_home = config.activation_home;
    return {.spec = spec_,
            .model = *model_,
            .shape = shape_,
            .config = config,
            .kind = device::Kind::kCpu};
  }
  PlannedTraining Training() { return Training(config_); }

 private:
  std::shared_ptr<const ModelDescription> model_;
  zero::ModelSpec spec_;
  config::Config config_;
  BatchShape shape_;
};

inline constexpr const char* kAllOnNvme = R"({
  "train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": true},
  "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/tmp"},
                        "offload_optimizer": {"device": "nvme", "nvme_path": "/tmp"}},
  "penstock": {"tile_elements": 65536, "tier_split": false}})";

}  // namespace penstock::train
