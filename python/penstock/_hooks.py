"""Hooks on modules: they bring the units of a forward and of its backward.

At the beginning of a forward its units are brought; they stay until it ends. In a backward,
gradients run through the nodes of the graph in the reverse order of their creation, so all nodes of
a forward run after its outputs got gradients, and before those of the forwards before it do. A hook
on the outputs therefore brings the units again, and they stay until another forward's backward
begins. Recomputation (checkpointing) is a forward within a backward. The graph of a backward with
``create_graph=True`` has no outputs to hook, so its units stay until the step ends.

A mode that sees all calls of torch finds weights that a function uses outside of the forward of
their own module (_outside.py). From then on the forward that used them brings them at the same
place, which is the number of other modules' forwards that have ended in it. Such weights stay until
the step ends.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from penstock import _compiler, _library
from penstock._runtime import Runtime, refuse_copies
from penstock._storage import Unit
from penstock._units import Plan
from penstock.errors import InvalidArgumentError

_log = logging.getLogger("penstock")


def _no_graph(function: Any) -> Any:
    """Keeps a hook out of compiled graphs."""
    return torch.compiler.disable(function)


def backward_task() -> int:
    """Returns the number of the backward that runs on this thread; -1: none."""
    task: int = torch._C._current_graph_task_id()
    return task


_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)


def tensors_of(output: Any, opaque: list[str]) -> Iterator[torch.Tensor]:
    """Yields the tensors of a module's output; adds types that may hide others to ``opaque``."""
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, _PLAIN):
        return
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from tensors_of(value, opaque)
    elif isinstance(output, (list, tuple, set, frozenset)):
        for value in output:
            yield from tensors_of(value, opaque)
    elif dataclasses.is_dataclass(output):
        for field in dataclasses.fields(output):
            yield from tensors_of(getattr(output, field.name, None), opaque)
    else:
        opaque.append(type(output).__name__)


def _compiled(module: torch.nn.Module) -> bool:
    return module._compiled_call_impl is not None


class Frame:
    """A forward that has not ended.

    Attributes:
        units: those that were brought for it.
        ended: how many forwards of modules with hooks have ended in it.
        paused: it has removed the mode of _outside.py.
    """

    __slots__ = ("ended", "kind", "module", "paused", "units")

    def __init__(self, module: torch.nn.Module, kind: int) -> None:
        self.module = module
        self.kind = kind
        self.units: list[Unit] = []
        self.ended = 0
        self.paused = False


class _GradientHook:
    """Called when a gradient was added to a parameter's.

    A cycle through such a hook would never be collected, so it does not hold the training.
    """

    __deepcopy__ = refuse_copies
    __reduce_ex__ = refuse_copies

    def __init__(self, hooks: Hooks, unit: int, tensor: int) -> None:
        self._hooks = weakref.ref(hooks)
        self._unit = unit
        self._tensor = tensor

    def __call__(self, parameter: torch.nn.Parameter) -> None:
        hooks = self._hooks()
        if hooks is not None:
            hooks.take_gradient(hooks.runtime.units[self._unit], self._tensor, parameter)


class Hooks:
    """The hooks of one training. See the file."""

    __deepcopy__ = refuse_copies
    __reduce_ex__ = refuse_copies

    def __init__(self, runtime: Runtime, root: torch.nn.Module, plan: Plan) -> None:
        self.runtime = runtime
        self.root = root
        self.users = {
            module: [runtime.units[i] for i in units] for module, units in plan.users.items()
        }
        self.blocks = plan.blocks
        self._stacks: dict[int, list[Frame]] = {}  # by thread
        self._learned: dict[torch.nn.Module, dict[int, list[Unit]]] = {}
        self._in_backward: Sequence[Unit] = ()
        self._task = -1  # the outermost backward
        self._nested = False  # a backward within a backward was seen
        self._failed = False
        self._parameters = [
            (entry.parameter, entry.trained, entry.name)
            for unit in runtime.units
            for entry in unit.entries
        ]
        self._ids = {id(parameter) for parameter, _, _ in self._parameters}
        self.handles: list[Any] = []
        self.pause_mode: Callable[[], bool] = lambda: False
        self.resume_mode: Callable[[], None] = lambda: None
        runtime.in_use = self._in_use
        self._register()
        _compiler.forget()

    def _register(self) -> None:
        for module in self.users:
            self.handles.append(
                module.register_forward_pre_hook(self._before, prepend=True, with_kwargs=True)
            )
            self.handles.append(module.register_forward_hook(self._after, always_call=True))
        for unit in self.runtime.units:
            for entry in unit.entries:
                if entry.trained:
                    hook = _GradientHook(self, entry.unit, entry.tensor)
                    self.handles.append(entry.parameter.register_post_accumulate_grad_hook(hook))

    def _stack(self) -> list[Frame]:
        return self._stacks.setdefault(threading.get_ident(), [])

    def _in_use(self, unit: Unit) -> bool:
        """Whether a current forward or backward needs a unit."""
        if unit in self._in_backward:
            return True
        return any(unit in frame.units for stack in self._stacks.values() for frame in stack)

    def is_compiled(self) -> bool:
        """Whether some of the module is compiled."""
        return torch.compiler.is_compiling() or any(map(_compiled, self.root.modules()))

    # Forward.

    @_no_graph
    def _before(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        recomputes = backward_task() != -1
        stack = self._stack()
        if not recomputes and (not stack or module is self.root):
            self._start(stack)
        if recomputes:
            kind = _library.BACKWARD
        elif stack:
            kind = stack[0].kind
        else:
            kind = _library.FORWARD if torch.is_grad_enabled() else _library.ASIDE
        frame = Frame(module, kind)
        stack.append(frame)
        for unit in self.users[module]:
            self._bring(frame, unit)
        self._bring_learned(frame)
        frame.paused = _compiled(module) and self.pause_mode()

    def _bring(self, frame: Frame, unit: Unit) -> None:
        if unit.gathered and unit.shown_on != unit.device:
            raise InvalidArgumentError(
                f"penstock: a forward uses {unit.name} within penstock.gathered of several units, "
                f"whose weights are in host memory, and the module computes on {unit.device}; run "
                "it outside, or gather one module at a time"
            )
        unit.calls += 1 if frame.kind == _library.FORWARD else 0
        frame.units.append(unit)
        self.runtime.use(unit, frame.kind)

    def _bring_learned(self, frame: Frame) -> None:
        learned = self._learned.get(frame.module)
        for unit in learned.get(frame.ended, ()) if learned else ():
            if unit not in frame.units:
                self._bring(frame, unit)

    @_no_graph
    def _after(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        frame = self._end(module)
        if frame is None:
            return
        if torch.is_grad_enabled() and (frame.units or module is self.root):
            self._watch(module, frame.units, output)
        stack = self._stack()
        if stack:
            stack[-1].ended += 1
            self._bring_learned(stack[-1])

    def _end(self, module: torch.nn.Module) -> Frame | None:
        """Removes the forward of a module from the stack, and frames that an exception left above
        it."""
        stack = self._stack()
        for i in reversed(range(len(stack))):
            if stack[i].module is module:
                ended = stack[i:]
                del stack[i:]
                if any(frame.paused for frame in ended):
                    self.resume_mode()
                return ended[0]
        return None

    def _watch(self, module: torch.nn.Module, units: list[Unit], output: Any) -> None:
        """Registers a hook that is called when the outputs of a forward get gradients."""
        hook = functools.partial(self._begin_backward, tuple(units), [])
        opaque: list[str] = []
        for tensor in tensors_of(output, opaque):
            if tensor.requires_grad:
                tensor.register_hook(hook)
        for unit in units:
            if opaque and not unit.kept:
                _log.warning(
                    "penstock: %s returns a %s, in which tensors cannot be seen; the weights of %s "
                    "stay in memory until the step ends",
                    type(module).__name__,
                    opaque[0],
                    unit.name,
                )
                unit.kept = True

    def _start(self, stack: list[Frame]) -> None:
        """Begins an outermost forward: drops frames that an exception has left, and checks."""
        stack.clear()
        self._task = -1
        self._in_backward = ()
        if self._failed:
            self._failed = False
            if not self.runtime.has_gradients:
                self.runtime.drop_step()
        self.check_parameters()
        self.runtime.begin()

    def fail(self, module: torch.nn.Module, error: BaseException) -> None:
        """Notes that a forward has ended by an exception."""
        if backward_task() == -1:
            self._failed = True
        if not isinstance(error, Exception):  # of others, hooks of the module hear nothing
            self._end(module)

    def check_parameters(self) -> None:
        """Raises if parameters are not those passed to penstock.initialize."""
        for parameter, trained, name in self._parameters:
            if parameter.requires_grad != trained:
                raise InvalidArgumentError(
                    f"penstock: requires_grad of {name} is {parameter.requires_grad} and was "
                    f"{trained} in penstock.initialize; set it before"
                )
        now = {id(p) for p in self.root.parameters() if p.numel() > 0}
        if now != self._ids:
            raise InvalidArgumentError(
                "penstock: the module has other parameters than penstock.initialize was given; "
                "make adapters, new embeddings and the like first, and call penstock.initialize "
                "then"
            )

    # Weights used outside of their module.

    def use_outside(self, unit: Unit) -> None:
        """Brings a unit that a function uses, and learns it if no current forward has it."""
        stack = self._stack()
        if unit.gathered or not stack or any(unit in frame.units for frame in stack):
            return
        unit.kept = True
        frame = stack[-1]
        learned = self._learned.setdefault(frame.module, {}).setdefault(frame.ended, [])
        if unit not in learned:
            learned.append(unit)
        self._bring(frame, unit)

    # Backward.

    def _begin_backward(self, units: Sequence[Unit], seen: list[int], _: Any) -> None:
        task = backward_task()
        if seen and seen[0] == task:
            return
        seen[:] = [task]
        self._note_task(task)
        for unit in units:
            if torch.is_grad_enabled():  # create_graph: the new graph uses the weights once more
                self.runtime.keep_for_step(unit)
            self.runtime.use(unit, _library.BACKWARD)
        if units:
            self._in_backward = units

    def _note_task(self, task: int) -> None:
        if self._task == -1:
            self._task = task
            engine = torch.autograd.Variable._execution_engine
            engine.queue_callback(self._end_backward)
        elif self._task != task:
            self._nested = True

    def _end_backward(self) -> None:
        self._task = -1
        self._in_backward = ()
        self.runtime.end_backward()

    def take_gradient(self, unit: Unit, tensor: int, parameter: torch.nn.Parameter) -> None:
        """Takes the gradient that a backward has just added to that of a parameter."""
        if not unit.filled and not unit.gathered:
            name = unit.entries[tensor].name
            raise InvalidArgumentError(
                f"penstock: a gradient of {name} was computed while its weights were away; it is "
                "used outside of the module's forward: do that within penstock.gathered"
            )
        task = backward_task()
        if self._task != -1 and task != self._task:
            self._nested = True
        may_come_again = unit.calls > 1 and (self._nested or self.runtime.steps == 0)
        if may_come_again and self._task != -1:
            self.runtime.await_gradient(unit, tensor, parameter)
        else:
            self.runtime.gradient(unit, tensor, parameter)


def unit_of(hooks: Hooks) -> Mapping[int, Unit]:
    """Returns the unit of each parameter, by its id."""
    return {id(entry.parameter): unit for unit in hooks.runtime.units for entry in unit.entries}
