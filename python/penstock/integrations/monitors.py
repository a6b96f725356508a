"""Monitors that the sections ``csv_monitor``, ``tensorboard`` and ``wandb`` of a configuration name.

They show the same curves as DeepSpeed's monitors: ``Train/Samples/train_loss`` and
``Train/Samples/lr``, over the samples of all steps.
"""

from __future__ import annotations

import importlib
import math
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from penstock._text_files import MAX_LINE
from penstock.errors import InvalidArgumentError, UnavailableError

__all__ = ["CsvMonitor", "TensorBoardMonitor", "WandbMonitor", "monitors_of"]

_JOB = "DeepSpeedJobName"


def curves(row: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yields the curves that have a point in a row."""
    for curve, key in (("train_loss", "loss"), ("lr", "lr")):
        if row.get(key) is not None:
            yield curve, float(row[key])


def _text(value: float) -> str:
    return repr(value) if math.isfinite(value) else str(value)


def _lines_of(path: pathlib.Path) -> list[str]:
    lines: list[str] = []
    with open(path, encoding="utf-8", errors="replace", newline="") as file:
        while line := file.readline(MAX_LINE + 1):
            if len(line) > MAX_LINE:
                raise InvalidArgumentError(
                    f"penstock: {path}, line {len(lines) + 1}: it is longer than {MAX_LINE} "
                    f"characters (the file has {path.stat().st_size} bytes); move it away"
                )
            lines.append(line)
    return lines


class _Curve:
    """A file of a curve. Lines after the point of the resume are cut."""

    def __init__(self, path: pathlib.Path, curve: str, samples: int) -> None:
        header = f"step,{curve}\r\n"
        kept = self._kept(path, header, samples)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes("".join([header, *kept]).encode())
        self._path = path

    @staticmethod
    def _kept(path: pathlib.Path, header: str, samples: int) -> list[str]:
        if not path.exists():
            return []
        first, *lines = _lines_of(path) or [header]
        count = {line: line.split(",")[0] for line in lines}
        if first != header or not all(number.isdigit() for number in count.values()):
            raise InvalidArgumentError(
                f"penstock: {path} is not what csv_monitor writes there; move it away"
            )
        if lines and samples == 0:
            raise InvalidArgumentError(
                f"penstock: {path} has lines of another training; move it away, or name another "
                "csv_monitor.job_name"
            )
        return [line for line in lines if int(count[line]) <= samples and line.endswith("\n")]

    def write(self, samples: int, value: float) -> None:
        with open(self._path, "a", encoding="utf-8", newline="") as file:
            file.write(f"{samples},{_text(value)}\r\n")


class CsvMonitor:
    """DeepSpeed's ``csv_monitor``: ``Train_Samples_<curve>.csv``, a line a step.

    Args:
        folder: of the files; made if missing.
        samples: of all earlier steps; lines after them are cut.
    """

    def __init__(self, folder: str | os.PathLike[str], samples: int = 0) -> None:
        self._folder = pathlib.Path(folder)
        self._samples = samples
        self._files: dict[str, _Curve] = {}

    def on_step(self, row: Mapping[str, Any]) -> None:
        for curve, value in curves(row):
            if curve not in self._files:
                path = self._folder / f"Train_Samples_{curve}.csv"
                self._files[curve] = _Curve(path, curve, self._samples)
            self._files[curve].write(row["samples"], value)


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


def monitors_of(sections: Mapping[str, Mapping[str, Any]], samples: int) -> list[Any]:
    """Makes the monitors that are enabled.

    Args:
        sections: by their names in the configuration.
        samples: of all earlier steps.
    """
    made: list[Any] = []
    for name, section in sections.items():
        if section.get("enabled") is not True:
            continue
        if name == "csv_monitor":
            made.append(CsvMonitor(_folder(section), samples))
        elif name == "tensorboard":
            made.append(TensorBoardMonitor(_folder(section)))
        else:
            made.append(WandbMonitor(*(section.get(key) for key in ("project", "group", "team"))))
    return made
