"""What a run finds in its own numbers: each case at its step, with its tensor, and nothing else."""
import array
import glob
import json
import os
import pathlib
import random
import shutil
import unittest

import harness
from harness import make_config, merge, read_rows

BASE = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2,
        "optimizer": {"params": {"lr": 3e-3, "weight_decay": 0.1}}}


class WatchedRuns(harness.PenstockTest):
    """A small model and random letters."""

    def setUp(self):
        super().setUp()
        letters = random.Random(1).choices(b"abcdefgh \n", k=200000)
        self.data = self.write("letters.txt", bytes(letters))

    def run_of(self, dtype, *more, steps, model=None, out=None, home="cpu", **keys):
        """(outcome, RUN, reports)"""
        config = merge(merge(make_config(dtype=dtype, param=home, optimizer=home), BASE), keys)
        outcome, run = self.train(config, "--sequence-length", "32", *more, steps=steps,
                                  model=model or self.make_model(n_head=4), data=self.data, out=out)
        return outcome, run, self.reports(run)

    def reports(self, run):
        path = os.path.join(run, "numerics.jsonl")
        if not os.path.exists(path):
            return []
        with open(path, encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    def hot_model(self):
        """Of a trained model, two matrices times 2^12: finite, and too much for fp16."""
        _, run, _ = self.run_of("bf16", steps=60)
        tensors, folder = self.export(run)
        for name in tensors:
            if name.endswith(("h.1.mlp.c_fc.weight", "h.1.mlp.c_proj.weight")):
                dtype, shape, data = tensors[name]
                hot = array.array("f", [4096 * value for value in array.array("f", data)])
                tensors[name] = (dtype, shape, hot.tobytes())
        harness.write_safetensors(os.path.join(folder, "model.safetensors"), tensors)
        return folder

    def assert_said(self, outcome, report):
        """Its message is a line of its own on stderr."""
        self.assertIn(f"penstock: {report['message']}\n", outcome.stderr)


class WatchTest(WatchedRuns):
    """One thing is wrong, or none."""

    def test_a_healthy_run_is_told_nothing(self):
        for dtype in ("bf16", "fp16", "fp32"):
            outcome, run, reports = self.run_of(dtype, steps=80)
            self.assertEqual(outcome.code, 0, str(outcome))
            self.assertEqual(reports, [], dtype)
            self.assertFalse(os.path.exists(os.path.join(run, "overflow.json")))

    def test_a_forward_beyond_fp16_is_named_in_step_1_and_ends_at_step_2(self):
        model = self.hot_model()
        outcome, run, reports = self.run_of("fp16", steps=50, model=model)
        self.assert_fails(outcome, 4, "step 2: ", "bf16")
        self.assertEqual([(r["step"], r["kind"], r["tensor"], r["layer"], r["pass"],
                           r["micro_batch"]) for r in reports if r["kind"] == "nonfinite"],
                         [(1, "nonfinite", "h.1.mlp.c_proj", 1, "forward", 0),
                          (2, "nonfinite", "h.1.mlp.c_proj", 1, "forward", 0)])
        self.assertIn("bf16", reports[0]["message"])
        for report in reports:
            self.assert_said(outcome, report)
        with open(os.path.join(run, "overflow.json"), encoding="utf-8") as file:
            box = json.load(file)
        self.assertEqual(len(box["steps"]), 2)
        self.assertEqual(box["first_cause"]["tensor"], "h.1.mlp.c_proj")
        self.assertIn("bf16", box["advice"])

    def test_a_model_that_would_not_fit_fp16_is_told_so_once_in_bf16(self):
        outcome, _, reports = self.run_of("bf16", steps=5, model=self.hot_model())
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assertEqual([(r["step"], r["kind"], r["layer"]) for r in reports],
                         [(1, "headroom", 1)])
        self.assertIn("would not fit fp16", reports[0]["message"])

    def test_a_scale_that_is_too_high_is_named_as_that(self):
        outcome, _, reports = self.run_of("fp16", steps=30, fp16={"initial_scale_power": 24})
        self.assertEqual(outcome.code, 0, str(outcome))
        first = reports[0]
        self.assertEqual((first["step"], first["kind"], first["pass"]),
                         (6, "nonfinite", "backward"))
        self.assertIn("forward and weights are finite, so the loss scale 2^20 is too high",
                      first["message"])
        self.assertIn("this is normal", first["message"])
        self.assertEqual(len(reports), 1, "it ends far from the minimum")

    def test_weights_that_one_update_destroys_are_named_before_the_loss_is(self):
        config = {"optimizer": {"params": {"lr": 3e30}}}
        outcome, _, reports = self.run_of("bf16", steps=30, penstock={"commit_every_steps": 1},
                                          **config)
        self.assert_fails(outcome, 4, "step 1: the last update, ", "with learning rate 3e+30")
        self.assertEqual([(r["step"], r["kind"]) for r in reports], [(1, "update")])
        outcome, run, reports = self.run_of("bf16", steps=30, **config)
        self.assert_fails(outcome, 4, "step 3: ", "--change optimizer.params.lr")
        self.assertEqual([(r["step"], r["kind"]) for r in reports],
                         [(1, "update"), (2, "nonfinite"), (3, "nonfinite")])
        self.assertIn("since the update of step 1", reports[1]["message"])
        # What is left is the state before that update.
        config["optimizer"]["params"]["lr"] = 1e-3
        outcome, _, reports = self.run_of("bf16", "--resume", "--change",
                                          "optimizer.params.lr=0.001", steps=20, out=run, **config)
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assertEqual(reports, [], "of the steps that there are now")
        self.assertEqual(len(read_rows(run)), 20)
        self.assertFalse(os.path.exists(os.path.join(run, "overflow.json")))

    def test_a_learning_rate_that_is_far_too_high_shows_in_updates_and_in_the_loss(self):
        outcome, _, reports = self.run_of("bf16", steps=5,
                                          optimizer={"params": {"lr": 0.3}})
        self.assertEqual(outcome.code, 0, str(outcome))
        found = [(r["step"], r["kind"]) for r in reports]
        self.assertEqual(found[0], (1, "update"))
        self.assertIn((3, "loss_spike"), found)

    def test_states_on_the_device_are_watched_as_those_on_the_host(self):
        for dtype, keys in (("bf16", {"optimizer": {"params": {"lr": 0.3}}}),
                            ("fp16", {"fp16": {"initial_scale_power": 24}})):
            found = []
            for home in ("cpu", "none"):
                outcome, _, reports = self.run_of(dtype, steps=7, home=home, **keys)
                self.assertEqual(outcome.code, 0, str(outcome))
                found.append([(r["step"], r["kind"], r["tensor"], r["pass"]) for r in reports])
            self.assertIsNotNone(found[0][0][2], "the tensor is known")
            self.assertEqual(found[0], found[1])

    def test_a_scale_that_is_too_low_for_the_gradients_is_named_once(self):
        # It takes some learning until gradients of attention are so small.
        slow = {"optimizer": {"params": {"lr": 1e-4}}}
        for home in ("cpu", "none"):
            outcome, _, reports = self.run_of("fp16", steps=220, home=home, fp16={"loss_scale": 1},
                                              **slow)
            self.assertEqual(outcome.code, 0, str(outcome))
            self.assertEqual([r["kind"] for r in reports], ["underflow"])
            self.assertIn(".attn.c_attn.", reports[0]["tensor"])
            self.assertIn("becomes zero in fp16 at loss scale 1 ", reports[0]["message"])
            self.assertIn("raise fp16.loss_scale", reports[0]["message"])
        outcome, _, reports = self.run_of("fp16", steps=220, **slow)
        self.assertEqual((outcome.code, reports), (0, []), str(outcome))

    def test_several_ranks_name_what_one_rank_does(self):
        model = self.hot_model()
        config = merge(merge(make_config(dtype="fp16", param="cpu", optimizer="cpu"), BASE),
                       {"gradient_accumulation_steps": 1})
        run = self.path("ranks")
        outcome = harness.penstock(
            "launch", "--ranks", "2", "--", "train", "--model", model, "--data", self.data,
            "--config", self.write("ranks.json", config), "--out", run, "--steps", "50",
            "--sequence-length", "32", "--device", harness.DEVICE)
        self.assertEqual(outcome.code, 4, str(outcome))
        _, _, alone = self.run_of("fp16", steps=50, model=model)
        self.assertEqual(self.reports(run), alone)


SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
SHAPES = {"narrow": {"n_head": 4}, "wide": {"n_embd": 96, "n_layer": 2, "n_head": 3,
                                            "n_positions": 128}}


def texts(pattern):
    """All files of this repository that match, one after the other."""
    paths = sorted(glob.glob(os.path.join(SOURCE, pattern), recursive=True))
    return b"".join(pathlib.Path(path).read_bytes() for path in paths if "/build/" not in path)


class HealthyTest(WatchedRuns):
    @unittest.skipUnless(os.environ.get("PENSTOCK_LONG_TESTS") == "1",
                         "it takes ten minutes; PENSTOCK_LONG_TESTS=1 runs it")
    def test_twenty_healthy_runs_of_500_steps_give_at_most_one_report(self):
        data = {"text": self.write("text.txt", texts("docs/*.md")),
                "headers": self.write("headers.txt", texts("*/**/*.h"))}
        seed = int(os.environ.get("PENSTOCK_SEED", random.SystemRandom().randrange(2**32)))
        draw = random.Random(seed)
        found = []
        for number in range(20):
            dtype = ("fp16", "bf16", "fp32")[number % 3]
            shape = list(SHAPES)[number // 3 % 2]
            self.data = data[list(data)[number // 6 % 2]]
            scheduler = {"scheduler": {"type": "WarmupLR", "params": {
                "warmup_num_steps": 50, "warmup_max_lr": 1e-3}}} if number % 2 == 0 else {}
            model = self.make_model(shape, **SHAPES[shape])
            outcome, run, reports = self.run_of(
                dtype, "--seed", str(draw.randrange(2**32)), steps=500, model=model,
                **merge({"optimizer": {"params": {"lr": 1e-3}}}, scheduler))
            self.assertEqual(outcome.code, 0, str(outcome))
            rows = read_rows(run)
            self.assertLess(rows[-1]["loss"], 0.7 * rows[0]["loss"], "it learns")
            found += [(number, dtype, shape, report["message"]) for report in reports]
            shutil.rmtree(run)
        print(f"seed {seed}: {len(found)} reports: {found}")
        self.assertLessEqual(len(found), 1, found)


if __name__ == "__main__":
    harness.main()
