"""Runs of the package: what belongs to a run stays, and nothing else (docs/run_format.md)."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
import unittest
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import optimizer_support  # noqa: F401  (finds the package)
import penstock
import torch
from optimizer_support import ROOT, OptimizerTest
from penstock import _library
from penstock._commits import Ending
from penstock._run import Run, state_of
from penstock.errors import (
    CorruptionError,
    InvalidArgumentError,
    NotFoundError,
    PathPermissionError,
    PenstockError,
    UnavailableError,
)


class RunTest(OptimizerTest):
    """Folders, and small trainings in them."""

    def setUp(self) -> None:
        super().setUp()
        self.named = os.path.join(self.folder, "run")
        self.drive = os.path.join(self.folder, "drive")
        os.mkdir(self.drive)

    def opened(self, *arguments: Any) -> Run:
        run = Run.open(*arguments)
        self.addCleanup(run.close)
        return run

    def training(self, level: int = 1, steps: int = 0, **options: Any) -> tuple[Any, Any]:
        """Returns a module that made steps, and its optimizer."""
        torch.manual_seed(7)
        model = torch.nn.Linear(8, 8)
        options = {"run": self.named, **options}
        if level == 2:
            config = {}
            if "nvme_path" in options:
                home = {"device": "nvme", "nvme_path": options.pop("nvme_path")}
                config["zero_optimization"] = {"stage": 3, "offload_optimizer": home}
            model, optimizer = penstock.initialize(model, config, **options)
        else:
            optimizer = penstock.AdamW(model.parameters(), **options)
        self.addCleanup(optimizer.close)
        for _ in range(steps):
            self.step(model, optimizer)
        return model, optimizer

    def step(self, model: Any, optimizer: Any) -> float:
        loss = model(torch.ones(2, 8)).square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    def committed(self, **options: Any) -> None:
        _, optimizer = self.training(steps=1, **options)
        optimizer.commit()
        optimizer.close()

    def files(self, folder: str) -> set[str]:
        return set(os.listdir(folder))


class RunsKeepWhatBelongsToThem(RunTest):
    def test_a_run_leads_to_its_state_wherever_that_is(self) -> None:
        self.committed()
        (file,) = (name for name in self.files(self.named) if name.endswith(".state"))
        self.assertEqual(state_of(self.named)["paths"], [os.path.join(self.named, file)])
        other = os.path.join(self.folder, "other")
        self.committed(run=other, nvme_path=self.drive)
        self.assertEqual(self.files(other), {"run.json", "run.lock"})
        (path,) = state_of(other)["paths"]
        stem = path.removesuffix(".state")
        self.assertEqual(
            {os.path.join(self.drive, name) for name in self.files(self.drive)},
            {path, f"{stem}.run"},
        )
        self.assertEqual(json.loads(pathlib.Path(f"{stem}.run").read_text()), other)

    def test_a_run_is_open_once(self) -> None:
        run = self.opened(self.named)
        with self.assertRaisesRegex(UnavailableError, "open in this process"):
            Run.open(self.named)
        program = (
            f"import sys; sys.path.insert(0, {str(ROOT / 'python')!r})\n"
            f"from penstock._run import Run\nRun.open({self.named!r})"
        )
        command = [sys.executable, "-c", program]
        refused = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertIn("in use by another process", refused.stderr)
        run.close()
        subprocess.run(command, check=True)

    def test_a_run_that_cannot_be_described_is_let_go_all_the_same(self) -> None:
        failing = mock.patch.object(
            _library.RunHandle, "describe", side_effect=PenstockError("failed")
        )
        with failing, self.assertRaisesRegex(PenstockError, "failed"):
            Run.open(self.named)
        run = self.opened(self.named)
        with failing, self.assertRaisesRegex(PenstockError, "failed"):
            run.close()
        self.assertTrue(run.closed)
        self.opened(self.named)

    def test_what_a_run_has_to_say_is_logged(self) -> None:
        self.committed(nvme_path=self.drive)
        (state,) = (name for name in self.files(self.drive) if name.endswith(".state"))
        info = pathlib.Path(self.named, "run.json")
        text = json.loads(info.read_text())
        foreign = {"host": "", "paths": [os.path.join(self.drive, "penstock-other.state")]}
        text["leftovers"] = [{"uuid": text["state"]["uuid"][::-1], "ranks": [foreign]}]
        info.write_text(json.dumps(text))
        shutil.copy(os.path.join(self.drive, state), foreign["paths"][0])
        with self.assertLogs("penstock", "WARNING") as logged:
            self.opened(self.named, self.drive)
        self.assertIn("a state without a commit is left behind", logged.output[0])

    def test_what_is_no_path_of_a_folder_is_refused_by_its_name(self) -> None:
        odd = ["", b"run", 5, True, [], {}, object(), "\0", "a\0b", "\udc80"]
        for value in odd:
            for name, arguments in (("run", (value,)), ("nvme_path", (self.named, [value]))):
                with self.subTest(value=value, name=name):
                    with self.assertRaises(InvalidArgumentError) as caught:
                        Run.open(*arguments)
                    self.assert_line(caught.exception, f"{name} is {value!r:.80}; give ")
        pathlib.Path(self.folder, "file").touch()
        for name in ("x" * 300, "file", "file/run"):
            with self.subTest(name=name), self.assertRaises(PenstockError) as caught:
                Run.open(os.path.join(self.folder, name))
            self.assert_line(caught.exception, os.path.join(self.folder, name))
        self.assertEqual(self.files(self.folder), {"drive", "file"})

    def test_a_snapshot_removes_nothing_that_is_not_its_own(self) -> None:
        for level in (1, 2):
            run = f"{self.named}-{level}"
            kept = os.path.join(os.path.realpath(self.folder), f"kept-{level}")
            theirs = pathlib.Path(os.path.dirname(kept), f".kept-{level}.unfinished", "notes.txt")
            theirs.parent.mkdir()
            theirs.touch()
            _, optimizer = self.training(level, 1, run=run)
            with self.assertRaises(InvalidArgumentError) as caught:
                optimizer.snapshot(kept)
            self.assert_line(caught.exception, str(theirs.parent))
            self.assertFalse(os.path.exists(kept))
            self.assertTrue(theirs.exists())
            theirs.unlink()
            self.assertEqual(optimizer.snapshot(kept), kept)
            self.assertFalse(theirs.parent.exists(), "an empty folder is in nobody's way")
            self.assertEqual(os.stat(kept).st_mode, os.stat(run).st_mode)
            optimizer.close()

    def test_what_cannot_name_a_snapshot_is_refused_before_anything_is_written(self) -> None:
        for level in (1, 2):
            run = f"{self.named}-{level}"
            _, optimizer = self.training(level, 1, run=run)
            before = state_of(run)
            odd: list[Any] = ["", 5, "a\0b", None, b"kept", "\udc80"]
            for value in odd:
                with self.subTest(level=level, value=value):
                    with self.assertRaises(InvalidArgumentError) as caught:
                        optimizer.snapshot(value)
                    self.assert_line(caught.exception, "snapshot")
            self.assertEqual(state_of(run), before)
            self.assertFalse(os.path.exists(os.path.join(run, "snapshots")))
            optimizer.close()

    def test_a_forked_child_neither_holds_nor_ends_a_run(self) -> None:
        run = self.opened(self.named)
        child = os.fork()
        if child == 0:
            run.close()
            os._exit(0)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertTrue(os.path.exists(os.path.join(self.named, "run.json")))

    def test_other_kinds_and_other_versions_are_refused(self) -> None:
        self.committed()
        with self.assertRaisesRegex(InvalidArgumentError, "of kind optimizer"):
            Run.open(self.named, None, "module")
        path = pathlib.Path(self.named, "run.json")
        said = json.loads(path.read_text())
        for text, word in (
            (json.dumps({**said, "version": 7}), "version 7"),
            ("[]", "run.json"),
            ("{", "run.json"),
        ):
            path.write_text(text)
            with self.assertRaisesRegex(CorruptionError, word) as caught:
                Run.open(self.named)
            self.assert_line(caught.exception, str(path))

    def test_a_run_without_a_commit_goes_with_its_training(self) -> None:
        for options in ({}, {"nvme_path": self.drive}, {"run": None, "nvme_path": self.drive}):
            _, optimizer = self.training(steps=1, **options)
            optimizer.close()
            self.assertFalse(os.path.exists(self.named))
            self.assertEqual(self.files(self.drive), set())

    def test_a_first_commit_that_was_begun_stays_although_its_training_ends_badly(self) -> None:
        model, optimizer = self.training(commit_every_steps=1)
        self.step(model, optimizer)
        with (
            mock.patch("penstock._weights.Weights.bring_all", side_effect=PenstockError("failed")),
            self.assertRaisesRegex(PenstockError, "failed"),
        ):
            optimizer.close()
        self.assertIsNotNone(state_of(self.named))

    def test_the_folder_of_a_caller_stays_with_what_is_in_it(self) -> None:
        os.mkdir(self.named)
        pathlib.Path(self.named, "notes.txt").touch()
        self.opened(self.named).close()
        self.assertEqual(self.files(self.named), {"notes.txt"})

    def test_a_commit_of_other_parameters_is_refused_by_what_differs(self) -> None:
        self.committed()
        with self.assertRaisesRegex(InvalidArgumentError, "another training .its shapes is"):
            penstock.AdamW(torch.nn.Linear(8, 9).parameters(), run=self.named)
        with self.assertRaisesRegex(InvalidArgumentError, 'its rule is "AdamW", and "Lion"'):
            penstock.Lion(torch.nn.Linear(8, 8).parameters(), run=self.named)

    def test_a_snapshot_by_a_name_is_kept_within_its_run(self) -> None:
        for level in (1, 2):
            run = f"{self.named}-{level}"
            model, optimizer = self.training(level, 1, run=run)
            kept = optimizer.snapshot("first")
            self.assertEqual(kept, os.path.join(os.path.realpath(run), "snapshots", "first"))
            saved = optimizer.state_dict()
            saved["penstock"]["snapshot"] = kept
            loss = self.step(model, optimizer)
            optimizer.commit()
            optimizer.load_state_dict(saved)
            self.assertEqual(optimizer.steps, 1)
            self.assertEqual(self.step(model, optimizer), loss)
            optimizer.close()
            self.assertEqual(_library.read_run(run)["snapshots"], ["first"])

    def test_what_is_no_path_is_refused_by_name(self) -> None:
        before = self.files(self.folder)
        for odd in ("", b"", b"bytes", "a\0b", "\ud800"):
            for arguments in ({"folder": odd}, {"folder": self.named, "nvme_path": odd}):
                with (
                    self.subTest(arguments),
                    self.assertRaisesRegex(InvalidArgumentError, "^penstock: (run|nvme_path) is "),
                ):
                    Run.open(**arguments)
        self.assertEqual(self.files(self.folder), before)

    def test_a_path_that_cannot_be_a_folder_is_an_error_of_ours(self) -> None:
        file = os.path.join(self.folder, "file")
        pathlib.Path(file).write_text("x", encoding="utf-8")
        loop = os.path.join(self.folder, "loop")
        os.symlink(loop, loop)
        for odd in (
            "x" * 300,
            os.path.join(self.folder, *["y" * 200] * 30),
            file,
            os.path.join(file, "run"),
            loop,
            os.path.join(loop, "run"),
            "/proc/run",
        ):
            with self.subTest(odd[:80]), self.assertRaises(PenstockError) as caught:
                Run.open(odd)
            self.assert_line(caught.exception)

    @unittest.skipIf(os.geteuid() == 0, "root may write everywhere")
    def test_a_folder_that_may_not_be_written_is_named(self) -> None:
        os.chmod(self.folder, 0o500)
        self.addCleanup(os.chmod, self.folder, 0o700)
        with self.assertRaisesRegex(PathPermissionError, "run"):
            Run.open(self.named)


class OlderRunsAreResumed(RunTest):
    """Runs as the package wrote them before version 3 of the run format."""

    @contextmanager
    def as_before(self, kind: str, states: str) -> Iterator[dict[str, Any]]:
        """In it, an engine has its files in ``states``, and commits texts of the older format."""
        made: dict[str, Any] = {}
        engine, begin = _library.Engine.__init__, Ending.begin

        def make(self: Any, config: Any, model: Any, options: Any, run: Any = None) -> None:
            options = {**options, "folders": [states]}
            for key in ("identity", "snapshot"):
                options.pop(key, None)
            made["identity"] = options.pop("older_identity")
            engine(self, config, model, options)
            described = self.describe()
            made["state"] = {"uuid": described["uuid"], "paths": described["state_paths"]}

        def begin_older(self: Any, text: Any) -> None:
            head = {"penstock_python": 1, "kind": kind, "identity": made["identity"]}
            begin(self, {**head, **text})

        with (
            mock.patch.object(_library.Engine, "__init__", make),
            mock.patch.object(Ending, "begin", begin_older),
        ):
            yield made

    def older_run(self, level: int, run: str, nvme: bool) -> float:
        """Leaves a run with one commit; returns the loss of the step behind it."""
        kind = "module" if level == 2 else "optimizer"
        identifier = f"9f0c3a5b7d11223{level}"
        states = os.path.join(self.drive, f"penstock-{identifier}") if nvme else run
        os.makedirs(states, exist_ok=True)
        options = {"nvme_path": self.drive} if nvme else {}
        with self.as_before(kind, states) as made:
            model, optimizer = self.training(level, 2, run=run + "-new", **options)
            optimizer.commit()
            loss = self.step(model, optimizer)
            optimizer.close()
        os.makedirs(run, exist_ok=True)
        said = {"penstock_run": 1, "id": identifier, "kind": kind, "named": True, "place": run}
        said.update(folders=[states], state=made["state"])
        pathlib.Path(run, "run.json").write_text(json.dumps(said))
        if nvme:
            pathlib.Path(states, "run.name").write_text(json.dumps({"run": run}))
        return loss

    def test_an_older_run_resumes_in_its_files_with_the_same_bits(self) -> None:
        for level in (1, 2):
            for nvme in (False, True):
                with self.subTest(level=level, nvme=nvme):
                    run = os.path.realpath(f"{self.named}-{level}-{nvme}")
                    loss = self.older_run(level, run, nvme)
                    state = state_of(run)
                    options = {"nvme_path": self.drive} if nvme else {}
                    model, optimizer = self.training(level, run=run, **options)
                    self.assertEqual(optimizer.steps, 2)
                    self.assertEqual(self.step(model, optimizer), loss)
                    optimizer.commit()
                    optimizer.close()
                    self.assertEqual(state_of(run), state)
                    said = json.loads(pathlib.Path(run, "run.json").read_text())
                    self.assertEqual((said["version"], said["leftovers"]), (3, []))
                    _, optimizer = self.training(level, run=run, **options)
                    self.assertEqual(optimizer.steps, 3)
                    optimizer.close()

    def test_an_older_run_of_another_training_is_refused(self) -> None:
        self.older_run(1, self.named, False)
        with self.assertRaisesRegex(InvalidArgumentError, "is of another training"):
            penstock.AdamW(torch.nn.Linear(8, 9).parameters(), run=self.named)

    def test_a_lost_older_run_is_noticed_by_its_state(self) -> None:
        self.older_run(1, self.named, True)
        shutil.rmtree(self.named)
        with self.assertRaises(NotFoundError) as caught:
            Run.open(self.named, self.drive)
        self.assert_line(caught.exception, self.named, "penstock-9f0c3a5b7d112231", ".state")


if __name__ == "__main__":
    unittest.main()
