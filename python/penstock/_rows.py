"""A row for each step, for monitors of a training (docs/pytorch_trainer.md, "Monitors")."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Protocol

import torch

from penstock._losses import Losses


class Monitor(Protocol):
    """Sees the steps of a training."""

    def on_step(self, row: Mapping[str, Any]) -> None:
        """Called when a step has ended, with ``step``, ``samples``, ``loss`` and more."""


class Rows:
    """Makes the rows of one training. Costs nothing without monitors.

    Args:
        config: gives the number of samples of a step.
        sections: the monitors' sections of the configuration. Monitors are made with the first row.
        losses: of the step under way.

    Attributes:
        monitors: the monitors.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        sections: Mapping[str, Mapping[str, Any]],
        losses: Losses,
    ) -> None:
        self.monitors: list[Monitor] = []
        self.batch = batch_of(config)
        self._sections = {n: s for n, s in sections.items() if s.get("enabled") is True}
        curves = config.get("csv_monitor")  # whose files the engine writes
        self._curves = isinstance(curves, Mapping) and curves.get("enabled") is True
        self._losses = losses
        self._last = 0.0

    def note(self, loss: Any) -> None:
        """Notes the loss of a micro-batch; a row has their mean if the step reports no loss."""
        wanted = self.monitors or self._sections or self._curves
        if wanted and isinstance(loss, torch.Tensor):
            self._losses.note(loss)

    def loss(self, reported: float | None, engine: Any) -> float | None:
        """Returns the loss of the step that ends: the reported one, or the mean of the noted ones.

        Gives the latter to the engine, for its curves.
        """
        noted = None if reported is not None else self._losses.noted()
        if noted is not None and self._curves:
            engine.note_loss(noted)
        return reported if noted is None else noted

    def end_step(self, step: int, optimizer: Any, loss: float | None) -> None:
        """Tells the monitors of a step that has just ended, with its loss."""
        now, last = time.monotonic(), self._last
        self._last = now
        if self._sections:
            self._make()
        if not self.monitors:
            return
        row: dict[str, Any] = {
            "step": step,
            "samples": step * self.batch,
            "loss": loss,
            "grad_norm": optimizer.grad_norm,
            "lr": optimizer.param_groups[0]["lr"],
            "skipped": optimizer.skipped,
            "step_s": now - last if last else None,
        }
        for monitor in self.monitors:
            monitor.on_step(row)

    def _make(self) -> None:
        from penstock.integrations.monitors import monitors_of

        sections, self._sections = self._sections, {}
        self.monitors += monitors_of(sections)


def batch_of(config: Mapping[str, Any]) -> int:
    """Returns the samples of a step from a configuration; 1 if it has no batch size."""
    whole = config.get("train_batch_size")
    if isinstance(whole, int):
        return whole
    parts = (
        config.get("train_micro_batch_size_per_gpu"),
        config.get("gradient_accumulation_steps"),
    )
    micro, count = (part if isinstance(part, int) else 1 for part in parts)
    return micro * count
