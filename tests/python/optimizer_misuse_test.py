"""Whatever is called in whatever order: the right weights, or one clear exception.

Each round draws calls that a training loop would not make in this order. After each, either it has
raised an error that is one line, or the weights are those of the reference that was told the same.
PENSTOCK_LONG_TESTS=1 makes 200 rounds instead of 15.
"""

from __future__ import annotations

import contextlib
import copy
import faulthandler
import gc
import io
import os
import pickle
import random
import time
import unittest
import warnings
from collections.abc import Callable
from typing import Any

import torch
from optimizer_support import OptimizerTest, loss_of, tower
from penstock import reference
from penstock.errors import PenstockError

ROUNDS = 200 if os.environ.get("PENSTOCK_LONG_TESTS") == "1" else 15
CALLS = 25

faulthandler.enable()


class Misuse:
    """One round: an optimizer, and a reference that makes the same steps."""

    def __init__(self, test: OptimizerTest, draw: random.Random) -> None:
        self.test = test
        self.draw = draw
        self.late = draw.random() < 0.7
        self.dtype = draw.choice((torch.float32, torch.bfloat16))
        self.model, self.other = tower(self.dtype), tower(self.dtype)
        self.optimizer = test.make(
            self.model.parameters(),
            where=draw.choice(("host", "nvme")),
            model=self.model if self.late else None,
            commit_every_steps=draw.choice((0, 2)),
        )
        self.plain = reference.AdamW(
            self.other.parameters(), model=self.other if self.late else None
        )
        self.saved: dict[str, Any] | None = None
        self.saved_plain: Any = None
        self.unchanged: Any = (
            None  # weights that the engine has, once others have taken their place
        )

    def backward(self) -> None:
        seed = self.draw.randrange(1000)
        for model in (self.model, self.other):
            loss_of(model, torch.Generator().manual_seed(seed)).backward()

    def step(self) -> None:
        self.optimizer.step()
        self.plain.step()

    def step_and_zero(self) -> None:
        self.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.plain.zero_grad(set_to_none=True)

    def lose_a_gradient(self) -> None:
        for model in (self.model, self.other):
            model.norm.weight.grad = None

    def spoil_a_gradient(self) -> None:
        for model in (self.model, self.other):
            if model.norm.weight.grad is not None:
                model.norm.weight.grad[0] = float("inf")

    def evaluate(self) -> None:
        with torch.no_grad():
            losses = [loss_of(m, torch.Generator()).item() for m in (self.model, self.other)]
        self.test.assertEqual(*losses)

    def half_a_forward(self) -> None:
        handle = self.model.blocks[1].register_forward_hook(interrupt)
        with contextlib.suppress(KeyboardInterrupt):
            loss_of(self.model, torch.Generator())
        handle.remove()

    def copy(self) -> None:
        self.optimizer.synchronize()
        twin = copy.deepcopy(self.model)
        self.test.assert_same_weights(twin, self.other)

    def save_module(self) -> None:
        torch.save(self.model.state_dict(), io.BytesIO())

    def save(self) -> None:
        self.saved = self.optimizer.state_dict()
        weights = self.unchanged or self.other.state_dict()
        self.saved_plain = copy.deepcopy((self.plain.state_dict(), weights))

    def load(self) -> None:
        if self.saved is None:
            return
        self.optimizer.load_state_dict(self.saved)
        state, weights = self.saved_plain
        self.plain.load_state_dict(state)
        if self.saved["penstock"] is not None:  # before the first step there is no commit
            self.other.load_state_dict(weights)
            self.unchanged = None

    def change_weights(self) -> None:
        if self.optimizer._training is not None and self.unchanged is None:
            self.unchanged = copy.deepcopy(self.other.state_dict())
        with torch.no_grad():
            self.model.norm.bias.add_(1)
            self.other.norm.bias.add_(1)

    def convert(self) -> None:
        self.model.double()
        self.other.double()

    def add_group(self) -> None:
        self.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(3))]})

    def calls(self) -> list[Callable[[], Any]]:
        usual = [self.backward, self.step_and_zero, self.evaluate]
        unusual = [
            self.step,
            self.lose_a_gradient,
            self.spoil_a_gradient,
            self.half_a_forward,
            self.copy,
            self.save_module,
            self.save,
            self.load,
            self.optimizer.synchronize,
            self.optimizer.commit,
            self.optimizer.full_state_dict,
            self.optimizer.attach,
            lambda: pickle.dumps(self.optimizer),
            lambda: self.optimizer.load_state_dict({"state": {}, "param_groups": []}),
            gc.collect,
        ]
        last = [self.change_weights, self.convert, self.add_group, self.optimizer.close]
        return usual * 6 + unusual + (last if self.draw.random() < 0.3 else [])


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


class MisuseEndsWell(OptimizerTest):
    def test_any_order_of_calls_gives_the_right_weights_or_one_line(self) -> None:
        warnings.simplefilter("ignore")
        for _ in range(ROUNDS):
            seed = time.time_ns() % 1_000_000
            with self.subTest(seed=seed):
                self.round(random.Random(seed))

    def round(self, draw: random.Random) -> None:
        misuse = Misuse(self, draw)
        for _ in range(CALLS):
            try:
                draw.choice(misuse.calls())()
            except (PenstockError, ValueError, RuntimeError) as error:
                self.assertNotIn("\n", str(error))
                if misuse.optimizer._held._ended is not None:
                    return  # closed, or a load that failed has given up the state
        misuse.optimizer.synchronize()
        self.assert_same_weights(misuse.model, misuse.other)


if __name__ == "__main__":
    unittest.main()
