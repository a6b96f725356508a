"""Random calls in random order at level 2: losses and weights of plain memory, or one line.

Each round draws calls, good and bad ones, and tells a model in plain memory the same. What was
refused must have changed nothing. PENSTOCK_LONG_TESTS=1 makes 400 rounds instead of 8, and
``python level2_random_test.py SEED`` one, with each call.
"""

from __future__ import annotations

import copy
import gc
import os
import random
import sys
import tempfile
import threading
import time
import unittest
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import matrix
import penstock
import tiny_models
import torch
from level2_support import equal_weights
from penstock import reference

torch.set_num_threads(1)

ROUNDS = 400 if os.environ.get("PENSTOCK_LONG_TESTS") == "1" else 8
CALLS = 30
# What a configuration has to say for the rules of penstock.reference as they are.
RULES: dict[str, dict[str, Any]] = {
    "AdamW": {},
    "Adam": {"adam_w_mode": False},
    "Lion": {"betas": [0.9, 0.99]},
    "Adagrad": {},
}


class _Stop(Exception):
    pass


class State(NamedTuple):
    """What a commit has of a training in plain memory."""

    optimizer: Any
    weights: Any
    steps: int


class Saved(NamedTuple):
    state_dict: Any
    state: State
    is_snapshot: bool


class Round:
    """A module in training, and the same in plain memory."""

    def __init__(self, seed: int, folder: str) -> None:
        self.draw = random.Random(seed)
        self.folder = folder
        self.files = 0
        self.name = self.draw.choice(("odd", "gpt2", "llama", "lora", "mixtral", "t5"))
        self.dtype = self.draw.choice(("fp32", "bf16"))
        self.checkpoint = self.draw.choice((None, True, False))
        self.micro_batches = self.draw.choice((1, 2))
        self.every = self.draw.choice((0, 2))
        self.rule = self.draw.choice(tuple(RULES))
        self.max_norm = self.draw.choice((0.0, 0.5))
        self.run = os.path.join(folder, "run")
        self.expected = self.made()
        trained = [p for p in self.expected.parameters() if p.requires_grad]
        self.plain = getattr(reference, self.rule)(
            trained, lr=1e-3, weight_decay=0.1, model=self.expected, max_norm=self.max_norm
        )
        self.steps = 0
        self.backwards = 0
        self.committed = self.state()
        self.has_commit = False
        self.saved: Saved | None = None
        self.model: Any
        self.optimizer: Any
        self.begin()

    def made(self) -> Any:
        return tiny_models.make(self.name, matrix.DTYPES[self.dtype], self.checkpoint)

    def begin(self) -> None:
        home = self.draw.choice(matrix.HOMES)
        settings = matrix.config(home, self.folder, self.micro_batches, self.dtype)
        settings["penstock"]["commit_every_steps"] = self.every
        settings["optimizer"]["type"] = self.rule
        settings["optimizer"]["params"].update(RULES[self.rule])
        settings["gradient_clipping"] = self.max_norm
        self.model, self.optimizer = penstock.initialize(self.made(), settings, run=self.run)

    def path(self) -> str:
        self.files += 1
        return os.path.join(self.folder, f"file{self.files}")

    def state(self) -> State:
        kept = copy.deepcopy((self.plain.state_dict(), self.expected.state_dict()))
        return State(*kept, self.steps)

    def go_to(self, state: State) -> None:
        optimizer, weights, self.steps = copy.deepcopy(state)
        self.expected.load_state_dict(weights)
        self.plain.load_state_dict(optimizer)
        self.forget_gradients()

    def forget_gradients(self) -> None:
        self.expected.zero_grad()
        self.plain._sums = {}
        self.plain._max_norm = self.max_norm
        self.backwards = 0

    def drop_gradients(self) -> None:
        self.draw.choice((self.optimizer, self.model)).zero_grad()
        self.forget_gradients()

    def note_commit(self) -> None:
        self.committed = self.state()
        self.has_commit = True

    # What a loop does.

    def losses(self) -> tuple[torch.Tensor, torch.Tensor]:
        seed = self.draw.randrange(1000)
        batch = tiny_models.batch(self.name, seed, matrix.DTYPES[self.dtype])
        found = []
        for model in (self.model, self.expected):
            torch.manual_seed(seed)
            found.append(tiny_models.loss_of(model(**batch)))
        assert torch.equal(*found), f"the loss is {found[0].item()}, not {found[1].item()}"
        return found[0], found[1]

    def backward(self, times: int = 1) -> None:
        """Makes a micro-batch of several forwards."""
        pairs = [self.losses() for _ in range(times)]
        ours, theirs = (sum(pair[i] for pair in pairs) for i in range(2))
        self.backward_of(ours, theirs)

    def backward_of(self, ours: Any, theirs: Any) -> None:
        try:
            ours.backward()
        except BaseException:
            self.drop_gradients()
            raise
        assert self.backwards < self.micro_batches, "one backward too many was taken"
        theirs.backward()
        if self.micro_batches > 1:
            self.plain.micro_batch()
        self.backwards += 1

    def step(self) -> None:
        self.optimizer.step()
        had = self.backwards > 0
        self.plain.step()
        self.forget_gradients()
        if not had:
            return
        assert self.optimizer.skipped == self.plain.skipped
        assert self.optimizer.grad_norm == self.plain.grad_norm or self.plain.skipped
        self.steps += 1
        assert self.optimizer.steps == self.steps
        if self.every and self.steps % self.every == 0:
            self.note_commit()

    def whole_step(self) -> None:
        while self.backwards < self.micro_batches:
            self.backward()
        self.step()

    def evaluate(self) -> None:
        models = (self.model, self.expected)
        for model in models:
            model.eval()
        try:
            with self.draw.choice((torch.no_grad, torch.inference_mode))():
                self.losses()
        finally:
            for model in models:
                model.train()

    # What is done less often, or is wrong.

    def two_forwards(self) -> None:
        self.backward(times=2)

    def forward_alone(self) -> None:
        self.losses()

    def backward_after_the_step(self) -> None:
        ours, theirs = self.losses()
        self.whole_step()
        self.backward_of(ours, theirs)
        # A checkpointed block is computed again, with the new weights, in plain memory as well.
        assert self.checkpoint is not None, "a backward over weights from before a step was made"

    def in_a_thread(self) -> None:
        errors: list[BaseException] = []

        def run() -> None:
            try:
                self.backward()
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        for error in errors:
            raise error

    def infinite(self) -> None:
        ours, theirs = self.losses()
        self.backward_of(ours * float("inf"), theirs * float("inf"))

    def clip(self) -> None:
        if self.backwards == 0:
            return
        norm = penstock.clip_grad_norm_(self.model, 0.25)
        self.plain._max_norm = 0.25  # for the step with these gradients, if it takes two attempts
        self.step()
        assert self.plain.skipped or norm.item() == torch.tensor(self.plain.grad_norm).item()

    def set_rate(self) -> None:
        rate = self.draw.choice((1e-3, 2e-3, 0.0))
        for optimizer in (self.optimizer, self.plain):
            optimizer.param_groups[0]["lr"] = rate

    def assign_gradients(self) -> None:
        if self.backwards > 0:
            return
        for model in (self.model, self.expected):
            draw = torch.Generator().manual_seed(self.files)
            for parameter in model.parameters():
                if parameter.requires_grad:
                    values = torch.randn(parameter.shape, generator=draw)
                    parameter.grad = values.to(parameter.dtype)
        self.backwards = 1
        self.step()

    def stop(self) -> None:
        """Ends a forward or backward by an exception somewhere in it."""
        module = self.draw.choice(list(self.model.modules()))
        error = self.draw.choice((_Stop, KeyboardInterrupt))
        in_forward = self.draw.random() < 0.5

        def raise_it(*_: object) -> None:
            raise error

        def watch(_: Any, __: Any, output: Any) -> None:
            for tensor in output if isinstance(output, tuple) else (output,):
                if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                    tensor.register_hook(raise_it)

        handle = module.register_forward_hook(raise_it if in_forward else watch)
        try:
            batch = tiny_models.batch(self.name, 5, matrix.DTYPES[self.dtype])
            tiny_models.loss_of(self.model(**batch)).backward()
        except (_Stop, KeyboardInterrupt):
            pass
        finally:
            handle.remove()
            self.drop_gradients()

    def to_write(self) -> list[torch.nn.Parameter]:
        """Returns a parameter, and its namesake if weights may still be written."""
        name, ours = self.draw.choice(list(self.model.named_parameters()))
        if self.optimizer.hooks.runtime.begun:
            return [ours]
        return [ours, dict(self.expected.named_parameters())[name]]

    def write(self) -> None:
        with torch.no_grad():
            for parameter in self.to_write():
                parameter.fill_(1)

    def replace(self) -> None:
        for parameter in self.to_write():
            parameter.data = torch.ones(parameter.shape, dtype=parameter.dtype)

    def write_gathered(self) -> None:
        with penstock.gathered(self.model):
            self.write()
            if self.draw.random() < 0.5:
                self.losses()

    def convert(self) -> None:
        self.draw.choice(list(self.model.modules())).double()

    def toggle(self) -> None:
        parameter = self.draw.choice(list(self.model.parameters()))
        parameter.requires_grad_(not parameter.requires_grad)
        try:
            self.losses()
        finally:
            parameter.requires_grad_(not parameter.requires_grad)
        raise AssertionError("a parameter that is trained no more, or now, was not seen")

    def in_a_child(self) -> None:
        for call in (self.losses, self.optimizer.step, self.optimizer.commit, self.load):
            child = os.fork()
            if child == 0:
                code = 0
                try:
                    call()
                except RuntimeError:
                    pass
                except BaseException:
                    code = 1
                finally:
                    os._exit(code)
            _, status = os.waitpid(child, 0)
            assert status == 0, f"a child of a fork ended with {status}"

    def read(self) -> None:
        modules = dict(self.model.named_modules())
        name = self.draw.choice(list(modules))
        theirs = dict(self.expected.get_submodule(name).named_parameters())
        with penstock.gathered(modules[name]):
            if self.draw.random() < 0.3:
                self.whole_step()
                return
            for key, parameter in modules[name].named_parameters():
                assert torch.equal(parameter, theirs[key]), f"{name}.{key} differs"

    def compare(self) -> None:
        assert equal_weights(self.expected, self.model)

    # Commits.

    def commit(self) -> None:
        self.optimizer.commit()
        self.note_commit()

    def save(self) -> None:
        state_dict = self.optimizer.state_dict()
        self.note_commit()
        self.saved = Saved(state_dict, self.committed, False)

    def snapshot(self) -> None:
        state_dict = self.optimizer.state_dict()
        self.note_commit()
        state_dict["penstock"]["snapshot"] = self.optimizer.snapshot(self.path())
        self.saved = Saved(state_dict, self.committed, True)

    def load(self) -> None:
        if self.saved is None:
            return
        self.optimizer.load_state_dict(self.saved.state_dict)
        there = self.saved.state.steps == self.committed.steps
        assert self.saved.is_snapshot or there, "a commit that is gone was loaded"
        self.committed = self.saved.state
        self.go_to(self.committed)

    def begin_again(self) -> None:
        """Ends the training, and begins another one in its run."""
        self.optimizer.close()
        gc.collect()
        self.begin()
        assert self.optimizer.continued == self.has_commit
        self.go_to(self.committed)
        self.saved = None

    def calls(self) -> list[Callable[[], Any]]:
        usual = [self.backward, self.whole_step, self.step, self.evaluate]
        return usual * 6 + [
            self.two_forwards,
            self.forward_alone,
            self.backward_after_the_step,
            self.in_a_thread,
            self.infinite,
            self.clip,
            self.set_rate,
            self.assign_gradients,
            self.stop,
            self.drop_gradients,
            self.write,
            self.replace,
            self.write_gathered,
            self.convert,
            self.toggle,
            self.in_a_child,
            self.read,
            self.compare,
            self.commit,
            self.save,
            self.snapshot,
            self.load,
            self.begin_again,
            gc.collect,
        ]

    def play(self, say: Callable[..., None]) -> None:
        say(self.name, self.rule, self.dtype, self.checkpoint, self.micro_batches, self.every)
        for _ in range(CALLS):
            call = self.draw.choice(self.calls())
            said = ""
            try:
                call()
            except penstock.PenstockError as error:
                said = str(error)
                assert "\n" not in said, said
            except RuntimeError as error:
                said = str(error)
                assert "modified by an inplace operation" in said, said
            say(call.__name__, said)
        self.drop_gradients()
        for _ in range(CALLS):  # each write is refused once
            try:
                self.whole_step()
                break
            except penstock.PenstockError as error:
                say("whole_step", error)
                self.drop_gradients()
        else:
            raise AssertionError("no step can be made any more")
        self.compare()


def play(seed: int, say: Callable[..., None] = lambda *_: None) -> None:
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one = Round(seed, folder)
        try:
            one.play(say)
        finally:
            one.optimizer.close()


class AnyOrder(unittest.TestCase):
    def test_any_order_of_calls_gives_what_plain_memory_gives_or_one_line(self) -> None:
        for _ in range(ROUNDS):
            seed = time.time_ns() % 1_000_000
            with self.subTest(seed=seed):
                play(seed)


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1].isdigit():
        play(int(sys.argv[1]), print)
    else:
        unittest.main()
