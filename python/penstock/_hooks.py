"""Hooks on modules: they bring the units of a forward and of its backward.

At the beginning of a forward its units are brought; they stay until it ends. What autograd saves of
them is replaced by its place (_saved.py), so that a backward brings each unit that it needs. A hook
on the outputs of a forward brings its units earlier: in a backward, gradients run through the nodes
of the graph in the reverse order of their creation, so all nodes of a forward run after its outputs
got gradients. They stay until the outputs of another forward do. Recomputation (checkpointing) is a
forward within a backward. The graph of a backward with ``create_graph=True`` keeps weights as they
are, so their units stay until the step ends.

A mode that sees all calls of torch finds weights that a function uses outside of the forward of
their own module (_outside.py). From then on the forward that used them brings them at the same
place, which is the number of other modules' forwards that have ended in it.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from penstock import _compiler, _library
from penstock._runtime import Runtime, refuse_copies
from penstock._saved import SavedWeights
from penstock._storage import Unit
from penstock._units import Plan
from penstock.errors import InvalidArgumentError, UnavailableError


def _no_graph(function: Any) -> Any:
    """Keeps a hook out of compiled graphs."""
    return torch.compiler.disable(function)


def backward_task() -> int:
    """Returns the number of the backward that runs on this thread; -1: none."""
    task: int = torch._C._current_graph_task_id()
    return task


def tensors_of(output: Any) -> Iterator[torch.Tensor]:
    """Yields the tensors of a module's output that can be found."""
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from tensors_of(value)
    elif isinstance(output, (list, tuple, set, frozenset)):
        for value in output:
            yield from tensors_of(value)
    elif dataclasses.is_dataclass(output):
        for field in dataclasses.fields(output):
            yield from tensors_of(getattr(output, field.name, None))


def _compiled(module: torch.nn.Module) -> bool:
    return module._compiled_call_impl is not None


def _computes(frame: Any) -> bool:
    """Whether a thread is in a module or in a backward."""
    while frame is not None:
        if frame.f_code in _COMPUTES:
            return True
        frame = frame.f_back
    return False


_COMPUTES = (
    torch.nn.Module._call_impl.__code__,
    torch.autograd.graph._engine_run_backward.__code__,
)


class Frame:
    """A forward that has not ended.

    Attributes:
        units: those that were brought for it.
        ended: how many forwards of modules with hooks have ended in it.
        paused: it has removed the mode of _outside.py.
        sees_saved: it has begun to see what autograd saves.
    """

    __slots__ = ("ended", "kind", "module", "paused", "sees_saved", "units")

    def __init__(self, module: torch.nn.Module, kind: int) -> None:
        self.module = module
        self.kind = kind
        self.units: list[Unit] = []
        self.ended = 0
        self.paused = False
        self.sees_saved = False


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
        self.learned_units = 0
        self._learned: dict[torch.nn.Module, dict[int, list[Unit]]] = {}
        self._saved = SavedWeights(runtime.units, self._bring_saved)
        self._in_backward: Sequence[Unit] = ()  # whose outputs got gradients last
        self._node: Any = None  # of the graph, that runs
        self._unpacked: list[Unit] = []  # for it
        self._task = -1  # the outermost backward
        self._task_thread = 0
        self._nested = False  # a backward within a backward was seen
        self._failed = False
        self._parameters = [
            (entry.parameter, entry.trained, entry.name)
            for unit in runtime.units
            for entry in unit.entries
        ]
        self._ids = {id(parameter) for parameter, _, _ in self._parameters}
        self._modules = list(root.modules())
        self._parts = self._parts_now()
        self.handles: list[Any] = []
        self.pause_mode: Callable[[], bool] = lambda: False
        self.resume_mode: Callable[[], None] = lambda: None
        runtime.in_use = self._in_use
        self._register()
        _compiler.forget()

    def _register(self) -> None:
        for module in self.users:
            self.handles.append(
                module.register_forward_pre_hook(self.before, prepend=True, with_kwargs=True)
            )
            self.handles.append(module.register_forward_hook(self.after, always_call=True))
        for unit in self.runtime.units:
            for entry in unit.entries:
                if entry.trained:
                    hook = _GradientHook(self, entry.unit, entry.tensor)
                    self.handles.append(entry.parameter.register_post_accumulate_grad_hook(hook))

    def _stack(self) -> list[Frame]:
        return self._stacks.setdefault(threading.get_ident(), [])

    def _in_use(self, unit: Unit) -> bool:
        """Whether a current forward or backward needs a unit."""
        if unit in self._in_backward or unit in self._unpacked:
            return True
        return any(unit in frame.units for stack in self._stacks.values() for frame in stack)

    def is_compiled(self) -> bool:
        """Whether some of the module is compiled."""
        return torch.compiler.is_compiling() or any(map(_compiled, self.root.modules()))

    # Forward.

    @_no_graph
    def before(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        recomputes = backward_task() != -1
        stack = self._stack()
        with self.runtime.lock:
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
        self._see_saved(frame)
        frame.paused = _compiled(module) and self.pause_mode()

    def _see_saved(self, frame: Frame) -> None:
        """Begins to replace weights that autograd saves. Where it cannot, the units stay."""
        if not torch.is_grad_enabled():
            return
        sees = self._saved.push()
        frame.sees_saved = sees is True
        if sees is None:
            for unit in frame.units:
                self.runtime.keep_for_step(unit)

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
    def after(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        frame = self._end(module)
        if frame is None:
            return
        if torch.is_grad_enabled() and (frame.units or module is self.root):
            self._watch(frame.units, output)
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
                for frame in ended:
                    if frame.sees_saved:
                        self._saved.pop()
                if any(frame.paused for frame in ended):
                    self.resume_mode()
                return ended[0]
        return None

    def _watch(self, units: list[Unit], output: Any) -> None:
        """Registers a hook that is called when the outputs of a forward get gradients."""
        hook = functools.partial(self._begin_backward, tuple(units), [])
        for tensor in tensors_of(output):
            if tensor.requires_grad:
                _ = tensor.grad_fn  # a view's, which registering alone made too late before 2.15
                tensor.register_hook(hook)

    def _start(self, stack: list[Frame]) -> None:
        """Begins an outermost forward: drops frames that an exception has left, and checks."""
        self._check_thread()
        stack.clear()
        self._task = -1
        self._in_backward = ()
        self._node, self._unpacked = None, []
        if self._failed:
            self._failed = False
            if not self.runtime.has_gradients:
                self.runtime.drop_step()
        self.check_parameters()
        self.runtime.begin()

    def _check_thread(self) -> None:
        """Raises if another thread computes with the module: units that it uses would leave."""
        threads = {thread for thread, stack in self._stacks.items() if stack}
        if self._task != -1:
            threads.add(self._task_thread)
        threads.discard(threading.get_ident())
        running = sys._current_frames() if threads else {}
        if any(thread in running and _computes(running[thread]) for thread in threads):
            raise UnavailableError(
                "penstock: the module was called while another thread was in its forward or backward; "
                "call it in one thread at a time"
            )

    def fail(self, module: torch.nn.Module, error: BaseException, called: bool) -> None:
        """Notes that a forward has ended by an exception."""
        if backward_task() == -1:
            self._failed = True
        if not called or not isinstance(error, Exception):  # of these, module's hooks hear nothing
            self._end(module)

    def check_parameters(self) -> None:
        """Raises if parameters are not those passed to penstock.initialize."""
        for parameter, trained, name in self._parameters:
            if torch.is_grad_enabled() and parameter.requires_grad != trained:
                raise InvalidArgumentError(
                    f"penstock: requires_grad of {name} is {parameter.requires_grad} and was "
                    f"{trained} in penstock.initialize; set it before"
                )
        if self._parts_now() != self._parts:
            now = {id(p) for p in self.root.parameters() if p.numel() > 0}
            if now != self._ids:
                raise InvalidArgumentError(
                    "penstock: the module has other parameters than penstock.initialize was given; "
                    "make adapters, new embeddings and the like first, and call "
                    "penstock.initialize then"
                )
            self._modules = list(self.root.modules())
            self._parts = self._parts_now()

    def _parts_now(self) -> list[list[int]]:
        """Returns the ids of the parameters and submodules of each module: quick to compare."""
        return [
            [*map(id, module._parameters.values()), *map(id, module._modules.values())]
            for module in self._modules
        ]

    # Weights used outside of their module.

    @_no_graph
    def is_within(self, module: torch.nn.Module) -> bool:
        """Whether the innermost forward of this thread is of a module."""
        stack = self._stack()
        return bool(stack) and stack[-1].module is module

    def use_outside(self, unit: Unit) -> None:
        """Brings a unit that a function uses, and learns it if no current forward has it."""
        stack = self._stack()
        if unit.gathered or not stack or any(unit in frame.units for frame in stack):
            return
        frame = stack[-1]
        learned = self._learned.setdefault(frame.module, {}).setdefault(frame.ended, [])
        if unit not in learned:
            learned.append(unit)
            self.learned_units += 1
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
            self._node, self._unpacked = None, []

    def _bring_saved(self, unit: Unit) -> None:
        """Brings a unit for the node of the graph that needs what was saved of it."""
        if unit.filled and unit.in_backward and unit in self._in_backward:
            if not torch.is_grad_enabled():
                return
        node = torch._C._current_autograd_node()
        if node is not self._node:
            self._node, self._unpacked = node, []
        if torch.is_grad_enabled():  # create_graph, as above
            self.runtime.keep_for_step(unit)
        self.runtime.use_again(unit)
        self._unpacked.append(unit)
        if backward_task() != -1:
            self._note_task(backward_task())

    def _note_task(self, task: int) -> None:
        if self._task == -1:
            self._task, self._task_thread = task, threading.get_ident()
            engine = torch.autograd.Variable._execution_engine
            engine.queue_callback(self._end_backward)
        elif self._task != task:
            self._nested = True

    def _end_backward(self) -> None:
        self._task = -1
        self._in_backward = ()
        self._node, self._unpacked = None, []
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
