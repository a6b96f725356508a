"""Interrupts (Ctrl-C) at places that are hard to meet."""

from __future__ import annotations

import contextlib
import dis
import functools
import os
import sys
import types
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


@functools.cache
def _ends_of_with(code: types.CodeType) -> frozenset[int]:
    """Returns where a ``with`` is left: Python calls ``__exit__`` there without looking for signals."""
    found = set()
    instructions = [i for i in dis.get_instructions(code) if i.opname not in ("NOP", "POP_BLOCK")]
    for i, instruction in enumerate(instructions):
        two = [(n.opname, n.argval) for n in instructions[i : i + 2]]
        if two in ([("LOAD_CONST", None)] * 2, [("LOAD_CONST", None), ("DUP_TOP", None)]):
            found.add(instruction.offset)
        elif two[-1][0] == "WITH_EXCEPT_START":
            found.update(i.offset for i in instructions[i : i + 2])
    return frozenset(found)


class Lines:
    """Counts lines of penstock that run, and interrupts at one of them.

    A real signal is met at some of these lines, and at no other place.
    """

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
        if event == "line" and frame.f_lasti not in _ends_of_with(frame.f_code):
            self.count += 1
            if self.count == self._at:
                raise KeyboardInterrupt
        return self._line
