"""A module whose states are four times a container's memory is made, trained and saved in it.

Control groups of version 1 or 2 give the limit, so this needs root, 45 GiB of drive and a few
minutes. It runs with PENSTOCK_LONG_TESTS=1.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Iterator

import penstock
import torch
import transformers
from safetensors.torch import save_file

MIB = 2**20
LAYERS = 26
STATES = 12  # bytes an element: master weights and two moments, fp32


def model_config() -> transformers.LlamaConfig:
    """Returns the shape of a Llama of 1.37 billion parameters."""
    return transformers.LlamaConfig(
        vocab_size=8192,
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=LAYERS,
        num_attention_heads=16,
        num_key_value_heads=16,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        dtype="bfloat16",
        architectures=["LlamaForCausalLM"],
    )


def shards(names: Iterator[tuple[str, torch.Size]]) -> dict[str, list[tuple[str, torch.Size]]]:
    """Returns the parameters of each file: those of a layer, and all others."""
    found: dict[str, list[tuple[str, torch.Size]]] = {}
    for name, shape in names:
        layer = name.split(".")[2] if ".layers." in name else "others"
        found.setdefault(f"model-{layer}.safetensors", []).append((name, shape))
    return found


def empty_model() -> transformers.PreTrainedModel:
    """Returns the module without memory for its weights."""
    with torch.device("meta"):
        return transformers.LlamaForCausalLM(model_config())


def elements_of(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def write_files(model: transformers.PreTrainedModel, folder: pathlib.Path) -> None:
    """Writes a model with random weights, file by file."""
    model.config.save_pretrained(folder)
    draw = torch.Generator().manual_seed(1)
    index: dict[str, str] = {}
    for file, members in shards((n, p.shape) for n, p in model.named_parameters()).items():
        values = {
            name: torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=draw) / 50
            for name, shape in members
        }
        halves = {name: value.bfloat16() for name, value in values.items()}
        save_file(halves, folder / file, metadata={"format": "pt"})
        index.update(dict.fromkeys(halves, file))
    text = {"metadata": {"total_size": 2 * elements_of(model)}, "weight_map": index}
    (folder / "model.safetensors.index.json").write_text(json.dumps(text))


class Group:
    """A control group with a limit of memory. Made by root."""

    def __init__(self, limit: int) -> None:
        root = pathlib.Path("/sys/fs/cgroup")
        self._v2 = (root / "cgroup.controllers").exists()
        self.folder = (root if self._v2 else root / "memory") / f"penstock-test-{os.getpid()}"
        self.folder.mkdir()
        names = ("memory.max", "memory.swap.max") if self._v2 else ("memory.limit_in_bytes",)
        try:
            for name, value in zip(names, (limit, 0)):
                (self.folder / name).write_text(str(value))
        except OSError:
            self.folder.rmdir()
            raise

    def enter(self) -> None:
        """Moves this process into the group."""
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def most(self) -> int:
        """Returns the most bytes that the group had, pages of files included."""
        name = "memory.peak" if self._v2 else "memory.max_usage_in_bytes"
        return int((self.folder / name).read_text())


def peak() -> int:
    """Returns the most memory that this process had at a time, in bytes."""
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def train(model_folder: str, drive: str, run: str) -> None:
    """Makes the module from its files, makes three steps, and saves; prints peaks in bytes."""
    torch.set_num_threads(2)
    with penstock.init():
        model = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.from_pretrained(model_folder), dtype=torch.bfloat16
        )
    nvme = {"device": "nvme", "nvme_path": drive}
    config = {
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "zero_optimization": {"stage": 3, "offload_param": nvme, "offload_optimizer": nvme},
    }
    model, optimizer = penstock.initialize(model, config, weights=model_folder, run=run)
    filled = peak()
    batch = torch.arange(64).reshape(1, 64) * 7 % 8192
    losses = []
    for _ in range(3):
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    trained = peak()
    optimizer.commit()
    optimizer.close()
    print(json.dumps({"filled": filled, "trained": trained, "end": peak(), "losses": losses}))


class MemoryLimit(unittest.TestCase):
    def test_states_of_four_times_the_limit_are_trained_and_saved_within_it(self) -> None:
        # Here, as a file whose classes are all skipped has run no test for Python 3.12.1.
        if os.environ.get("PENSTOCK_LONG_TESTS") != "1":
            self.skipTest("minutes: PENSTOCK_LONG_TESTS=1")
        with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
            model = empty_model()
            limit = STATES * elements_of(model) // 4
            try:
                group = Group(limit)
            except OSError as error:
                self.skipTest(f"no control group with a limit of memory: {error}")
            self.addCleanup(group.folder.rmdir)
            files = pathlib.Path(folder, "model")
            files.mkdir()
            write_files(model, files)
            drive = pathlib.Path(folder, "drive")
            drive.mkdir()
            done = subprocess.run(
                [sys.executable, __file__, "train", files, drive, pathlib.Path(folder, "run")],
                preexec_fn=group.enter,
                capture_output=True,
                text=True,
            )
            self.assertEqual(done.returncode, 0, done.stderr)
            found = json.loads(done.stdout.splitlines()[-1])
            most = {name: found[name] // MIB for name in ("filled", "trained", "end")}
            print(f"limit {limit // MIB} MiB, peaks {most} MiB, group {group.most() // MIB} MiB")
            self.assertLess(found["end"], limit)
            self.assertLess(found["losses"][2], found["losses"][0])


if __name__ == "__main__":
    if sys.argv[1:2] == ["train"]:
        train(*sys.argv[2:])
    else:
        unittest.main()
