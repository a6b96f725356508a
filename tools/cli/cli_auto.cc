#include "tools/cli/cli_auto.h"

#include <cstdint>
#include <optional>

#include "base/units.h"
#include "tools/cli/cli_checks.h"

namespace penstock::train {
namespace {

constexpr uint64_t kMaxRows = (uint64_t{1} << 31) - 1;
constexpr uint64_t kMaxWarmupSteps = uint64_t{1} << 53;

std::optional<double> RealOrNone(const std::string& text) {
  if (text.empty()) return std::nullopt;
  return ParseReal(text).value();  // checked by RealCheck
}

std::optional<int64_t> WholeOrNone(const std::string& text) {
  if (text.empty()) return std::nullopt;
  return static_cast<int64_t>(ParseWhole(text).value());  // checked by WholeCheck
}

}  // namespace

void AddAutoFlags(CLI::App& command, AutoArguments* arguments) {
  const auto add = [&command](const char* flag, std::string& text, const CLI::Validator& check,
                              const char* key) {
    command.add_option(flag, text, key)->check(check)->group(kAutoGroup);
  };
  const RealRange share = {.high = 1};
  const RealRange beta = {.high = 1, .below = true};
  add("--learning-rate", arguments->learning_rate, RealCheck(), "optimizer.params.lr");
  add("--adam-beta1", arguments->adam_beta1, RealCheck(beta), "first of optimizer.params.betas");
  add("--adam-beta2", arguments->adam_beta2, RealCheck(beta), "second of optimizer.params.betas");
  add("--adam-epsilon", arguments->adam_epsilon, RealCheck(), "optimizer.params.eps");
  add("--weight-decay", arguments->weight_decay, RealCheck(), "optimizer.params.weight_decay");
  add("--max-grad-norm", arguments->max_grad_norm, RealCheck(), "gradient_clipping");
  add("--warmup-steps", arguments->warmup_steps, WholeCheck({.high = kMaxWarmupSteps}),
      "scheduler.params.warmup_num_steps");
  add("--warmup-ratio", arguments->warmup_ratio, RealCheck(share),
      "warmup_num_steps as a share of the last step");
  add("--per-device-train-batch-size", arguments->per_device_train_batch_size,
      WholeCheck({.low = 1, .high = kMaxRows}), "train_micro_batch_size_per_gpu");
  add("--gradient-accumulation-steps", arguments->gradient_accumulation_steps,
      WholeCheck({.low = 1, .high = kMaxRows}), "gradient_accumulation_steps");
  command.add_flag("--fp16", arguments->fp16, "fp16.enabled")->group(kAutoGroup);
  command.add_flag("--bf16", arguments->bf16, "bf16.enabled")->group(kAutoGroup);
}

Result<config::AutoFlags> MakeAutoFlags(const AutoArguments& arguments) {
  if (arguments.fp16 && arguments.bf16) {
    return MakeError(ErrorCode::kInvalidArgument, "--fp16 and --bf16 exclude each other; keep one");
  }
  if (!arguments.warmup_steps.empty() && !arguments.warmup_ratio.empty()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "--warmup-steps and --warmup-ratio set the same key; keep one");
  }
  return config::AutoFlags{
      .learning_rate = RealOrNone(arguments.learning_rate),
      .adam_beta1 = RealOrNone(arguments.adam_beta1),
      .adam_beta2 = RealOrNone(arguments.adam_beta2),
      .adam_epsilon = RealOrNone(arguments.adam_epsilon),
      .weight_decay = RealOrNone(arguments.weight_decay),
      .max_grad_norm = RealOrNone(arguments.max_grad_norm),
      .warmup_steps = WholeOrNone(arguments.warmup_steps),
      .warmup_ratio = RealOrNone(arguments.warmup_ratio),
      .per_device_train_batch_size = WholeOrNone(arguments.per_device_train_batch_size),
      .gradient_accumulation_steps = WholeOrNone(arguments.gradient_accumulation_steps),
      .fp16 = arguments.fp16,
      .bf16 = arguments.bf16};
}

}  // namespace penstock::train
