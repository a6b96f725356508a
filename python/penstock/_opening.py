"""How the engine of a module comes to be: anew, or from a commit of a run or of a snapshot."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from penstock import _cuda, _library, _state
from penstock._run import Run
from penstock._snapshot import files_of
from penstock._units import Plan, text_of
from penstock.errors import InvalidArgumentError


class Opened(NamedTuple):
    """A run with its engine.

    Attributes:
        continued: the text of the commit that the engine goes on from, if it does.
    """

    run: Run
    engine: Any
    continued: dict[str, Any] | None


class Opening(NamedTuple):
    """What engines of one module are made from.

    Attributes:
        config: the configuration.
        paths: ``nvme_path`` of it.
        plan: the units.
        seed: of stochastic rounding.
        identity: what a commit must agree in to be continued.
    """

    config: dict[str, Any]
    paths: Any
    plan: Plan
    seed: int
    identity: str

    def open(
        self, run: str | os.PathLike[str] | None, commit: Mapping[str, Any] | None = None
    ) -> Opened:
        """Opens a run and makes its engine; leaves nothing open if that fails.

        Args:
            run: the folder; None: a new one within ``nvme_path``.
            commit: the ``"penstock"`` of a ``state_dict()``. None: the run's last one, if any.
        """
        opened = Run.open(run, self.paths, "module")
        engine = None
        try:
            engine = self._engine_at(opened, commit)
            continued = engine.continued() if engine.describe()["continued"] else None
            if continued is not None:
                _state.check_text(continued, "module", self.identity, str(opened.folder))
        except BaseException:
            if engine is not None:
                engine.close()
            opened.close()
            raise
        return Opened(opened, engine, continued)

    def _engine(self, run: Run, files: list[str]) -> _library.Engine:
        options = {"folders": run.folders, "continue": files, "seed": self.seed}
        device = self.plan.units[0].entries[0].parameter.device
        return _cuda.engine_for(device, self.config, text_of(self.plan), options)

    def _engine_at(self, run: Run, commit: Mapping[str, Any] | None) -> _library.Engine:
        """Makes an engine that continues a commit in its files, or moves that of a snapshot."""
        if commit is None:
            return self._engine(run, run.continued)
        if run.uuid == commit["uuid"]:
            engine = self._engine(run, run.continued)
            if engine.describe()["step"] == commit["step"]:
                return engine
            engine.close()
        snapshot = commit.get("snapshot")
        if snapshot and os.path.isdir(snapshot):
            return self._engine(run, files_of(snapshot))
        raise InvalidArgumentError(
            f"penstock: step {commit['step']} was saved, and the last commit of run {run.folder} is "
            "another one; only the last commit can be continued, or a snapshot"
        )
