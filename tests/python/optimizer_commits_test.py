"""Commits are continued with the same bits, and files that no commit names go."""

from __future__ import annotations

import contextlib
import copy
import gc
import os
import random
import shutil
import subprocess
import sys
import tempfile
import unittest
import weakref
from typing import Any

import numpy
import optimizer_support as support
import penstock
import torch
from engine_interrupts import behind_end_step
from optimizer_support import OptimizerTest, decay_groups, tower, train
from penstock import _library, reference
from penstock.errors import InvalidArgumentError, NotFoundError, PenstockError


class Loader:
    """Batches in a drawn order, whose place a commit keeps."""

    def __init__(self) -> None:
        self.order: list[int] = []

    def next(self) -> torch.Tensor:
        if not self.order:
            self.order = torch.randperm(7).tolist()
        generator = torch.Generator().manual_seed(self.order.pop())
        return torch.randint(0, 50, (4, 9), generator=generator)

    def state_dict(self) -> dict[str, Any]:
        return {"order": list(self.order)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.order = state["order"]


class Job:
    """A training that draws from every generator, with what belongs to it."""

    def __init__(
        self, make: Any, dtype: torch.dtype = torch.float32, reports_loss: bool = False
    ) -> None:
        self.reports_loss = reports_loss
        self.model = tower(dtype, dropout=0.1)
        random.seed(1)
        numpy.random.seed(2)
        torch.manual_seed(3)
        self.optimizer = make(self.model)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 20)
        self.loader = Loader()

    def attach(self) -> int:
        return self.optimizer.attach(scheduler=self.scheduler, loader=self.loader)

    def step(self) -> float:
        tokens = self.loader.next()
        logits = self.model(tokens[:, :-1]).float()
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss = loss * (1 + random.random() + numpy.random.rand())
        loss.backward()
        if self.reports_loss:
            self.optimizer.report_loss(loss)
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()
        return loss.item()

    def steps(self, count: int) -> list[float]:
        return [self.step() for _ in range(count)]


class CommitsAreContinued(OptimizerTest):
    def expected(self, steps: int, dtype: torch.dtype = torch.float32) -> tuple[list[float], Job]:
        job = Job(lambda m: reference.AdamW(decay_groups(m), lr=1e-2, model=m), dtype)
        return job.steps(steps), job

    def job(self, dtype: torch.dtype = torch.float32, late: bool = True, **options: Any) -> Job:
        return Job(
            lambda m: self.make(decay_groups(m), lr=1e-2, model=m if late else None, **options),
            dtype,
        )

    def test_a_run_resumes_as_if_it_had_not_ended(self) -> None:
        for where in ("host", "nvme"):
            for dtype in (torch.float32, torch.bfloat16):
                with self.subTest(where=where, dtype=dtype):
                    run = os.path.join(self.folder, f"{where}-{dtype}")
                    losses, whole = self.expected(9, dtype)
                    first = self.job(dtype, where=where, run=run)
                    self.assertEqual(first.attach(), 0)
                    self.assertEqual(first.steps(4), losses[:4])
                    self.assertEqual(first.optimizer.commit(), 4)
                    self.assertEqual(first.steps(2), losses[4:6])  # will be lost
                    first.optimizer.close()
                    second = self.job(dtype, where=where, run=run, resume=True)
                    self.assertEqual(second.attach(), 4)
                    self.assertEqual(second.steps(5), losses[4:])
                    second.optimizer.synchronize()
                    self.assert_same_weights(second.model, whole.model)

    def test_half_the_space_and_no_overlap_have_the_same_bits(self) -> None:
        losses, _ = self.expected(6)
        options = {"run": os.path.join(self.folder, "run"), "durable": False, "overlap": False}
        first = self.job(**options)
        first.attach()
        self.assertEqual(first.steps(3), losses[:3])
        first.optimizer.commit()
        first.optimizer.close()
        second = self.job(**options)
        self.assertEqual(second.attach(), 3)
        self.assertEqual(second.steps(3), losses[3:])

    def test_commits_within_the_loop_are_of_the_end_of_an_iteration(self) -> None:
        """The scheduler steps after the step that the commit is due in."""
        for late in (False, True):
            for killed_after in (2, 3):
                with self.subTest(late=late, killed_after=killed_after):
                    run = os.path.join(self.folder, f"{late}-{killed_after}")
                    losses, _ = self.expected(8)
                    options = {"run": run, "commit_every_steps": 2, "late": late}
                    first = self.job(**options)
                    first.attach()
                    first.steps(killed_after)
                    first.optimizer.close()
                    second = self.job(**options)
                    start = second.attach()
                    self.assertEqual(start, killed_after // 2 * 2)
                    self.assertEqual(second.steps(8 - start), losses[start:])

    def test_a_commit_is_continued_with_other_places_tiles_and_budgets(self) -> None:
        run = os.path.join(self.folder, "run")
        other = tempfile.mkdtemp(dir=self.folder)
        third = tempfile.mkdtemp(dir=self.folder)
        losses, _ = self.expected(8)
        places: list[dict[str, Any]] = [
            {"where": "host"},
            {"where": "nvme"},
            {"where": "split"},
            {"nvme_path": [other, third], "config": {"penstock": {"tile_elements": 8192}}},
        ]
        for i, place in enumerate(places):
            if i == 2:
                place["resume"] = True
            job = self.job(run=run, **place)
            start = job.attach()
            self.assertEqual(start, 2 * i)
            self.assertEqual(job.steps(2), losses[start : start + 2])
            job.optimizer.commit()
            job.optimizer.close()
            said = _library.read_run(run)
            self.assertEqual(self.state_files(), sorted(said["state"]["paths"]))
        self.assertEqual(len(self.state_files()), 2)

    def state_files(self) -> list[str]:
        return sorted(
            os.path.join(root, name)
            for root, _, names in os.walk(self.folder)
            for name in names
            if name.endswith(".state")
        )

    def test_other_tiles_change_neither_the_bits_nor_what_is_continued(self) -> None:
        other = tower()
        plain = reference.AdamW(other.parameters(), max_norm=0.5)
        for elements in (4096, 16384, 8192):
            model = tower()
            optimizer = self.make(
                model.parameters(),
                max_norm=0.5,
                run=os.path.join(self.folder, "run"),
                config={"penstock": {"tile_elements": elements, "tier_split": False}},
            )
            self.assertEqual(train(model, optimizer, 2), train(other, plain, 2))
            optimizer.commit()
            optimizer.close()

    def test_a_commit_with_the_module_is_continued_with_it(self) -> None:
        run = os.path.join(self.folder, "run")
        model = tower()
        optimizer = self.make(model.named_parameters(), run=run, model=model)
        train(model, optimizer, 1)
        optimizer.commit()
        optimizer.close()
        with self.assertRaisesRegex(InvalidArgumentError, "other tensors"):
            self.make(model.named_parameters(), run=run)
        self.make(model.named_parameters(), run=run, model=model)

    def test_a_snapshot_is_loaded_though_its_run_is_gone(self) -> None:
        losses, _ = self.expected(5)
        first = self.job()
        self.assertEqual(first.steps(3), losses[:3])
        saved = first.optimizer.state_dict()
        kept = first.optimizer.snapshot(os.path.join(self.folder, "kept"))
        saved["penstock"]["snapshot"] = kept
        scheduler, loader = first.scheduler.state_dict(), first.loader.state_dict()
        states = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
        gone = saved["penstock"]["run"]
        first.optimizer.close()
        shutil.rmtree(gone)
        for options in ({}, {"run": os.path.join(self.folder, "run")}):
            with self.subTest(options):
                second = self.job(**options)
                second.optimizer.load_state_dict(saved)
                self.assertFalse(os.path.exists(gone))
                second.scheduler.load_state_dict(scheduler)
                second.loader.load_state_dict(copy.deepcopy(loader))
                random.setstate(states[0])
                numpy.random.set_state(states[1])
                torch.set_rng_state(states[2])
                self.assertEqual(second.steps(2), losses[3:])

    def test_a_commit_fails_once_the_run_folder_is_gone_and_the_next_start_says_what_it_found(
        self,
    ) -> None:
        def remove(run: str) -> None:
            shutil.rmtree(run)

        def remove_the_name(run: str) -> None:
            os.unlink(os.path.join(run, "run.json"))

        def move(run: str) -> None:
            os.rename(run, run + "-moved")

        def replace(run: str) -> None:
            move(run)
            os.mkdir(run)

        def replace_the_name(run: str) -> None:
            name = os.path.join(run, "run.json")
            shutil.copy(name, name + ".other")
            os.replace(name + ".other", name)

        for vanish in (remove, remove_the_name, move, replace, replace_the_name):
            for commits_before in (0, 1):
                with self.subTest(vanish.__name__, commits_before=commits_before):
                    self.runs += 1
                    run = os.path.join(self.folder, f"gone-{self.runs}")
                    drive = os.path.join(self.folder, f"drive-{self.runs}")
                    os.mkdir(drive)

                    def make(model: Any, run: str = run, drive: str = drive) -> Any:
                        return self.make(model.parameters(), run=run, nvme_path=drive)

                    model = tower()
                    optimizer = make(model)
                    for _ in range(commits_before):
                        train(model, optimizer, 1)
                        optimizer.commit()
                    train(model, optimizer, 1)
                    vanish(run)
                    for _ in range(2):
                        with self.assertRaises(NotFoundError) as caught:
                            optimizer.commit()
                        self.assert_line(caught.exception, run, "penstock-", ".state")
                    with contextlib.suppress(PenstockError):
                        optimizer.close()
                    if vanish is replace_the_name:
                        continue
                    with self.assertRaises(NotFoundError) as caught:
                        train(model, make(tower()), 1)
                    self.assert_line(caught.exception, run, drive, "no run is in", "its commits")

    def test_a_snapshot_that_is_continued_as_a_run_leaves_the_first(self) -> None:
        run, copy = (os.path.join(self.folder, name) for name in ("run", "copy"))
        job = self.job(run=run)
        job.steps(1)
        job.optimizer.snapshot(copy)
        job.optimizer.close()
        again = self.job(run=copy)
        self.assertEqual(again.optimizer.steps, 1)
        again.optimizer.close()
        self.assertEqual(self.job(run=run).optimizer.steps, 1)

    def test_a_commit_that_was_begun_is_there_when_the_process_ends(self) -> None:
        program = """
import sys
import penstock, torch
run, nvme, level = sys.argv[1:]
model = torch.nn.Linear(8, 8)
home = {"device": "nvme", "nvme_path": nvme}
config = {
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
    "zero_optimization": {"stage": 3, "offload_optimizer": home, "offload_param": home},
    "penstock": {"host_memory": "64MiB", "commit_every_steps": 2},
}
if level == "2":
    model, optimizer = penstock.initialize(model, config, run=run)
else:
    optimizer = penstock.AdamW(
        model.parameters(), run=run, nvme_path=nvme, host_memory="64MiB", commit_every_steps=2
    )
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer)
if len(run) % 2 and optimizer.steps == 0:
    optimizer.attach(scheduler=scheduler)
print(optimizer.steps)
for _ in range(2):
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
"""
        for level in ("1", "2"):
            for name in ("a", "ab"):  # begun in step(), or due until a scheduler steps
                with self.subTest(level=level, name=name):
                    run = os.path.join(self.folder, level + name)
                    command = [sys.executable, "-c", program, run, self.folder, level]
                    environment = {**os.environ, "PYTHONPATH": str(support.ROOT / "python")}
                    for expected in ("0", "2"):
                        out = subprocess.run(
                            command, env=environment, capture_output=True, text=True, check=True
                        )
                        self.assertEqual(out.stdout.strip(), expected)

    def test_an_interrupt_at_the_end_of_a_commit_loses_nothing(self) -> None:
        run = os.path.join(self.folder, "run")
        job = self.job(run=run)
        job.steps(1)
        engine = job.optimizer._training.engine
        finish = engine.finish_commit

        def interrupted() -> None:
            finish()
            raise KeyboardInterrupt

        engine.finish_commit = interrupted
        with self.assertRaises(KeyboardInterrupt):
            job.optimizer.commit()
        engine.finish_commit = finish
        job.optimizer.close()
        self.assertEqual(self.job(run=run).optimizer.steps, 1)

    def test_an_interrupt_at_the_end_of_a_step_loses_nothing(self) -> None:
        losses, whole = self.expected(4)
        for late in (False, True):
            with self.subTest(late=late):
                job = self.job(run=os.path.join(self.folder, f"run-{late}"), late=late)
                job.attach()
                self.assertEqual(job.steps(1), losses[:1])
                engine = job.optimizer._training.engine
                with self.assertRaises(KeyboardInterrupt), behind_end_step(engine):
                    job.step()
                job.scheduler.step()
                job.optimizer.zero_grad()
                self.assertEqual(job.optimizer.state_dict()["penstock"]["step"], 2)
                self.assertEqual(job.optimizer.steps, 2)
                self.assertEqual(job.steps(2), losses[2:])
                job.optimizer.synchronize()
                self.assert_same_weights(job.model, whole.model)

    def test_a_state_dict_whose_commit_was_replaced_ends_nothing(self) -> None:
        losses, _ = self.expected(4)
        job = self.job(run=os.path.join(self.folder, "run"))
        job.attach()
        job.steps(1)
        old = job.optimizer.state_dict()
        job.steps(1)
        job.optimizer.commit()
        self.assertEqual(job.steps(1), losses[2:3])
        with self.assertRaisesRegex(InvalidArgumentError, "only the last commit"):
            job.optimizer.load_state_dict(old)
        self.assertEqual(job.steps(1), losses[3:])

    def test_a_state_dict_keeps_what_is_attached_and_drops_a_commit_that_is_due(self) -> None:
        run = os.path.join(self.folder, "run")
        job = self.job(run=run, commit_every_steps=2)
        job.attach()
        job.steps(1)
        saved = job.optimizer.state_dict()
        loss_of_step = support.loss_of(job.model, torch.Generator().manual_seed(1))
        loss_of_step.backward()
        job.optimizer.step()  # a commit is due when the scheduler has stepped
        job.optimizer.load_state_dict(saved)
        self.assertEqual(job.optimizer.steps, 1)
        job.optimizer.zero_grad()
        job.steps(1)
        job.optimizer.commit()
        job.optimizer.close()
        again = self.job(run=run)
        self.assertEqual(again.attach(), 2)
        self.assertEqual(again.scheduler.last_epoch, job.scheduler.last_epoch)

    def test_an_optimizer_with_a_scheduler_is_collected(self) -> None:
        run = os.path.join(self.folder, "run")
        model = tower()
        optimizer = penstock.AdamW(model.parameters(), run=run)  # make() would keep it
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer)
        optimizer.attach(scheduler=scheduler)
        gc.collect()
        train(model, optimizer, 2, scheduler)
        optimizer.load_state_dict(optimizer.state_dict())
        there = weakref.ref(optimizer)
        del optimizer, scheduler
        gc.collect()
        self.assertIsNone(there())
        again = self.make(model.parameters(), run=run)
        scheduler = torch.optim.lr_scheduler.LinearLR(again)
        self.assertEqual(again.attach(scheduler=scheduler), 2)
        self.assertEqual(scheduler.last_epoch, 2)

    def test_steps_that_a_scaler_skips_count(self) -> None:
        run = os.path.join(self.folder, "run")
        job = self.job(run=run)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
        for number in range(4):
            loss = support.loss_of(job.model, torch.Generator().manual_seed(number))
            scale = float("inf") if number in (0, 2) else 1.0
            scaler.scale(loss * scale).backward()
            scaler.step(job.optimizer)
            scaler.update()
            job.optimizer.zero_grad()
            self.assertEqual(job.optimizer.steps, number + 1)
            self.assertEqual(job.optimizer.skipped, number in (0, 2))
        job.optimizer.commit()
        job.optimizer.close()
        self.assertEqual(self.job(run=run).optimizer.steps, 4)

    def test_a_run_without_a_commit_is_removed(self) -> None:
        run = os.path.join(self.folder, "run")
        job = self.job(run=run)
        job.steps(2)
        self.assertNotEqual(self.state_files(), [])
        job.optimizer.close()
        self.assertEqual(os.listdir(self.folder), [])

    def test_another_training_is_refused_and_leaves_the_commit(self) -> None:
        run = os.path.join(self.folder, "run")
        job = self.job(run=run)
        job.steps(2)
        job.optimizer.commit()
        job.optimizer.close()
        model = tower()
        others = {
            "rule": lambda: self.make(decay_groups(model), "Adam", run=run, model=model),
            "moments": lambda: self.make(decay_groups(model), "Lion", run=run, model=model),
            "groups": lambda: self.make(model.parameters(), run=run, model=model),
            "shapes": lambda: self.make(decay_groups(tower(width=32)), run=run, model=model),
            "dtype": lambda: self.make(decay_groups(tower(torch.bfloat16)), run=run),
        }
        for name, make in others.items():
            with self.subTest(name), self.assertRaises(InvalidArgumentError) as caught:
                make()
            self.assert_line(caught.exception)
        again = self.job(run=run)
        self.assertEqual(again.optimizer.steps, 2)

    def test_resume_says_whether_there_has_to_be_a_commit(self) -> None:
        run = os.path.join(self.folder, "run")
        with self.assertRaisesRegex(InvalidArgumentError, "no commit, and resume is True"):
            self.job(run=run, resume=True)
        job = self.job(run=run, resume=False)
        job.steps(1)
        job.optimizer.commit()
        job.optimizer.close()
        with self.assertRaisesRegex(InvalidArgumentError, "a commit, and resume is False"):
            self.job(run=run, resume=False)

    def test_what_is_attached_has_to_have_a_state_and_to_be_in_the_commit(self) -> None:
        job = self.job(run=os.path.join(self.folder, "run"))
        job.attach()
        job.steps(1)
        with self.assertRaisesRegex(InvalidArgumentError, "no state_dict()"):
            job.optimizer.attach(number=3)
        job.optimizer.commit()
        job.optimizer.close()
        again = self.job(run=os.path.join(self.folder, "run"))
        with self.assertRaisesRegex(InvalidArgumentError, "no state of other; it has scheduler"):
            again.optimizer.attach(other=Loader())


if __name__ == "__main__":
    unittest.main()
