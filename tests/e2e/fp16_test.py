"""Training in fp16: the loss scale, what it leaves alone, and where it ends."""
import array
import math
import os
import random
import unittest

import harness
from harness import make_config, merge, read_rows, read_summary

import placement_test

TO_THE_END = 4  # the exit code of numbers


def fp16_config(placement="device", nvme_path=None, **keys):
    home = {"device": "none", "host": "cpu", "nvme": "nvme"}[placement]
    fp16 = {"enabled": True, **keys.pop("fp16", {})}
    return make_config(dtype="fp16", param=home, optimizer=home, nvme_path=nvme_path, fp16=fp16,
                       **keys)


def scaled(tensors, names, factor):
    """The fp32 tensors, those with such names multiplied."""
    result = {}
    for name, (dtype, shape, data) in tensors.items():
        if any(name.endswith(of) for of in names):
            data = array.array("f", [factor * value for value in array.array("f", data)]).tobytes()
        result[name] = (dtype, shape, data)
    return result


class Fp16PlacementTest(placement_test.PlacementCase):
    def tries(self, number, clip, micro_batches, **_numerics):
        """Two of the four numerics for each placement, which differ in both: so every pair of a
        placement and a value is tried. All are with PENSTOCK_LONG_TESTS=1."""
        if os.environ.get("PENSTOCK_LONG_TESTS") == "1":
            return True
        return (number + (clip > 0) + (micro_batches > 1)) % 2 == 1

    # The scale overflows and grows within the 30 steps.
    SCALE = {"enabled": True, "initial_scale_power": 22, "loss_scale_window": 8, "hysteresis": 1}

    def test_every_placement_has_the_same_bits_and_scales(self):
        rows, _ = self.compare(dtype="fp16", clip=1.0, micro_batches=1, fp16=self.SCALE)
        scales, skipped = [row[4] for row in rows], [row[5] for row in rows]
        self.assertTrue(skipped[0], "the first scale is too high")
        self.assertGreater(len(set(scales)), 3)
        self.assertTrue(any(b > a for a, b in zip(scales, scales[1:])), "it grows again")

    def test_every_placement_has_the_same_bits_with_3_micro_batches_and_without_clipping(self):
        for clip, micro_batches in ((0.0, 1), (0.0, 3), (1.0, 3)):
            self.compare(dtype="fp16", clip=clip, micro_batches=micro_batches, fp16=self.SCALE)

    @unittest.skipUnless(os.environ.get("PENSTOCK_LONG_TESTS") == "1",
                         "PENSTOCK_LONG_TESTS=1 runs it")
    def test_every_placement_has_the_same_bits_with_a_static_scale(self):
        for clip, micro_batches in ((0.0, 1), (1.0, 1), (0.0, 3), (1.0, 3)):
            self.compare(dtype="fp16", clip=clip, micro_batches=micro_batches,
                         fp16={"enabled": True, "loss_scale": 1024})


class Fp16Test(harness.PenstockTest):
    def test_norms_and_losses_do_not_have_the_scale(self):
        rows = [read_rows(self.trained(fp16_config(fp16={"initial_scale_power": power}), steps=10))
                for power in (8, 12)]
        for low, high in zip(*rows):
            self.assertEqual((low["loss_scale"], high["loss_scale"]), (2**8, 2**12))
            self.assertLess(abs(low["grad_norm"] - high["grad_norm"]), 1e-3 * low["grad_norm"])
            self.assertLess(abs(low["loss"] - high["loss"]), 1e-3 * low["loss"])

    def test_with_any_first_scale_it_learns_as_bf16_does(self):
        # Random letters: what can be learned is learned within 100 steps, and the loss stays there.
        letters = random.Random(1).choices(b"abcdefgh \n", k=40000)
        data = self.write("letters.txt", bytes(letters))

        def rows(config):
            return read_rows(self.trained(config, steps=100, data=data))

        losses = {"bf16": rows(make_config(dtype="bf16"))}
        for power in (4, 8, 16):
            losses[power] = rows(fp16_config(fp16={"initial_scale_power": power}))
        first = rows(make_config())[0]["loss"]
        for name, rows in losses.items():
            self.assertLess(abs(rows[-1]["loss"] - losses["bf16"][-1]["loss"]), 1e-2, name)
            self.assertLess(abs(rows[0]["loss"] - first), 2e-3, name)

    def test_a_static_scale_stays(self):
        rows = read_rows(self.trained(fp16_config(fp16={"loss_scale": 1024}), steps=5))
        self.assertEqual([row["loss_scale"] for row in rows], [1024] * 5)
        self.assertFalse(any(row["skipped"] for row in rows))

    def test_a_static_scale_that_is_too_high_ends_after_20_steps(self):
        outcome, run = self.train(fp16_config(fp16={"loss_scale": 2.0**40}), steps=50)
        self.assert_fails(outcome, TO_THE_END, "20 steps in a row")
        self.assertEqual([row["loss_scale"] for row in read_rows(run)], [2.0**40] * 20)

    def test_a_scale_that_cannot_be_lowered_ends_the_run(self):
        # Gradients of such a scale overflow; the minimum keeps it there.
        fp16 = {"initial_scale_power": 42, "min_loss_scale": 2.0**40, "hysteresis": 1}
        outcome, run = self.train(fp16_config(fp16=fp16), steps=50)
        self.assert_fails(outcome, TO_THE_END, "step 3: the gradient overflows fp16",
                          "fp16.min_loss_scale")
        self.assertEqual([(row["loss_scale"], row["skipped"]) for row in read_rows(run)],
                         [(2.0**41, True), (2.0**40, True), (2.0**40, True)])

    def test_a_run_stopped_within_a_streak_resumes_with_the_same_scales(self):
        config = fp16_config("nvme", self.make_folder("nvme"), fp16=Fp16PlacementTest.SCALE)
        whole = self.trained(config, steps=24)
        skipped = [row["skipped"] for row in read_rows(whole)]
        self.assertTrue(skipped[0] and skipped[1], "a streak begins the run")
        run = self.trained(config, steps=1)
        for steps in (2, 3, 9, 24):
            self.trained(config, "--resume", steps=steps, out=run)
        self.assertEqual(self.numbers(run), self.numbers(whole))
        self.assert_equal_bits(run, whole)

    def test_other_rules_of_the_scale_are_another_run(self):
        run = self.trained(fp16_config(), steps=2)
        outcome, _ = self.train(fp16_config(fp16={"hysteresis": 1}), "--resume", steps=3, out=run)
        self.assert_fails(outcome, 2, "fp16.hysteresis is 1, was 2")
        outcome, _ = self.train(make_config(dtype="bf16"), "--resume", steps=3, out=run)
        self.assert_fails(outcome, 2, "bf16.enabled is true, was false")

    def test_the_drive_moves_14_bytes_a_parameter_each_way_and_holds_28(self):
        nvme = self.make_folder("nvme")
        # One layer is one tile, so there is no padding to speak of.
        model = self.make_model("wide", n_embd=256, n_layer=2, n_head=4)
        for durable, held in ((True, 28), (False, 14)):
            config = fp16_config("nvme", nvme, penstock={"durable": durable,
                                                         "commit_every_seconds": 1e6})
            host = str(self.smallest("host-memory", config, model=model))
            run = self.trained(config, "--host-memory", host, steps=8, model=model)
            summary = read_summary(run)
            parameters = summary["parameters"]
            # The last step reads no weights ahead; what stays in memory is not read.
            moved = 8 * 14 * parameters
            self.assertLessEqual(summary["nvme_read_bytes"], 1.03 * moved)
            self.assertGreater(summary["nvme_read_bytes"], 0.8 * moved)
            self.assertLessEqual(summary["nvme_write_bytes"], 1.02 * moved)
            size = os.path.getsize(harness.state_path(run))
            self.assertLess(abs(size - held * parameters), 0.02 * held * parameters)

    def test_gradients_that_all_underflow_end_the_run_with_what_to_raise(self):
        outcome, run = self.train(fp16_config(fp16={"loss_scale": 1e-9}), steps=30)
        self.assert_fails(outcome, TO_THE_END, "step 10: the whole gradient of 10 steps in a row is zero",
                          "raise fp16.loss_scale")
        self.assertNotIn("learning rate", outcome.errors[0])
        self.assertEqual(len(read_rows(run)), 10)

    def test_a_scale_that_is_too_large_is_what_is_named_and_no_learning_rate(self):
        for fp16, key in (({"loss_scale": 2.0**40}, "fp16.loss_scale 1099511627776 is too large"),
                          ({"initial_scale_power": 42, "min_loss_scale": 2.0**40, "hysteresis": 1},
                           "fp16.min_loss_scale 1099511627776 is too large")):
            outcome, _ = self.train(fp16_config(fp16=fp16), steps=50)
            self.assert_fails(outcome, TO_THE_END, key)
            self.assertNotIn("lower learning rate", outcome.errors[0])

    def test_a_run_resumes_with_the_scale_that_its_error_advises(self):
        for fp16, advised in (({"loss_scale": 2.0**24}, "fp16.loss_scale=0"),
                              ({"initial_scale_power": 24, "min_loss_scale": 2.0**22, "hysteresis": 1},
                               "fp16.min_loss_scale=")):
            outcome, run = self.train(fp16_config(fp16=fp16), steps=50)
            self.assert_fails(outcome, TO_THE_END, "--resume --change " + advised)
            change = advised + ("1" if advised.endswith("=") else "")
            self.trained(fp16_config(fp16=fp16), "--resume", "--change", change, steps=24, out=run)
            self.assertFalse(read_rows(run)[-1]["skipped"])

    def test_export_and_inspect_know_a_run_in_fp16(self):
        run = self.trained(fp16_config(), steps=5)
        exact, _ = self.export(run)
        half, folder = self.export(run, "--dtype", "fp16")
        for name, (dtype, shape, data) in half.items():
            self.assertEqual((dtype, shape), ("F16", exact[name][1]))
            self.assertEqual(len(data) * 2, len(exact[name][2]))
        inspected = harness.penstock("inspect", run)
        self.assertEqual(inspected.code, 0, str(inspected))
        self.assertIn("fp16", inspected.stdout)
        # What the run computes with is its fp16 export.
        again = read_rows(self.trained(fp16_config(), steps=1, model=folder))
        bound = read_rows(self.trained(fp16_config(), "--resume", steps=6, out=run))[-1]["loss"]
        self.assertTrue(math.isfinite(again[0]["loss"]) and math.isfinite(bound))

    def test_a_weight_that_fp16_cannot_hold_is_refused_before_the_first_step(self):
        tensors, folder = self.export(self.trained(make_config(), steps=0))
        path = os.path.join(folder, "model.safetensors")
        harness.write_safetensors(path, scaled(tensors, ["h.1.mlp.c_fc.weight"], 2.0**22))
        outcome, run = self.train(fp16_config(), steps=2, model=folder)
        self.assert_fails(outcome, 2, "h.1.mlp.c_fc.weight is", "beyond fp16's largest value",
                          "train in bf16")
        self.assertFalse(os.path.exists(run))

    def test_a_forward_that_overflows_ends_at_step_2(self):
        tensors, folder = self.export(self.trained(make_config(), steps=20))
        hot = ["h.1.mlp.c_fc.weight", "h.1.mlp.c_proj.weight"]
        harness.write_safetensors(os.path.join(folder, "model.safetensors"),
                                  scaled(tensors, hot, 2.0**12))
        outcome, run = self.train(fp16_config(), steps=50, model=folder)
        self.assert_fails(outcome, TO_THE_END, "step 2: the losses of 2 steps in a row", "bf16")
        self.assertEqual([row["loss"] for row in read_rows(run)], [None, None])
        in_bf16 = read_rows(self.trained(make_config(dtype="bf16"), steps=2, model=folder))
        self.assertTrue(all(math.isfinite(row["loss"]) for row in in_bf16))

    def test_ranks_have_the_same_bits(self):
        config = merge(fp16_config(fp16=Fp16PlacementTest.SCALE),
                       {"train_micro_batch_size_per_gpu": 1})
        model, data = self.make_model(), self.make_data()
        alone = self.trained(merge(config, {"gradient_accumulation_steps": 4}), steps=12,
                             model=model, data=data)
        for dtype in ("fp32", "fp16"):
            both = merge(config, {"communication_data_type": dtype})
            expected = alone if dtype == "fp32" else self.trained(
                merge(both, {"gradient_accumulation_steps": 4}), steps=12, model=model, data=data)
            run = self.path(f"ranks-{dtype}")
            outcome = harness.penstock(
                "launch", "--ranks", "2", "--", "train", "--model", model, "--data", data,
                "--config", self.write("ranks.json",
                                       merge(both, {"gradient_accumulation_steps": 2})),
                "--out", run, "--steps", "12", "--device", harness.DEVICE)
            self.assertEqual(outcome.code, 0, str(outcome))
            self.assertEqual(self.numbers(run), self.numbers(expected), dtype)


if __name__ == "__main__":
    harness.main()
