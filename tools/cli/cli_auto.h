// The flags of `train`, and of tools that read the same configuration, that give "auto" its value,
// named as in transformers' TrainingArguments.
//
// Threads: the main thread.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "base/result.h"
#include "config/auto.h"

namespace penstock::train {

/// What CLI11 fills in; numbers still as text.
struct AutoArguments {
  std::string learning_rate;
  std::string adam_beta1;
  std::string adam_beta2;
  std::string adam_epsilon;
  std::string weight_decay;
  std::string max_grad_norm;
  std::string warmup_steps;
  std::string warmup_ratio;
  std::string per_device_train_batch_size;
  std::string gradient_accumulation_steps;
  bool fp16 = false;
  bool bf16 = false;
};

/// The group of these flags among the options of a command.
inline constexpr const char* kAutoGroup = "Values where the config says \"auto\"";

/// Adds the flags to `command`, in kAutoGroup. `arguments` must outlive it.
void AddAutoFlags(CLI::App& command, AutoArguments* arguments);

/// Errors: kInvalidArgument for two flags that contradict each other.
Result<config::AutoFlags> MakeAutoFlags(const AutoArguments& arguments);

}  // namespace penstock::train
