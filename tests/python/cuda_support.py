"""Streams of torch.cuda and CUDA's driver where there is no GPU.

The driver is tests/front/fake_cuda: it copies on threads of its own, late, and notes what is wrong
with the order and the lifetimes of what it is given. What computes is torch on the CPU, on the
thread that calls it, which has ended when the call returns: a stream that computes waits for
another one by waiting on the host.
"""

from __future__ import annotations

import contextlib
import ctypes
import pathlib
import shutil
import subprocess
import tempfile
import types
import unittest
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import optimizer_support  # noqa: F401  it finds the package in this tree
import torch
from penstock import _cuda, _sums
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode

_SOURCES = pathlib.Path("tests/front/fake_cuda")
_BUILT = pathlib.Path("build/release/tests/front/fake_cuda/libcuda.so.1")


def _build(root: pathlib.Path, folder: str) -> pathlib.Path:
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        raise unittest.SkipTest("no C++ compiler, which the fake driver needs")
    made = pathlib.Path(folder) / "libcuda.so.1"
    sources = [str(path) for path in sorted((root / _SOURCES).glob("*.cc"))]
    flags = ["-std=c++20", "-O1", "-shared", "-fPIC", "-pthread", "-Wl,-soname,libcuda.so.1"]
    subprocess.run([compiler, *flags, "-I", str(root), "-o", str(made), *sources], check=True)
    return made


def load_driver() -> ctypes.CDLL:
    """Loads the fake driver: a lookup of libcuda.so.1 in this process finds it."""
    if torch.cuda.is_available():
        raise unittest.SkipTest(
            "torch has loaded this GPU's own driver; gpu_day_test.py compares both levels on the GPU"
        )
    roots = [
        root for root in pathlib.Path(__file__).resolve().parents if (root / _SOURCES).is_dir()
    ]
    if not roots:
        raise unittest.SkipTest(f"{_SOURCES} is not there")
    with tempfile.TemporaryDirectory() as folder:
        built = roots[0] / _BUILT
        driver = ctypes.CDLL(str(built if built.exists() else _build(roots[0], folder)))
    driver.fake_cuda_context.restype = ctypes.c_void_p
    driver.fake_cuda_violations.restype = ctypes.c_char_p
    driver.fake_cuda_registered.restype = ctypes.c_size_t
    driver.fake_cuda_copies.restype = ctypes.c_uint64
    driver.fake_cuda_peak.restype = ctypes.c_size_t
    driver.fake_cuda_share_memory()
    assert driver.cuCtxSetCurrent(ctypes.c_void_p(driver.fake_cuda_context())) == 0
    return driver


class _Computing:
    """The stream that computes."""

    def __init__(self, driver: ctypes.CDLL) -> None:
        self._driver = driver

    def wait_stream(self, other: Any) -> None:
        assert self._driver.cuStreamSynchronize(ctypes.c_void_p(other.cuda_stream)) == 0

    def record_event(self) -> object:
        return object()


def _stream_class(computing: _Computing, driver: ctypes.CDLL) -> type:
    class Stream:
        """A stream that copies. What computes is over whenever it is told to wait for that."""

        def __init__(self, device: Any) -> None:
            handle = ctypes.c_void_p()
            assert driver.cuStreamCreate(ctypes.byref(handle), 1) == 0
            self.cuda_stream = handle.value

        def wait_stream(self, other: Any) -> None:
            assert isinstance(other, _Computing)

        def wait_event(self, event: object) -> None:
            assert event is not None

        def record_event(self) -> Any:
            return types.SimpleNamespace(synchronize=lambda: computing.wait_stream(self))

    return Stream


@contextlib.contextmanager
def _streams(driver: ctypes.CDLL, device: Any) -> Iterator[None]:
    """Stands for torch's streams; ``device`` for ``torch.cuda.device``."""
    computing = _Computing(driver)
    held: list[torch.Tensor] = []

    @contextlib.contextmanager
    def stream(which: Any) -> Iterator[None]:
        computing.wait_stream(which)
        yield

    with contextlib.ExitStack() as stack:
        for name, stands_for in {
            "Stream": _stream_class(computing, driver),
            "current_stream": lambda device: computing,
            "stream": stream,
            "device": device,
        }.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, stands_for))
        record = mock.patch.object(torch.Tensor, "record_stream", lambda t, stream: held.append(t))
        stack.enter_context(record)
        yield


@contextlib.contextmanager
def on_the_gpu(driver: ctypes.CDLL, free: int | None = None) -> Iterator[None]:
    """Parameters on the CPU count as those of a CUDA device while this lasts.

    Args:
        free: bytes of the device; None: as many as anything needs, but none for sums of
            micro-batches.
    """
    room = free or 1 << 40
    with contextlib.ExitStack() as stack:
        stack.enter_context(_streams(driver, lambda device: contextlib.nullcontext()))
        stack.enter_context(mock.patch.object(_cuda, "is_gpu", lambda device: True))
        stack.enter_context(mock.patch.object(_cuda, "free_memory", lambda device: room))
        if free is None:
            stack.enter_context(mock.patch.object(_sums, "_SHARE", 2 * room))
        yield


class _Block(NamedTuple):
    """Memory of the driver that a storage counts as."""

    storage: StorageWeakRef
    device: torch.device
    address: ctypes.c_uint64
    size: int


def _tensors(given: Iterable[Any]) -> Iterator[torch.Tensor]:
    for each in given:
        if isinstance(each, torch.Tensor):
            yield each
        elif isinstance(each, (list, tuple)):
            yield from _tensors(each)


# Functions that torch lets take tensors of several devices.
_MIXING = frozenset(
    ("copy_", "__getitem__", "__setitem__", "__set__", "_has_compatible_shallow_copy_type")
)


class Gpus(TorchFunctionMode):
    """CUDA devices, as far as calls of torch from this thread see them.

    A tensor that is made on a device, or moved there, has its bytes on the host, says that it is on
    the device, and takes as much memory of the driver's for as long as its storage has some. What
    functions compute from it says the same, and is not counted. Functions do not take tensors of
    several devices.
    """

    def __init__(self, driver: ctypes.CDLL, count: int) -> None:
        super().__init__()
        self._driver = driver
        self._blocks: dict[int, _Block] = {}
        self._contexts = [driver.fake_cuda_context() for _ in range(count)]
        self._current = 0

    # Memory.

    def _collect(self) -> None:
        for key, block in list(self._blocks.items()):
            if block.storage.expired():
                self._free(self._blocks.pop(key))

    def _free(self, block: _Block) -> None:
        if block.size > 0:
            assert self._driver.cuMemFree_v2(block.address) == 0

    def _take(self, storage: torch.UntypedStorage, device: torch.device, size: int) -> None:
        self._collect()
        address = ctypes.c_uint64()
        if size > 0:
            code = self._driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size))
            if code == 2:
                raise torch.OutOfMemoryError(f"the stand-in for {device} has no {size} bytes left")
            assert code == 0
        self._blocks[storage._cdata] = _Block(StorageWeakRef(storage), device, address, size)

    def resize(self, resize: Any, storage: torch.UntypedStorage, size: int) -> Any:
        block = self._blocks.pop(storage._cdata, None)
        if block is not None:
            self._free(block)
            self._take(storage, block.device, size)
        return resize(storage, size)

    def free(self, device: torch.device) -> tuple[int, int]:
        self._collect()
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        assert self._driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
        return free.value, total.value

    def close(self) -> None:
        for block in self._blocks.values():
            self._free(block)

    # Functions.

    def _device_of(self, tensor: torch.Tensor) -> torch.device | None:
        with torch._C.DisableTorchFunction():
            if tensor.layout != torch.strided or tensor.is_meta:
                return None
            block = self._blocks.get(tensor.untyped_storage()._cdata)
        return block and block.device

    def _made(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        with torch._C.DisableTorchFunction():
            storage = tensor.untyped_storage()
            self._take(storage, device, storage.nbytes())
        return tensor

    def _named(self, device: Any) -> torch.device:
        found = torch.device(device)
        if found.type == "cuda" and found.index is None:
            return torch.device("cuda", self._current)
        return found

    def _target(self, name: str, args: Any, kwargs: Any) -> tuple[torch.device | None, Any]:
        """Returns where ``to``, ``cuda`` or ``cpu`` moves a tensor, and its new dtype."""
        if name == "to":
            known = {key: value for key, value in kwargs.items() if key != "copy"}
            device, dtype, *_ = torch._C._nn._parse_to(*args[1:], **known)
            return device and self._named(device), dtype
        named = args[1] if len(args) > 1 else None
        return self._named(name if named is None else torch.device("cuda", named)), None

    def _to(
        self, tensor: torch.Tensor, device: torch.device, dtype: Any, copy: bool
    ) -> torch.Tensor:
        here = self._device_of(tensor)
        wanted = dtype or tensor.dtype
        if device == (here or torch.device("cpu")) and wanted == tensor.dtype and not copy:
            return tensor
        made = tensor.to(wanted, copy=True)
        return made if device.type == "cpu" else self._made(made, device)

    def _computes_on(self, name: str, given: list[Any]) -> torch.device | None:
        """Returns the device of a function's arguments; None: the host."""
        tensors = [tensor for tensor in _tensors(given) if not tensor.is_meta]
        found = {self._device_of(tensor) for tensor in tensors if tensor.dim() > 0}
        if len(found) > 1 and name not in _MIXING:
            raise RuntimeError(f"{name} was given tensors on {found}, where None is the host")
        if name in _MIXING:
            tensors = tensors[:1]
        return next((device for device in map(self._device_of, tensors) if device), None)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if func == torch.Tensor.device.__get__:  # type: ignore[attr-defined]
            return self._device_of(args[0]) or func(*args)
        if name in ("to", "cuda", "cpu") and not args[0].is_meta:
            device, dtype = self._target(name, args, kwargs)
            if device is not None and device.type in ("cpu", "cuda"):
                return self._to(args[0], device, dtype, kwargs.get("copy", False))
        device = kwargs.get("device")
        if device is not None and self._named(device).type == "cuda":
            made = func(*args, **{**kwargs, "device": "cpu"})
            return self._made(made, self._named(device))
        where = self._computes_on(name, [*args, *kwargs.values()])
        result = func(*args, **kwargs)
        if where is not None:
            for tensor in _tensors([result]):
                if name.startswith("new_"):
                    self._made(tensor, where)
                elif self._device_of(tensor) is None and not tensor.is_meta:
                    self._take(tensor.untyped_storage(), where, 0)
        return result

    # Devices.

    @contextlib.contextmanager
    def device(self, device: Any) -> Iterator[None]:
        before, self._current = self._current, torch.device(device).index or 0
        self.make_current()
        try:
            yield
        finally:
            self._current = before
            self.make_current()

    def make_current(self) -> None:
        context = ctypes.c_void_p(self._contexts[self._current])
        assert self._driver.cuCtxSetCurrent(context) == 0

    def count(self) -> int:
        return len(self._contexts)

    def current(self) -> int:
        return self._current


@contextlib.contextmanager
def gpus(driver: ctypes.CDLL, size: int = 1 << 40, count: int = 1) -> Iterator[Gpus]:
    """Has torch find CUDA devices, which have ``size`` bytes together."""
    found = Gpus(driver, count)
    found.make_current()
    driver.fake_cuda_resize(ctypes.c_size_t(size))
    driver.fake_cuda_peak()
    resize = torch.UntypedStorage.resize_

    def resized(storage: torch.UntypedStorage, size: int) -> Any:
        return found.resize(resize, storage, size)

    with contextlib.ExitStack() as stack:
        stack.callback(driver.fake_cuda_resize, ctypes.c_size_t(1 << 40))
        stack.enter_context(_streams(driver, found.device))
        for where, name, stands_for in (
            (torch.UntypedStorage, "resize_", resized),
            (torch.cuda, "mem_get_info", found.free),
            (torch.cuda, "memory_reserved", lambda device: 0),
            (torch.cuda, "memory_allocated", lambda device: 0),
            (_cuda, "device_count", found.count),
            (_cuda, "current_device", found.current),
        ):
            stack.enter_context(mock.patch.object(where, name, stands_for))
        stack.callback(found.close)
        stack.enter_context(found)
        yield found
