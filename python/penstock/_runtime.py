"""One training: decides which units are in memory, and tells the engine of uses and gradients.

Repeated units share the places that the engine planned: another one replaces the least recently
used. Other units stay until the step ends, as do all units that the configuration keeps on the
device. Hooks on modules (_hooks.py) report the uses.

Threads: any; one at a time.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from penstock import _dtypes, _library, _overlaps, _rules
from penstock._gradients import Access, Gradient
from penstock._losses import not_finite
from penstock._model import Entry
from penstock._storage import Unit, memory_for, outdate
from penstock._sums import DeviceSums
from penstock._units import Plan
from penstock.errors import InvalidArgumentError, UnavailableError

_MOST_NAMES = 5
_HOST = torch.device("cpu")

GiveValues = Callable[[list[torch.nn.Parameter]], None]


def refuse_copies(*_: Any) -> Any:
    """Replaces ``__deepcopy__`` and ``__reduce_ex__`` of objects that belong to one engine."""
    raise InvalidArgumentError(
        "penstock: a module that was given to penstock.initialize cannot be copied or pickled; "
        "save model.state_dict(), and copy the module before penstock.initialize"
    )


class Runtime:
    """The state of one training on the side of torch. See the file."""

    __deepcopy__ = refuse_copies
    __reduce_ex__ = refuse_copies

    def __init__(
        self,
        engine: Any,
        plan: Plan,
        *,
        on_device: bool,
        zero_missing: bool,
        holds_gradients: bool,
    ) -> None:
        self.engine = engine
        self.lock = threading.RLock()
        described = engine.describe()
        self.slots: int = described["slots"]
        self.notices: list[str] = described["notices"]
        with torch.inference_mode(False):
            self.units = [
                Unit(i, spec, layout, memory_for(engine, layout["bytes"]))
                for i, (spec, layout) in enumerate(zip(plan.units, described["units"]))
            ]
        self.device = self.units[0].device
        self.groups = [group.number for group in plan.groups if group.number >= 0]
        self._steps: int = described["step"]
        self._ending = False  # the engine was told to end a step, and the outcome is not noted yet
        self.nan_steps = 0  # that were skipped
        self.most_repeated = 0  # max repeated units in memory at once
        self.in_use: Callable[[Unit], bool] = lambda unit: False  # asks the hooks
        self._kept_for_step: list[Unit] = []
        self._there: dict[Unit, None] = {}  # repeated units that have memory
        self._busy: dict[Unit, None] = {}  # that are in use, or were when the last one was brought
        self._on_device = on_device
        self._zero_missing = zero_missing
        self._holds_gradients = holds_gradients  # so that they can be replaced until a step ends
        self._begun = False
        self._taken: set[int] = set()  # units whose weights are the engine's
        self._uses = 0
        self._open = False  # a step is open
        self._told_loss = False  # and its loss was reported
        self.fill: Callable[[Unit], None] = self._fill
        self.before_step: Callable[[], None] = lambda: None
        self._given: set[tuple[int, int]] = set()  # unit and tensor, with a gradient in this step
        self._prepared: dict[tuple[int, int], Gradient] = {}  # for this step
        # What backwards have added to gradients that the engine has, by unit and tensor.
        self._more: dict[tuple[int, int], torch.Tensor] = {}
        self._sums: DeviceSums | None = None  # where the engine does not add up
        self._pending: dict[torch.nn.Parameter, tuple[Unit, int]] = {}
        if described["continued"]:
            self.begin()

    # Weights.

    def begin(self, give_values: GiveValues | None = None) -> None:
        """Moves the weights from the parameters to the engine.

        Args:
            give_values: called with the parameters of each unit before they are taken.
        """
        if self._begun:
            return
        with self.lock, torch.inference_mode(False):
            if give_values is None and not self.begun:
                self._check_parameters()
            described = self.engine.describe()["units"]
            for unit in self.units:
                if unit.index not in self._taken:
                    if not described[unit.index]["filled"]:
                        if give_values is not None:
                            give_values([entry.parameter for entry in unit.entries])
                        self.fill(unit)
                    self._taken.add(unit.index)
                unit.show_away()
            if self._on_device:
                self._bring_all()
            self._take_sums()
            self._begun = True

    def _take_sums(self) -> None:
        """Allocates sums on the device, if the engine leaves these to its caller."""
        described = self.engine.describe()
        if not described["sums_on_device"]:
            self._sums = None
        elif self._sums is None:
            self._sums = DeviceSums(self.units, self.device, described["micro_batches"])

    def _check_parameters(self) -> None:
        """Raises if parameters changed, except in their values, since their units were made."""
        for unit in self.units:
            unit.check_kind()
        entries = [entry for unit in self.units for entry in unit.entries]
        _overlaps.check(
            ((e.name, e.parameter) for e in entries if e.trained),
            ((f"frozen parameter {e.name}", e.parameter) for e in entries if not e.trained),
        )

    @property
    def begun(self) -> bool:
        """Whether weights are the engine's; after a failure of :meth:`begin`, some are."""
        return bool(self._taken)

    def _fill(self, unit: Unit) -> None:
        values = [_dtypes.plain(entry.parameter.cpu()) for entry in unit.entries]
        self.engine.fill(unit.index, [value.data_ptr() for value in values])

    def use(self, unit: Unit, kind: int) -> None:
        """Brings a unit, if it is not present, and tells the engine that it is used."""
        with self.lock:
            if kind != _library.ASIDE:
                self._open_step()
            self._uses += 1
            unit.last_use = self._uses
            self._note_idle(unit)
            unit.memory.touch()
            unit.check_unwritten()
            if unit.filled:
                if kind != _library.ASIDE:
                    has = unit.told or self._on_device or not unit.trained
                    if has:
                        self.engine.use(unit.index, kind, None)
                    else:
                        self._copy(unit, kind)
            else:
                self._make_room(unit)
                unit.held = True
                if unit.repeated:
                    self._there[unit] = None
                self._copy(unit, kind)
                if not unit.gathered:
                    unit.show_here()
                unit.filled = True
                self._count_repeated()
            if kind != _library.ASIDE:
                unit.told = True
            unit.in_backward = kind == _library.BACKWARD

    def use_again(self, unit: Unit) -> None:
        """Brings a unit that a backward needs, unless it was brought for it and is still there."""
        with self.lock:
            if not unit.filled or not unit.in_backward:
                self.use(unit, _library.BACKWARD)
                return
            self._uses += 1
            unit.last_use = self._uses
            unit.memory.touch()
            self._busy[unit] = None

    def _copy(self, unit: Unit, kind: int) -> None:
        unit.memory.take()
        self.engine.use(unit.index, kind, unit.memory.address)
        self.engine.ready()
        unit.note_content()

    def _open_step(self) -> None:
        self._follow_step()
        if not self._open:
            self.before_step()
            self._open = True
            self._prepare_gradients()

    def _bring_all(self) -> None:
        for unit in self.units:
            if not unit.filled:
                self.use(unit, _library.ASIDE)

    def _note_idle(self, unit: Unit) -> None:
        """Tells the engine which units are not in use any more, while one is brought."""
        self._busy[unit] = None
        idle = [u for u in self._busy if u is not unit and not self.in_use(u)]
        self.engine.note_idle(u.memory for u in idle if u.filled)
        for other in idle:
            del self._busy[other]

    def _make_room(self, unit: Unit) -> None:
        """Releases repeated units to make room for one more: outdated ones first."""
        if unit.held or not unit.repeated or unit.kept or self._on_device:
            return
        there = [u for u in self._there if u.held and not u.kept]
        may_go = [u for u in there if not self.in_use(u)]
        may_go.sort(key=lambda u: (u.filled, u.last_use))
        for victim in may_go[: max(0, len(there) - self.slots + 1)]:
            victim.let_go(unit)
            del self._there[victim]

    def _count_repeated(self) -> None:
        there = sum(1 for unit in self._there if unit.filled)
        self.most_repeated = max(self.most_repeated, there)

    def read(self, unit: Unit, device: torch.device = _HOST) -> torch.Tensor:
        """Returns the current weights of a unit in new memory, of the host or of the device that
        the module computes on."""
        self.begin()
        with self.lock, torch.inference_mode(False):
            memory = torch.empty(unit.bytes, dtype=torch.uint8, device=device)
            if device == _HOST:
                self.engine.copy_to_host(unit.index, memory.data_ptr())
                return memory
            self.engine.order()
            self.engine.use(unit.index, _library.ASIDE, memory.data_ptr())
            self.engine.ready()
            return memory

    # Gradients.

    def gradient(self, unit: Unit, tensor: int, parameter: torch.nn.Parameter) -> None:
        """Takes the gradient of a parameter."""
        with self.lock:
            gradient = parameter.grad
            if isinstance(gradient, Gradient):
                self._pending.pop(parameter, None)
                more = self._more.pop((unit.index, tensor), None)
                if more is not None:
                    self._add(unit.entries[tensor], _dtypes.plain(more))
                return
            if gradient is None:
                return
            parameter.grad = None  # first: an interrupt may lose it, but never adds it twice
            self._pending.pop(parameter, None)
            gradient = _dtypes.plain(gradient)
            if gradient.dtype not in _dtypes.CODES:
                raise InvalidArgumentError(
                    f"penstock: the gradient of {unit.entries[tensor].name} is of "
                    f"{gradient.dtype}; only float32, bfloat16 and float16 are offered"
                )
            entry = unit.entries[tensor]
            if (unit.index, tensor) in self._given:
                self._replace(entry, gradient)  # it was assigned, or the one before was let go
            else:
                self._add(entry, gradient)
            key = unit.index, tensor
            parameter.grad = self._prepared.pop(key, None)
            if parameter.grad is None:
                parameter.grad = self._stand_in(entry)

    def _stand_in(self, entry: Entry) -> Gradient:
        with torch._C.DisableTorchFunction():  # _outside.py would see a use
            return Gradient.of(entry.parameter, self._access(entry))

    def _prepare_gradients(self) -> None:
        """Makes what parameters will show in ``.grad``, before a backward allocates gradients: small
        objects between large ones would keep the memory of these from being used again."""
        for unit in self.units:
            for entry in unit.entries:
                key = entry.unit, entry.tensor
                if entry.trained and key not in self._prepared:
                    self._prepared[key] = self._stand_in(entry)

    def _add(self, entry: Entry, gradient: torch.Tensor) -> None:
        """Adds a gradient to those of the step."""
        with self.lock:
            self._open_step()
            # Before it is given: a given gradient must be dropped later.
            self._given.add((entry.unit, entry.tensor))
            if self._sums is None:
                self._give(entry, gradient)
                return
            total = self._sums.add(entry, gradient)
            if total is not None:
                self._give(entry, total)

    def _replace(self, entry: Entry, gradient: torch.Tensor) -> None:
        with self.lock:
            if not self._holds_gradients:
                raise InvalidArgumentError(
                    f"penstock: the gradient of {entry.name} was changed, and those of a module on a GPU "
                    "are in use already; set gradient_clipping, or call optimizer.clip_grad_norm_(x)"
                )
            values = _dtypes.plain(gradient.cpu())
            dtype = _dtypes.CODES[values.dtype]
            self.engine.replace_gradient(entry.unit, entry.tensor, values.data_ptr(), dtype)
            self._more.pop((entry.unit, entry.tensor), None)

    def _access(self, entry: Entry) -> Access:
        """Returns how what a parameter shows in ``.grad`` reads and writes its gradient."""
        step = self.steps
        parameter = entry.parameter

        def check() -> None:
            if self.steps != step or (entry.unit, entry.tensor) not in self._given:
                raise InvalidArgumentError(
                    f"penstock: the gradient of {entry.name} is gone, because its step has ended; "
                    "clone it before optimizer.step()"
                )

        def read() -> torch.Tensor:
            with self.lock:
                check()
                values = torch.empty(parameter.shape, dtype=torch.float32, device="cpu")
                self.engine.read_gradient(entry.unit, entry.tensor, values.data_ptr())
                value = values.to(device=parameter.device, dtype=parameter.dtype)
                more = self._more.get((entry.unit, entry.tensor))
            return value if more is None else value + more

        def replace(gradient: torch.Tensor) -> None:
            check()
            self._replace(entry, gradient)

        def add(gradient: torch.Tensor) -> None:
            check()
            key = entry.unit, entry.tensor
            if key in self._more:
                self._more[key] += gradient
            else:
                self._more[key] = gradient.clone()

        return Access(read, replace, add)

    def _give(self, entry: Entry, gradient: torch.Tensor) -> None:
        """Gives the engine a gradient, which it may copy later."""
        self.engine.keep(gradient)
        dtype = _dtypes.CODES[gradient.dtype]
        self.engine.gradient(entry.unit, entry.tensor, gradient.data_ptr(), dtype)

    def _forget_gradients(self) -> None:
        for unit, tensor in self._given:
            parameter = self.units[unit].entries[tensor].parameter
            if isinstance(parameter.grad, Gradient):
                parameter.grad = None
        self._given.clear()
        self._more.clear()
        if self._sums is not None:
            self._sums.clear()

    def await_gradient(self, unit: Unit, tensor: int, parameter: torch.nn.Parameter) -> None:
        """Leaves a gradient to torch, which adds to it, until the backward ends."""
        with self.lock:
            self._pending[parameter] = (unit, tensor)

    def end_backward(self) -> None:
        """Takes the gradients that were left to torch."""
        with self.lock:
            for parameter, (unit, tensor) in list(self._pending.items()):
                self.gradient(unit, tensor, parameter)
            for unit in self.units:
                unit.calls = 0

    @property
    def has_gradients(self) -> bool:
        """Whether the open step has a gradient that the engine or a hook has seen."""
        self._follow_step()
        return bool(self._given or self._pending)

    def take_gradients(self) -> bool:
        """Takes the present gradients; returns whether the step has any."""
        with self.lock:
            self.end_backward()
            self._take_assigned()
            return bool(self._given)

    def complete_gradients(self) -> None:
        """Handles parameters without a gradient: zeros, or an error with their names."""
        with self.lock:
            self.take_gradients()
            for entry, total in self._sums.rest() if self._sums is not None else ():
                self._give(entry, total)
            missing = [
                entry
                for unit in self.units
                for entry in unit.entries
                if entry.trained and not self._has_gradient(entry)
            ]
            if missing and not self._zero_missing:
                names = ", ".join(entry.name for entry in missing[:_MOST_NAMES])
                more = ", …" if len(missing) > _MOST_NAMES else ""
                raise InvalidArgumentError(
                    f"penstock: {len(missing)} parameters have no gradient in this step: {names}"
                    f'{more}; freeze them by requires_grad_(False), or set "penstock": '
                    '{"missing_gradients": "zero"}'
                )
            for entry in missing:
                if (entry.unit, entry.tensor) in self._given:
                    self._replace(entry, torch.zeros(entry.parameter.shape))
                    continue
                dtype = _dtypes.CODES[entry.parameter.dtype]
                self.engine.gradient(entry.unit, entry.tensor, None, dtype)
                self._given.add((entry.unit, entry.tensor))

    def _has_gradient(self, entry: Entry) -> bool:
        """Whether a parameter has a gradient in this step, which its caller may have let go."""
        if (entry.unit, entry.tensor) not in self._given:
            return False
        return entry.parameter.grad is not None

    def _take_assigned(self) -> None:
        """Takes gradients that the caller has set without a backward."""
        for unit in self.units:
            for entry in unit.entries:
                gradient = entry.parameter.grad
                if not entry.trained or gradient is None:
                    continue
                if not isinstance(gradient, Gradient):
                    self.begin()
                    self.gradient(unit, entry.tensor, entry.parameter)
                elif (entry.unit, entry.tensor) in self._more:  # a hook of the caller has added it
                    self._replace(entry, gradient.clone())

    # Steps.

    def norm(self) -> tuple[float, bool]:
        """Returns the norm of the step's gradient, and whether it is finite."""
        with self.lock:
            self.complete_gradients()
            norm: tuple[float, bool] = self.engine.norm()
            return norm

    def end_step(
        self,
        param_groups: Sequence[Mapping[str, Any]],
        max_norm: float,
        loss_scale: float,
        loss: float | None = None,
        found_inf: bool = False,
    ) -> _library.Outcome:
        """Ends the step; all trained weights must be brought again.

        Args:
            found_inf: the caller has found a gradient that is not finite.
        """
        with self.lock:
            self.begin()
            self.complete_gradients()
            scalars = [_rules.scalars(param_groups[number]) for number in self.groups]
            if loss is not None:
                self._report(loss)
            self._forget()
            self._ending = True
            if found_inf:
                rate = float(param_groups[0]["lr"])
                outcome: _library.Outcome = self.engine.skip_step(rate, loss_scale)
            else:
                outcome = self.engine.end_step(scalars, max_norm, loss_scale)
            self._follow_step()
            if self._on_device:
                self._bring_all()
        if outcome.skipped:
            self.nan_steps += 1
        if outcome.skipped and not found_inf:  # a scaler knows
            warnings.warn(
                f"penstock: step {outcome.step} was skipped: {not_finite(loss, outcome)}; no weight "
                "has changed",
                stacklevel=4,
            )
        return outcome

    def _report(self, loss: float) -> None:
        """Reports the loss of the open step, unless an attempt to end it has done so."""
        if not self._told_loss:
            self.engine.report_loss(loss)
            self._open = self._told_loss = True

    def _follow_step(self) -> None:
        """Notes whether the engine has ended the step, which an interrupt may have hidden."""
        if self._ending:
            step: int = self.engine.describe()["step"]
            if step != self._steps:
                self._open = self._told_loss = False
                self._forget_gradients()
                self._prepared.clear()
                self._steps = step
            self._ending = False

    @property
    def steps(self) -> int:
        """Counts the steps of the training that have ended."""
        self._follow_step()
        return self._steps

    @steps.setter
    def steps(self, steps: int) -> None:
        self._steps = steps

    def keep_for_step(self, unit: Unit) -> None:
        """Keeps a unit until the step ends."""
        if not unit.kept:
            unit.kept = True
            self._kept_for_step.append(unit)

    def _forget(self) -> None:
        """Releases all units whose weights the step changes."""
        for unit in self._kept_for_step:
            unit.kept = False
        self._kept_for_step.clear()
        for unit in self.units:
            unit.told = False
            unit.check_unwritten()
            unit.check_content()
        for unit in self.units:
            if self._on_device:
                unit.filled = unit.filled and not unit.trained
            elif unit.filled and (unit.trained or not unit.kept):
                unit.forget()
        outdate(self.units)

    def drop_step(self, loss: float | None = None) -> None:
        """Drops gradients and recorded uses of the open step, whose loss counts nevertheless."""
        with self.lock:
            for parameter in self._pending:
                parameter.grad = None
            if self._open:
                if loss is not None:
                    self._report(loss)
                self.engine.drop_step()
            for unit in self.units:
                unit.told = False
                unit.calls = 0
            self._open = self._told_loss = False
            self._pending.clear()
            self._forget_gradients()

    def go_on(self, engine: Any) -> None:
        """Takes a new engine of the same units that resumes from a commit."""
        with self.lock:
            self.engine = engine
            self.steps = engine.describe()["step"]
            self._open = self._told_loss = self._begun = False
            self._forget_gradients()
            self._pending.clear()
            self.begin()

    @property
    def closed(self) -> bool:
        return isinstance(self.engine, _Closed)

    def close(self) -> None:
        """Frees the engine. The parameters show NaN from then on."""
        with self.lock:
            self.engine.close()
            self.engine = _Closed()
            self._sums = None
            for unit in self.units if self.begun else ():
                unit.told = False
                unit.forget_writes()
                unit.let_go()


def closed_error() -> UnavailableError:
    return UnavailableError(
        "penstock: the training was closed; make a new one by penstock.initialize"
    )


class _Closed:
    """Replaces an engine that was closed."""

    def __getattr__(self, name: str) -> Any:
        raise closed_error()

    def close(self) -> None:
        pass
