"""What the tests of transformers' Trainer share: data, arguments, and trainings that are stopped."""

from __future__ import annotations

import glob
import os
import pathlib
import sys
import tempfile
import unittest
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILT = ROOT / "build" / "release" / "front" / "libpenstock.so"
if BUILT.exists():
    sys.path.insert(0, str(ROOT / "python"))
    os.environ.setdefault("PENSTOCK_LIBRARY", str(BUILT))
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import tiny_models
import torch
import transformers

torch.set_num_threads(1)
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


class Rows(torch.utils.data.Dataset):
    """Random rows, the same in every run."""

    def __init__(self, count: int = 12) -> None:
        generator = torch.Generator().manual_seed(3)
        shape = (count, tiny_models.LENGTH)
        self._ids = torch.randint(3, tiny_models.VOCABULARY, shape, generator=generator)

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self._ids[index], "labels": self._ids[index]}


class StopAt(transformers.TrainerCallback):
    """Saves and stops at a step, as somebody does who ends a program in time."""

    def __init__(self, step: int) -> None:
        self._step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        if state.global_step == self._step:
            control.should_save = control.should_training_stop = True
        return control


class TrainerTest(unittest.TestCase):
    """Has a folder for drives and one for output."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="penstock-test-", dir=os.environ.get("TMPDIR"))
        self.addCleanup(folder.cleanup)
        self.nvme = os.path.join(folder.name, "nvme")
        self.folder = folder.name
        os.mkdir(self.nvme)

    def output(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def arguments(self, name: str, **more: Any) -> transformers.TrainingArguments:
        options: dict[str, Any] = {
            "max_steps": 20,
            "per_device_train_batch_size": 2,
            "logging_steps": 1,
            "learning_rate": 1e-3,
            "weight_decay": 0.1,
            "warmup_steps": 3,
            "save_strategy": "no",
            "report_to": [],
            "disable_tqdm": True,
            "use_cpu": True,
            "seed": 5,
        }
        return transformers.TrainingArguments(output_dir=self.output(name), **{**options, **more})

    def kept(self, name: str) -> list[str]:
        """Returns the checkpoints that have a snapshot, of all that are there."""
        folders = [f for f in os.listdir(self.output(name)) if f.startswith("checkpoint-")]
        for folder in folders:
            files = os.listdir(os.path.join(self.output(name), folder, "penstock"))
            self.assertTrue(any(file.endswith(".state") for file in files), folder)
        return sorted(folders, key=lambda folder: int(folder.split("-")[1]))

    def states(self) -> int:
        """Counts the state files on the drive."""
        return len(glob.glob(f"{self.nvme}/penstock-*/*.state"))

    def assert_same_weights(
        self, one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]
    ) -> None:
        self.assertEqual(one.keys(), other.keys())
        for name, weight in one.items():
            self.assertTrue(torch.equal(weight, other[name]), name)


def quiet(trainer: Any) -> Any:
    """Returns a trainer that prints nothing."""
    trainer.remove_callback(transformers.trainer_callback.PrinterCallback)
    return trainer


def model(name: str = "gpt2") -> Any:
    return tiny_models.make(name)


def losses(trainer: Any) -> list[float]:
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


def weights(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: weight.clone() for name, weight in module.state_dict().items()}
