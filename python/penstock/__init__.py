"""penstock: optimizer states, and if wanted parameters, on NVMe and in host memory.

    optimizer = penstock.AdamW(model.parameters(), lr=2e-5, nvme_path="/nvme")

Importing this package imports neither torch nor the library; both come with the first name that
needs them.
"""

from __future__ import annotations

import importlib
from typing import Any

from penstock.errors import (
    BudgetError,
    CancelledError,
    CorruptionError,
    DriveError,
    InvalidArgumentError,
    NotFoundError,
    NumericError,
    OutOfMemoryError,
    OutOfSpaceError,
    PathPermissionError,
    PenstockError,
    UnavailableError,
)

# Where each name that needs torch or the library comes from.
_LAZY = {
    "AdamW": "penstock.optim",
    "Adam": "penstock.optim",
    "Lion": "penstock.optim",
    "Adagrad": "penstock.optim",
    "clip_grad_norm_": "penstock._initialize",
    "compat": "",
    "gathered": "penstock._gathered",
    "init": "penstock._init",
    "initialize": "penstock._initialize",
    "integrations": "",
    "optim": "",
    "reference": "",
    "universal": "",
}

__all__ = [
    "Adagrad",
    "Adam",
    "AdamW",
    "BudgetError",
    "CancelledError",
    "CorruptionError",
    "DriveError",
    "InvalidArgumentError",
    "Lion",
    "NotFoundError",
    "NumericError",
    "OutOfMemoryError",
    "OutOfSpaceError",
    "PathPermissionError",
    "PenstockError",
    "UnavailableError",
    "clip_grad_norm_",
    "compat",
    "gathered",
    "init",
    "initialize",
    "integrations",
    "optim",
    "reference",
    "universal",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    module = _LAZY[name]
    if not module:
        return importlib.import_module(f"penstock.{name}")
    return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return sorted(__all__)
