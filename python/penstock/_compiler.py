"""Code that torch.compile has made."""

from __future__ import annotations

import sys

import torch


def forget() -> None:
    """Has torch compile again what it uses next. To be called when hooks were registered: what was
    compiled before runs without them, because torch looks for hooks only when it compiles."""
    if "torch._dynamo" in sys.modules:  # else nothing was compiled, and to look takes a second
        torch.compiler.reset()
