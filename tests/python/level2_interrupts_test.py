"""An interrupt (Ctrl-C) at any line of penstock leaves a training that continues as if without it."""

from __future__ import annotations

import copy
import os
import random
import subprocess
import sys
import tempfile
import unittest
from typing import Any

import penstock
import tiny_models
import torch
from engine_interrupts import Lines
from level2_support import equal_weights, plain, step, training
from penstock import reference

_STEPS = 150 if os.environ.get("PENSTOCK_LONG_TESTS") else 30
_LINES = 40  # of one function in a step
_FILES = ("", torch.overrides.__file__)  # all of penstock, and the stack of modes


# Two branches, so that one has nodes left when the other is interrupted; they hold Python's hooks.
_INTERRUPTED_AT_LAST = """
import sys, tempfile
import penstock, torch

level = sys.argv[1]
model = torch.nn.Linear(3, 3)
with tempfile.TemporaryDirectory() as folder:
    if level == "1":
        optimizer = penstock.AdamW(model.parameters(), nvme_path=folder)
        model(torch.ones(3)).sum().backward()
        optimizer.step()
    elif level == "2":
        _, optimizer = penstock.initialize(model, {}, run=folder + "/run")

def interrupt(*_):
    raise KeyboardInterrupt

def backward():
    x = torch.ones(3, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        other = (x * 2) * (x * 3)
        interrupted = (x * 4) * (x * 5)
        loss = (other + interrupted * interrupted).sum()
    interrupted.register_hook(interrupt)
    loss.backward()

try:
    backward()
except KeyboardInterrupt:
    print("interrupted")
"""


class TheEnd(unittest.TestCase):
    def test_a_process_whose_last_backward_was_interrupted_ends_well(self) -> None:
        for level in ("1", "2"):
            ended = subprocess.run(
                [sys.executable, "-c", _INTERRUPTED_AT_LAST, level],
                capture_output=True,
                text=True,
                check=False,
            )
            self.assertEqual((ended.returncode, ended.stdout), (0, "interrupted\n"), ended.stderr)


class Interrupts(unittest.TestCase):
    def test_steps_after_interrupts_at_random_lines_equal_plain_memory(self) -> None:
        draw = random.Random(0)
        for name, home, checkpoint in (("odd", "nvme", True), ("odd", "device", None)):
            expected, other = plain(name, checkpoint)
            with training(name, home, checkpoint=checkpoint) as (model, optimizer):
                step(model, optimizer, name, 0)
                step(expected, other, name, 0)
                with Lines(0) as lines:
                    step(model, optimizer, name, 1)
                step(expected, other, name, 1)
                for number in range(2, _STEPS):
                    self.interrupted_step(model, optimizer, name, number, draw, lines.count)
                    step(expected, other, name, number)
                # An interrupt behind the last step leaves weights away until their next use.
                step(model, optimizer, name, _STEPS)
                step(expected, other, name, _STEPS)
                self.assertTrue(equal_weights(expected, model))
                self.assertLessEqual(optimizer.hooks.runtime.most_repeated, 4)

    def interrupted_step(
        self, model: Any, optimizer: Any, name: str, number: int, draw: Any, lines: int
    ) -> None:
        before = optimizer.steps
        try:
            with Lines(draw.randint(1, lines)):
                step(model, optimizer, name, number)
        except KeyboardInterrupt:
            if optimizer.steps == before:
                optimizer.zero_grad()
                step(model, optimizer, name, number)
        self.assertEqual(optimizer.steps, before + 1)


class Parts(unittest.TestCase):
    def test_an_interrupt_at_any_line_of_a_part_of_a_step_changes_no_bit(self) -> None:
        expected, other = plain("odd")
        for number in range(3):
            step(expected, other, "odd", number)
        for function in ("begin", "call", "_push_mode", "_pop_mode", "resume", "_show", "_hide"):
            for at in range(1, _LINES + 1):
                with self.subTest(function=function, at=at), training("odd") as (model, optimizer):
                    ran = max(
                        self.step(model, optimizer, number, function, at) for number in range(3)
                    )
                    self.assertTrue(equal_weights(expected, model))
                if ran < at:
                    self.assertGreater(at, 1, "no line of it has run")
                    break

    def step(self, model: Any, optimizer: Any, number: int, function: str, at: int) -> int:
        """Interrupts the first step or the second; returns the lines of ``function`` that ran."""
        interrupted = number == (0 if function == "begin" else 1)
        try:
            with Lines(at if interrupted else 0, function, _FILES) as lines:
                step(model, optimizer, "odd", number)
                with penstock.gathered(model.bias):
                    model.bias.weight.sum()
        except KeyboardInterrupt:
            if optimizer.steps == number:
                optimizer.zero_grad()
                step(model, optimizer, "odd", number)
        self.assertEqual(optimizer.steps, number + 1)
        return lines.count if interrupted else 0


class NotedSteps(unittest.TestCase):
    def test_a_step_whose_noting_was_interrupted_at_any_line_counts_once(self) -> None:
        for level in (1, 2):
            for at in range(1, 60):
                with self.subTest(level=level, at=at), tempfile.TemporaryDirectory() as folder:
                    if self.noted(level, at, folder) < at:
                        break
            else:
                self.fail("the function has more lines than this has tried")

    def noted(self, level: int, at: int, folder: str) -> int:
        """Interrupts a step; returns the lines of ``_follow_step`` that ran."""
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 3)
        expected = copy.deepcopy(model)
        other = reference.AdamW(expected.parameters(), lr=1e-3, weight_decay=0)
        if level == 1:
            optimizer: Any = penstock.AdamW(model.parameters(), run=folder + "/run", weight_decay=0)
        else:
            _, optimizer = penstock.initialize(model, {"gradient_clipping": 0}, run=folder + "/run")
        lines = 0
        for number in range(3):
            for trained, its in ((model, optimizer), (expected, other)):
                trained(torch.full((3,), number + 1.0)).sum().backward()
                try:
                    with Lines(
                        at if its is optimizer and number == 1 else 0, "_follow_step"
                    ) as ran:
                        its.step()
                except KeyboardInterrupt:
                    lines = at
                if its is optimizer and number == 1:
                    lines = max(lines, ran.count)
                    if optimizer.steps == 1:  # before the engine was told to end the step
                        optimizer.step()
                    self.assertEqual(optimizer.steps, 2)
                    optimizer.commit()
                its.zero_grad()
        self.assertEqual(optimizer.steps, 3)
        self.assertTrue(equal_weights(expected, model))
        optimizer.close()
        return lines


class Written(unittest.TestCase):
    def test_weights_that_were_written_are_not_used_after_an_interrupt(self) -> None:
        expected, _ = plain("odd")
        batch = tiny_models.batch("odd", 1)
        with torch.no_grad(), training("odd") as (model, _):
            want = expected(**batch)
            for at in range(1, 30):
                model(**batch)
                model.bias.weight.fill_(1)
                try:
                    with Lines(at, "forget_writes") as lines:
                        model(**batch)
                except (KeyboardInterrupt, penstock.InvalidArgumentError):
                    pass
                try:
                    self.assertTrue(torch.equal(want, model(**batch)), f"interrupted at line {at}")
                except penstock.InvalidArgumentError:
                    continue  # is refused once more
                if lines.count < at:
                    return
            self.fail("the function has more lines than this has tried")


if __name__ == "__main__":
    unittest.main()
