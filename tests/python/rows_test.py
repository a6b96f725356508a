"""The rows and findings that a run of the package has when its steps report their losses."""

from __future__ import annotations

import json
import logging
import math
import os
import unittest
import warnings
from typing import Any

import optimizer_support  # noqa: F401  (finds the package)
import penstock
import torch
from optimizer_support import OptimizerTest


class RowsTest(OptimizerTest):
    """Small trainings whose steps report their losses, at both levels."""

    LEVELS = (1, 2)

    def training(self, level: int, **options: Any) -> tuple[Any, Any]:
        """Returns a module and its optimizer, in a run of the level."""
        torch.manual_seed(7)
        model = torch.nn.Linear(8, 8)
        options = {"run": self.run_of(level), **options}
        if level == 2:
            model, optimizer = penstock.initialize(model, options.pop("config", {}), **options)
        else:
            optimizer = penstock.AdamW(model.named_parameters(), **options)
        self.addCleanup(optimizer.close)
        return model, optimizer

    def run_of(self, level: int) -> str:
        return os.path.join(self.folder, f"run-{level}")

    def step(self, model: Any, optimizer: Any, loss: float | None = None) -> float:
        """Makes a step; returns the loss that it reported."""
        true = model(torch.ones(2, 8)).square().sum()
        true.backward()
        reported = true.item() if loss is None else loss
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            optimizer.step(loss=reported)
        optimizer.zero_grad()
        return reported

    def lines(self, level: int, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
        path = os.path.join(self.run_of(level), name)
        if not os.path.exists(path):
            return []
        with open(path, encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    def test_a_step_that_a_scaler_skips_has_a_row_with_its_loss_scale(self) -> None:
        model, optimizer = self.training(1)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for number in range(4):
            loss = model(torch.ones(2, 8)).square().sum()
            scaler.scale(loss).backward()
            if number in (0, 2):
                next(model.parameters()).grad[0, 0] = math.inf
            if number == 2:
                scaler.unscale_(optimizer)
            scaler.step(optimizer, loss=loss)
            scaler.update()
            optimizer.zero_grad()
        self.assertEqual(optimizer.steps, 4)
        rows = self.lines(1)
        self.assertEqual([row["step"] for row in rows], [1, 2, 3, 4])
        self.assertEqual([row["samples"] for row in rows], [1, 2, 3, 4])
        self.assertEqual([row["skipped"] for row in rows], [True, False, True, False])
        self.assertEqual([row["loss_scale"] for row in rows], [1024, 512, 1, 256])
        self.assertIsNone(rows[0]["grad_norm"])
        self.assertEqual(rows[1]["loss"], rows[0]["loss"])
        self.assertEqual(self.lines(1, "numerics.jsonl"), [])

    def test_rows_have_what_the_steps_reported(self) -> None:
        for level in self.LEVELS:
            with self.subTest(level=level):
                model, optimizer = self.training(level)
                losses, norms = [], []
                for number in range(3):
                    optimizer.param_groups[0]["lr"] = 1e-3 * (number + 1)
                    losses.append(self.step(model, optimizer))
                    norms.append(optimizer.grad_norm)
                rows = self.lines(level)
                self.assertEqual([row["step"] for row in rows], [1, 2, 3])
                self.assertEqual([row["samples"] for row in rows], [1, 2, 3])
                self.assertEqual([row["loss"] for row in rows], losses)
                self.assertEqual([row["grad_norm"] for row in rows], norms)
                self.assertEqual([row["lr"] for row in rows], [1e-3, 2e-3, 3e-3])
                self.assertEqual(self.lines(level, "numerics.jsonl"), [])

    def test_a_resume_cuts_what_is_behind_the_commit(self) -> None:
        for level in self.LEVELS:
            with self.subTest(level=level):
                model, optimizer = self.training(level)
                for _ in range(2):
                    self.step(model, optimizer)
                optimizer.commit()
                self.step(model, optimizer)
                self.step(model, optimizer, math.nan)
                optimizer.close()
                self.assertEqual(len(self.lines(level, "numerics.jsonl")), 1)
                model, optimizer = self.training(level)
                again = self.step(model, optimizer)
                rows = self.lines(level)
                self.assertEqual([row["step"] for row in rows], [1, 2, 3])
                self.assertEqual(rows[2]["loss"], again)
                self.assertEqual(self.lines(level, "numerics.jsonl"), [])

    def test_a_checkpoint_that_is_loaded_brings_its_rows(self) -> None:
        for level in self.LEVELS:
            with self.subTest(level=level):
                model, optimizer = self.training(level)
                self.step(model, optimizer)
                state = optimizer.state_dict()
                state["penstock"]["snapshot"] = optimizer.snapshot(
                    os.path.join(self.folder, f"checkpoint-{level}")
                )
                for _ in range(2):
                    self.step(model, optimizer)
                optimizer.commit()
                optimizer.load_state_dict(state)
                self.assertEqual([row["step"] for row in self.lines(level)], [1])
                self.step(model, optimizer)
                self.assertEqual([row["step"] for row in self.lines(level)], [1, 2])

    def test_a_finding_is_logged_and_names_the_parameter(self) -> None:
        for level in self.LEVELS:
            with self.subTest(level=level):
                model, optimizer = self.training(level)
                self.step(model, optimizer)
                loss = model(torch.ones(2, 8)).square().sum()
                (loss * torch.inf).backward()
                with self.assertLogs("penstock", "WARNING") as logged:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        optimizer.step(loss=1.0)
                (said,) = logged.output
                self.assertRegex(said, "step 2: the gradient of .*bias is the first")
                (found,) = self.lines(level, "numerics.jsonl")
                self.assertEqual((found["kind"], found["pass"]), ("nonfinite", "backward"))
                self.assertIn("bias", found["tensor"])

    def test_a_notice_behind_the_last_step_is_logged_with_the_commit(self) -> None:
        for level in self.LEVELS:
            with self.subTest(level=level):
                model, optimizer = self.training(level)
                self.step(model, optimizer)
                os.remove(os.path.join(self.run_of(level), "metrics.jsonl"))
                with self.assertLogs("penstock", "WARNING") as logged:
                    optimizer.commit()
                self.assertRegex(logged.output[0], "metrics.jsonl was removed or replaced")
                self.assertEqual([row["step"] for row in self.lines(level)], [1])

    def test_without_a_loss_nothing_is_written_and_the_log_says_so_once(self) -> None:
        for level in self.LEVELS:
            with self.subTest(level=level):
                model, optimizer = self.training(level)
                with self.assertLogs("penstock", "INFO") as logged:
                    for _ in range(3):
                        model(torch.ones(2, 8)).square().sum().backward()
                        optimizer.step()
                        optimizer.zero_grad()
                    logging.getLogger("penstock").info("so that something is logged")
                optimizer.commit()
                said = [line for line in logged.output if "no rows are written" in line]
                self.assertEqual(len(said), 1, logged.output)
                self.assertIn("optimizer.step(loss=loss)", said[0])
                self.assertEqual(
                    [n for n in os.listdir(self.run_of(level)) if n.endswith(".jsonl")], []
                )


if __name__ == "__main__":
    unittest.main()
