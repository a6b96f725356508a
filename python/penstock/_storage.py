"""Units of a running training: where their weights are, and what their parameters show.

A unit has one address range for its lifetime. To bring it, the engine writes into the range;
releasing it gives the memory to another unit, or back to the system. What was released reads as NaN:
the parameters, and any older view of them. So a use that nobody announced shows in the loss.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.graph import increment_version

from penstock._cuda import CudaEngine, CudaMemory
from penstock._library import Sample
from penstock._model import UnitSpec
from penstock.errors import InvalidArgumentError, OutOfMemoryError

_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
_PRIVATE = mmap.MAP_PRIVATE | _NO_RESERVE
# Flags from linux/mman.h. mremap: to a given address; the old range stays, without memory.
_MAP_FIXED = 0x10
_MAY_MOVE, _FIXED, _DONT_UNMAP = 1, 2, 4
_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
_NAN = b"\xc0\x7f"  # 0x7FC0: NaN in bf16 and fp16, and twice in fp32
_NAN_BYTES = 16 << 20  # the larger, the fewer mappings for a released range


def _libc(name: str, arguments: list[Any]) -> Any:
    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    function.restype = ctypes.c_void_p
    function.argtypes = arguments
    return function


_size, _address = ctypes.c_size_t, ctypes.c_void_p
_mremap = _libc("mremap", [_address, _size, _size, ctypes.c_int, _address])
_mmap = _libc("mmap", [_address, _size] + [ctypes.c_int] * 3 + [ctypes.c_long])


@functools.lru_cache(maxsize=1)
def _nan_file() -> int:
    """Returns a descriptor of memory that holds NaN, which all released ranges show."""
    file = os.memfd_create("penstock-nan")
    os.write(file, _NAN * (_NAN_BYTES // len(_NAN)))
    return file


def _map(address: int, size: int, file: int = -1) -> None:
    """Maps a part of an address range anew: to a file, or to memory that is allocated by writes."""
    flags = _PRIVATE | _MAP_FIXED | (mmap.MAP_ANONYMOUS if file == -1 else 0)
    if _mmap(address, size, _READ_WRITE, flags, file, 0) != address:
        raise OutOfMemoryError(
            f"penstock: {size} bytes of addresses cannot be mapped anew: "
            f"{os.strerror(ctypes.get_errno())}; raise vm.max_map_count"
        )


class Memory:
    """An address range whose memory can be released, or moved to another range.

    Attributes:
        reads_nan: whether tensors in it read as NaN once it is released.
    """

    reads_nan = True

    def __init__(self, size: int) -> None:
        self._size = -(-max(size, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        self._range = mmap.mmap(-1, self._size, flags=_PRIVATE | mmap.MAP_ANONYMOUS)
        self._released = False
        self.bytes = torch.frombuffer(self._range, dtype=torch.uint8)
        self.address: int = self.bytes.data_ptr()

    def take(self) -> None:
        """Prepares the range for being written, which allocates its memory."""
        if self._released:
            _map(self.address, self._size)
            self._released = False

    def touch(self) -> None:
        """Does nothing: host computation is complete when it returns."""

    def drop(self) -> None:
        """Releases the memory. The range reads as NaN until it is taken."""
        for begin in range(0, self._size, _NAN_BYTES):
            size = min(_NAN_BYTES, self._size - begin)
            _map(self.address + begin, size, _nan_file())
        self._released = True

    def move_to(self, other: Any) -> None:
        """Moves the memory to another range with its contents: nothing has to be cleared.

        If that is not possible (ranges of another size, an old kernel), it is dropped.
        """
        how = _MAY_MOVE | _FIXED | _DONT_UNMAP
        size = self._size
        if size == other._size and other is not self and not self._released:
            moved = _mremap(self.address, size, size, how, other.address)
            other._released &= moved != other.address
        self.drop()


def memory_for(engine: Any, size: int) -> Memory | CudaMemory:
    """Returns memory for a unit, to which the engine copies."""
    return CudaMemory(size, engine.streams) if isinstance(engine, CudaEngine) else Memory(size)


def _views(
    memory: torch.Tensor, like: Sequence[torch.Tensor], layout: Sequence[Any]
) -> list[torch.Tensor]:
    """Returns the tensors of a unit within its bytes, of the dtypes and shapes of others."""
    found = []
    for tensor, place in zip(like, layout):
        part = memory[place["offset"] : place["offset"] + place["bytes"]]
        found.append(part.view(tensor.dtype).view(tensor.shape))
    return found


def _nans(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Returns what released parameters show: NaN of their shape, with the memory of one element."""
    return [tensor.new_full((), float("nan")).expand(tensor.shape) for tensor in tensors]


def _sample(tensors: Sequence[torch.Tensor]) -> Sample:
    return Sample([(tensor.data_ptr(), tensor.nbytes) for tensor in tensors])


class Unit:
    """The weights of a unit in torch.

    Attributes:
        filled: its memory has the current weights.
        held: it has memory.
        told: the engine was told of a use in this step, and has given the weights for it.
        calls: forwards of modules that use it, since the last backward.
        in_backward: its last use was in a backward.
        kept: it stays until the step ends, although it is repeated.
        last_use: counts uses of all units.
        gathered: the calls of ``penstock.gathered`` that have it.
        copy: what these show, and its checksum.
        changes: counts the steps that have changed its weights.
    """

    def __init__(
        self, index: int, spec: UnitSpec, layout: Any, memory: Memory | CudaMemory
    ) -> None:
        self.index = index
        self.name = spec.name
        self.repeated = spec.repeated
        self.entries = spec.entries
        self.layout = layout["tensors"]
        self.bytes: int = layout["bytes"]
        self.device = memory.bytes.device
        self.trained = any(entry.trained for entry in spec.entries)
        self.memory = memory
        self.storage = memory.bytes.untyped_storage()
        self.changes = 0
        parameters = self._parameters = [entry.parameter for entry in self.entries]
        self._here = _views(self.memory.bytes, parameters, self.layout)
        self._saved: dict[Any, torch.Tensor] = {}  # by dtype and place
        self._sample = _sample(self._here) if memory.reads_nan else None
        self._content: tuple[int, ...] | None = None  # when it was brought
        self.memory.drop()
        self._away = _nans(self._here)
        self._kinds = [(p.dtype, p.shape, p.device) for p in parameters]
        self._shown: list[torch.Tensor] = []
        self._versions: list[int] = []
        self._settled = True  # parameters show `_shown`
        self.filled = False
        self.held = False
        self.told = False
        self.in_backward = False
        self.kept = not spec.repeated
        self.calls = 0
        self.last_use = 0
        self.gathered: set[object] = set()
        self.copy: Any = None

    def check_kind(self) -> None:
        """Raises unless parameters have the dtype, shape and device of their unit."""
        for entry, kind in zip(self.entries, self._kinds):
            p = entry.parameter
            if (p.dtype, p.shape, p.device) != kind:
                raise InvalidArgumentError(
                    f"penstock: parameter {entry.name} has changed its dtype, shape or device "
                    "since penstock.initialize; change it before"
                )

    def tensors_in(self, memory: torch.Tensor) -> list[torch.Tensor]:
        """Returns the unit's tensors within a copy of its bytes."""
        return _views(memory, self._here, self.layout)

    @property
    def shown_on(self) -> torch.device:
        """The device of what parameters show."""
        return self._shown[0].device

    def show_here(self) -> None:
        """Lets parameters show the unit's memory."""
        self._show(self._here)

    def show_away(self) -> None:
        """Lets parameters show NaN."""
        self._show(self._away)

    def show(self, tensors: Sequence[torch.Tensor]) -> None:
        """Lets parameters show other tensors of their shapes."""
        self._show(list(tensors))

    def _show(self, tensors: list[torch.Tensor]) -> None:
        with torch.inference_mode(False), torch._C.DisableTorchFunction():
            if self._shown:
                self.check_unwritten()
            if self._shown is tensors:
                return
            self._settled = False
            self._shown = tensors
            self._settle()

    def _settle(self) -> None:
        """Makes parameters show `_shown`."""
        for entry, tensor in zip(self.entries, self._shown):
            entry.parameter.data = tensor
        self._note_versions()

    def _note_versions(self) -> None:
        self._versions = [parameter._version for parameter in self._parameters]
        self._settled = True

    def check_unwritten(self) -> None:
        """Raises if a parameter was written since it was last shown.

        Drops the written values. While the unit is gathered they are in a copy, and stay refused.
        """
        # Without functions of torch, because _outside.py would see a use.
        with torch._C.DisableTorchFunction():
            if not self._settled:  # an interrupt came in between
                self._settle()
            for parameter, tensor, version in zip(self._parameters, self._shown, self._versions):
                if parameter._version != version or parameter.data_ptr() != tensor.data_ptr():
                    self._refuse_write(parameter)

    def note_content(self) -> None:
        """Notes what the unit's memory holds, now that it was brought."""
        self._content = None if self._sample is None else self._sample.take()

    def check_content(self) -> None:
        """Raises if the unit's memory was written past torch's counters (``parameter.data``)."""
        content, self._content = self._content, None
        if content is None or self._sample is None or not self.filled:
            return
        for parameter, before, now in zip(self._parameters, content, self._sample.take()):
            if before != now:
                self._refuse_write(parameter)
        self._content = content

    def _refuse_write(self, written: torch.nn.Parameter) -> None:
        if not self.gathered:
            self.forget_writes()
        name = next(entry.name for entry in self.entries if entry.parameter is written)
        raise InvalidArgumentError(
            f"penstock: parameter {name} was written, and the new weights would be lost; write weights "
            "before the first use of the module after penstock.initialize"
        )

    def forget_writes(self) -> None:
        """Makes parameters show what they showed before they were written; NaN if the weights
        themselves may have been written, which must then be brought again."""
        for nan in self._away:
            nan.data.fill_(float("nan"))
        if self._shown is self._here:
            self.filled = self.told = False
            self._shown = self._away
        self._settled = False
        self._settle()

    def let_go(self, to: Unit | None = None) -> None:
        """Releases the memory, or gives it to another unit; parameters show NaN unless gathered."""
        self.check_content()
        if self.memory.reads_nan and self._shown is self._here:
            self.check_unwritten()
            self.filled = False
        else:
            self.forget()
        self.held = False
        if to is None:
            self.memory.drop()
        else:
            self.memory.move_to(to.memory)

    def saved(self, dtype: torch.dtype, place: Any) -> torch.Tensor:
        """Returns a tensor at a place in the unit's memory."""
        found = self._saved.get((dtype, place))
        if found is None:
            found = self.memory.bytes.new_empty(0, dtype=dtype).set_(self.storage, *place)
            self._saved[(dtype, place)] = found
        return found

    def forget(self) -> None:
        """Marks the weights as outdated; the memory stays for the next ones."""
        self.filled = False
        if not self.gathered:
            self.show_away()


def outdate(units: Sequence[Unit]) -> None:
    """Makes autograd refuse graphs from before a step that changes the weights.

    Parameters that are views of one tensor have one version counter, so all are incremented before
    the versions are noted, also those of units that the step does not change.
    """
    with torch.inference_mode(False), torch._C.DisableTorchFunction():
        for unit in units:
            unit._settled = False
        for unit in units:
            unit.changes += unit.trained
            for entry in unit.entries:
                if unit.trained:
                    increment_version(entry.parameter)
        for unit in units:
            unit._note_versions()
