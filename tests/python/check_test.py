"""``python -m penstock.check`` says of each key, and of memory, what the training then does."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import pathlib
import struct
import sys
import tempfile
import unittest
from typing import Any
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILT = ROOT / "build" / "release" / "front" / "libpenstock.so"
if (ROOT / "python").is_dir():
    sys.path.insert(0, str(ROOT / "python"))
if BUILT.exists():
    os.environ.setdefault("PENSTOCK_LIBRARY", str(BUILT))

from penstock import _library, check
from penstock._check_config import look
from penstock._check_model import read_model
from penstock.errors import InvalidArgumentError

HAS_TRANSFORMERS = all(importlib.util.find_spec(name) for name in ("torch", "transformers"))
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 101,
    "bos_token_id": None,
    "eos_token_id": None,
}


def safetensors(path: pathlib.Path, shapes: dict[str, list[int]]) -> None:
    """Writes the head of a file, with no data behind it."""
    entries = {
        name: {"dtype": "F32", "shape": s, "data_offsets": [0, 0]} for name, s in shapes.items()
    }
    head = json.dumps({"__metadata__": {"format": "pt"}, **entries}).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head)


def llama_shapes() -> dict[str, list[int]]:
    shapes = {"model.embed_tokens.weight": [101, 64], "model.norm.weight": [64]}
    for i in range(3):
        of = f"model.layers.{i}"
        for name, shape in {
            "input_layernorm": [64],
            "mlp.down_proj": [64, 96],
            "mlp.gate_proj": [96, 64],
            "mlp.up_proj": [96, 64],
            "post_attention_layernorm": [64],
            "self_attn.k_proj": [32, 64],
            "self_attn.o_proj": [64, 64],
            "self_attn.q_proj": [64, 64],
            "self_attn.v_proj": [32, 64],
        }.items():
            shapes[f"{of}.{name}.weight"] = shape
    return {**shapes, "lm_head.weight": [101, 64]}


class CheckTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.nvme = {"device": "nvme", "nvme_path": str(self.root)}
        self.zero = {"stage": 3, "offload_optimizer": self.nvme, "offload_param": self.nvme}

    def config(self, **keys: Any) -> pathlib.Path:
        path = self.root / "ds_config.json"
        path.write_text("// of a test\n" + json.dumps({"zero_optimization": self.zero, **keys}))
        return path

    def run_check(self, *arguments: Any) -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = check.main([str(argument) for argument in arguments])
        return code, out.getvalue(), err.getvalue()

    def becomes(self, **keys: Any) -> tuple[int, dict[str, str]]:
        """What each key becomes, with the reason behind a colon."""
        code, out, err = self.run_check(self.config(**keys), "--json")
        self.assertEqual(err, "")
        written = json.loads(out)["keys"]
        return code, {p: f"{key['becomes']}: {key['why']}" for p, key in written.items()}

    def model(self) -> pathlib.Path:
        folder = self.root / "model"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(LLAMA))
        return folder


class Keys(CheckTest):
    def test_monitors_that_are_on_are_used(self) -> None:
        on = {"enabled": True, "output_path": "x"}
        config = {"csv_monitor": on, "tensorboard": on, "wandb": {"enabled": False}}
        keys, _ = look(config)
        said = {key.path: key.becomes for key in keys}
        for name in ("csv_monitor", "tensorboard"):
            self.assertEqual(said[f"{name}.enabled"], "used")
            self.assertEqual(said[f"{name}.output_path"], "used")
        self.assertEqual(said["wandb.enabled"], "no effect")

    def test_each_key_is_used_or_a_reason_says_why_not(self) -> None:
        self.zero["overlap_comm"] = True
        code, keys = self.becomes(
            bf16={"enabled": True},
            optimizer={"type": "AdamW", "params": {"lr": "auto", "torch_adam": True}},
            steps_per_print=10,
            aio={"num_threads": 2},
            tensorboard={"output_path": "x"},
            penstock={"missing_gradients": "zero", "host_memory": "1GiB"},
        )
        self.assertEqual(code, 0)
        self.assertIn("model.to(torch.bfloat16)", keys["bf16.enabled"])
        self.assertTrue(keys["optimizer.params.lr"].startswith("used: auto -> 5e-05"))
        self.assertTrue(keys["optimizer.params.torch_adam"].startswith("superseded: updates are"))
        self.assertTrue(keys["steps_per_print"].startswith("no effect: "))
        self.assertTrue(keys["zero_optimization.overlap_comm"].startswith("superseded: "))
        self.assertTrue(keys["tensorboard.output_path"].startswith("no effect: "))
        for path in (
            "optimizer.type",
            "aio.num_threads",
            "penstock.host_memory",
            "penstock.missing_gradients",
            "zero_optimization.stage",
            "zero_optimization.offload_param.nvme_path",
        ):
            self.assertEqual(keys[path], "used: ", path)
        for path, text in keys.items():
            self.assertRegex(text, r"^(used: |(superseded|no effect): \w)", path)

    def test_every_refused_key_is_found_with_its_reason(self) -> None:
        self.zero["stagee"] = 2
        self.zero["zero_quantized_weights"] = True
        code, keys = self.becomes(
            amp={"enabled": True},
            aio={"block_size": "large"},
            optimizer={"type": "Lamb"},
            scheduler={"type": "WarmupLR", "params": {"warmup_num_steps": 5}},
        )
        refused = {path: text for path, text in keys.items() if text.startswith("refused: ")}
        self.assertEqual(code, 2)
        self.assertEqual(
            set(refused),
            {
                "amp.enabled",
                "aio.block_size",
                "optimizer.type",
                "scheduler.type",
                "scheduler.params.warmup_num_steps",
                "zero_optimization.stagee",
                "zero_optimization.zero_quantized_weights",
            },
        )
        self.assertIn('did you mean "zero_optimization.stage"?', keys["zero_optimization.stagee"])
        self.assertEqual(keys["zero_optimization.stage"], "used: ")

    def test_a_refusal_that_names_no_key_is_one_line(self) -> None:
        path = self.root / "broken.json"
        for text in ("{", "[]", '{"train_batch_size": "auto", "gradient_accumulation_steps": 0}'):
            path.write_text(text)
            code, out, err = self.run_check(path)
            self.assertEqual(code, 2, text)
            self.assertEqual(err.count("\n"), 0 if "refused" in out else 1, text)
        code, out, err = self.run_check(self.root / "nothing.json")
        self.assertEqual((code, out, err.count("\n")), (2, "", 1))

    @unittest.skipUnless(HAS_TRANSFORMERS, "torch or transformers is not installed")
    def test_initialize_refuses_what_is_said_to_be_refused(self) -> None:
        import penstock
        import torch

        for keys in (
            {"scheduler": {"type": "WarmupLR"}},
            {"optimizer": {"type": "Lamb"}},
            {"amp": {"enabled": True}},
        ):
            path = self.config(**keys)
            self.assertEqual(self.run_check(path)[0], 2, keys)
            with self.assertRaises(InvalidArgumentError):
                penstock.initialize(torch.nn.Linear(2, 2), config=path)


class Models(CheckTest):
    def test_heads_of_safetensors_are_cut_into_blocks_without_torch(self) -> None:
        folder = self.model()
        safetensors(folder / "model.safetensors", llama_shapes())
        with mock.patch.dict(sys.modules, {"torch": None, "transformers": None}):
            code, out, err = self.run_check(self.config(), folder)
        self.assertEqual((code, err), (0, ""))
        self.assertRegex(out, r"parameters +105536 in 6 units, 3 of them repeated")

    @unittest.skipUnless(HAS_TRANSFORMERS, "torch or transformers is not installed")
    def test_heads_and_module_are_cut_alike(self) -> None:
        folder = self.model()
        made = read_model(folder, "bf16")
        safetensors(folder / "model.safetensors", llama_shapes())
        with mock.patch.dict(sys.modules, {"torch": None, "transformers": None}):
            read = read_model(folder, "bf16")

        def units(text: Any) -> list[Any]:
            return sorted(
                (u["name"], u["repeated"], sorted((t["name"], t["shape"]) for t in u["tensors"]))
                for u in text["units"]
            )

        self.assertEqual(units(made.text), units(read.text))

    def test_a_model_that_cannot_be_read_is_one_line_and_a_code(self) -> None:
        config, folder = self.config(), self.root / "model"
        for make, code in (
            (lambda: None, 2),
            (folder.mkdir, 2),
            (lambda: (folder / "a.safetensors").write_bytes(b"\xff" * 20), 2),
            (lambda: safetensors(folder / "a.safetensors", {"w": [-1]}), 2),
            (lambda: (folder / "config.json").write_text("{"), 2),
        ):
            make()
            with mock.patch.dict(sys.modules, {"torch": None, "transformers": None}):
                done = self.run_check(config, folder)
            self.assertEqual((done[0], done[1], done[2].count("\n")), (code, "", 1), done)
        (folder / "a.safetensors").unlink()
        with mock.patch.dict(sys.modules, {"torch": None, "transformers": None}):
            done = self.run_check(config, self.model())
        self.assertEqual((done[0], done[2].count("\n")), (3, 1))
        self.assertIn("install torch and transformers", done[2])


class Plans(CheckTest):
    def plan(self, *arguments: str) -> tuple[int, Any]:
        folder = self.model()
        safetensors(folder / "model.safetensors", llama_shapes())
        config = self.config(bf16={"enabled": True}, penstock={"tile_elements": 4096})
        with mock.patch.dict(sys.modules, {"torch": None, "transformers": None}):
            code, out, _ = self.run_check(config, folder, "--json", *arguments)
        return code, json.loads(out)

    def test_an_engine_takes_what_the_plan_says(self) -> None:
        code, said = self.plan("--host-memory", "64MiB")
        self.assertEqual(code, 0)
        config = {
            "train_micro_batch_size_per_gpu": 1,
            "bf16": {"enabled": True},
            "zero_optimization": self.zero,
            "penstock": {"tile_elements": 4096, "host_memory": "64MiB"},
        }
        engine = _library.Engine(config, said["model"]["text"], {"folders": [str(self.root)]})
        self.addCleanup(engine.close)
        made = engine.describe()
        self.assertEqual(said["plan"]["host_bytes"]["total"], made["host_bytes"])
        size = sum(os.path.getsize(path) for path in made["state_paths"])
        self.assertEqual(said["plan"]["state_file_bytes"], size)

    def test_the_smallest_memory_fits_and_a_byte_less_does_not(self) -> None:
        smallest = self.plan()[1]["plan"]["host_minimum"]
        code, said = self.plan("--host-memory", str(smallest))
        self.assertEqual((code, said["plan"]["fits"]), (0, True))
        code, said = self.plan("--host-memory", str(smallest - 1))
        self.assertEqual((code, said["plan"]["fits"]), (2, False))
        self.assertIn("host memory", said["plan"]["shortage"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
