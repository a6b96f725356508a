"""Monitors see every step, and the sections of a configuration turn them on."""

from __future__ import annotations

import os
import pathlib
import sys
import types
import unittest
from typing import Any
from unittest import mock

import optimizer_support as support
import penstock
import torch
from optimizer_support import OptimizerTest, loss_of, tower, train
from penstock.integrations import monitors


class Seen:
    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def on_step(self, row: dict[str, Any]) -> None:
        self.rows.append(dict(row))


class Monitors(OptimizerTest):
    def sections(self, **sections: Any) -> dict[str, Any]:
        named = {"output_path": self.folder, "job_name": "job"}
        return {name: {"enabled": True, **named, **section} for name, section in sections.items()}

    def config(self, **sections: Any) -> dict[str, Any]:
        home = {"device": "nvme", "nvme_path": self.folder}
        return {
            "train_batch_size": 8,
            "gradient_accumulation_steps": 2,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
            "zero_optimization": {"stage": 3, "offload_optimizer": home, "offload_param": home},
            "penstock": {"tile_elements": support.TILE},
            **self.sections(**sections),
        }

    def steps(self, model: Any, optimizer: Any, count: int, seed: int = 1) -> list[float]:
        """Trains with level 2, and returns the mean loss of each step."""
        generator = torch.Generator().manual_seed(seed)
        means = []
        for _ in range(count):
            losses = [loss_of(model, generator) for _ in range(2)]
            for loss in losses:
                optimizer.backward(loss)
            optimizer.step()
            means.append((losses[0].item() + losses[1].item()) / 2)
        return means

    def csv(self, curve: str) -> bytes:
        path = os.path.join(self.folder, "job", f"Train_Samples_{curve}.csv")
        return pathlib.Path(path).read_bytes()

    def test_a_row_says_what_a_step_came_to(self) -> None:
        model = tower()
        optimizer = self.make(model.parameters(), model=model)
        seen = Seen()
        optimizer.rows.monitors.append(seen)
        train(model, optimizer, steps=3)
        self.assertEqual([row["step"] for row in seen.rows], [1, 2, 3])
        self.assertEqual([row["samples"] for row in seen.rows], [1, 2, 3])
        self.assertEqual(seen.rows[2]["grad_norm"], optimizer.grad_norm)
        self.assertEqual({row["loss"] for row in seen.rows}, {None})  # a plain loop tells no loss
        self.assertEqual(seen.rows[0]["lr"], 1e-3)
        self.assertFalse(seen.rows[0]["skipped"])
        generator = torch.Generator().manual_seed(1)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, generator)
            loss.backward()
            return loss

        loss = optimizer.step(closure)
        self.assertEqual(seen.rows[3]["loss"], loss.item())

    def test_a_row_has_the_loss_that_the_step_reports(self) -> None:
        plain = tower()
        module, offloaded = penstock.initialize(tower(), self.config())
        self.addCleanup(offloaded.close)
        for model, optimizer in ((plain, self.make(plain.parameters())), (module, offloaded)):
            with self.subTest(type(optimizer).__name__):
                seen = Seen()
                optimizer.rows.monitors.append(seen)
                generator = torch.Generator().manual_seed(1)
                for reported in ([0.5], [torch.tensor(0.25)], [1, torch.tensor([2.0])]):
                    loss_of(model, generator).backward()
                    for loss in reported[:-1]:
                        optimizer.report_loss(loss)
                    optimizer.step(loss=reported[-1])
                    optimizer.zero_grad()
                self.assertEqual([row["loss"] for row in seen.rows], [0.5, 0.25, 1.5])

    def test_csv_files_are_those_of_deepspeed(self) -> None:
        model, optimizer = penstock.initialize(tower(), self.config(csv_monitor={}))
        means = self.steps(model, optimizer, 2)
        lines = "".join(f"{8 * (i + 1)},{mean!r}\r\n" for i, mean in enumerate(means))
        self.assertEqual(self.csv("train_loss"), f"step,train_loss\r\n{lines}".encode())
        self.assertEqual(self.csv("lr"), b"step,lr\r\n8,0.001\r\n16,0.001\r\n")
        optimizer.close()

    def test_csv_files_have_the_losses_that_steps_report_at_both_levels(self) -> None:
        plain = tower()
        section = self.sections(csv_monitor={"job_name": "one"})
        one = self.make(plain.parameters(), config={**section, "penstock": {"tile_elements": 4096}})
        module, two = penstock.initialize(tower(), self.config(csv_monitor={"job_name": "two"}))
        self.addCleanup(two.close)
        for model, optimizer, job, batch in ((plain, one, "one", 1), (module, two, "two", 8)):
            with self.subTest(job):
                generator = torch.Generator().manual_seed(1)
                for reported in (0.5, 0.25):
                    loss_of(model, generator).backward()
                    optimizer.step(loss=reported)
                    optimizer.zero_grad()
                path = pathlib.Path(self.folder, job, "Train_Samples_train_loss.csv")
                lines = f"step,train_loss\r\n{batch},0.5\r\n{2 * batch},0.25\r\n"
                self.assertEqual(path.read_bytes(), lines.encode())

    def test_a_closure_gives_its_loss_to_the_csv_files(self) -> None:
        model = tower()
        section = self.sections(csv_monitor={})
        optimizer = self.make(
            model.parameters(), config={**section, "penstock": {"tile_elements": 4096}}
        )
        generator = torch.Generator().manual_seed(1)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, generator)
            loss.backward()
            return loss

        loss = optimizer.step(closure)
        self.assertEqual(self.csv("train_loss").split(b"\r\n")[1], f"1,{loss.item()!r}".encode())

    def test_a_resumed_run_cuts_the_lines_that_it_writes_again(self) -> None:
        run, config = os.path.join(self.folder, "run"), self.config(csv_monitor={})
        model, optimizer = penstock.initialize(tower(), config, run=run)
        self.steps(model, optimizer, 2)
        optimizer.commit()
        self.steps(model, optimizer, 2)
        optimizer.close()
        self.assertEqual(len(self.csv("lr").splitlines()), 5)
        model, optimizer = penstock.initialize(tower(), config, run=run)
        self.steps(model, optimizer, 1)
        self.assertEqual(
            self.csv("lr").split(b"\r\n")[1:-1], [b"8,0.001", b"16,0.001", b"24,0.001"]
        )
        optimizer.close()
        with self.assertRaisesRegex(penstock.InvalidArgumentError, "of another run; move it away"):
            penstock.initialize(tower(), config)

    def test_wandb_gets_the_curves(self) -> None:
        logged: list[Any] = []
        fake = types.ModuleType("wandb")
        fake.init = lambda **options: logged.append(options)
        fake.log = lambda values, step: logged.append((step, values))
        section = {"project": "p", "group": "g", "team": "t"}
        with mock.patch.dict(sys.modules, {"wandb": fake}):
            model, optimizer = penstock.initialize(tower(), self.config(wandb=section))
            (mean,) = self.steps(model, optimizer, 1)
        optimizer.close()
        self.assertEqual(logged[0], {"project": "p", "group": "g", "entity": "t"})
        expected = {"Train/Samples/train_loss": mean, "Train/Samples/lr": 1e-3}
        self.assertEqual(logged[1], (8, expected))

    def test_tensorboard_gets_the_curves(self) -> None:
        try:
            import torch.utils.tensorboard  # noqa: F401
            from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
        except ImportError as error:
            self.skipTest(f"tensorboard is not installed ({error})")
        model, optimizer = penstock.initialize(tower(), self.config(tensorboard={}))
        (mean,) = self.steps(model, optimizer, 1)
        optimizer.close()
        (file,) = pathlib.Path(self.folder, "job").iterdir()
        found = {
            value.tag: (event.step, value.tensor.float_val[0])
            for event in EventFileLoader(str(file)).Load()
            for value in event.summary.value
        }
        self.assertEqual(found["Train/Samples/lr"][0], 8)
        self.assertAlmostEqual(found["Train/Samples/train_loss"][1], mean, delta=1e-4)

    def test_what_is_not_installed_is_named(self) -> None:
        with mock.patch.dict(sys.modules, {"wandb": None}):
            with self.assertRaisesRegex(penstock.UnavailableError, "wandb.enabled is true"):
                monitors.monitors_of(self.sections(wandb={}))

    def test_what_is_not_enabled_does_nothing(self) -> None:
        config = {
            "config": {"tensorboard": {"enabled": False}, "penstock": {"tile_elements": 4096}}
        }
        model = tower()
        train(model, self.make(model.parameters(), **config), steps=1)
        self.assertEqual(monitors.monitors_of({"wandb": {"enabled": False}}), [])


if __name__ == "__main__":
    unittest.main()
