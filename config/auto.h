// Determines the value of an "auto" key: the first of a flag, the resumed run, transformers'
// Trainer and the key's default. docs/config.md has the rule.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace penstock::config {

/// Values that were given beside the configuration, on the command line or by a program. The names
/// are those of transformers' TrainingArguments. A flag gives its value to a key that says "auto"
/// or is not there.
struct AutoFlags {
  std::optional<double> learning_rate;
  std::optional<double> adam_beta1;
  std::optional<double> adam_beta2;
  std::optional<double> adam_epsilon;
  std::optional<double> weight_decay;
  std::optional<double> max_grad_norm;
  std::optional<int64_t> warmup_steps;
  std::optional<double> warmup_ratio;  ///< share of the last step, in [0, 1]; not with warmup_steps
  std::optional<int64_t> per_device_train_batch_size;
  std::optional<int64_t> gradient_accumulation_steps;
  bool fp16 = false;
  bool bf16 = false;

  bool operator==(const AutoFlags&) const = default;
};

/// The sources of values for "auto".
struct AutoSources {
  AutoFlags flags = {};
  /// A resumed run's values: a JSON object of configuration keys with which the last commit was
  /// computed. Empty: none.
  std::string resumed = {};
};

/// A key that got its value so.
struct AutomaticKey {
  std::string path;
  bool given = true;  ///< it is "auto"; false: it is missing
  std::string value;  ///< JSON
  std::string source;
  bool operator==(const AutomaticKey&) const = default;
};

/// "optimizer.params.lr: auto -> 5e-05 (--learning-rate)".
std::string ToText(const AutomaticKey& key);

}  // namespace penstock::config
