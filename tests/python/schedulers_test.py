"""Schedulers of torch on the optimizers of both levels: the rates and bits of plain memory."""

from __future__ import annotations

import contextlib
import copy
import os
import tempfile
import unittest
from collections.abc import Iterator
from typing import Any

import penstock
import tiny_models
import torch
from engine_interrupts import behind_end_step
from level2_support import plain, step, training
from torch.optim import lr_scheduler as schedulers

_STEPS = 6
_MODEL = "odd"
_SCHEDULERS = {
    "a warm-up by LambdaLR": lambda o: schedulers.LambdaLR(o, lambda i: min(1.0, (i + 1) / 4)),
    "LinearLR": lambda o: schedulers.LinearLR(o, 0.1, 1.0, total_iters=4),
    "OneCycleLR, which sets betas": lambda o: schedulers.OneCycleLR(o, 5e-3, total_steps=8),
    "CosineAnnealingLR": lambda o: schedulers.CosineAnnealingLR(o, _STEPS),
    "SequentialLR": lambda o: schedulers.SequentialLR(
        o,
        [schedulers.LinearLR(o, 0.1, total_iters=2), schedulers.CosineAnnealingLR(o, 4)],
        milestones=[2],
    ),
    "ReduceLROnPlateau": lambda o: schedulers.ReduceLROnPlateau(o, patience=0),
}


@contextlib.contextmanager
def _at_level(level: int, run: str) -> Iterator[tuple[Any, Any]]:
    """Yields module and optimizer of a run, which is continued if it has a commit."""
    if level == 2:
        with training(_MODEL, run=run) as made:
            yield made
        return
    model = tiny_models.make(_MODEL)
    optimizer = penstock.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1, run=run)
    try:
        yield model, optimizer
    finally:
        optimizer.close()


def _train(model: Any, optimizer: Any, scheduler: Any, steps: range) -> list[Any]:
    """Returns rates, betas and losses of steps."""
    found = []
    for number in steps:
        group = optimizer.param_groups[0]
        found.append((group["lr"], group["betas"], step(model, optimizer, _MODEL, number).item()))
        if isinstance(scheduler, schedulers.ReduceLROnPlateau):
            scheduler.step(found[-1][-1])
        else:
            scheduler.step()
    return found


class SchedulersOfTorch(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.runs = 0

    def new_run(self) -> str:
        self.runs += 1
        return os.path.join(self.folder, f"run-{self.runs}")

    def check(self, train: Any) -> None:
        """Compares ``train(run, level, make)``, which returns rows and the module, with plain memory
        for all schedulers and both levels."""
        for name, make in _SCHEDULERS.items():
            expected, other = plain(_MODEL)
            want = _train(expected, other, make(other), range(_STEPS))
            for level in (1, 2):
                with self.subTest(name, level=level):
                    rows, weights = train(self.new_run(), level, make)
                    self.assertEqual(rows, want)
                    for key, weight in expected.state_dict().items():
                        self.assertTrue(torch.equal(weight, weights[key]), key)

    def test_losses_and_weights_are_those_of_plain_memory(self) -> None:
        def train(run: str, level: int, make: Any) -> Any:
            with _at_level(level, run) as (model, optimizer):
                rows = _train(model, optimizer, make(optimizer), range(_STEPS))
                return rows, copy.deepcopy(model.state_dict())

        self.check(train)

    def test_a_run_resumes_with_the_rates_of_an_attached_scheduler(self) -> None:
        def train(run: str, level: int, make: Any) -> Any:
            rows = []
            for steps in (range(2), range(2, 3), range(3, _STEPS)):
                with _at_level(level, run) as (model, optimizer):
                    scheduler = make(optimizer)
                    optimizer.attach(scheduler=scheduler)
                    rows += _train(model, optimizer, scheduler, steps)
                    optimizer.commit()
                    weights = copy.deepcopy(model.state_dict())
            return rows, weights

        self.check(train)

    def test_a_scheduler_whose_state_the_caller_saves_resumes_with_a_state_dict(self) -> None:
        def train(run: str, level: int, make: Any) -> Any:
            file = run + ".pt"
            with _at_level(level, run) as (model, optimizer):
                scheduler = make(optimizer)
                rows = _train(model, optimizer, scheduler, range(3))
                torch.save([optimizer.state_dict(), scheduler.state_dict()], file)
            with _at_level(level, run) as (model, optimizer):
                scheduler = make(optimizer)
                of_optimizer, of_scheduler = torch.load(file, weights_only=False)
                optimizer.load_state_dict(of_optimizer)
                scheduler.load_state_dict(of_scheduler)
                rows += _train(model, optimizer, scheduler, range(3, _STEPS))
                return rows, copy.deepcopy(model.state_dict())

        self.check(train)

    def test_a_scheduler_whose_state_the_caller_saves_resumes_with_the_run(self) -> None:
        def train(run: str, level: int, make: Any) -> Any:
            with _at_level(level, run) as (model, optimizer):
                scheduler = make(optimizer)
                rows = _train(model, optimizer, scheduler, range(3))
                optimizer.commit()
                saved = copy.deepcopy(scheduler.state_dict())
            with _at_level(level, run) as (model, optimizer):
                scheduler = make(optimizer)
                scheduler.load_state_dict(saved)
                optimizer.attach()
                rows += _train(model, optimizer, scheduler, range(3, _STEPS))
                return rows, copy.deepcopy(model.state_dict())

        self.check(train)

    def test_a_rate_that_is_set_after_attach_is_used(self) -> None:
        for level in (1, 2):
            run = self.new_run()
            for lr in (1e-3, 5e-2):
                with _at_level(level, run) as (model, optimizer):
                    scheduler = schedulers.ConstantLR(optimizer, 1.0)
                    optimizer.attach(scheduler=scheduler)
                    optimizer.param_groups[0]["lr"] = lr
                    step(model, optimizer, _MODEL, 0)
                    self.assertEqual(optimizer.param_groups[0]["lr"], lr)
                    optimizer.commit()

    def test_a_commit_before_attach_keeps_what_was_attached_and_the_generators(self) -> None:
        for level in (1, 2):
            run = self.new_run()
            with _at_level(level, run) as (model, optimizer):
                scheduler = schedulers.StepLR(optimizer, 2, gamma=0.5)
                optimizer.attach(scheduler=scheduler)
                _train(model, optimizer, scheduler, range(3))
                optimizer.commit()
                saved, draws = copy.deepcopy(scheduler.state_dict()), torch.get_rng_state()
            torch.manual_seed(99)
            with _at_level(level, run) as (model, optimizer):
                optimizer.state_dict()
                optimizer.commit()
            with _at_level(level, run) as (model, optimizer):
                scheduler = schedulers.StepLR(optimizer, 2, gamma=0.5)
                optimizer.attach(scheduler=scheduler)
                self.assertEqual(scheduler.state_dict(), saved)
                self.assertTrue(torch.equal(torch.get_rng_state(), draws))

    def test_an_attach_that_fails_attaches_nothing(self) -> None:
        for level in (1, 2):
            run = self.new_run()
            for continued in (False, True):
                with _at_level(level, run) as (model, optimizer):
                    scheduler = schedulers.StepLR(optimizer, 2, gamma=0.5)
                    if not continued:
                        optimizer.attach(scheduler=scheduler)
                        _train(model, optimizer, scheduler, range(3))
                        saved = copy.deepcopy(scheduler.state_dict())
                    else:
                        with self.assertRaisesRegex(penstock.InvalidArgumentError, "no state of b"):
                            optimizer.attach(b=scheduler, scheduler=scheduler)
                    optimizer.commit()
            with _at_level(level, run) as (model, optimizer):
                scheduler = schedulers.StepLR(optimizer, 2, gamma=0.5)
                optimizer.attach(scheduler=scheduler)
                self.assertEqual(scheduler.state_dict(), saved)

    def test_a_commit_after_an_interrupt_of_a_step_that_ended_has_current_states(self) -> None:
        for level in (1, 2):
            run = self.new_run()
            with _at_level(level, run) as (model, optimizer):
                step(model, optimizer, _MODEL, 0)
                optimizer.commit()
            with _at_level(level, run) as (model, optimizer):
                engine = (optimizer.hooks.runtime if level == 2 else optimizer._made()).engine
                with self.assertRaises(KeyboardInterrupt), behind_end_step(engine):
                    step(model, optimizer, _MODEL, 1)
                torch.manual_seed(123)
                draws = torch.get_rng_state()
                optimizer.commit()
            with _at_level(level, run) as (model, optimizer):
                optimizer.attach()
                self.assertEqual(optimizer.steps, 2)
                self.assertTrue(torch.equal(torch.get_rng_state(), draws))

    def test_generators_that_the_caller_set_after_load_state_dict_are_kept(self) -> None:
        for level in (1, 2):
            run = self.new_run()
            with _at_level(level, run) as (model, optimizer):
                optimizer.attach()
                step(model, optimizer, _MODEL, 0)
                saved = optimizer.state_dict()
                step(model, optimizer, _MODEL, 1)
                optimizer.load_state_dict(saved)
                torch.manual_seed(77)
                draws = torch.get_rng_state()
                optimizer.commit()
            with _at_level(level, run) as (model, optimizer):
                optimizer.attach()
                self.assertTrue(torch.equal(torch.get_rng_state(), draws))

    def test_a_second_commit_of_a_closed_training_is_refused(self) -> None:
        for level in (1, 2):
            with _at_level(level, self.new_run()) as (model, optimizer):
                step(model, optimizer, _MODEL, 0)
                optimizer.commit()
                optimizer.close()
                with self.assertRaisesRegex(penstock.PenstockError, "closed"):
                    optimizer.commit()

    def test_a_state_dict_after_a_rate_was_set_commits_the_rate(self) -> None:
        for level in (1, 2):
            run = self.new_run()
            with _at_level(level, run) as (model, optimizer):
                step(model, optimizer, _MODEL, 0)
                optimizer.commit()
                optimizer.param_groups[0]["lr"] = 0.5
                optimizer.state_dict()
            with _at_level(level, run) as (_, optimizer):
                self.assertEqual(optimizer.param_groups[0]["lr"], 0.5)

    def test_a_state_dict_that_was_loaded_keeps_its_rates(self) -> None:
        model = tiny_models.make(_MODEL)
        groups = [{"params": list(model.parameters()), "lr": torch.tensor(1e-3)}]
        with training(model=model, model_parameters=groups) as (model, optimizer):
            scheduler = schedulers.StepLR(optimizer, 1, gamma=0.5)
            saved = optimizer.state_dict()
            optimizer.load_state_dict(saved)
            step(model, optimizer, _MODEL, 0)
            scheduler.step()  # writes into the tensor
            self.assertEqual(optimizer.param_groups[0]["lr"].item(), torch.tensor(5e-4).item())
            self.assertEqual(saved["param_groups"][0]["lr"].item(), torch.tensor(1e-3).item())


if __name__ == "__main__":
    unittest.main()
