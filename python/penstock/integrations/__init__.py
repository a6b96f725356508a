"""What connects penstock to trainers; each name needs the trainer that it is for."""

from __future__ import annotations

import importlib
from typing import Any

_LAZY = {"TrainerCallback": "penstock.integrations.transformers"}

__all__ = ["TrainerCallback"]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'penstock.integrations' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
