"""Interrupts (Ctrl-C) at places that are hard to meet."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import penstock

_FOLDER = os.path.dirname(penstock.__file__)


@contextlib.contextmanager
def behind_end_step(engine: Any) -> Iterator[None]:
    """Interrupts when the engine has ended a step, and nobody has noted it yet."""
    end = engine.end_step

    def interrupted(*arguments: Any) -> None:
        end(*arguments)
        raise KeyboardInterrupt

    engine.end_step = interrupted
    try:
        yield
    finally:
        engine.end_step = end


class Lines:
    """Counts lines of penstock that run, and interrupts at one of them."""

    def __init__(self, at: int, function: str | None = None, files: Sequence[str] = ("",)) -> None:
        self.count = 0
        self._at = at
        self._files = tuple(os.path.join(_FOLDER, name) for name in files)
        self._function = function  # counts the lines of this one alone

    def __enter__(self) -> Lines:
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: Any) -> None:
        sys.settrace(None)

    def _call(self, frame: Any, event: str, argument: Any) -> Any:
        code = frame.f_code
        counts = self._function in (None, code.co_name) and code.co_filename.startswith(self._files)
        return self._line if counts else None

    def _line(self, frame: Any, event: str, argument: Any) -> Any:
        if event == "line":
            self.count += 1
            if self.count == self._at:
                raise KeyboardInterrupt
        return self._line
