"""At level 1, what ends step() early (Ctrl-C at any line, an error) leaves the weights of its step."""

from __future__ import annotations

import os
import unittest
from typing import Any

import optimizer_support  # noqa: F401  (finds the package)
import penstock
import torch
from engine_interrupts import Lines
from optimizer_support import OptimizerTest, tower
from penstock import reference

_EVERY = 1 if os.environ.get("PENSTOCK_LONG_TESTS") else 5


class Interrupted(OptimizerTest):
    def backward(self, model: Any, number: int) -> None:
        generator = torch.Generator().manual_seed(number)
        tokens = torch.randint(0, 50, (2, 5), generator=generator)
        model(tokens).square().mean().backward()

    def plain(self) -> tuple[Any, Any]:
        model = tower()
        return model, reference.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)

    def training(self, late: bool, name: str, **options: Any) -> tuple[Any, Any]:
        model = tower()
        more = {"model": model} if late else {}
        run = os.path.join(self.folder, name)
        optimizer = penstock.AdamW(
            model.parameters(), lr=1e-3, weight_decay=0.1, run=run, **more, **options
        )
        self.addCleanup(optimizer.close)
        return model, optimizer

    def assert_same(self, expected: Any, model: Any, message: str) -> None:
        for (name, wanted), (_, found) in zip(
            expected.named_parameters(), model.named_parameters()
        ):
            self.assertTrue(torch.equal(wanted, found), f"{name} {message}")

    def test_an_interrupt_at_any_line_of_a_step_changes_no_bit(self) -> None:
        for late in (False, True):
            expected, other = self.plain()
            model, optimizer = self.training(late, f"lines-{late}", commit_every_steps=2)
            at, ran = 0, 1
            while at <= ran:
                number = optimizer.steps
                self.backward(expected, number)
                other.step()
                other.zero_grad()
                try:
                    with Lines(at if number >= 3 else 0) as lines:
                        self.backward(model, number)
                        optimizer.step()
                except KeyboardInterrupt:
                    if optimizer.steps == number:
                        optimizer.zero_grad()
                        self.backward(model, number)
                        optimizer.step()
                optimizer.zero_grad()
                self.assertEqual(optimizer.steps, number + 1)
                if late:
                    model(torch.zeros(1, 1, dtype=torch.long))
                self.assert_same(expected, model, f"after an interrupt at line {at}, {late=}")
                if number >= 2:
                    ran = max(ran, lines.count) if at else lines.count
                    at += _EVERY
            self.assertGreater(ran, 100)

    def test_an_error_in_a_commit_of_step_leaves_the_new_weights(self) -> None:
        class Fails:
            failed = False

            def state_dict(self) -> dict[str, Any]:
                if not self.failed:
                    self.failed = True
                    raise OSError("a loader that fails once")
                return {}

            def load_state_dict(self, _: Any) -> None:
                pass

        for late in (False, True):
            expected, other = self.plain()
            model, optimizer = self.training(late, f"error-{late}", commit_every_steps=3)
            optimizer.attach(loader=Fails())
            for number in range(6):
                for trained, its in ((expected, other), (model, optimizer)):
                    self.backward(trained, number)
                    if its is optimizer and number == 2:
                        with self.assertRaisesRegex(OSError, "fails once"):
                            its.step()
                    else:
                        its.step()
                    its.zero_grad()
            self.assertEqual(optimizer.steps, 6)
            optimizer.synchronize()
            self.assert_same(expected, model, f"{late=}")


if __name__ == "__main__":
    unittest.main()
