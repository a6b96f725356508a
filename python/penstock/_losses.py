"""The losses that a caller reports, from which commits are confirmed or doubted
(docs/pytorch_runs.md, "Losses")."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from penstock._library import Outcome
from penstock.errors import InvalidArgumentError


class Losses:
    """The loss of the step under way: the mean of what was reported for its micro-batches.

    A loss on a GPU is read when the step ends, so that reporting it waits for nothing.
    """

    def __init__(self) -> None:
        self._reported: list[torch.Tensor] = []

    def report(self, loss: Any) -> None:
        """Takes the loss of a micro-batch."""
        if isinstance(loss, torch.Tensor) and loss.numel() == 1:
            self._reported.append(loss.detach().reshape(()))
        elif isinstance(loss, (int, float)) and not isinstance(loss, bool):
            self._reported.append(torch.tensor(float(loss), dtype=torch.float64))
        else:
            raise InvalidArgumentError(
                f"penstock: the loss is {_shown(loss)}; give a number, or a tensor of one element"
            )

    def mean(self) -> float | None:
        """Returns the loss of the step; None if none was reported."""
        if not self._reported:
            return None
        return sum(float(loss) for loss in self._reported) / len(self._reported)

    def clear(self) -> None:
        """Says that the step is over."""
        self._reported.clear()


def _shown(loss: Any) -> str:
    if isinstance(loss, torch.Tensor):
        return f"a tensor of shape {tuple(loss.shape)}"
    return f"a {type(loss).__name__}"


def not_finite(loss: float | None, outcome: Outcome) -> str:
    """Says why a step was skipped."""
    if loss is not None and not math.isfinite(loss):
        return f"the loss of step {outcome.step} is {loss}"
    return f"the gradient of step {outcome.step} is not finite (norm {outcome.grad_norm})"


def is_in_doubt(described: Mapping[str, Any]) -> bool:
    """Whether losses speak against the newest commit, and none for it."""
    commit = described["commit"]
    return commit is not None and commit["doubtful"]


def is_unproven(described: Mapping[str, Any]) -> bool:
    """Whether the newest commit is of the last step, and its weights have given no loss yet."""
    commit = described["commit"]
    return (
        commit is not None
        and commit["step"] == described["step"]
        and not commit["confirmed"]
        and not commit["doubtful"]
    )
