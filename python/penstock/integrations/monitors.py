"""Monitors that the sections ``tensorboard`` and ``wandb`` of a configuration name.

They show the same curves as DeepSpeed's monitors: ``Train/Samples/train_loss`` and
``Train/Samples/lr``, over the samples of all steps.
The library writes the files of ``csv_monitor``.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

from penstock.errors import UnavailableError

__all__ = ["TensorBoardMonitor", "WandbMonitor", "monitors_of"]

_JOB = "DeepSpeedJobName"


def curves(row: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yields the curves that have a point in a row."""
    for curve, key in (("train_loss", "loss"), ("lr", "lr")):
        if row.get(key) is not None:
            yield curve, float(row[key])


def _import(name: str, section: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UnavailableError(
            f"penstock: {section}.enabled is true, and {name} cannot be imported ({error}); install "
            f"{section}, or set it to false"
        ) from None


class TensorBoardMonitor:
    """Writes curves for TensorBoard, by torch's own writer."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        module = _import("torch.utils.tensorboard", "tensorboard")
        self._writer = module.SummaryWriter(log_dir=os.fspath(folder))

    def on_step(self, row: Mapping[str, Any]) -> None:
        for curve, value in curves(row):
            self._writer.add_scalar(f"Train/Samples/{curve}", value, row["samples"])
        self._writer.flush()


class WandbMonitor:
    """Logs curves to Weights & Biases."""

    def __init__(
        self, project: str | None = None, group: str | None = None, team: str | None = None
    ) -> None:
        self._wandb = _import("wandb", "wandb")
        self._wandb.init(project=project, group=group, entity=team)

    def on_step(self, row: Mapping[str, Any]) -> None:
        values = {f"Train/Samples/{curve}": value for curve, value in curves(row)}
        self._wandb.log(values, step=row["samples"])


def _folder(section: Mapping[str, Any]) -> str:
    return os.path.join(section.get("output_path") or "", section.get("job_name") or _JOB)


def monitors_of(sections: Mapping[str, Mapping[str, Any]]) -> list[Any]:
    """Makes the monitors that are enabled, of sections by their names in the configuration."""
    made: list[Any] = []
    for name, section in sections.items():
        if section.get("enabled") is not True:
            continue
        if name == "tensorboard":
            made.append(TensorBoardMonitor(_folder(section)))
        else:
            made.append(WandbMonitor(*(section.get(key) for key in ("project", "group", "team"))))
    return made
