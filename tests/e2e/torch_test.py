"""The reference agrees: twenty steps against GPT-2 in plain PyTorch, in fp32 and in fp16."""
import array
import ast
import importlib.util
import json
import os
import subprocess
import sys
import unittest

import harness
from harness import make_config, read_rows

REFERENCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "reference",
                         "gpt2_reference.py")
STEPS = 20
ADAMW = {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.01}}


def read_npy(path):
    """fp32 values of a .npy file of version 1 (NumPy's format specification)."""
    with open(path, "rb") as file:
        content = file.read()
    begin = 10 + int.from_bytes(content[8:10], "little")
    header = ast.literal_eval(content[10:begin].decode())
    assert header["descr"] == "<f4" and not header["fortran_order"], header
    return array.array("f", content[begin:])


@unittest.skipUnless(importlib.util.find_spec("torch"), "this Python has no torch")
class TorchTest(harness.PenstockTest):
    def reference(self, model, data, micro_batches, clip, optimizer, *more):
        options = {**optimizer["params"], "optimizer": optimizer["type"]}
        if "betas" in options:
            options["beta1"], options["beta2"] = options.pop("betas")
        arguments = ["--model", model, "--data", data, "--out", self.path("torch"),
                     "--steps", STEPS, "--batch", 2, "--accumulate", micro_batches,
                     "--sequence", 64, "--clip", clip]
        for key, value in options.items():
            arguments += ["--" + key.replace("_", "-"), value]
        done = subprocess.run([sys.executable, REFERENCE, *map(str, [*arguments, *more])],
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def compare(self, micro_batches, clip, optimizer=ADAMW):
        config = make_config(clip=clip, micro_batches=micro_batches, param="nvme",
                             optimizer="nvme", nvme_path=self.make_folder("nvme"))
        config["optimizer"] = optimizer
        _, model = self.export(self.trained(config, steps=0))
        data = self.make_data()
        run = self.trained(config, "--data-order", "sequential", steps=STEPS, model=model,
                           data=data)
        expected = self.reference(model, data, micro_batches, clip, optimizer)
        for row, loss, norm in zip(read_rows(run), expected["losses"], expected["grad_norms"],
                                   strict=True):
            self.assertLess(abs(row["loss"] - loss), 1e-4 * loss, f"loss of step {row['step']}")
            self.assertLess(abs(row["grad_norm"] - norm), 1e-4 * norm,
                            f"norm of step {row['step']}")
        self.compare_weights(self.export(run)[0], expected["weights"])

    def compare_weights(self, tensors, folder):
        """The rules turn rounding noise of near-zero gradients into visible differences."""
        near = total = 0
        files = {name.removeprefix("transformer.") + ".npy": data
                 for name, (_, _, data) in tensors.items()}
        self.assertEqual(files.keys(), set(os.listdir(folder)))
        for name, data in files.items():
            ours, theirs = array.array("f", data), read_npy(os.path.join(folder, name))
            self.assertEqual(len(ours), len(theirs), name)
            near += sum(abs(a - b) < 1e-5 for a, b in zip(ours, theirs))
            total += len(ours)
        self.assertGreater(near / total, 0.99)

    def test_clipped(self):
        self.compare(micro_batches=1, clip=0.5)

    def test_with_3_micro_batches_and_without_clipping(self):
        self.compare(micro_batches=3, clip=0.0)

    def test_fp16(self):
        scale = {"initial_scale_power": 22, "loss_scale_window": 8, "hysteresis": 1}
        config = make_config(dtype="fp16", clip=0.5, micro_batches=2, fp16=scale)
        _, model = self.export(self.trained(config, steps=0))
        data = self.make_data()
        run = self.trained(config, "--data-order", "sequential", steps=STEPS, model=model,
                           data=data)
        more = [word for key, value in scale.items()
                for word in ("--" + key.replace("_", "-"), value)]
        expected = self.reference(model, data, 2, 0.5, ADAMW, "--dtype", "float16", *more)
        rows = read_rows(run)
        self.assertEqual([row["loss_scale"] for row in rows], expected["loss_scales"])
        self.assertGreater(len(set(expected["loss_scales"])), 3)
        for row, loss, norm in zip(rows, expected["losses"], expected["grad_norms"], strict=True):
            self.assertLess(abs(row["loss"] - loss), 2e-3 * loss, f"loss of step {row['step']}")
            if not row["skipped"]:
                self.assertLess(abs(row["grad_norm"] - norm), 5e-3 * norm,
                                f"norm of step {row['step']}")

    def test_lion(self):
        params = {"lr": 1e-4, "betas": [0.9, 0.99], "weight_decay": 0.1}
        self.compare(micro_batches=1, clip=1.0, optimizer={"type": "Lion", "params": params})

    def test_adagrad(self):
        params = {"lr": 1e-2, "eps": 1e-8, "lr_decay": 0.01, "initial_accumulator_value": 0.01,
                  "weight_decay": 0.01}
        self.compare(micro_batches=1, clip=1.0, optimizer={"type": "Adagrad", "params": params})

    def test_lamb(self):
        params = {"lr": 1e-2, "eps": 1e-6, "weight_decay": 0.01, "min_coeff": 0.05}
        self.compare(micro_batches=1, clip=1.0, optimizer={"type": "Lamb", "params": params})


if __name__ == "__main__":
    harness.main()
