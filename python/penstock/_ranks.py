"""Refuses several ranks: one process has the engine and all parameters."""

from __future__ import annotations

import os

import torch

from penstock.errors import InvalidArgumentError, UnavailableError


def check_alone() -> None:
    """Raises if this process is one of several ranks."""
    said = os.environ.get("WORLD_SIZE") or "1"
    if not said.isdecimal():
        raise InvalidArgumentError(
            f"penstock: WORLD_SIZE is {said!r}, and is the number of ranks; unset it"
        )
    ranks = int(said)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        ranks = max(ranks, torch.distributed.get_world_size())
    if ranks > 1:
        raise UnavailableError(
            f"penstock: this process is one of {ranks} ranks (WORLD_SIZE, torch.distributed), and "
            "modules of torch are trained by one; start one process"
        )
