"""The losses that a caller reports, from which commits are confirmed or doubted
(docs/pytorch_runs.md, "Losses")."""

from __future__ import annotations

import contextlib
import math
import numbers
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from penstock._library import Outcome
from penstock.errors import InvalidArgumentError


class Losses:
    """The losses of the step under way: those that were reported for its micro-batches, and those
    that were noted for curves alone. What is of a step that has ended is dropped.

    A loss on a GPU is read when the step ends, so that reporting it waits for nothing.

    Args:
        steps: returns how many steps have ended.
    """

    def __init__(self, steps: Callable[[], int]) -> None:
        self._steps = steps
        self._of = 0  # the steps that had ended when these were given
        self._reported: list[torch.Tensor] = []
        self._noted: list[torch.Tensor] = []
        self._reports: bool | None = None  # whether steps report their loss; None: no step was made

    def report(self, loss: Any) -> None:
        """Takes the loss of a micro-batch.

        Raises:
            InvalidArgumentError: it is no loss, or the steps before reported none.
        """
        value = _value_of(loss)
        if self._reports is False:
            raise InvalidArgumentError(
                f"penstock: the loss of step {self._steps() + 1} was reported, and the steps before it "
                "reported none; report that of each step from the first one on, or none"
            )
        self._drop_older()
        self._reported.append(value)

    @contextlib.contextmanager
    def of_step(self, loss: Any) -> Iterator[None]:
        """Takes the loss that a step was given, for as long as that step does not fail."""
        if loss is not None:
            self.report(loss)
        try:
            yield
        except BaseException:
            if loss is not None and self._reported:
                self._reported.pop()
            raise

    def note(self, loss: torch.Tensor) -> None:
        """Takes the loss of a micro-batch for curves."""
        self._drop_older()
        self._noted.append(_value_of(loss))

    def mean(self) -> float | None:
        """Returns the loss that the step reports; None if it reports none."""
        self._drop_older()
        return _mean(self._reported)

    def noted(self) -> float | None:
        """Returns the mean of the noted losses."""
        self._drop_older()
        return _mean(self._noted)

    def end_step(self, reported: float | None) -> None:
        """Says that the step has ended, with what it reported."""
        self._reports = reported is not None
        self.clear()

    def clear(self) -> None:
        """Drops the losses of a step that is not made."""
        self._reported.clear()
        self._noted.clear()

    def _drop_older(self) -> None:
        steps = self._steps()
        if steps != self._of:  # an interrupt came behind the step that they were of
            self.clear()
        self._of = steps


def _mean(losses: list[torch.Tensor]) -> float | None:
    return sum(float(loss) for loss in losses) / len(losses) if losses else None


def _value_of(loss: Any) -> torch.Tensor:
    """Returns a copy of a loss, which the caller may change in place."""
    if isinstance(loss, torch.Tensor):
        plain = loss.layout == torch.strided and loss.device.type != "meta"
        if plain and loss.numel() == 1 and not loss.is_complex():
            return loss.detach().reshape(()).clone()
    else:
        single = loss.item() if getattr(loss, "size", 0) == 1 and hasattr(loss, "item") else loss
        if isinstance(single, numbers.Real) and not isinstance(single, bool):
            with contextlib.suppress(OverflowError):
                return torch.tensor(float(single), dtype=torch.float64)
    raise InvalidArgumentError(
        f"penstock: the loss is {_shown(loss)}; give a number, or a tensor of one real element"
    )


def _shown(loss: Any) -> str:
    if isinstance(loss, torch.Tensor):
        kind = "" if loss.layout == torch.strided else f"{loss.layout} "
        return f"a {kind}tensor of {loss.dtype} of shape {tuple(loss.shape)} on {loss.device}"
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
