"""Shared by all parts: reports results, and what the machine lacks."""

from __future__ import annotations

import json
import os
import pathlib
import sys
import time
from typing import Any, NoReturn

from day.plan import LEFT_OUT

KIT = pathlib.Path(__file__).resolve().parent.parent
_BEGUN = time.monotonic()


def say(**row: Any) -> None:
    """Prints a result."""
    print("RESULT " + json.dumps(row), flush=True)


def leave_out(what: str) -> NoReturn:
    """Ends the part, because the machine lacks something."""
    print(f"missing: {what}", flush=True)
    sys.exit(LEFT_OUT)


def scratch() -> pathlib.Path:
    """A folder of this part's own, removed after it."""
    return pathlib.Path(os.environ["PENSTOCK_DAY_SCRATCH"])


def drive() -> pathlib.Path | None:
    """The same on a drive with O_DIRECT, if there is one."""
    name = os.environ.get("PENSTOCK_DAY_DRIVE")
    return pathlib.Path(name) if name else None


def work() -> pathlib.Path:
    """The folder of the day; what is in it stays for later parts."""
    return pathlib.Path(os.environ["PENSTOCK_DAY_WORK"])


def out() -> pathlib.Path:
    """What is put here is brought back."""
    return pathlib.Path(os.environ["PENSTOCK_DAY_OUT"])


def seconds_left() -> float:
    """Until this part is ended, less two to say what was found."""
    return float(os.environ["PENSTOCK_DAY_SECONDS"]) - (time.monotonic() - _BEGUN) - 2
