"""Configurations as users have them: "auto" and the flags that give it a value, files from guides,
and what is said of each. Nothing is said twice."""
import json
import os

import harness
from harness import make_config, merge, read_rows, read_summary

# As transformers' documentation prints it.
TRANSFORMERS = {
    "fp16": {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000},
    "bf16": {"enabled": "auto"},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto",
                                              "weight_decay": "auto"}},
    "scheduler": {"type": "WarmupDecayLR",
                  "params": {"total_num_steps": "auto", "warmup_min_lr": "auto",
                             "warmup_max_lr": "auto", "warmup_num_steps": "auto"}},
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "penstock": {"compute_threads": 1, "commit_every_seconds": 0},
}
FLAGS = ["--learning-rate", "3e-3", "--adam-beta2", "0.95", "--weight-decay", "0.1",
         "--max-grad-norm", "0.5", "--warmup-ratio", "0.25", "--per-device-train-batch-size", "2",
         "--gradient-accumulation-steps", "2", "--bf16"]
# The same numbers, written down.
WRITTEN = {
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-3, "betas": [0.9, 0.95],
                                              "weight_decay": 0.1}},
    "scheduler": {"type": "WarmupDecayLR",
                  "params": {"total_num_steps": 8, "warmup_max_lr": 3e-3, "warmup_num_steps": 2}},
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 0.5,
    "train_micro_batch_size_per_gpu": 2,
    "penstock": {"compute_threads": 1, "commit_every_seconds": 0},
}


class SaidOnceTest(harness.PenstockTest):
    def assert_said_once(self, outcome):
        lines = outcome.stderr.splitlines()
        self.assertEqual(len(set(lines)), len(lines), str(outcome))


class AutoTest(SaidOnceTest):
    def test_flags_give_auto_its_value_and_a_line_says_so(self):
        outcome, run = self.train(TRANSFORMERS, *FLAGS, steps=8)
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assert_said_once(outcome)
        for line in ["optimizer.params.lr: auto -> 0.003 (--learning-rate)",
                     "optimizer.params.betas: auto -> [0.9,0.95] (--adam-beta2, else",
                     "optimizer.params.eps: auto -> 1e-08 (transformers' default)",
                     "scheduler.params.total_num_steps: auto -> 8 (the last step, by --steps)",
                     "scheduler.params.warmup_num_steps: auto -> 2 (--warmup-ratio 0.25 of 8",
                     "scheduler.params.warmup_max_lr: auto -> 0.003 (--learning-rate)",
                     "train_batch_size: auto -> 4 (",
                     "bf16.enabled: auto -> true (--bf16)"]:
            self.assertEqual(outcome.stderr.count(f"penstock: config: {line}"), 1, line)
        self.assertNotIn("precision", outcome.stderr)
        written = self.trained(WRITTEN, steps=8)
        self.assert_equal_bits(run, written)
        self.assertEqual(read_summary(run)["config"], read_summary(written)["config"])

    def test_without_flags_it_is_what_the_trainer_sets(self):
        outcome, run = self.train(TRANSFORMERS, steps=1)
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assertEqual(outcome.stderr.count("precision: fp32"), 1, str(outcome))
        config = read_summary(run)["config"]
        self.assertEqual(config["optimizer"]["params"]["lr"], 5e-5)
        self.assertEqual(config["train_micro_batch_size_per_gpu"], 8)
        self.assertEqual(config["scheduler"]["params"]["warmup_max_lr"], 5e-5)

    def test_a_flag_that_differs_is_refused_with_both_values(self):
        config = make_config()
        for flag, value, key, has in [("--learning-rate", "0.5", "optimizer.params.lr", "0.001"),
                                      ("--max-grad-norm", "0.25", "gradient_clipping", "1.0"),
                                      ("--per-device-train-batch-size", "3",
                                       "train_micro_batch_size_per_gpu", "2")]:
            outcome, run = self.train(config, flag, value, steps=1)
            self.assert_fails(outcome, 2, f"{key}: {has} differs from {flag} {value};")
            self.assertFalse(os.path.exists(run))
        outcome, _ = self.train(config, "--bf16", steps=1)
        self.assert_fails(outcome, 2, "bf16.enabled: false differs from --bf16;")
        outcome, _ = self.train(config, "--warmup-steps", "3", steps=1)
        self.assert_fails(outcome, 2, "--warmup-steps: scheduler.type is not given")
        outcome, _ = self.train(TRANSFORMERS, steps=0)
        self.assert_fails(outcome, 2, "total_num_steps: it depends on the last step, and --steps")

    def test_a_run_keeps_its_numbers_though_auto_would_mean_others(self):
        run = self.trained(WRITTEN, steps=4)
        outcome, _ = self.train(TRANSFORMERS, "--resume", steps=12, out=run)
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assert_said_once(outcome)
        for line in ["optimizer.params.lr: auto -> 0.003 (kept from the run)",
                     "scheduler.params.total_num_steps: auto -> 8 (kept from the run)",
                     "train_micro_batch_size_per_gpu: auto -> 2 (kept from the run)"]:
            self.assertEqual(outcome.stderr.count(line), 1, str(outcome))
        self.assert_equal_bits(run, self.trained(WRITTEN, steps=12))

    def test_the_first_last_step_is_kept_unless_it_is_changed(self):
        run = self.trained(TRANSFORMERS, *FLAGS, steps=8)
        outcome, _ = self.train(TRANSFORMERS, *FLAGS, "--resume", steps=10, out=run)
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assertEqual(read_rows(run)[9]["lr"], 0, "it decayed to 0 at step 8")
        outcome, _ = self.train(TRANSFORMERS, *FLAGS, "--resume", "--change",
                                "scheduler.params.total_num_steps=20", steps=12, out=run)
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assertGreater(read_rows(run)[11]["lr"], 0)
        # A flag with another number is not a requested change.
        other = [*FLAGS[:1], "4e-3", *FLAGS[2:]]
        outcome, _ = self.train(TRANSFORMERS, *other, "--resume", steps=14, out=run)
        self.assert_fails(outcome, 2, "optimizer.params.lr is 0.004, was 0.003")


class GuidesTest(SaidOnceTest):
    def test_an_aio_section_within_zero_optimization_is_accepted_with_one_notice(self):
        home = {"device": "nvme", "nvme_path": self.make_folder("nvme"), "pin_memory": True}
        config = {
            "train_batch_size": 1,
            "zero_optimization": {"stage": 3, "offload_optimizer": home, "offload_param": home,
                                  "aio": {"block_size": 262144, "queue_depth": 32}},
        }
        outcome, run = self.train(config, steps=1)
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assertEqual(outcome.stderr.count("zero_optimization.aio"), 1, str(outcome))
        self.assert_said_once(outcome)
        self.assertEqual(read_summary(run)["config"]["aio"]["queue_depth"], 32)
        outcome, _ = self.train(merge(config, {"aio": {"queue_depth": 8}}), steps=1)
        self.assert_fails(outcome, 2, "zero_optimization.aio.queue_depth: 32 differs from",
                          "aio.queue_depth 8")

    def test_a_batch_for_four_ranks_says_what_fits(self):
        config = {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4,
                  "gradient_accumulation_steps": 2}
        outcome, _ = self.train(config, steps=1)
        self.assert_fails(outcome, 2, "fits 4 ranks: penstock launch --ranks 4, or "
                                      "gradient_accumulation_steps 8 here")
        config["gradient_accumulation_steps"] = 8
        self.trained(config, steps=1)

    def test_a_models_gradient_checkpointing_is_not_followed_without_a_word(self):
        model = self.make_model("other", gradient_checkpointing=False)
        outcome, _ = self.train({"train_batch_size": 1}, steps=0, model=model)
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assertEqual(outcome.stderr.count("gradient_checkpointing false is not followed"), 1)

    def test_each_mistake_has_its_one_line(self):
        zero = {"stage": 3, "offload_optimizer": {"device": "nvme"}}
        file = self.write("file", "x")
        batch = {"train_batch_size": 1}

        def on(path):
            return {**batch, "zero_optimization": merge(
                zero, {"offload_optimizer": {"nvme_path": path}})}

        for code, config, *fragments in [
                (2, "", "config", "not valid JSON"),
                (2, '{"train_batch_size": 1,\n "fp16": {"enabled": false,\n }}', ":2:",
                 "a comma before }"),
                (2, {**batch, "zero_optimisation": zero}, 'unknown key "zero_optimisation"',
                 'did you mean "zero_optimization"?'),
                (2, {**batch, "optimiser": {}}, 'did you mean "optimizer"?'),
                (2, {**batch, "queue_depth": 3}, 'did you mean "aio.queue_depth"?'),
                (2, {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 5},
                 "64 is not", "world size 1 = 60"),
                (2, {**batch, "fp16": {"enabled": True}, "bf16": {"enabled": True}},
                 "bf16 is enabled as well"),
                (2, {**batch, "zero_optimization": zero}, "offload_optimizer.nvme_path: missing"),
                (3, on(self.path("gone")), "gone"),
                (3, on(file), "file"),
                (2, {**batch, "optimizer": {"type": "OneBitAdam"}}, "OneBitAdam"),
        ]:
            with self.subTest(config=json.dumps(config)):
                outcome, run = self.train(config, steps=1)
                self.assert_fails(outcome, code, *fragments)
                self.assert_said_once(outcome)
                self.assertFalse(os.path.exists(run))


if __name__ == "__main__":
    harness.main()
