"""Makes the engine of a module: new, or from a commit of a run or of a snapshot."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from penstock import _cuda, _library, _state
from penstock._device import Room
from penstock._named_commit import NamedCommit
from penstock._run import Run
from penstock._units import Plan, text_of

_log = logging.getLogger("penstock")


class Opened(NamedTuple):
    """A run with its engine.

    Attributes:
        continued: the text of the commit from which the engine resumed, if any.
    """

    run: Run
    engine: Any
    continued: dict[str, Any] | None


class Opening(NamedTuple):
    """The inputs of a module's engines.

    Attributes:
        config: the configuration.
        paths: ``nvme_path`` of it.
        plan: the units.
        seed: of stochastic rounding.
        identity: the values that a resumed commit must have, for the engine's options.
        device: the module's device.
        streams: of that device, if it has some.
        room: the device memory that the module may take.
    """

    config: dict[str, Any]
    paths: Any
    plan: Plan
    seed: int
    identity: Mapping[str, Any]
    device: torch.device
    streams: _cuda.Streams | None
    room: Room

    @property
    def scales_loss(self) -> bool:
        """Whether the engine keeps a loss scale, for fp16."""
        section = self.config.get("fp16")
        return isinstance(section, Mapping) and section.get("enabled") is True

    @property
    def holds_gradients(self) -> bool:
        """Whether gradients can be read and replaced until a step ends: on the CPU, where the threads
        that would take their sums meanwhile are those that compute."""
        return self.streams is None

    def open(self, run: str | os.PathLike[str] | None, commit: NamedCommit | None = None) -> Opened:
        """Opens a run and makes its engine; leaves nothing open if that fails.

        Args:
            run: the folder; None: a new one within ``nvme_path``.
            commit: the one to resume from. None: the run's last one, if any.
        """
        opened = Run.open(run, self.paths, "module")
        engine = None
        try:
            if commit is None:
                engine = self._engine(opened, {})
            else:
                engine = commit.open(opened, lambda kept: self._engine_at(opened, kept, commit))
            described = engine.describe()
            for warning in described["warnings"]:
                _log.warning("penstock: %s", warning)
            continued = engine.continued() if described["continued"] else None
            if continued is not None:
                _state.check_text(continued, opened.folder)
        except BaseException:
            if engine is not None:
                engine.close()
            opened.close()
            raise
        return Opened(opened, engine, continued)

    def _engine(self, run: Run, commit: Mapping[str, Any]) -> _library.Engine:
        options = {**commit, **self.identity, "seed": self.seed, "slots": self.room.places}
        options["scales_loss"] = self.scales_loss
        options["holds_gradients"] = self.holds_gradients
        if self.room.sums is not None:
            options["device_sums"] = self.room.sums
        return _cuda.engine_for(
            self.device, self.config, text_of(self.plan), options, run.handle, self.streams
        )

    def _engine_at(self, run: Run, snapshot: str | None, commit: NamedCommit) -> _library.Engine:
        """Makes an engine that resumes from a commit: the run's last one, or that of a snapshot."""
        engine = self._engine(run, {"snapshot": snapshot, "step": commit.step})
        try:
            commit.check_step(run, engine.describe()["step"])
        except BaseException:
            engine.close()
            raise
        return engine
