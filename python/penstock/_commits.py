"""When a commit is taken, and what else is in it (docs/pytorch_runs.md).

A commit within the loop (``commit_every_steps``) is due in ``step()``, but a scheduler of the same
iteration steps only afterwards. So if schedulers or scalers are attached, the commit begins with the
next use of the engine, and has their states and the groups as they are then. All else in its text,
such as random states and loaders, is as it was at the step.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch

from penstock import _library, _state
from penstock._buffers import Buffers
from penstock._losses import is_in_doubt, is_unproven
from penstock._run import Run
from penstock.errors import PenstockError

_log = logging.getLogger("penstock")


class Ending:
    """A commit that is due or was begun, with what it takes to end it and nothing else.

    What ends a training holds this, and not the optimizer, which could not be collected then.
    """

    def __init__(self, engine: _library.Engine, run: Run) -> None:
        self.engine = engine
        self.run = run
        self.due: dict[str, Any] | None = None
        #: Returns a text that is due as it has to be now; None: that cannot be known any more.
        self.renewed: Callable[[dict[str, Any]], dict[str, Any] | None] = lambda text: text
        self.open_step = False  # a forward use has begun a step
        self.calls: int | None = None  # of the last one that is durable
        self._begun: int | None = None  # calls of the commit that was begun
        self._process = os.getpid()

    def begin(self, text: dict[str, Any]) -> None:
        """Begins a commit. After an interrupt it is due, as nobody knows whether it began."""
        self.due = text
        try:
            self.finish()
            self.close_step()
            self.engine.begin_commit(_state.to_json(text))
            self._begun = text["calls"]
        except PenstockError:
            self.due = None
            raise
        self.due = None

    def begin_due(self) -> None:
        if self.due is None:
            return
        step, self.due = self.due["calls"], self.renewed(self.due)
        if self.due is not None:
            self.begin(self.due)
            return
        _log.warning(
            "penstock: the commit of step %d is not made, because what was attached is gone, and its "
            "state with it; close the optimizer before",
            step,
        )

    def close_step(self) -> None:
        if self.open_step:
            self.engine.drop_step()
            self.open_step = False

    def finish(self) -> None:
        """Waits for the commit that was begun, if any. An interrupt leaves that to do."""
        if self._begun is None:
            return
        try:
            self.engine.finish_commit()
        except PenstockError:
            self._begun = None
            raise
        self.calls = self._begun
        self._begun = None

    def end(self) -> None:
        """Ends the commits of a training: makes what is due durable, and takes back what is in doubt.

        Does nothing in a fork's child.
        """
        if os.getpid() != self._process:
            return
        self.begin_due()
        self.finish()
        if self.engine.closed or not is_in_doubt(self.engine.describe()):
            return
        self.close_step()
        step = self.engine.take_back_commit()
        if step is not None:
            _log.warning(
                "penstock: no loss after the commit of step %d was finite, so it was taken back; "
                "run %s resumes from the commit before it",
                step,
                self.run.folder,
            )


def _steps_later(thing: Any) -> bool:
    """Whether a thing changes right after ``optimizer.step()``: a scheduler, or a scaler."""
    methods = (("get_last_lr", "step"), ("get_scale", "update"))
    return any(all(callable(getattr(thing, m, None)) for m in both) for both in methods)


class _Attached(dict[str, Any]):
    """A dict that has weak references."""


class Commits:
    """The commits of one engine. The caller holds the lock of the training.

    Args:
        engine: the engine.
        run: the run folder.
        sections: returns what a commit says beside random states and attached things.
    """

    def __init__(
        self, engine: _library.Engine, run: Run, sections: Callable[[], Mapping[str, Any]]
    ) -> None:
        self._sections = sections
        self._continued: dict[str, Any] | None = None
        self._asked = False  # attach() was called, so the generators' states are the caller's
        self._stepping: list[str] = []  # attached things that change before the due commit begins
        self._said = False  # that steps report no loss
        attached = _Attached()
        self._attached: Callable[[], _Attached | None] = lambda: attached
        self.ending = self._ending(engine, run)

    def _ending(self, engine: _library.Engine, run: Run) -> Ending:
        ending = Ending(engine, run)
        commits = weakref.ref(self)

        def renewed(text: dict[str, Any]) -> dict[str, Any] | None:
            alive = commits()
            return None if alive is None else alive._renewed(text)

        ending.renewed = renewed
        return ending

    @property
    def attached(self) -> dict[str, Any]:
        """What is attached, by names."""
        attached = self._attached()
        return {} if attached is None else attached

    def let_hold(self) -> dict[str, Any]:
        """Returns what is attached, for the optimizer to hold from now on: this holds it no more.

        A scheduler holds its optimizer, which could not be collected if the engine held both.
        """
        attached = self._attached()
        if attached is None:
            attached = _Attached()
        self._attached = weakref.ref(attached)
        return attached

    @property
    def calls(self) -> int | None:
        """Of the last commit that is durable."""
        return self.ending.calls

    @property
    def continued(self) -> dict[str, Any] | None:
        """The text of the commit that the training goes on from, until a step is made."""
        text = self._continued
        return text if text is not None and text["calls"] == self._sections()["calls"] else None

    def go_on_from(self, text: dict[str, Any]) -> None:
        """Says that the engine continues a commit."""
        self._continued = text
        self.ending.calls = text["calls"]

    @property
    def open_step(self) -> bool:
        """Whether a forward use has begun a step."""
        return self.ending.open_step

    @open_step.setter
    def open_step(self, is_open: bool) -> None:
        self.ending.open_step = is_open

    def go_on(self, engine: _library.Engine, run: Run) -> None:
        """Makes the commits of another engine and run from now on, with what is attached."""
        self.ending = self._ending(engine, run)

    def attach(self, things: Mapping[str, Any]) -> None:
        """Keeps the state of ``things`` in each commit from now on; of a module, its buffers.

        If a commit is continued, gives them, and the generators, their states of it first.
        """
        things = {
            name: Buffers(thing) if isinstance(thing, torch.nn.Module) else thing
            for name, thing in things.items()
        }
        _state.check_attached(things)
        continued = self.continued
        if continued is not None:
            _state.restore(continued, things)
        self._asked = True
        self.attached.update(things)

    def take_over(self, other: Commits) -> None:
        """Keeps from now on what was attached to a training that was given up."""
        self._asked = other._asked
        self._said = other._said
        self.attached.update(other.attached)

    def _renewed(self, text: dict[str, Any]) -> dict[str, Any] | None:
        """Returns a text that is due with what schedulers and scalers have changed since.

        Loaders and generators have gone on to the next step meanwhile, so they stay as they were.
        None: one of what was attached is gone, and its state may be too old.
        """
        attached = self.attached
        for name in self._stepping:
            if name not in attached:
                return None
            text["attached"][name] = _state.encode(attached[name].state_dict(), name)
        text["groups"] = _state.encode(self._sections()["groups"], "groups")
        return text

    def _text(self) -> dict[str, Any]:
        continued = self.continued
        kept = {}
        if continued is not None:  # what nobody has asked for yet is not lost
            kept = {key: continued[key] for key in ("attached", "random")}
            if self._asked:
                del kept["random"]
        return _state.capture(self.attached, kept, **self._sections())

    def note_loss(self, loss: float | None) -> None:
        """Takes the loss that the step that has just ended reported; says once if it did not."""
        if loss is None and not self._said:
            self._said = True
            _log.info(
                "penstock: the steps of run %s report no loss, so no rows are written, their numbers "
                "are not monitored, and each commit counts as confirmed; report it by "
                "optimizer.step(loss=loss)",
                self.ending.run.folder,
            )

    def take_soon(self) -> None:
        """Says that the step that has just ended is to be committed.

        While the last commit is in doubt, none takes the place of the one before it.
        """
        if is_in_doubt(self.ending.engine.describe()):
            return
        self.ending.due = self._text()
        self._stepping = [name for name, thing in self.attached.items() if _steps_later(thing)]
        if not self._stepping:
            self.begin_due()

    def begin_due(self) -> None:
        """Begins the commit that is due, if one is. To be called before a step begins."""
        self.ending.begin_due()

    def drop_due(self) -> None:
        """Gives up the commit that is due, if one is."""
        self.ending.due = None

    def commit(self) -> None:
        """Commits now, and returns when the commit is durable.

        Where steps report losses, the last step is committed once: until a loss confirms that
        commit, another one would take the place of the one before it.
        """
        self.begin_due()
        self.finish()
        if is_unproven(self.ending.engine.describe()):
            return
        text = self._text()
        self.ending.begin(text)
        self.finish()
        if self.continued is not None:
            self._continued = text

    def close_step(self) -> None:
        """Ends a step of which there are only forward uses: their order is not worth keeping."""
        self.ending.close_step()

    def finish(self) -> None:
        """Waits for the commit that was begun, if any."""
        self.ending.finish()
