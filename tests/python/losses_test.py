"""Losses that a caller reports: they confirm commits, or speak against them."""

from __future__ import annotations

import json
import logging
import math
import multiprocessing
import os
import pathlib
import signal
import unittest
import warnings
from typing import Any

import numpy
import optimizer_support  # noqa: F401  (finds the package)
import penstock
import torch
from optimizer_support import OptimizerTest
from penstock.errors import InvalidArgumentError, NumericError


def _killed_in_doubt(folder: str, level: int) -> None:
    test = LossesTest()
    test.folder = folder
    model, optimizer = test.training(level)
    for _ in range(2):
        test.step(model, optimizer)
        optimizer.commit()
    test.step(model, optimizer, math.nan)
    os.kill(os.getpid(), signal.SIGKILL)


class LossesTest(OptimizerTest):
    """Small trainings whose steps report their losses, at both levels."""

    LEVELS = (1, 2)

    def training(self, level: int, **options: Any) -> tuple[Any, Any]:
        """Returns a module and its optimizer, in a run of the level."""
        torch.manual_seed(7)
        model = torch.nn.Linear(8, 8)
        options = {"run": os.path.join(self.folder, f"run-{level}"), **options}
        if level == 2:
            config = {
                "gradient_clipping": 1.0,
                "optimizer": {"type": "AdamW", "params": {"weight_decay": 0.0}},
                "penstock": {"commit_every_steps": options.pop("commit_every_steps", 0)},
            }
            model, optimizer = penstock.initialize(model, config, **options)
        else:
            optimizer = penstock.AdamW(model.parameters(), **options)
        self.addCleanup(optimizer.close)
        return model, optimizer

    def step(self, model: Any, optimizer: Any, loss: Any = None, reported: bool = True) -> None:
        """Makes a step; ``loss`` is reported in place of the true one."""
        true = model(torch.ones(2, 8)).square().sum()
        true.backward()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            optimizer.step(loss=(true if loss is None else loss) if reported else None)
        optimizer.zero_grad()

    def test_a_commit_without_a_finite_loss_after_it_is_taken_back(self) -> None:
        for level in self.LEVELS:
            with self.subTest(level=level):
                model, optimizer = self.training(level)
                for _ in range(2):
                    self.step(model, optimizer)
                    optimizer.commit()
                self.step(model, optimizer, math.nan)
                self.assertTrue(optimizer.skipped)
                with self.assertRaises(NumericError) as caught:
                    optimizer.commit()
                self.assert_line(caught.exception, "no loss after the commit of step 2 was finite")
                with self.assertLogs("penstock", "WARNING") as logged:
                    optimizer.close()
                self.assertIn("commit of step 2", "".join(logged.output))
                _, optimizer = self.training(level)
                self.assertEqual(optimizer.steps, 1)

    def test_a_process_that_is_killed_in_doubt_is_followed_by_one_that_begins_before(self) -> None:
        for level in self.LEVELS:
            with self.subTest(level=level):
                process = multiprocessing.get_context("spawn").Process(
                    target=_killed_in_doubt, args=(self.folder, level)
                )
                process.start()
                process.join()
                self.assertEqual(process.exitcode, -signal.SIGKILL)
                with self.assertLogs("penstock", "WARNING") as logged:
                    _, optimizer = self.training(level)
                [line] = logged.output
                self.assertIn("the commit of step 2 gave no finite loss", line)
                self.assertIn("the commit of step 1 is whole and is used", line)
                self.assertEqual(optimizer.steps, 1)

    def test_a_finite_loss_after_one_that_is_not_lets_the_training_go_on(self) -> None:
        for level in self.LEVELS:
            with self.subTest(level=level):
                model, optimizer = self.training(level, commit_every_steps=1)
                for loss in (None, None, torch.tensor(math.inf), None):
                    self.step(model, optimizer, loss)
                optimizer.close()
                _, optimizer = self.training(level)
                self.assertEqual(optimizer.steps, 4)

    def test_two_losses_in_a_row_that_are_not_finite_end_the_training(self) -> None:
        for level in self.LEVELS:
            with self.subTest(level=level):
                model, optimizer = self.training(level)
                for loss in (None, math.nan, math.nan):
                    self.step(model, optimizer, loss)
                with self.assertRaises(NumericError) as caught:
                    self.step(model, optimizer)
                self.assert_line(caught.exception, "losses of 2 steps in a row")

    def test_steps_report_their_losses_all_or_none(self) -> None:
        for level in self.LEVELS:
            for reported in (False, True):
                with self.subTest(level=level, reported=reported):
                    run = os.path.join(self.folder, f"run-{level}-{reported}")
                    model, optimizer = self.training(level, run=run)
                    self.step(model, optimizer, reported=reported)
                    with self.assertRaises(InvalidArgumentError) as caught:
                        self.step(model, optimizer, reported=not reported)
                    self.assert_line(
                        caught.exception,
                        "the loss of step 2" if not reported else "step 2 ends before its loss",
                    )

    def test_losses_change_no_bit_and_a_step_may_be_committed_twice(self) -> None:
        for level in self.LEVELS:
            with self.subTest(level=level):
                weights = []
                for reported in (False, True):
                    run = os.path.join(self.folder, f"run-{level}-{reported}")
                    model, optimizer = self.training(level, run=run)
                    for _ in range(3):
                        self.step(model, optimizer, reported=reported)
                        optimizer.commit()
                        self.assertEqual(
                            optimizer.state_dict()["penstock"]["step"], optimizer.steps
                        )
                    weights.append(model(torch.ones(2, 8)).detach())
                self.assertTrue(torch.equal(*weights))

    def test_a_training_says_once_that_its_steps_report_no_loss(self) -> None:
        for level in self.LEVELS:
            for reported in (False, True):
                with self.subTest(level=level, reported=reported):
                    run = os.path.join(self.folder, f"run-{level}-{reported}")
                    model, optimizer = self.training(level, run=run, commit_every_steps=2)
                    with self.assertLogs("penstock", "INFO") as logged:
                        logging.getLogger("penstock").info("so that something is logged")
                        for _ in range(4):
                            self.step(model, optimizer, reported=reported)
                        optimizer.close()
                    said = [line for line in logged.output if "report no loss" in line]
                    self.assertEqual(len(said), 0 if reported else 1, said)
                    for line in said:
                        self.assertIn(run, line)

    def test_a_snapshot_of_a_commit_that_is_taken_back_stays(self) -> None:
        for level in self.LEVELS:
            with self.subTest(level=level):
                model, optimizer = self.training(level)
                for _ in range(2):
                    self.step(model, optimizer)
                    optimizer.commit()
                copy = optimizer.snapshot(os.path.join(self.folder, f"copy-{level}"))
                self.step(model, optimizer, math.nan)
                with self.assertRaises(NumericError):
                    optimizer.snapshot("later")
                with self.assertLogs("penstock", "WARNING"):
                    optimizer.close()
                _, optimizer = self.training(level)
                self.assertEqual(optimizer.steps, 1)
                _, optimizer = self.training(level, run=copy)
                self.assertEqual(optimizer.steps, 2)

    def test_micro_batches_are_reported_one_by_one(self) -> None:
        for level in self.LEVELS:
            with self.subTest(level=level):
                model, optimizer = self.training(level)
                optimizer.report_loss(1)
                optimizer.report_loss(torch.tensor([math.nan]))
                self.step(model, optimizer)
                self.assertTrue(optimizer.skipped)

    def test_what_is_no_loss_is_refused_by_what_it_is(self) -> None:
        for level in self.LEVELS:
            _, optimizer = self.training(level)
            for odd in (
                "1",
                True,
                [1.0],
                torch.ones(2),
                None,
                1j,
                10**400,
                torch.tensor(1j),
                torch.ones((), device="meta"),
                torch.ones(1).to_sparse(),
                numpy.ones(2),
            ):
                with self.subTest(level=level, odd=odd):
                    with self.assertRaises(InvalidArgumentError) as caught:
                        optimizer.report_loss(odd)
                    self.assert_line(caught.exception, "the loss is a ")

    def test_numbers_of_any_kind_are_losses(self) -> None:
        for level in self.LEVELS:
            model, optimizer = self.training(level)
            for loss in (
                1,
                1.5,
                numpy.float32(2),
                numpy.int64(3),
                numpy.ones(()),
                torch.ones(1, 1),
            ):
                self.step(model, optimizer, loss)
                self.assertFalse(optimizer.skipped)

    def test_a_reported_tensor_may_be_changed_in_place(self) -> None:
        for level in self.LEVELS:
            model, optimizer = self.training(level)
            loss = torch.ones(())
            optimizer.report_loss(loss)
            loss.fill_(math.nan)
            self.step(model, optimizer, 3.0)
            self.assertFalse(optimizer.skipped)
            row = pathlib.Path(self.folder, f"run-{level}", "metrics.jsonl").read_text()
            self.assertEqual(json.loads(row)["loss"], 2.0)

    def test_the_loss_of_a_step_that_was_refused_is_not_that_of_the_next(self) -> None:
        for level in self.LEVELS:
            with self.subTest(level=level):
                model, optimizer = self.training(level)
                self.step(model, optimizer)
                model(torch.ones(2, 8)).square().sum().backward()
                rate = optimizer.param_groups[0]["lr"]
                optimizer.param_groups[0]["lr"] = math.nan
                with self.assertRaises(InvalidArgumentError):
                    optimizer.step(loss=math.nan)
                optimizer.param_groups[0]["lr"] = rate
                optimizer.zero_grad()
                self.step(model, optimizer, 1.0)
                self.assertFalse(optimizer.skipped)

    def test_a_step_that_was_refused_may_be_made_again(self) -> None:
        for level in self.LEVELS:
            with self.subTest(level=level):
                model, optimizer = self.training(level)
                loss = model(torch.ones(2, 8)).square().sum()
                loss.backward()
                rate = optimizer.param_groups[0]["lr"]
                optimizer.param_groups[0]["lr"] = math.nan
                with self.assertRaises(InvalidArgumentError):
                    optimizer.step(loss=loss)
                optimizer.param_groups[0]["lr"] = rate
                optimizer.step(loss=loss)
                self.assertEqual(optimizer.steps, 1)

    def test_one_loss_by_mistake_stops_no_training(self) -> None:
        for level in self.LEVELS:
            with self.subTest(level=level):
                model, optimizer = self.training(level)
                self.step(model, optimizer, reported=False)
                with self.assertRaises(InvalidArgumentError):
                    optimizer.report_loss(1.0)
                self.step(model, optimizer, reported=False)
                self.assertEqual(optimizer.steps, 2)


if __name__ == "__main__":
    unittest.main()
