"""Loads torch and penstock in the order that works in every location of the kit."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util

from said import KIT, leave_out


def load(*also: str) -> None:
    """Imports torch and what else is named; leaves the part out where one of them is not there.

    libpenstock.so takes the system's C++ library, which torch needs as well; where there is none, it
    takes the one of the kit's programs.
    """
    for name in ("torch", *also):
        if importlib.util.find_spec(name) is None:
            leave_out(f"this Python has no {name}")
    load_cxx()


def load_cxx() -> None:
    """Loads the C++ library and what it needs: the system's, or else the kit's."""
    for name in ("libgcc_s.so.1", "libstdc++.so.6"):
        for file in (name, str(KIT / "lib" / name)):
            with contextlib.suppress(OSError):
                ctypes.CDLL(file, mode=ctypes.RTLD_GLOBAL)
                break
