"""What the tests of the optimizers share: small models, data, and a loop.

The library is PENSTOCK_LIBRARY, else the release build's.
"""

from __future__ import annotations

import os
import pathlib
import sys
import tempfile
import unittest
import warnings
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILT = ROOT / "build" / "release" / "front" / "libpenstock.so"
sys.path.insert(0, str(ROOT / "python"))
if BUILT.exists():
    os.environ.setdefault("PENSTOCK_LIBRARY", str(BUILT))

import penstock
import torch
from penstock import _parameters

torch.set_num_threads(1)
TILE = 4096
_parameters.RUN_ELEMENTS = TILE  # so that small models have several units
RULES = ("AdamW", "Adam", "Lion", "Adagrad")


class Block(torch.nn.Module):
    """A residual block with parameters of both kinds: matrices, and what takes no decay."""

    def __init__(self, width: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.up = torch.nn.Linear(width, 2 * width)
        self.down = torch.nn.Linear(2 * width, width)
        self.dropout = torch.nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.dropout(self.down(torch.nn.functional.gelu(self.up(self.norm(x)))))


class Tower(torch.nn.Module):
    """An embedding, blocks, and a head that is tied to the embedding."""

    def __init__(self, width: int = 48, blocks: int = 3, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(50, width)
        self.blocks = torch.nn.ModuleList(Block(width, dropout) for _ in range(blocks))
        self.norm = torch.nn.LayerNorm(width)
        self.head = torch.nn.Linear(width, 50, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def tower(dtype: torch.dtype = torch.float32, **options: Any) -> Tower:
    torch.manual_seed(0)
    return Tower(**options).to(dtype)


def decay_groups(model: torch.nn.Module) -> list[dict[str, Any]]:
    """Matrices with decay, the rest without and with a rate of its own."""
    parameters = list(model.named_parameters())
    return [
        {"params": [p for _, p in parameters if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for _, p in parameters if p.dim() <= 1], "weight_decay": 0.0, "lr": 3e-3},
    ]


def loss_of(model: torch.nn.Module, generator: torch.Generator) -> torch.Tensor:
    tokens = torch.randint(0, 50, (4, 9), generator=generator)
    logits = model(tokens[:, :-1]).float()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def train(
    model: torch.nn.Module,
    optimizer: Any,
    steps: int = 6,
    scheduler: Any = None,
    clip: float = 0.0,
    seed: int = 1,
) -> list[float]:
    """A plain loop; returns the losses."""
    generator = torch.Generator().manual_seed(seed)
    losses = []
    for _ in range(steps):
        loss = loss_of(model, generator)
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def weights(model: torch.nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in model.parameters()]


class OptimizerTest(unittest.TestCase):
    """Has a folder, and compares trainings. Warnings are errors."""

    def setUp(self) -> None:
        filters = warnings.catch_warnings()
        filters.__enter__()
        self.addCleanup(filters.__exit__, None, None, None)
        warnings.simplefilter("error")
        folder = tempfile.TemporaryDirectory(prefix="penstock-test-", dir=os.environ.get("TMPDIR"))
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.runs = 0

    def placement(self, name: str) -> dict[str, Any]:
        """Returns the options of an optimizer whose states live somewhere."""
        ours: dict[str, Any] = {"tile_elements": TILE}
        options: dict[str, Any] = {"config": {"penstock": ours}}
        if name == "host":
            self.runs += 1
            return {**options, "run": os.path.join(self.folder, f"run-{self.runs}")}
        ours["tier_split"] = name == "split"
        return {**options, "nvme_path": self.folder, "host_memory": "64MiB"}

    def make(self, params: Any, rule: str = "AdamW", where: str = "nvme", **options: Any) -> Any:
        """Returns an optimizer that is closed at the end of the test."""
        optimizer = getattr(penstock, rule)(params, **{**self.placement(where), **options})
        self.addCleanup(optimizer.close)
        if where == "split":  # half of what would hold everything beside the least
            plan = optimizer.plan()
            budget = (plan["host_minimum"] + plan["host_bytes"]["total"]) // 2
            optimizer._held.options.config["penstock"]["host_memory"] = budget
        return optimizer

    def assert_same_weights(self, one: torch.nn.Module, other: torch.nn.Module) -> None:
        named = dict(other.named_parameters())
        for name, parameter in one.named_parameters():
            self.assertTrue(torch.equal(parameter, named[name]), name)

    def assert_line(self, error: BaseException, *parts: str) -> None:
        """An error is one line that has the parts."""
        text = str(error)
        self.assertNotIn("\n", text)
        for part in parts:
            self.assertIn(part, text)
