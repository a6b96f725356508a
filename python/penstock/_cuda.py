"""Weights and gradients on a CUDA device: the streams and their dependencies.

**None of this has run on a GPU yet** (docs/cuda.md). The C library copies on streams of torch: one
for arriving weights, one for gradients to the host. The compute stream waits for arrived weights
(:meth:`CudaEngine.ready`), and copies of weights wait until their memory is no longer used. The
host is ahead of the device, so weights of a unit arrive while earlier units compute. The host waits
only for gradients (:meth:`CudaEngine.keep`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from penstock import _library

# Bytes of gradients after which the host waits for earlier ones. torch's allocator reuses their
# memory once their copies have completed: if the host is far ahead, not in this backward, and all
# gradients of a model would take memory at once.
_AHEAD = 1 << 29


def is_gpu(device: torch.device) -> bool:
    """Whether memory of a device is reached through CUDA's driver."""
    return device.type == "cuda"


def device_count() -> int:
    """Returns how many CUDA devices torch can use."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def current_device() -> int:
    """Returns torch's current CUDA device."""
    return torch.cuda.current_device()


def free_memory(device: torch.device) -> int:
    """Returns the unused bytes of a device: the driver's, and those that torch's allocator has in
    reserve."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


class Streams:
    """The streams on which weights arrive at a device, and gradients leave it. All engines of one
    training share them: memory passes from unit to unit in their order."""

    def __init__(self, device: torch.device) -> None:
        make_stream: Any = torch.cuda.Stream
        self.device = device
        self.incoming = make_stream(device)
        self.outgoing = make_stream(device)

    def computing(self) -> Any:
        """Returns the stream on which torch computes now."""
        return torch.cuda.current_stream(self.device)

    def order(self) -> None:
        """Makes later copies of weights wait for all work computed so far."""
        self.incoming.wait_stream(self.computing())

    def copying(self) -> contextlib.AbstractContextManager[Any]:
        """A context in which torch enqueues after the copies of weights."""
        context: contextlib.AbstractContextManager[Any] = torch.cuda.stream(self.incoming)
        return context


def streams_for(device: torch.device) -> Streams | None:
    """Returns the streams of a training on a device; None on the CPU."""
    return Streams(device) if is_gpu(device) else None


def options_for(device: torch.device) -> dict[str, Any]:
    """Returns the engine's options for the device (docs/c_api.md, "Options")."""
    return {"cuda": True} if is_gpu(device) else {}


def engine_for(
    device: torch.device,
    config: Mapping[str, Any],
    model: Mapping[str, Any],
    options: Mapping[str, Any],
    run: _library.RunHandle,
    streams: Streams | None = None,
) -> _library.Engine:
    """Makes an engine for parameters on a device, with new streams unless there are some."""
    if not is_gpu(device):
        return _library.Engine(config, model, options, run)
    options = {**options, **options_for(device)}
    return CudaEngine(config, model, options, run, streams or Streams(device))


class CudaEngine(_library.Engine):
    """An engine that takes device addresses where the other takes host addresses."""

    def __init__(
        self,
        config: Mapping[str, Any],
        model: Mapping[str, Any],
        options: Mapping[str, Any],
        run: _library.RunHandle,
        streams: Streams,
    ) -> None:
        self.streams = streams
        self.device = streams.device
        self._ahead = 0  # bytes of gradients since `_mark`
        self._mark: Any = None  # an event after copies of gradients
        with torch.cuda.device(self.device):  # takes memory there, and host memory near it
            torch.cuda.empty_cache()  # torch's reserve is not free for others
            super().__init__(config, model, options, run)

    def _current(self) -> contextlib.AbstractContextManager[Any]:
        """A context in which the device is the thread's current one."""
        context: contextlib.AbstractContextManager[Any] = torch.cuda.device(self.device)
        return context

    def use(self, unit: int, kind: int, to: int | None) -> None:
        """Enqueues the copy of a unit's weights."""
        if to is None:
            super().use(unit, kind, None)
            return
        with self._current():
            self.use_on(unit, kind, to, self.streams.incoming.cuda_stream)

    def use_tensors(self, unit: int, kind: int, addresses: Sequence[int]) -> None:
        """Enqueues the copies of a unit's weights."""
        with self._current():
            self.use_tensors_on(unit, kind, addresses, self.streams.incoming.cuda_stream)

    def gradient(self, unit: int, tensor: int, address: int | None, dtype: int) -> None:
        """Enqueues the copy of a gradient, which must not change until :meth:`end_step`, unless it
        is passed to :meth:`keep`."""
        if address is None:
            super().gradient(unit, tensor, None, dtype)
            return
        self.streams.outgoing.wait_stream(self.streams.computing())
        with self._current():
            self.gradient_on(unit, tensor, address, dtype, self.streams.outgoing.cuda_stream)

    def ready(self) -> None:
        self.streams.computing().wait_stream(self.streams.incoming)

    def order(self) -> None:
        self.streams.order()

    def copying(self) -> contextlib.AbstractContextManager[Any]:
        return self.streams.copying()

    def keep(self, values: torch.Tensor) -> None:
        """Keeps the memory of a gradient until it is copied. Waits for older copies, so that
        gradients in transit take at most twice ``_AHEAD``, plus a last one."""
        values.record_stream(self.streams.outgoing)
        self._ahead += values.nbytes
        if self._ahead > _AHEAD:
            if self._mark is not None:
                self._mark.synchronize()
            self._mark = self.streams.outgoing.record_event()
            self._ahead = values.nbytes  # its copy comes after the event

    def note_idle(self, memories: Iterable[Any]) -> None:
        event = None
        for memory in memories:
            if memory.idle_since is None:
                event = event or self.streams.computing().record_event()
                memory.idle_since = event


class CudaMemory:
    """Memory of a unit on a device, which can be released. Its storage stays the same object, so
    views that autograd keeps show the unit's weights whenever these are present.

    Blocks pass from unit to unit through torch's allocator, in the order of the stream for weights.
    Before a block is released, that stream waits until nothing uses it.

    Attributes:
        idle_since: an event behind the last use, once the unit is not in use.
    """

    reads_nan = False  # a tensor whose memory was released has none

    def __init__(self, size: int, streams: Streams) -> None:
        self._streams = streams
        self._size = max(size, 1)
        self.idle_since: Any = None
        with streams.copying():
            self.bytes = torch.empty(self._size, dtype=torch.uint8, device=streams.device)

    @property
    def address(self) -> int:
        return self.bytes.data_ptr()

    def take(self) -> None:
        """Allocates memory for arriving weights."""
        storage = self.bytes.untyped_storage()
        if storage.nbytes() > 0:
            self._streams.order()  # it may be in use, and its weights are overwritten
            return
        with self._streams.copying():
            storage.resize_(self._size)

    def touch(self) -> None:
        """Notes that the unit is in use."""
        self.idle_since = None

    def move_to(self, other: Any) -> None:
        """Releases the memory to torch's allocator, for the next user."""
        self.drop()

    def drop(self) -> None:
        """Releases the memory when its last use is over."""
        storage = self.bytes.untyped_storage()
        if storage.nbytes() == 0:
            return
        if self.idle_since is None:
            self._streams.order()
        else:
            self._streams.incoming.wait_event(self.idle_since)
        with self._streams.copying():
            storage.resize_(0)
