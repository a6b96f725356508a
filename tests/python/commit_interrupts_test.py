"""A commit that fails or is interrupted (Ctrl-C) at any line loses nothing, and can be made again."""

from __future__ import annotations

import contextlib
import os
import resource
import unittest
from collections.abc import Iterator
from typing import Any

import optimizer_support  # noqa: F401  (finds the package)
import penstock
import torch
from engine_interrupts import Lines
from optimizer_support import OptimizerTest
from penstock.errors import PenstockError

_EVERY = 1 if os.environ.get("PENSTOCK_LONG_TESTS") else 5
_FILES = ("_commits.py", "_run.py")


@contextlib.contextmanager
def no_new_files() -> Iterator[None]:
    """In it, this process can open no file."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


class CommitsThatEndEarly(OptimizerTest):
    def training(self, level: int, run: str) -> Any:
        """Returns a module, and its optimizer, which is closed at the end of the test."""
        model = torch.nn.Linear(8, 8)
        if level == 2:
            model, optimizer = penstock.initialize(model, {}, run=os.path.join(self.folder, run))
        else:
            optimizer = penstock.AdamW(model.parameters(), run=os.path.join(self.folder, run))
        self.addCleanup(optimizer.close)
        return model, optimizer

    def step(self, model: Any, optimizer: Any) -> None:
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    def test_a_commit_that_was_interrupted_at_any_line_can_be_made_again(self) -> None:
        for level, commits_before in ((1, 0), (2, 1)):
            model, optimizer = self.training(level, f"lines-{level}")
            self.step(model, optimizer)
            with Lines(0, files=_FILES) as lines:
                optimizer.commit()
            optimizer.close()
            for at in range(1, lines.count + 1, _EVERY):
                with self.subTest(level=level, at=at):
                    self.interrupt(level, commits_before, at)

    def interrupt(self, level: int, commits_before: int, at: int) -> None:
        run = f"run-{level}-{at}"
        model, optimizer = self.training(level, run)
        for _ in range(commits_before):
            self.step(model, optimizer)
            optimizer.commit()
        self.step(model, optimizer)
        with contextlib.suppress(KeyboardInterrupt), Lines(at, files=_FILES):
            optimizer.commit()
        if at % 2 == 0:
            optimizer.commit()
        optimizer.close()
        _, again = self.training(level, run)
        if at % 2 == 0:
            self.assertEqual(again.steps, commits_before + 1)
        else:  # without another commit, it is there or not, and the one before is
            self.assertIn(again.steps, (commits_before, commits_before + 1))
        again.close()

    def test_a_commit_whose_run_json_could_not_be_written_is_named_later(
        self,
    ) -> None:
        for level in (1, 2):
            for closes in (False, True):  # the end of the training is the next try
                with self.subTest(level=level, closes=closes):
                    run = f"run-{level}-{closes}"
                    model, optimizer = self.training(level, run)
                    self.step(model, optimizer)
                    with no_new_files(), self.assertRaises(PenstockError) as caught:
                        optimizer.commit()
                    self.assert_line(caught.exception, run)
                    if not closes:
                        optimizer.commit()
                    optimizer.close()
                    _, again = self.training(level, run)
                    self.assertEqual(again.steps, 1)
                    again.close()


if __name__ == "__main__":
    unittest.main()
