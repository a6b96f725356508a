"""Buffers of modules are in commits: a training that was resumed equals one that was not, in its
running statistics as well."""

from __future__ import annotations

import os
import tempfile
import unittest
from typing import Any

import level2_support
import optimizer_support  # noqa: F401  (finds the package)
import penstock
import torch
from level2_support import equal_weights
from penstock.errors import InvalidArgumentError


class Normed(torch.nn.Module):
    """Has persistent buffers that a forward changes, one that is replaced, and one that is not kept."""

    def __init__(self, more: bool = True) -> None:
        super().__init__()
        self.up = torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(16, 32))
        self.norm = torch.nn.BatchNorm1d(32, momentum=0.5)
        self.down = torch.nn.Linear(32, 4)
        self.register_buffer("constant", torch.arange(4.0), persistent=False)
        if more:
            self.register_buffer("seen", torch.zeros(0))
            self.register_buffer("count", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.count += 1
            self.seen = torch.cat([self.seen, x.mean().detach()[None]])
        y: torch.Tensor = self.down(self.norm(self.up(x))) + self.constant
        return y


def step(model: torch.nn.Module, optimizer: Any, number: int) -> None:
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(number))
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def buffers(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


class BuffersAreResumed(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.run = os.path.join(folder.name, "run")

    def model(self) -> Normed:
        torch.manual_seed(3)
        return Normed()

    def begin(self, level: str, model: torch.nn.Module) -> Any:
        if level == "level 2":
            stack = level2_support.training(model=model, home="host", run=self.run)
            _, optimizer = stack.__enter__()
            self.addCleanup(stack.__exit__, None, None, None)
            return optimizer
        of = {"model": model} if level == "level 1 with model=" else {}
        optimizer = penstock.AdamW(model.parameters(), lr=1e-3, run=self.run, **of)
        self.addCleanup(optimizer.close)
        return optimizer

    def check(self, level: str, attach: bool = False) -> None:
        expected = self.model()
        other = penstock.reference.AdamW(
            expected.parameters(), lr=1e-3, weight_decay=0.1 if level == "level 2" else 0.01
        )
        for number in range(4):
            step(expected, other, number)
        model = self.model()
        optimizer = self.begin(level, model)
        if attach:
            optimizer.attach(buffers=model)
        for number in range(2):
            step(model, optimizer, number)
        optimizer.commit()
        step(model, optimizer, 90)  # is not committed
        optimizer.close()
        model = Normed()
        optimizer = self.begin(level, model)
        if attach:
            self.assertEqual(optimizer.attach(buffers=model), 2)
        self.assertEqual(optimizer.steps, 2)
        for number in range(2, 4):
            step(model, optimizer, number)
        for name, buffer in buffers(expected).items():
            self.assertTrue(torch.equal(buffer, dict(model.named_buffers())[name]), name)
        self.assertTrue(equal_weights(expected, model))

    def test_at_level_2(self) -> None:
        self.check("level 2")

    def test_at_level_1_with_the_model(self) -> None:
        self.check("level 1 with model=")

    def test_of_a_module_that_is_attached(self) -> None:
        self.check("level 1", attach=True)

    def test_a_module_that_lacks_one_is_refused_by_its_name(self) -> None:
        optimizer = self.begin("level 2", self.model())
        step(optimizer.hooks.root, optimizer, 0)
        optimizer.commit()
        optimizer.close()
        with self.assertRaisesRegex(InvalidArgumentError, "buffer seen, and the module has none"):
            self.begin("level 2", Normed(more=False))

    def test_a_constant_that_is_not_persistent_is_left_out(self) -> None:
        optimizer = self.begin("level 2", self.model())
        step(optimizer.hooks.root, optimizer, 0)
        kept = optimizer._sections()["buffers"]
        self.assertIn("count", kept)
        self.assertNotIn("constant", kept)


if __name__ == "__main__":
    unittest.main()
