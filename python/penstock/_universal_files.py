"""The files of a universal checkpoint of DeepSpeed: one tensor a file, read and written one by one.

``zero/<name>/fp32.pt`` has the master of a parameter, and a file beside it each moment, as a mapping
with ``param`` (or as the tensor alone); ``step.pt`` the number of updates.
"""

from __future__ import annotations

import glob
import os
import pathlib
import shutil
from collections.abc import Iterable, Mapping, Sequence
from tempfile import mkdtemp
from typing import Any

import torch

from penstock import _library
from penstock._files import explaining, path_of, sync_folder
from penstock._text_files import read_text
from penstock.errors import CorruptionError, InvalidArgumentError, NotFoundError

_SHARDS = "*_optim_states.pt"
_LATEST = "latest_universal"
_NAMED = 5
_FIELDS = {_library.EXP_AVG: "exp_avg", _library.EXP_AVG_SQ: "exp_avg_sq"}


def load_file(path: pathlib.Path) -> Any:
    """Reads a file of tensors; large ones stay on the drive until they are used."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except FileNotFoundError:
        raise NotFoundError(
            f"penstock: {path} is missing; the checkpoint has no such state, or not of this model"
        ) from None
    except Exception as error:  # torch raises many kinds of exceptions
        raise CorruptionError(
            f"penstock: {path} cannot be read by torch.load ({type(error).__name__}): it is damaged, "
            "or has more than tensors"
        ) from None


def _folder_of(folder: pathlib.Path) -> pathlib.Path:
    """Returns the folder that has ``zero``: the given one, or the one that it names as latest."""
    latest = folder / _LATEST
    if not (folder / "zero").is_dir() and latest.is_file():
        folder = folder / read_text(latest).strip()
    if (folder / "zero").is_dir():
        return folder
    tag = folder / "latest"
    if tag.is_file():
        folder = folder / read_text(tag).strip()
    if glob.glob(os.path.join(glob.escape(str(folder)), _SHARDS)):
        raise InvalidArgumentError(
            f"penstock: {folder} has the shards of ZeRO ranks; convert it by DeepSpeed's own "
            f"`python -m deepspeed.checkpoint.ds_to_universal --input_folder {folder} "
            f"--output_folder {folder}_universal`, and give that folder"
        )
    raise NotFoundError(
        f"penstock: {folder} has no folder zero, so it is no universal checkpoint of DeepSpeed"
    )


def _count(said: Any, where: str) -> int:
    if isinstance(said, torch.Tensor) and said.numel() == 1:
        said = said.item()
    if isinstance(said, (int, float)) and said >= 0 and said == int(said):
        return int(said)
    raise CorruptionError(f"penstock: {where} has {said!r}, which is no number of steps")


class Reader:
    """A universal checkpoint, with which a training begins.

    Args:
        folder: has ``zero``, or ``latest_universal``.
        steps: the number of updates, if the checkpoint does not have it.
    """

    def __init__(self, folder: str | os.PathLike[str], steps: int | None = None) -> None:
        self.folder = _folder_of(pathlib.Path(folder))
        self._steps = steps

    def _of(self, name: str) -> pathlib.Path:
        return self.folder / "zero" / name

    def check_names(self, trained: Sequence[str]) -> None:
        """Raises if the checkpoint has other parameters than the trained ones."""
        there = {p.name for p in (self.folder / "zero").iterdir() if p.is_dir()}
        missing = [name for name in trained if name not in there]
        strangers = sorted(there.difference(trained))
        for what, names in (("lacks", missing), ("has also", strangers)):
            if names:
                more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
                raise InvalidArgumentError(
                    f"penstock: {self.folder} {what} {', '.join(names[:_NAMED])}{more}; it has to "
                    "have the parameters that are trained, by their names in the module"
                )

    def steps(self, trained: Sequence[str]) -> int:
        """Returns the number of updates, which must be the same for all parameters."""
        files = [(name, self._of(name) / "step.pt") for name in trained]
        counts = {name: _count(load_file(f), str(f)) for name, f in files if f.exists()}
        if not counts:
            return self._steps_of_groups()
        low, high = (choose(counts, key=lambda name: counts[name]) for choose in (min, max))
        if counts[low] != counts[high]:
            raise InvalidArgumentError(
                f"penstock: {self.folder} has {counts[low]} steps of {low} and {counts[high]} of "
                f"{high}; penstock counts the steps of all parameters alike"
            )
        return counts[low]

    def _steps_of_groups(self) -> int:
        path = self.folder / "zero" / "optimizer_state.pt"
        said = load_file(path) if path.exists() else {}
        groups = said.get("param_groups", ()) if isinstance(said, Mapping) else None
        if not isinstance(groups, (list, tuple)) or not all(isinstance(g, Mapping) for g in groups):
            raise CorruptionError(f"penstock: {path} has no param_groups as DeepSpeed writes them")
        counts = {_count(group["step"], str(path)) for group in groups if "step" in group}
        if len(counts) == 1:
            return counts.pop()
        if self._steps is not None:
            return self._steps
        raise InvalidArgumentError(
            f"penstock: {self.folder} does not say how many steps were made; give steps= (--steps)"
        )

    def _read(self, name: str, state: str, shape: torch.Size) -> torch.Tensor:
        path = self._of(name) / f"{state}.pt"
        said = load_file(path)
        tensor = said.get("param") if isinstance(said, Mapping) else said
        if not isinstance(tensor, torch.Tensor) or tensor.numel() != shape.numel():
            has = tuple(tensor.shape) if isinstance(tensor, torch.Tensor) else "no tensor"
            raise InvalidArgumentError(
                f"penstock: {path} has {has}, and {name} has the shape {tuple(shape)}; it is of "
                "another model"
            )
        return tensor.detach().float().contiguous()

    def fill(
        self,
        engine: _library.Engine,
        unit: int,
        tensors: Iterable[tuple[str, torch.Tensor, bool]],
        moments: Mapping[str, int],
    ) -> None:
        """Fills a unit of a new engine.

        Args:
            tensors: name and parameter of each, and whether it is trained. Untrained ones keep
                their weights, as a checkpoint does not have them.
            moments: of the rule: names, and kinds of the C interface.
        """
        filled, alive = [], []
        for name, parameter, trained in tensors:
            kinds = moments if trained else {}
            master = (
                self._read(name, "fp32", parameter.shape)
                if trained
                else parameter.detach().float().contiguous()
            )
            states = _library.States(master=master.data_ptr())
            alive.append(master)
            for moment, kind in kinds.items():
                value = self._read(name, moment, parameter.shape)
                setattr(states, _FIELDS[kind], value.data_ptr())
                alive.append(value)
            filled.append(states)
        engine.fill_states(unit, filled)


def save_file(value: Any, path: pathlib.Path) -> None:
    """Writes a file of tensors, durably. Raises OSError if that fails."""
    with open(path, "wb") as file:
        try:
            torch.save(value, file)
        except RuntimeError as error:  # raised by torch while it handles the file's error
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise
        file.flush()
        os.fsync(file.fileno())


def write(
    folder: str | os.PathLike[str],
    states: Iterable[tuple[str, torch.Tensor, Mapping[str, torch.Tensor]]],
    steps: int,
    groups: Sequence[Mapping[str, Any]],
) -> None:
    """Writes a universal checkpoint; ``zero`` appears when it is complete.

    Args:
        folder: made if missing; must not have ``zero``.
        states: name, parameter, and states of each: ``master``, and the moments.
        steps: how many updates were made.
        groups: the options of the parameter groups.
    """
    root = pathlib.Path(path_of(folder, "the folder of the checkpoint"))
    with explaining(f"checkpoint {root} cannot be written"):
        if os.path.lexists(root / "zero"):
            raise InvalidArgumentError(
                f"penstock: there is {root / 'zero'} already; name another folder"
            )
        root.mkdir(parents=True, exist_ok=True)
        new = pathlib.Path(mkdtemp(prefix="zero.new-", dir=root))
        try:
            new.chmod(root.stat().st_mode & 0o777)
            _write_all(new, states, steps, groups)
            os.rename(new, root / "zero")
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
        sync_folder(root)


def _write_all(
    new: pathlib.Path,
    states: Iterable[tuple[str, torch.Tensor, Mapping[str, torch.Tensor]]],
    steps: int,
    groups: Sequence[Mapping[str, Any]],
) -> None:
    """Writes the contents of ``zero``; arguments as for :func:`write`."""
    for name, _, of in states:
        place = new / name
        place.mkdir()
        for state, value in of.items():
            file = "fp32" if state == "master" else state
            save_file({"param": value, "cat_dim": 0}, place / f"{file}.pt")
        save_file(steps, place / "step.pt")
    said = [{**group, "step": steps} for group in groups]
    save_file({"param_groups": said}, new / "optimizer_state.pt")
