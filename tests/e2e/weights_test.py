"""Weights are exported and loaded with the same bits, and training resumes from them."""
import json
import os
import random
import re
import shutil
import struct
import subprocess
import unittest

import harness
from harness import make_config, merge, read_rows

CONFIG = make_config(dtype="bf16", param="cpu", optimizer="cpu")
TRANSFORMERS = os.environ.get("PENSTOCK_TRANSFORMERS_PYTHON", "")


def to_bf16(data):
    """fp32 bytes cut to bf16, and those back as fp32."""
    halves = b"".join(data[i + 2:i + 4] for i in range(0, len(data), 4))
    return halves, b"".join(b"\0\0" + halves[i:i + 2] for i in range(0, len(halves), 2))


def to_fp16(data):
    count = len(data) // 4
    halves = struct.pack(f"<{count}e", *struct.unpack(f"<{count}f", data))
    return halves, struct.pack(f"<{count}f", *struct.unpack(f"<{count}e", halves))


class RoundTripTest(harness.PenstockTest):
    def imported(self, folder, config=None):
        return self.trained(CONFIG if config is None else config, steps=0, model=folder)

    def test_an_export_as_fp32_comes_back_as_the_same_bits(self):
        for dtype in ("fp32", "bf16"):
            with self.subTest(dtype=dtype):
                config = make_config(dtype=dtype, param="cpu", optimizer="cpu")
                run = self.trained(config, steps=6)
                tensors, folder = self.export(run)
                self.assert_equal_bits(run, folder)
                again = self.imported(folder, config)
                self.assert_equal_bits(again, folder)
                self.assertEqual(self.export(again)[0], tensors)

    def test_16_bit_exports_hold_what_they_say_and_come_back(self):
        run = self.trained(CONFIG, steps=3)
        for dtype, stored in (("bf16", "BF16"), ("fp16", "F16")):
            with self.subTest(dtype=dtype):
                tensors, folder = self.export(run, "--dtype", dtype)
                self.assertEqual({kind for kind, _, _ in tensors.values()}, {stored})
                with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
                    self.assertEqual(json.load(file)["torch_dtype"],
                                     {"BF16": "bfloat16", "F16": "float16"}[stored])
                outcome = self.compare(self.imported(folder), folder)
                self.assertEqual(outcome.code, 0, outcome.stdout)
                self.assertIn("equal values", outcome.stdout)

    def test_the_config_has_no_token_that_the_vocabulary_lacks(self):
        for given, written in (({}, [None, None]),
                               ({"bos_token_id": 50256, "eos_token_id": 9}, [None, 9]),
                               ({"bos_token_id": 1, "eos_token_id": None}, [1, None])):
            with self.subTest(given=given):
                model = self.make_model(**given)
                run = self.trained(CONFIG, steps=0, model=model)
                with open(os.path.join(self.export(run)[1], "config.json"),
                          encoding="utf-8") as file:
                    config = json.load(file)
                self.assertEqual([config["bos_token_id"], config["eos_token_id"]], written)
                with open(os.path.join(model, "config.json"), encoding="utf-8") as ours:
                    self.assertEqual(harness.read_info(run)["training"]["model"], ours.read())

    def test_any_order_header_length_shards_and_dtypes_come_in_as_they_are(self):
        tensors, folder = self.export(self.trained(CONFIG, steps=3))
        source = random.Random(7)
        for padding in (0, 1, 2, 3, 5, 7):
            with self.subTest(padding=padding):
                given, expected = self.make_folder(f"in{padding}"), {}
                shutil.copy(os.path.join(folder, "config.json"), given)
                names = list(tensors)
                source.shuffle(names)
                shards = [{}, {}, {}]
                for name in names:
                    _, shape, data = tensors[name]
                    kind, (stored, value) = source.choice(
                        [("F32", (data, data)), ("BF16", to_bf16(data)), ("F16", to_fp16(data))])
                    source.choice(shards)[name] = (kind, shape, stored)
                    expected[name] = ("F32", shape, value)
                index = {}
                for i, shard in enumerate(shards):
                    file = f"model-{i}.safetensors"
                    harness.write_safetensors(os.path.join(given, file), shard, padding)
                    index.update({name: file for name in shard})
                self.write(f"in{padding}/model.safetensors.index.json", {"weight_map": index})
                self.assertEqual(self.export(self.imported(given))[0], expected)

    def test_an_index_that_disagrees_with_its_files_is_refused(self):
        tensors, folder = self.export(self.trained(CONFIG, steps=0))
        index = {name: "model.safetensors" for name in tensors}
        self.write(os.path.join(folder, "model.safetensors.index.json"),
                   {"weight_map": {**index, "transformer.h.9.ln_1.bias": "model.safetensors"}})
        outcome, _ = self.train(CONFIG, steps=0, model=folder)
        self.assert_fails(outcome, 2, "h.9.ln_1.bias", "model.safetensors.index.json")


class OriginTest(harness.PenstockTest):
    """Where weights come from is said, and weights that are not read do not become random ones."""
    def origins(self, outcome):
        return re.findall(r"(?m)^penstock: weights: (.*)$", outcome.stderr)

    def assert_origin(self, outcome, origin):
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assertEqual(self.origins(outcome), [origin])

    def test_weights_in_another_form_are_refused_unless_new_ones_are_asked_for(self):
        for name in ("global_step1/mp_rank_00_model_states.pt", "latest", "pytorch_model.bin",
                     "pytorch_model-00001-of-00002.bin", "pytorch_model.bin.index.json",
                     "tf_model.h5", "flax_model.msgpack", "model.ckpt.index", "model.onnx",
                     "model.gguf", "weights.pt", "weights.pth", "zero_pp_rank_0_optim_states.pt"):
            with self.subTest(name=name):
                first = name.split("/", maxsplit=1)[0]
                folder = self.make_model(f"of_{first}")
                self.write(os.path.join(folder, name), b"not read")
                for model in (folder, os.path.join(folder, "config.json")):
                    outcome, run = self.train(CONFIG, steps=1, model=model)
                    self.assert_fails(outcome, 2, folder, first, "safetensors", "--init random")
                    self.assertFalse(os.path.exists(run))
                outcome, run = self.train(CONFIG, "--init", "random", steps=1, model=folder)
                self.assert_origin(outcome, "random, seed 0 (--init random: what "
                                            f"{folder} holds is not read: {first})")
                outcome, _ = self.train(CONFIG, "--resume", steps=2, model=folder, out=run)
                self.assert_origin(outcome, "the commit of step 1")

    def test_new_weights_do_not_need_those_beside_the_config(self):
        _, folder = self.export(self.trained(CONFIG, steps=1))
        outcome, run = self.train(CONFIG, "--init", "random", "--seed", "3", steps=1, model=folder)
        self.assert_origin(outcome, f"random, seed 3 (--init random: what {folder} holds is not "
                                    "read: model.safetensors)")
        self.assert_equal_bits(run, self.trained(CONFIG, "--seed", "3", steps=1))
        self.write(os.path.join(folder, "model.safetensors"), b"damaged")
        self.trained(CONFIG, "--init", "random", steps=1, model=folder)

    def test_an_index_without_its_files_is_refused(self):
        folder = self.make_model()
        self.write(os.path.join(folder, "model.safetensors.index.json"), {"weight_map": {}})
        outcome, _ = self.train(CONFIG, steps=1)
        self.assert_fails(outcome, 2, "model.safetensors.index.json", "--init random")

    def test_init_takes_no_other_value(self):
        outcome, _ = self.train(CONFIG, "--init", "zeros", steps=1)
        self.assert_fails(outcome, 2, "--init", "random")

    def test_every_run_says_where_its_weights_come_from(self):
        outcome, run = self.train(CONFIG, "--seed", "7", steps=2)
        self.assert_origin(outcome, "random, seed 7")
        _, folder = self.export(run)
        self.assert_origin(self.train(CONFIG, steps=1, model=folder)[0], f"1 file of {folder}")
        snapshot = harness.penstock("snapshot", run, "good")
        self.assertEqual(snapshot.code, 0, str(snapshot))
        self.assert_origin(self.train(CONFIG, "--resume", steps=3, out=run)[0],
                           "the commit of step 2")
        self.assert_origin(self.train(CONFIG, "--resume", steps=3, out=run)[0],
                           "the commit of step 3")
        self.assert_origin(
            self.train(CONFIG, "--resume-from", "good", "--init", "random", steps=3, out=run)[0],
            "the commit of step 2, snapshot good (--init random is for the beginning of a run)")
        moved = merge(CONFIG, {"penstock": {"tile_elements": 4096}})
        self.assert_origin(self.train(moved, "--resume", steps=4, out=run)[0],
                           "the commit of step 3")


class FineTuneTest(harness.PenstockTest):
    """A new run from exported weights, on the rows that the exporting run would have seen next."""
    BEFORE, STEPS, ROWS = 12, 20, 2

    def losses(self, run):
        return [row["loss"] for row in read_rows(run)]

    def check(self, run_dtype, export_dtype):
        config = make_config(dtype=run_dtype, param="nvme", optimizer="nvme",
                             nvme_path=self.make_folder("nvme"))
        text = harness.text_bytes(40000)
        data = self.write("data.txt", text)
        order = ("--data-order", "sequential")
        going_on = self.losses(self.trained(config, *order, data=data,
                                            steps=self.BEFORE + self.STEPS))[self.BEFORE:]
        exporting = self.trained(config, *order, data=data, steps=self.BEFORE)
        _, folder = self.export(exporting, "--dtype", export_dtype)

        untouched = self.trained(config, steps=0, model=folder, data=data)
        outcome = self.compare(untouched, folder)
        self.assertEqual(outcome.code, 0, outcome.stdout)
        if export_dtype == "fp32":
            self.assert_equal_bits(folder, exporting)

        seen = self.BEFORE * self.ROWS * harness.MODEL["n_positions"]
        tuned = self.losses(self.trained(config, *order, model=folder, steps=self.STEPS,
                                         data=self.write("rest.txt", text[seen:])))
        self.assertEqual(tuned[0], going_on[0], "the weights are the same, so the loss is")
        for step, (loss, expected) in enumerate(zip(tuned, going_on, strict=True), 1):
            self.assertLess(abs(loss - expected), 0.05 * expected, f"step {step}: {tuned}")

    def test_fp32(self):
        self.check("fp32", "fp32")

    def test_bf16_from_fp32(self):
        self.check("bf16", "fp32")

    def test_bf16_from_what_the_run_computes_with(self):
        self.check("bf16", "bf16")


class FullDriveTest(harness.PenstockTest):
    def test_an_export_that_does_not_fit_leaves_nothing_and_can_be_repeated(self):
        run = self.trained(CONFIG, steps=2)
        before = self.compare(run, run).stdout
        drive = self.make_folder("drive")
        with harness.mounted(drive, ["-t", "tmpfs", "-o", "size=512K", "none"]):
            to = os.path.join(drive, "folder", "export")
            outcome = harness.penstock("export", run, "--to", to)
            self.assert_fails(outcome, 3, to, "No space left")
            self.assertEqual(os.listdir(drive), [])
            self.assertEqual(self.compare(run, run).stdout, before)
            subprocess.run(["mount", "-o", "remount,size=4M", drive], check=True)
            outcome = harness.penstock("export", run, "--to", to)
            self.assertEqual(outcome.code, 0, str(outcome))
            self.assert_equal_bits(run, to)

    def test_a_drive_that_fills_between_two_files_leaves_nothing(self):
        run = self.trained(CONFIG, steps=2)
        drive = self.make_folder("drive")
        # A drive of three names: its root, the folder and the weights, and none for config.json.
        with harness.mounted(drive, ["-t", "tmpfs", "-o", "size=4M,nr_inodes=3", "none"]):
            to = os.path.join(drive, "export")
            self.assert_fails(harness.penstock("export", run, "--to", to), 3, "No space left")
            self.assertEqual(os.listdir(drive), [])


class TransformersTest(harness.PenstockTest):
    SCRIPT = """
import sys, torch, transformers
transformers.logging.set_verbosity_warning()
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1]).float().eval()
rows = [list(open(sys.argv[2], "rb").read())[i * 64:i * 64 + 65] for i in range(2)]
tokens = torch.tensor(rows)
with torch.no_grad():
    logits = model(tokens[:, :-1]).logits
print(torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]).double(),
                                        tokens[:, 1:].reshape(-1)).item())
"""

    def setUp(self):
        super().setUp()
        if not TRANSFORMERS:
            self.skipTest("PENSTOCK_TRANSFORMERS_PYTHON names no Python with transformers")
        found = subprocess.run([TRANSFORMERS, "-c", "import transformers"], capture_output=True,
                               check=False)
        if found.returncode != 0:
            self.skipTest(f"{TRANSFORMERS} has no transformers")

    def test_it_loads_the_export_and_gives_the_same_loss(self):
        config = make_config(param="cpu", optimizer="cpu")
        data = self.make_data()
        run = self.trained(config, steps=10, data=data)
        for dtype in ("fp32", "bf16", "fp16"):
            with self.subTest(dtype=dtype):
                _, folder = self.export(run, "--dtype", dtype)
                ours = read_rows(self.trained(config, "--data-order", "sequential", steps=1,
                                              model=folder, data=data))[0]["loss"]
                done = subprocess.run([TRANSFORMERS, "-c", self.SCRIPT, folder, data],
                                      capture_output=True, text=True, check=False)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertNotIn("token_id", done.stderr)
                self.assertLess(abs(ours - float(done.stdout)), 1e-4 * ours, done.stdout)


if __name__ == "__main__":
    harness.main()
