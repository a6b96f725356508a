"""Connects penstock to trainers and monitors; each name imports only its own library."""

from __future__ import annotations

import importlib
from typing import Any

_LAZY = {
    "Trainer": "penstock.integrations.hf",
    "TrainerCallback": "penstock.integrations.hf",
}

__all__ = ["Trainer", "TrainerCallback"]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'penstock.integrations' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
