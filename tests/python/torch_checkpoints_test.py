"""torch.distributed.checkpoint's state dicts name commits, and taking them changes nothing."""

from __future__ import annotations

import os
import tempfile
import unittest
from typing import Any

import level2_support
import penstock
import torch
from optimizer_support import Tower
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    get_state_dict,
    set_optimizer_state_dict,
)


def step(model: torch.nn.Module, optimizer: Any, number: int) -> None:
    tokens = torch.randint(0, 50, (2, 5), generator=torch.Generator().manual_seed(number))
    model(tokens).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def states(optimizer: Any) -> dict[str, torch.Tensor]:
    return {
        f"{name}.{key}": value
        for name, _, kinds in optimizer.states()
        for key, value in kinds.items()
    }


class TorchCheckpoints(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.run = os.path.join(folder.name, "run")

    def begin(self, level: int) -> tuple[Any, Any]:
        torch.manual_seed(0)
        model: Any = Tower()
        if level == 1:
            optimizer: Any = penstock.AdamW(model.named_parameters(), lr=1e-3, run=self.run)
            self.addCleanup(optimizer.close)
            return model, optimizer
        stack = level2_support.training(model=model, home="host", run=self.run)
        model, optimizer = stack.__enter__()
        self.addCleanup(stack.__exit__, None, None, None)
        return model, optimizer

    def check(self, level: int) -> None:
        model, optimizer = self.begin(level)
        for number in range(3):
            step(model, optimizer, number)
        before, steps = states(optimizer), (optimizer.steps, optimizer.updates)
        kept = get_optimizer_state_dict(model, optimizer)
        whole = get_state_dict(model, optimizer)
        self.assertEqual((optimizer.steps, optimizer.updates), steps)
        after = states(optimizer)
        self.assertEqual(before.keys(), after.keys())
        self.assertTrue(all(torch.equal(before[key], after[key]) for key in before))
        self.assertEqual(len(whole[0]), len(model.state_dict()))
        step(model, optimizer, 90)
        optimizer.param_groups[0]["lr"] = 0.5
        optimizer.close()
        model, optimizer = self.begin(level)
        set_optimizer_state_dict(model, optimizer, kept)
        self.assertEqual(optimizer.steps, 3)
        self.assertEqual(optimizer.param_groups[0]["lr"], 1e-3)
        self.assertNotIn("penstock", optimizer.param_groups[0])
        after = states(optimizer)
        self.assertTrue(all(torch.equal(before[key], after[key]) for key in before))

    def test_at_level_1(self) -> None:
        self.check(1)

    def test_at_level_2(self) -> None:
        self.check(2)


if __name__ == "__main__":
    unittest.main()
