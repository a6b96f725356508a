"""When a commit is taken, and what else is in it (docs/pytorch_runs.md).

A commit within the loop (``commit_every_steps``) is due in ``step()``, but a scheduler of the same
iteration steps only afterwards. So the text is taken again when what is attached has stepped, and
the commit begins when all of it has, or with whatever the engine is used for next.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from penstock import _library, _state
from penstock._run import Run

# The method with which a thing goes on after optimizer.step(), by duck type.
_AFTER_STEP = (("get_last_lr", "step"), ("get_scale", "update"))


def _method_after_step(thing: Any) -> str | None:
    for mark, method in _AFTER_STEP:
        if callable(getattr(thing, mark, None)) and callable(getattr(thing, method, None)):
            return method
    return None


class Commits:
    """The commits of one engine. The caller holds the lock of the training.

    Args:
        engine: the engine.
        run: the run folder, which notes each state that has a commit.
        sections: returns what a commit says beside random states and attached things.
    """

    def __init__(
        self, engine: _library.Engine, run: Run, sections: Callable[[], Mapping[str, Any]]
    ) -> None:
        self._engine = engine
        self._run = run
        self._sections = sections
        self._begun = False
        self._due: dict[str, Any] | None = None
        self._awaited: set[str] = set()  # attached things that have yet to step
        self._calls: int | None = None  # of the commit that was begun
        self.calls: int | None = None  # of the last one that is durable
        self.attached: dict[str, Any] = {}
        self.open_step = False  # a forward use has begun a step

    def go_on(self, engine: _library.Engine, run: Run) -> None:
        """Makes the commits of another engine and run from now on, with what is attached."""
        self.calls = None
        self._engine = engine
        self._run = run
        self._begun = self.open_step = False
        self._due = None
        self._awaited = set()

    def attach(self, things: Mapping[str, Any], guard: Callable[[], Any]) -> None:
        """Keeps the state of ``things`` in each commit from now on.

        Args:
            guard: returns the lock of the training.
        """
        _state.check_attached(things)
        for name, thing in things.items():
            method = _method_after_step(thing)
            if method is not None and self.attached.get(name) is not thing:
                self._follow(name, thing, method, guard)
        self.attached.update(things)

    def _follow(self, name: str, thing: Any, method: str, guard: Callable[[], Any]) -> None:
        """Calls :meth:`_stepped` after a method of a thing.

        The thing gets a class of its own. An attribute would be seen by its ``state_dict()``.
        """
        its_class = type(thing)
        original = getattr(its_class, method)

        def stepped(self: Any, *arguments: Any, **options: Any) -> Any:
            result = original(self, *arguments, **options)
            followed = followers()
            if followed is not None and followed.attached.get(name) is self:
                with guard():
                    followed._stepped(name)
            return result

        followers = weakref.ref(self)
        thing.__class__ = type(
            its_class.__name__,
            (its_class,),
            {
                method: functools.update_wrapper(stepped, original),
                "__module__": its_class.__module__,
                "__qualname__": its_class.__qualname__,
                "__doc__": its_class.__doc__,
            },
        )

    def _stepped(self, name: str) -> None:
        if self._due is None:
            return
        self._due = self._text()
        self._awaited.discard(name)
        if not self._awaited:
            self.begin_due()

    def _text(self) -> dict[str, Any]:
        return _state.capture(self.attached, **self._sections())

    def take_soon(self) -> None:
        """Says that the step that has just ended is to be committed."""
        self._due = self._text()
        self._awaited = {
            name for name, thing in self.attached.items() if _method_after_step(thing) is not None
        }
        if not self._awaited:
            self.begin_due()

    def begin_due(self) -> None:
        """Begins the commit that is due, if one is. To be called before a step begins."""
        if self._due is not None:
            text, self._due = self._due, None
            self._begin(text)

    def commit(self) -> None:
        """Commits now, and returns when the commit is durable."""
        self._due = None
        self._begin(self._text())
        self.finish()

    def _begin(self, text: dict[str, Any]) -> None:
        self.finish()
        self.close_step()
        self._engine.begin_commit(text)
        self._begun = True
        self._calls = text["calls"]

    def close_step(self) -> None:
        """Ends a step of which there are only forward uses: their order is not worth keeping."""
        if self.open_step:
            self.open_step = False
            self._engine.drop_step()

    def finish(self) -> None:
        """Waits for the commit that was begun, and notes the state in the run."""
        if not self._begun:
            return
        self._begun = False
        self._engine.finish_commit()
        self.calls = self._calls
        described = self._engine.describe()
        self._run.note(described["uuid"], described["state_paths"])
