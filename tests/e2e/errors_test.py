"""Twenty errors that people who offload meet, in the order of a guide for DeepSpeed: each, provoked,
gives one line that says what is wrong and what to do, and nothing is said twice. Other tests look
closer at them."""
import json
import os
import re

import harness
from harness import make_config, merge, penstock, state_paths

INPUT, ENVIRONMENT, NUMBERS = 2, 3, 4


class ErrorsTest(harness.PenstockTest):
    def assert_said_once(self, outcome, code, *fragments):
        self.assert_fails(outcome, code, *fragments)
        lines = [re.sub(r"^penstock: (error: )?", "", line)
                 for line in outcome.stderr.splitlines()]
        self.assertEqual(len(lines), len(set(lines)), str(outcome))
        for line in lines[:-1]:
            self.assertNotIn(lines[-1], line, str(outcome))

    def refused(self, code, *fragments, config=None, more=(), **keywords):
        outcome, run = self.train(config or make_config(), *more, steps=1, **keywords)
        self.assert_said_once(outcome, code, *fragments)
        return run

    def nvme(self, path=None, **more):
        return make_config(param="nvme", optimizer="nvme",
                           nvme_path=path or self.make_folder("nvme"), **more)

    def test_1_to_3_memory_that_is_too_small_is_refused_with_all_sums(self):
        sum_and_limit = (" = ", "the smallest that works is --device-memory ", "--host-memory ",
                         "penstock plan says what else would fit")
        self.refused(INPUT, "device memory of 1 bytes is too small: parameters",
                     "host memory of 1 bytes is too small: parameters", *sum_and_limit,
                     config=self.nvme(), more=("--device-memory", "1", "--host-memory", "1"))
        self.refused(INPUT, "activation checkpoints ",
                     config=self.nvme(micro_batches=4,
                                      activation_checkpointing={"cpu_checkpointing": True}),
                     more=("--host-memory", "1"))

    def test_4_a_config_that_is_missing_or_wrong_is_named_with_its_place(self):
        outcome, _ = self.train(make_config(), "--config", self.path("none.json"), steps=1)
        self.assert_said_once(outcome, ENVIRONMENT, "none.json", "--config")
        self.refused(INPUT, ":2:11: not valid JSON: a comma", config='{"train_batch_size": 2,\n"fp16": {},\n}')

    def test_5_6_16_and_17_ranks_that_are_alone_or_differ_are_refused_before_a_step(self):
        for variables in ({"WORLD_SIZE": "4"}, {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "5"},
                          {"PMI_SIZE": "2", "PMI_RANK": "0"}):
            with self.subTest(variables):
                self.refused(INPUT, next(iter(variables)), env={**os.environ, **variables})

    def test_7_a_gpu_that_is_not_to_be_had_is_said(self):
        if harness.missing_gpu() is None:
            self.skipTest("this machine has a GPU")
        self.refused(ENVIRONMENT, "--device cuda", more=("--device", "cuda"))

    def test_8_numbers_that_are_not_finite_end_the_run_and_the_tensor_is_named(self):
        config = merge(self.nvme(dtype="bf16"), {"optimizer": {"params": {"lr": 3e30}}})
        self.refused(NUMBERS, "learning rate 3e+30", "weights of wte", config=config)

    def test_10_what_is_there_is_not_written_over(self):
        run = self.trained(self.nvme(), steps=1)
        self.refused(INPUT, "exists", out=run)
        _, exported = self.export(run)
        self.assert_said_once(penstock("export", run, "--to", exported), INPUT, exported)
        self.assertEqual(penstock("snapshot", run, "kept").code, 0)
        self.assert_said_once(penstock("snapshot", run, "kept"), INPUT, "kept")

    def test_11_a_state_that_cannot_be_read_is_said_so(self):
        missing = self.path("no-run")
        outcome, _ = self.train(self.nvme(), "--resume", steps=2, out=missing)
        self.assert_said_once(outcome, INPUT, "there is no commit", missing)
        run = self.trained(self.nvme(), steps=1)
        other = merge(self.nvme(), {"optimizer": {"params": {"lr": 0.5}}})
        outcome, _ = self.train(other, "--resume", steps=2, out=run)
        self.assert_said_once(outcome, INPUT, "optimizer.params.lr", "0.5")
        paths = state_paths(run)
        for path in paths:
            os.remove(path)
        outcome, _ = self.train(self.nvme(), "--resume", steps=2, out=run)
        self.assert_said_once(outcome, ENVIRONMENT, paths[0])

    def test_12_13_and_18_what_makes_steps_slow_is_told_by_doctor(self):
        slow = self.nvme(penstock={"aio": {"simulate": {"read_gbps": 0.005, "write_gbps": 0.005}}})
        outcome = penstock("doctor", self.trained(slow, steps=6))
        bound = [line for line in outcome.stdout.splitlines() if "bound by" in line]
        self.assertEqual(len(bound), 1, str(outcome))
        self.assertRegex(bound[0], r"^warn +bound by +(io-bound|host memory too small|slow I/O): ")
        self.assertIn("; ", bound[0], "what to change stands behind it")

    def test_14_a_typing_error_comes_with_the_nearest_key(self):
        for wrong, right in (("zero_optimisation", "zero_optimization"),
                             ("optimiser", "optimizer"), ("gradient_cliping", "gradient_clipping")):
            with self.subTest(wrong):
                self.refused(INPUT, wrong, f'did you mean "{right}"', config=make_config(**{wrong: {}}))

    def test_15_batches_that_contradict_each_other_are_refused_with_the_product(self):
        self.refused(INPUT, "train_batch_size: 7 is not", "2 * gradient_accumulation_steps 1",
                     config=make_config(train_batch_size=7))

    def test_19_a_drive_that_is_none_is_named(self):
        self.refused(ENVIRONMENT, "nowhere", "create it", config=self.nvme(self.path("nowhere")))
        self.refused(ENVIRONMENT, "a-file", config=self.nvme(self.write("a-file", "")))
        shared = "/dev/shm"
        if not os.access(shared, os.W_OK):
            return
        outcome, run = self.train(self.nvme(shared), steps=1)
        for path in state_paths(run) if outcome.code == 0 else ():
            os.remove(path)
        self.assertEqual(outcome.stderr.count("which is memory"), 1, str(outcome))

    def test_20_a_loss_scale_that_cannot_be_lowered_ends_the_run(self):
        fp16 = {"initial_scale_power": 42, "min_loss_scale": 2.0**41, "hysteresis": 1}
        outcome, _ = self.train(make_config(dtype="fp16", fp16=fp16), steps=50)
        self.assert_said_once(outcome, NUMBERS, "the gradient overflows fp16", "fp16.min_loss_scale")


class MessagesTest(harness.PenstockTest):
    """What others wrote stands in a message so that it neither steers a terminal nor buries the rest."""

    def errors_of(self, *arguments, code=2):
        outcome = penstock(*arguments)
        self.assertEqual(outcome.code, code, str(outcome)[:2000])
        self.assertEqual(len(outcome.errors), 1, str(outcome)[:2000])
        self.assertLess(len(outcome.stderr.encode()), 9000)
        for control in (chr(27), chr(7), chr(0x9b), chr(127)):
            self.assertNotIn(control, outcome.stdout + outcome.stderr)
        return outcome.errors[0]

    def test_arguments_are_echoed_as_text_of_bounded_length(self):
        for odd in (chr(27) + "[2J" + chr(7), chr(0x9b) + "2J", chr(127)):
            self.assertIn("\\u00", self.errors_of(odd))
            self.assertIn("\\u00", self.errors_of("train", "--" + odd))
            self.assertIn("\\u00", self.errors_of("inspect", self.path("no" + odd), code=3))
        long = "y" * 100_000
        for arguments in ([long], ["train", "--" + long], ["tune", "--nvme-path", ".", "--size", long],
                          ["plan", "--model", "m", "--drive", long]):
            self.assertIn("(100", self.errors_of(*arguments))
        self.assertIn("help lists the options", self.errors_of("train", "--" + long))

    def test_a_number_of_5_kb_and_the_json_library_do_not_speak(self):
        digits = "9" * 5000
        config = self.write("config.json", '{"train_batch_size": ' + digits + "}")
        huge = self.write("huge.json", '{"train_batch_size": 1e' + digits + "}")
        for path in (config, huge):
            line = self.errors_of("plan", "--model", self.make_model(), "--config", path)
            self.assertNotIn("json.exception", line)
            self.assertLess(len(line), 1000)
        run = self.trained(make_config(), steps=1)
        info = json.loads(self.read(run, "run.json"))
        own = info["training"]
        for wrong, said in ((dict(info, training=dict(own, seed=[])), "seed"),
                            (dict(info, training=dict(own, device=7)), "device"),
                            (dict(info, training={k: v for k, v in own.items() if k != "model"}),
                             "model"),
                            (None, "beyond all bounds")):
            text = '{"version": 1e' + digits + "}" if wrong is None else json.dumps(wrong)
            with open(os.path.join(run, "run.json"), "w", encoding="utf-8") as file:
                file.write(text)
            line = self.errors_of("inspect", run, code=3)
            self.assertIn(said, line)
            self.assertNotIn("json.exception", line)
            self.assertNotIn("99999999", line)

    def read(self, run, name):
        with open(os.path.join(run, name), encoding="utf-8") as file:
            return file.read()


if __name__ == "__main__":
    harness.main()
