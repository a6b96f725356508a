"""The C interface (``penstock.h``) by ctypes: loads ``libpenstock.so``, turns codes into exceptions.

Nothing here needs torch. ctypes releases the GIL during each call.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import os
import pathlib
from typing import Any, Iterable, Mapping, NamedTuple, Optional, Sequence

from penstock.errors import error_of

ABI = 7

_log = logging.getLogger("penstock")

FORWARD, BACKWARD, ASIDE = 0, 1, 2
MASTER, EXP_AVG, EXP_AVG_SQ = 0, 1, 2
DTYPES = {"fp32": 0, "bf16": 1, "fp16": 2}


class Group(ctypes.Structure):
    """The scalars of one parameter group in one step."""

    _fields_ = [
        ("lr", ctypes.c_double),
        ("beta1", ctypes.c_double),
        ("beta2", ctypes.c_double),
        ("eps", ctypes.c_double),
        ("weight_decay", ctypes.c_double),
    ]


class _Outcome(ctypes.Structure):
    _fields_ = [
        ("step", ctypes.c_uint64),
        ("optimizer_steps", ctypes.c_uint64),
        ("grad_norm", ctypes.c_double),
        ("skipped", ctypes.c_int32),
        ("notices", ctypes.c_uint32),
    ]


class Elements(ctypes.Structure):
    """Elements of plain memory; see ``penstock_elements``."""

    _fields_ = [
        ("count", ctypes.c_uint64),
        ("weight", ctypes.c_void_p),
        ("lo", ctypes.c_void_p),
        ("master", ctypes.c_void_p),
        ("exp_avg", ctypes.c_void_p),
        ("exp_avg_sq", ctypes.c_void_p),
        ("gradient", ctypes.c_void_p),
        ("weight_dtype", ctypes.c_int32),
    ]


class States(ctypes.Structure):
    """The states of a tensor, fp32; see ``penstock_states``."""

    _fields_ = [
        ("master", ctypes.c_void_p),
        ("exp_avg", ctypes.c_void_p),
        ("exp_avg_sq", ctypes.c_void_p),
    ]


class Outcome(NamedTuple):
    """The outcome of a step."""

    step: int
    optimizer_steps: int
    grad_norm: float
    skipped: bool


def _find() -> str:
    """Returns the library's path: PENSTOCK_LIBRARY, else the one inside the package."""
    named = os.environ.get("PENSTOCK_LIBRARY")
    if named:
        return named
    return str(pathlib.Path(__file__).parent / "lib" / "libpenstock.so")


_library: Optional[ctypes.CDLL] = None


def library() -> ctypes.CDLL:
    """Returns the library, which the first call loads."""
    global _library
    if _library is not None:
        return _library
    path = _find()
    try:
        loaded = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(
            f"penstock: {path} cannot be loaded ({error}); install the wheel, or name the library "
            "in PENSTOCK_LIBRARY"
        ) from None
    c = ctypes
    text, out = c.c_char_p, c.POINTER(c.c_void_p)
    signatures: Mapping[str, tuple[Any, Sequence[Any]]] = {
        "penstock_abi": (c.c_int, []),
        "penstock_version": (text, []),
        "penstock_error": (text, []),
        "penstock_free": (None, [c.c_void_p]),
        "penstock_create": (c.c_int, [text, text, text, out]),
        "penstock_plan": (c.c_int, [text, text, text, out]),
        "penstock_close": (None, [c.c_void_p]),
        "penstock_describe": (c.c_int, [c.c_void_p, out]),
        "penstock_counters": (c.c_int, [c.c_void_p, out]),
        "penstock_fill": (c.c_int, [c.c_void_p, c.c_uint32, out]),
        "penstock_fill_states": (c.c_int, [c.c_void_p, c.c_uint32, c.POINTER(States)]),
        "penstock_begin_at": (c.c_int, [c.c_void_p, c.c_uint64, c.c_uint64]),
        "penstock_use": (c.c_int, [c.c_void_p, c.c_uint32, c.c_int, c.c_void_p]),
        "penstock_use_tensors": (c.c_int, [c.c_void_p, c.c_uint32, c.c_int, out]),
        "penstock_gradient": (
            c.c_int,
            [c.c_void_p, c.c_uint32, c.c_uint32, c.c_void_p, c.c_int],
        ),
        "penstock_use_on": (
            c.c_int,
            [c.c_void_p, c.c_uint32, c.c_int, c.c_void_p, c.c_void_p],
        ),
        "penstock_use_tensors_on": (
            c.c_int,
            [c.c_void_p, c.c_uint32, c.c_int, out, c.c_void_p],
        ),
        "penstock_gradient_on": (
            c.c_int,
            [c.c_void_p, c.c_uint32, c.c_uint32, c.c_void_p, c.c_int, c.c_void_p],
        ),
        "penstock_report_loss": (c.c_int, [c.c_void_p, c.c_double]),
        "penstock_note_loss": (c.c_int, [c.c_void_p, c.c_double]),
        "penstock_step_notices": (c.c_int, [c.c_void_p, out]),
        "penstock_loss_scale": (c.c_int, [c.c_void_p, c.POINTER(c.c_double)]),
        "penstock_take_back_commit": (
            c.c_int,
            [c.c_void_p, c.POINTER(c.c_int), c.POINTER(c.c_uint64)],
        ),
        "penstock_norm": (c.c_int, [c.c_void_p, c.POINTER(c.c_double), c.POINTER(c.c_int)]),
        "penstock_end_step": (
            c.c_int,
            [
                c.c_void_p,
                c.POINTER(Group),
                c.c_uint32,
                c.c_double,
                c.c_double,
                c.POINTER(_Outcome),
            ],
        ),
        "penstock_read_gradient": (
            c.c_int,
            [c.c_void_p, c.c_uint32, c.c_uint32, c.c_void_p],
        ),
        "penstock_replace_gradient": (
            c.c_int,
            [c.c_void_p, c.c_uint32, c.c_uint32, c.c_void_p, c.c_int],
        ),
        "penstock_fingerprints": (
            c.c_int,
            [c.POINTER(c.c_void_p), c.POINTER(c.c_uint64), c.c_uint32, c.POINTER(c.c_uint64)],
        ),
        "penstock_skip_step": (
            c.c_int,
            [c.c_void_p, c.c_double, c.c_double, c.POINTER(_Outcome)],
        ),
        "penstock_drop_step": (c.c_int, [c.c_void_p]),
        "penstock_drain": (c.c_int, [c.c_void_p]),
        "penstock_begin_commit": (c.c_int, [c.c_void_p, text]),
        "penstock_finish_commit": (c.c_int, [c.c_void_p]),
        "penstock_continued": (c.c_int, [c.c_void_p, out]),
        "penstock_open_run": (c.c_int, [text, out]),
        "penstock_close_run": (c.c_int, [c.c_void_p]),
        "penstock_describe_run": (c.c_int, [c.c_void_p, out]),
        "penstock_read_run": (c.c_int, [text, out]),
        "penstock_create_in": (c.c_int, [c.c_void_p, text, text, text, out]),
        "penstock_snapshot": (c.c_int, [c.c_void_p, text, out]),
        "penstock_read": (
            c.c_int,
            [
                c.c_void_p,
                c.c_uint32,
                c.c_uint32,
                c.c_int,
                c.c_uint64,
                c.c_uint64,
                c.c_void_p,
            ],
        ),
        "penstock_reference_update": (
            c.c_int,
            [text, c.POINTER(Group), c.c_uint64, c.c_double, c.POINTER(Elements)],
        ),
        "penstock_block_sums": (
            c.c_int,
            [c.c_void_p, c.c_int, c.c_uint64, c.c_void_p, c.POINTER(c.c_int)],
        ),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(loaded, name)
        function.restype = result
        function.argtypes = arguments
    if loaded.penstock_abi() != ABI:
        raise ImportError(
            f"penstock: {path} has interface {loaded.penstock_abi()}, and this package needs {ABI}; "
            "install both from the same release"
        )
    _library = loaded
    return loaded


def check(code: int) -> None:
    """Raises the exception of a call that failed."""
    if code != 0:
        raise error_of(code, library().penstock_error().decode())


def _give_text(function: Any, *arguments: Any) -> bytes:
    """Calls a function that writes a text, and returns it."""
    written = ctypes.c_void_p()
    check(function(*arguments, ctypes.byref(written)))
    try:
        return ctypes.string_at(written.value or 0)
    finally:
        library().penstock_free(written)


def _text(function: Any, *arguments: Any) -> Any:
    """Calls a function that writes JSON, and reads it."""
    return json.loads(_give_text(function, *arguments).decode())


def plan(config: Mapping[str, Any], model: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """Returns the memory and files of an engine, and takes nothing."""
    texts = [json.dumps(value).encode() for value in (config, model, options)]
    return _text(library().penstock_plan, *texts)


class RunHandle:
    """A run of the C library, which its engine uses as well."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._as_parameter_ = ctypes.c_void_p()
        text = json.dumps(options).encode()
        check(library().penstock_open_run(text, ctypes.byref(self._as_parameter_)))

    def describe(self) -> Any:
        return _text(library().penstock_describe_run, self)

    def close(self) -> None:
        """Releases the lock; removes files that no commit names."""
        handle, self._as_parameter_ = self._as_parameter_, ctypes.c_void_p()
        check(library().penstock_close_run(handle))


def read_run(folder: str) -> Any:
    """Returns the description of the run in a folder."""
    return _text(library().penstock_read_run, os.fsencode(folder))


def _array(addresses: Sequence[int]) -> Any:
    return (ctypes.c_void_p * len(addresses))(*addresses)


class Sample:
    """A sample of what some memory holds, which tells whether it was written.

    Args:
        memory: addresses and bytes.
    """

    def __init__(self, memory: Sequence[tuple[int, int]]) -> None:
        self._count = len(memory)
        self._addresses = (ctypes.c_void_p * self._count)(*(address for address, _ in memory))
        self._bytes = (ctypes.c_uint64 * self._count)(*(size for _, size in memory))
        self._found = (ctypes.c_uint64 * self._count)()

    def take(self) -> tuple[int, ...]:
        """Returns a fingerprint of each."""
        check(
            library().penstock_fingerprints(self._addresses, self._bytes, self._count, self._found)
        )
        return tuple(self._found)


class Engine:
    """An engine of the C library; closes itself.

    Addresses are integers, as ``Tensor.data_ptr()`` returns them. All methods raise
    :class:`penstock.PenstockError`.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        model: Mapping[str, Any],
        options: Mapping[str, Any],
        run: Optional[RunHandle] = None,
    ) -> None:
        self._handle = ctypes.c_void_p()
        self._c = library()
        texts = [json.dumps(value).encode() for value in (config, model, options)]
        if run is None:
            check(self._c.penstock_create(*texts, ctypes.byref(self._handle)))
        else:
            check(self._c.penstock_create_in(run, *texts, ctypes.byref(self._handle)))

    def close(self) -> None:
        """Ends running updates and frees everything; uncommitted steps are lost."""
        handle, self._handle = self._handle, ctypes.c_void_p()
        if handle:
            self._c.penstock_close(handle)

    @property
    def closed(self) -> bool:
        return not self._handle

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()

    def describe(self) -> Any:
        return _text(self._c.penstock_describe, self._handle)

    def counters(self) -> Any:
        return _text(self._c.penstock_counters, self._handle)

    def fill(self, unit: int, addresses: Sequence[int]) -> None:
        """Sets a unit's weights from its tensors."""
        check(self._c.penstock_fill(self._handle, unit, _array(addresses)))

    def fill_states(self, unit: int, tensors: Sequence[States]) -> None:
        """Sets a unit's weights and moments, in place of :meth:`fill`."""
        check(self._c.penstock_fill_states(self._handle, unit, (States * len(tensors))(*tensors)))

    def begin_at(self, step: int, optimizer_steps: int) -> None:
        """Says how many steps were made elsewhere, before the first one."""
        check(self._c.penstock_begin_at(self._handle, step, optimizer_steps))

    def use(self, unit: int, kind: int, to: Optional[int]) -> None:
        """Says that a unit is used, and copies its weights to an address, unless it is None."""
        check(self._c.penstock_use(self._handle, unit, kind, to))

    def copy_to_host(self, unit: int, to: int) -> None:
        """Copies a unit's weights to a host address, even if uses take device addresses."""
        check(self._c.penstock_use(self._handle, unit, ASIDE, to))

    def use_tensors(self, unit: int, kind: int, addresses: Sequence[int]) -> None:
        """As :meth:`use`, with an address for each tensor of the unit."""
        check(self._c.penstock_use_tensors(self._handle, unit, kind, _array(addresses)))

    def gradient(self, unit: int, tensor: int, address: Optional[int], dtype: int) -> None:
        """Adds a gradient; None: zeros."""
        check(self._c.penstock_gradient(self._handle, unit, tensor, address, dtype))

    def use_on(self, unit: int, kind: int, to: int, stream: int) -> None:
        """As :meth:`use`, to an address of a CUDA device: enqueues the copies on a stream."""
        check(self._c.penstock_use_on(self._handle, unit, kind, to, stream))

    def use_tensors_on(self, unit: int, kind: int, addresses: Sequence[int], stream: int) -> None:
        """As :meth:`use_tensors`, to addresses of a CUDA device."""
        array = _array(addresses)
        check(self._c.penstock_use_tensors_on(self._handle, unit, kind, array, stream))

    def gradient_on(self, unit: int, tensor: int, address: int, dtype: int, stream: int) -> None:
        """As :meth:`gradient`, from an address of a CUDA device."""
        check(self._c.penstock_gradient_on(self._handle, unit, tensor, address, dtype, stream))

    # Hooks for copies on streams (_cuda.py); copies of the host are complete when they return.

    def ready(self) -> None:
        """Makes later computation wait for the weights that were brought."""

    def order(self) -> None:
        """Makes later copies of weights wait for all work computed so far."""

    def copying(self) -> contextlib.AbstractContextManager[Any]:
        """A context in which torch enqueues after the copies of weights."""
        return contextlib.nullcontext()

    def keep(self, values: Any) -> None:
        """Keeps the memory of a gradient until it is copied."""

    def note_idle(self, memories: Iterable[Any]) -> None:
        """Notes that no later work uses these units' memories."""

    def report_loss(self, loss: float) -> None:
        """Reports the mean loss of the step under way, or of the next one."""
        check(self._c.penstock_report_loss(self._handle, loss))

    def note_loss(self, loss: float) -> None:
        """Gives the loss of the step under way to the files of csv_monitor alone."""
        check(self._c.penstock_note_loss(self._handle, loss))

    def take_back_commit(self) -> int | None:
        """Takes the newest commit back if it is in doubt; returns its step if it did."""
        taken, step = ctypes.c_int(), ctypes.c_uint64()
        check(
            self._c.penstock_take_back_commit(self._handle, ctypes.byref(taken), ctypes.byref(step))
        )
        return step.value if taken.value else None

    def read_gradient(self, unit: int, tensor: int, address: int) -> None:
        """Copies a gradient of this step to host memory, as fp32."""
        check(self._c.penstock_read_gradient(self._handle, unit, tensor, address))

    def replace_gradient(self, unit: int, tensor: int, address: int, dtype: int) -> None:
        """Puts another gradient, of host memory, in the place of that."""
        check(self._c.penstock_replace_gradient(self._handle, unit, tensor, address, dtype))

    def loss_scale(self) -> float:
        """Returns the factor for the loss of the open step before its backward, or of the next one."""
        scale = ctypes.c_double()
        check(self._c.penstock_loss_scale(self._handle, ctypes.byref(scale)))
        return scale.value

    def norm(self) -> tuple[float, bool]:
        """Returns the norm of the step's gradient, and whether it is finite."""
        norm, finite = ctypes.c_double(), ctypes.c_int()
        check(self._c.penstock_norm(self._handle, ctypes.byref(norm), ctypes.byref(finite)))
        return norm.value, bool(finite.value)

    def end_step(
        self, groups: Sequence[Group], max_norm: float = 0.0, loss_scale: float = 1.0
    ) -> Outcome:
        """Ends the step; returns when the updates have begun. Logs what was found.

        Args:
            loss_scale: of the gradients; 0: the engine's.
        """
        array = (Group * len(groups))(*groups)
        outcome = _Outcome()
        check(
            self._c.penstock_end_step(
                self._handle, array, len(groups), max_norm, loss_scale, ctypes.byref(outcome)
            )
        )
        return self._ended(outcome)

    def skip_step(self, lr: float, loss_scale: float) -> Outcome:
        """Ends the step as one whose gradient the caller has found not finite."""
        outcome = _Outcome()
        check(self._c.penstock_skip_step(self._handle, lr, loss_scale, ctypes.byref(outcome)))
        return self._ended(outcome)

    def _log_notices(self) -> None:
        for line in _text(self._c.penstock_step_notices, self._handle):
            _log.warning("penstock: %s", line)

    def _ended(self, outcome: _Outcome) -> Outcome:
        if outcome.notices:
            self._log_notices()
        return Outcome(
            outcome.step, outcome.optimizer_steps, outcome.grad_norm, bool(outcome.skipped)
        )

    def drop_step(self) -> None:
        check(self._c.penstock_drop_step(self._handle))

    def drain(self) -> None:
        check(self._c.penstock_drain(self._handle))

    def begin_commit(self, state: bytes) -> None:
        """Begins a commit with the caller's own state, a JSON object."""
        check(self._c.penstock_begin_commit(self._handle, state))

    def finish_commit(self) -> None:
        check(self._c.penstock_finish_commit(self._handle))
        self._log_notices()

    def snapshot(self, name: str) -> str:
        """Copies the last commit to a name within the run, or to a path; returns the folder."""
        return os.fsdecode(_give_text(self._c.penstock_snapshot, self._handle, os.fsencode(name)))

    def continued(self) -> Any:
        """Returns the text of the commit from which the engine resumed."""
        return _text(self._c.penstock_continued, self._handle)

    def read(self, unit: int, tensor: int, kind: int, begin: int, count: int, address: int) -> None:
        """Reads elements of one state of a tensor as fp32."""
        check(self._c.penstock_read(self._handle, unit, tensor, kind, begin, count, address))
