"""Forgets the code that torch.compile has made."""

from __future__ import annotations

import sys

import torch


def forget() -> None:
    """Makes torch compile again. To be called after hooks were registered: code compiled before
    runs without them, because torch looks for hooks only when it compiles."""
    if "torch._dynamo" in sys.modules:  # else nothing was compiled, and the import takes a second
        torch.compiler.reset()
