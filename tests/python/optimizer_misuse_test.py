"""Random calls in random order: the right weights, or one clear exception.

Each round draws calls that a training loop would not make in this order. After each, either it has
raised an error that is one line, or the weights are those of the reference that was told the same.
PENSTOCK_LONG_TESTS=1 makes 200 rounds instead of 15, and
``python optimizer_misuse_test.py SEED`` one, with each call.
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
import sys
import time
import unittest
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from optimizer_support import RULES, OptimizerTest, loss_of, tower
from penstock import reference
from penstock.errors import PenstockError

SEED = int(sys.argv[1]) if sys.argv[1:] and sys.argv[1].isdigit() else 0
ROUNDS = 1 if SEED else 200 if os.environ.get("PENSTOCK_LONG_TESTS") == "1" else 15
CALLS = 25

faulthandler.enable()


class State(NamedTuple):
    """What a commit has of the reference."""

    optimizer: Any
    weights: Any
    steps: int


class Misuse:
    """One round: an optimizer, and a reference that makes the same steps."""

    def __init__(self, test: OptimizerTest, draw: random.Random) -> None:
        self.test = test
        self.draw = draw
        self.late = draw.random() < 0.7
        self.rule = draw.choice(RULES)
        self.dtype = draw.choice((torch.float32, torch.bfloat16))
        self.every = draw.choice((0, 2))
        self.max_norm = draw.choice((0.0, 0.1))
        test.runs += 1
        self.run = os.path.join(test.folder, f"random-{test.runs}")
        self.other = tower(self.dtype)
        self.plain = getattr(reference, self.rule)(
            self.other.parameters(),
            model=self.other if self.late else None,
            max_norm=self.max_norm,
        )
        self.unchanged: Any = (
            None  # weights that the engine has, once others have taken their place
        )
        self.steps = 0
        self.committed = self.state()
        self.has_commit = False
        self.saved: tuple[Any, State] | None = None
        self.begin()

    def begin(self) -> None:
        self.model = tower(self.dtype)
        self.optimizer = self.test.make(
            self.model.parameters(),
            self.rule,
            where=self.draw.choice(("host", "nvme", "split")),
            run=self.run,
            model=self.model if self.late else None,
            commit_every_steps=self.every,
            max_norm=self.max_norm,
        )

    def state(self) -> State:
        weights = self.unchanged or self.other.state_dict()
        return State(*copy.deepcopy((self.plain.state_dict(), weights)), self.steps)

    def go_to(self, state: State) -> None:
        optimizer, weights, self.steps = copy.deepcopy(state)
        self.plain.load_state_dict(optimizer)
        self.other.load_state_dict(weights)
        self.unchanged = None
        self.test.assertEqual(self.optimizer.steps, self.steps)

    def note_commit(self) -> None:
        self.committed = self.state()
        self.has_commit = True

    def backward(self) -> None:
        seed = self.draw.randrange(1000)
        for model in (self.model, self.other):
            loss_of(model, torch.Generator().manual_seed(seed)).backward()

    def step(self) -> None:
        self.optimizer.step()
        if all(p.grad is None for p in self.other.parameters()):
            return
        self.plain.step()
        self.test.assertEqual(self.optimizer.skipped, self.plain.skipped)
        if not self.plain.skipped:
            self.test.assertEqual(self.optimizer.grad_norm, self.plain.grad_norm)
        self.end_step()

    def end_step(self) -> None:
        self.steps += 1
        self.test.assertEqual(self.optimizer.steps, self.steps)
        if self.every and self.steps % self.every == 0:
            self.note_commit()

    def step_that_a_scaler_skips(self) -> None:
        self.optimizer.grad_scale = torch.tensor(2.0)
        self.optimizer.found_inf = torch.tensor(1.0)
        try:
            self.optimizer.step()
        finally:
            del self.optimizer.grad_scale, self.optimizer.found_inf
        self.test.assertTrue(self.optimizer.skipped)
        self.end_step()

    def step_and_zero(self) -> None:
        self.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.plain.zero_grad(set_to_none=True)

    def set_rate(self) -> None:
        rate = self.draw.choice((1e-3, 2e-3, 0.0))
        for optimizer in (self.optimizer, self.plain):
            optimizer.param_groups[0]["lr"] = rate

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

    def commit(self) -> None:
        self.optimizer.commit()
        self.note_commit()

    def save(self) -> None:
        state_dict = self.optimizer.state_dict()
        if state_dict["penstock"] is not None:  # before the first step there is no commit
            self.note_commit()
        self.saved = (state_dict, self.state())

    def snapshot(self) -> None:
        folder = os.path.join(self.test.folder, f"snapshot-{time.time_ns()}")
        found = self.optimizer.snapshot(folder)
        self.save()
        assert self.saved is not None
        self.saved[0]["penstock"]["snapshot"] = found

    def load(self) -> None:
        if self.saved is None:
            return
        state_dict, state = self.saved
        self.optimizer.load_state_dict(state_dict)
        if state_dict["penstock"] is not None:
            self.committed = state
            self.go_to(state)
        else:
            self.plain.load_state_dict(state.optimizer)

    def attach(self) -> None:
        self.optimizer.attach()
        if self.optimizer._training.commits.continued is not None:  # no step was made since
            rate = self.committed.optimizer["param_groups"][0]["lr"]
            self.plain.param_groups[0]["lr"] = rate

    def begin_again(self) -> None:
        """Ends the training, and begins another one in its run."""
        self.optimizer.close()
        self.other.to(self.dtype)
        self.begin()
        self.test.assertEqual(self.optimizer._training is not None, self.has_commit)
        self.other.zero_grad(set_to_none=True)
        self.go_to(self.committed)
        self.saved = None

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
            self.snapshot,
            self.load,
            self.begin_again,
            self.set_rate,
            self.step_that_a_scaler_skips,
            self.optimizer.synchronize,
            self.commit,
            self.optimizer.full_state_dict,
            self.attach,
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
            seed = SEED or time.time_ns() % 1_000_000
            with self.subTest(seed=seed):
                self.round(random.Random(seed))

    def round(self, draw: random.Random) -> None:
        misuse = Misuse(self, draw)
        say(misuse.rule, misuse.dtype, misuse.late, misuse.every, misuse.max_norm)
        for _ in range(CALLS):
            call = draw.choice(misuse.calls())
            try:
                say(call.__name__)
                call()
            except (PenstockError, ValueError, RuntimeError) as error:
                say(" ", error)
                self.assertNotIn("\n", str(error))
                if misuse.optimizer._held._ended is not None:
                    return  # closed, or a load that failed has given up the state
        misuse.optimizer.synchronize()
        self.assert_same_weights(misuse.model, misuse.other)


def say(*what: object) -> None:
    if SEED:
        print(*what, flush=True)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
