#include "tools/cli/cli_auto.h"

#include <cstdint>
#include <vector>

#include "tools/cli/cli_options.h"

namespace penstock::train {

void AddAutoFlags(CLI::App& command, config::AutoFlags* flags) {
  const RealRange share = {.high = 1};
  const RealRange beta = {.high = 1, .below = true};
  const WholeRange rows = {.low = 1, .high = (uint64_t{1} << 31) - 1};
  const WholeRange steps = {.high = uint64_t{1} << 53};
  const size_t others = command.get_options().size();
  AddReal(command, "--learning-rate", &flags->learning_rate, {}, "optimizer.params.lr");
  AddReal(command, "--adam-beta1", &flags->adam_beta1, beta, "first of optimizer.params.betas");
  AddReal(command, "--adam-beta2", &flags->adam_beta2, beta, "second of optimizer.params.betas");
  AddReal(command, "--adam-epsilon", &flags->adam_epsilon, {}, "optimizer.params.eps");
  AddReal(command, "--weight-decay", &flags->weight_decay, {}, "optimizer.params.weight_decay");
  AddReal(command, "--max-grad-norm", &flags->max_grad_norm, {}, "gradient_clipping");
  CLI::Option* const warmup_steps = AddWhole(command, "--warmup-steps", &flags->warmup_steps, steps,
                                             "scheduler.params.warmup_num_steps");
  AddReal(command, "--warmup-ratio", &flags->warmup_ratio, share,
          "warmup_num_steps as a share of the last step")
      ->excludes(warmup_steps);
  AddWhole(command, "--per-device-train-batch-size", &flags->per_device_train_batch_size, rows,
           "train_micro_batch_size_per_gpu");
  AddWhole(command, "--gradient-accumulation-steps", &flags->gradient_accumulation_steps, rows,
           "gradient_accumulation_steps");
  CLI::Option* const fp16 = command.add_flag("--fp16", flags->fp16, "fp16.enabled");
  command.add_flag("--bf16", flags->bf16, "bf16.enabled")->excludes(fp16);
  const std::vector<CLI::Option*> options = command.get_options();
  for (size_t i = others; i < options.size(); ++i) options[i]->group(kAutoGroup);
}

}  // namespace penstock::train
