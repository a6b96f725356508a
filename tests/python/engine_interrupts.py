"""Interrupts (Ctrl-C) at a place of an engine that is hard to meet."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


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
