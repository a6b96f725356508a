"""Hooks keep the protocol of the engine: a stand-in in memory checks each of their calls."""

from __future__ import annotations

import unittest
from typing import Any
from unittest import mock

import memory_engine
import tiny_models
import torch
from level2_support import training
from penstock import _library


class _PlainAdam:
    """The stand-in's rule on plain parameters."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._group = _library.Group(1e-3, 0.9, 0.999, 1e-8, 0.1)
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._moments = [[torch.zeros_like(p) for _ in range(2)] for p in self._parameters]
        self._sums: list[torch.Tensor] = []
        self._steps = 0

    def micro_batch(self) -> None:
        """Takes a backward's gradients: what torch has added up within it is added as one."""
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        assert len(gradients) == len(self._parameters)
        self._sums = [a + b for a, b in zip(self._sums, gradients)] or gradients
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        self._steps += 1
        for parameter, moments, gradient in zip(self._parameters, self._moments, self._sums):
            memory_engine.adam(parameter, moments, gradient, self._steps, self._group)
        self._sums = []


def _train(name: str, model: Any, optimizer: Any, micro_batches: int) -> list[torch.Tensor]:
    torch.manual_seed(3)
    losses = []
    for number in range(4 * micro_batches):
        loss = tiny_models.loss_of(model(**tiny_models.batch(name, number)))
        loss.backward()
        losses.append(loss.detach())
        if isinstance(optimizer, _PlainAdam):
            optimizer.micro_batch()
        if number % micro_batches == micro_batches - 1:
            optimizer.step()
            with torch.no_grad():
                losses.append(tiny_models.loss_of(model(**tiny_models.batch(name, 50))))
    return losses


class Protocol(unittest.TestCase):
    def test_every_call_keeps_it_and_losses_are_those_of_plain_memory(self) -> None:
        cases = (
            ("gpt2", None, 2, "nvme"),
            ("t5", False, 1, "host"),
            ("lora", None, 2, "nvme"),
            ("lora", True, 1, "device"),
            ("odd", True, 2, "nvme"),
            ("odd", False, 1, "device"),
        )
        for name, checkpoint, micro_batches, home in cases:
            with self.subTest(name=name, checkpoint=checkpoint, home=home):
                plain = tiny_models.make(name, checkpoint=checkpoint)
                losses = _train(name, plain, _PlainAdam(plain), micro_batches)
                options = {"checkpoint": checkpoint, "micro_batches": micro_batches}
                with mock.patch.object(_library, "Engine", memory_engine.MemoryEngine):
                    with training(name, home, **options) as (model, optimizer):
                        same = _train(name, model, optimizer, micro_batches)
                        self.assertEqual(optimizer.counters()["late_uses"], 0)
                self.assertTrue(all(map(torch.equal, losses, same)))


if __name__ == "__main__":
    unittest.main()
