"""Hooks that are broken on purpose make the matrix fail: the tests' own test."""

from __future__ import annotations

import contextlib
import functools
import unittest
from collections.abc import Iterator
from typing import Any
from unittest import mock

import matrix
import torch
from penstock import _hooks, _library, _runtime, _saved, _storage

_Hooks, _Runtime, _Unit = _hooks.Hooks, _runtime.Runtime, _storage.Unit


def _hooks_of_modules_miss_exceptions() -> Any:
    register = torch.nn.Module.register_forward_hook

    def without(self: Any, hook: Any, *, always_call: bool = False, **options: Any) -> Any:
        return register(self, hook, **options)

    return mock.patch.object(torch.nn.Module, "register_forward_hook", without)


@contextlib.contextmanager
def _backward_brings_nothing() -> Iterator[None]:
    with mock.patch.object(_Hooks, "_begin_backward", lambda *_: None):
        with mock.patch.object(_Hooks, "_bring_saved", lambda *_: None):
            yield


@contextlib.contextmanager
def _saved_weights_are_left_where_they_are() -> Iterator[None]:
    with mock.patch.object(_Hooks, "_begin_backward", lambda *_: None):
        with mock.patch.object(_saved.SavedWeights, "push", lambda *_: False):
            yield


def _saved_weights_are_looked_for_at_the_beginning_of_their_unit() -> Any:
    weight = _saved._Hooks._weight

    def at_the_beginning(self: Any, unit: Any, changes: int, dtype: Any, place: Any) -> Any:
        return weight(self, unit, changes, dtype, (0, *place[1:]))

    return mock.patch.object(_saved._Hooks, "_weight", at_the_beginning)


def _uses_outside_are_not_seen() -> Any:
    return mock.patch.object(_Hooks, "use_outside", lambda *_: None)


def _weights_stay_after_a_step() -> Any:
    return mock.patch.object(_Runtime, "_forget", lambda *_: None)


def _nothing_is_let_go_within_a_step() -> Any:
    return mock.patch.object(_Runtime, "_make_room", lambda *_: None)


def _gradients_are_taken_before_torch_has_added_them_up() -> Any:
    return mock.patch.object(_Runtime, "await_gradient", _Runtime.gradient)


def _what_another_backward_adds_is_lost() -> Any:
    add = _Runtime._add

    def first(self: Any, entry: Any, gradient: Any) -> None:
        if (entry.unit, entry.tensor) not in self._given:
            add(self, entry, gradient)

    return mock.patch.object(_Runtime, "_add", first)


def _recomputation_is_reported_as_a_use_aside() -> Any:
    """Uses of a recomputation bring what is there already, so the plan lacks them."""
    use = _Runtime.use

    def changed(self: Any, unit: Any, kind: int) -> None:
        odd_step = self.steps % 2 == 1
        use(self, unit, _library.ASIDE if odd_step and kind == _library.BACKWARD else kind)

    return mock.patch.object(_Runtime, "use", changed)


_Cell = functools.partial(matrix.Cell, dtype="fp32")

# Each with a cell that has to fail.
MUTANTS = (
    (_hooks_of_modules_miss_exceptions, _Cell("odd", "non-reentrant", 1, "host")),
    (_backward_brings_nothing, _Cell("llama", "none", 1, "host")),
    (_uses_outside_are_not_seen, _Cell("odd", "none", 1, "host")),
    (_weights_stay_after_a_step, _Cell("llama", "none", 1, "host")),
    (_nothing_is_let_go_within_a_step, _Cell("llama", "none", 1, "host")),
    (_saved_weights_are_left_where_they_are, _Cell("llama", "none", 1, "host")),
    (
        _saved_weights_are_looked_for_at_the_beginning_of_their_unit,
        _Cell("llama", "none", 1, "host"),
    ),
    (_gradients_are_taken_before_torch_has_added_them_up, _Cell("odd", "reentrant", 1, "host")),
    (_what_another_backward_adds_is_lost, _Cell("llama", "none", 3, "host")),
    (_recomputation_is_reported_as_a_use_aside, _Cell("llama", "reentrant", 1, "host")),
)


class Mutants(unittest.TestCase):
    def test_every_broken_hook_makes_a_cell_fail(self) -> None:
        torch.set_num_threads(1)
        for mutate, cell in MUTANTS:
            with self.subTest(mutate.__name__):
                matrix.check(cell, steps=2)
                with mutate(), self.assertRaises((AssertionError, RuntimeError)) as failed:
                    matrix.check(cell, steps=3)
                self.assertTrue(str(failed.exception))


if __name__ == "__main__":
    unittest.main()
