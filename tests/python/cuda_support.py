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
import unittest
from collections.abc import Iterator
from typing import Any
from unittest import mock

import optimizer_support  # noqa: F401  it finds the package in this tree
import torch
from penstock import _cuda

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
    """Loads the fake driver: whoever looks for libcuda.so.1 in this process finds it."""
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


def _stream_class(driver: ctypes.CDLL) -> type:
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

    return Stream


@contextlib.contextmanager
def on_the_gpu(driver: ctypes.CDLL) -> Iterator[None]:
    """Parameters on the CPU count as those of a CUDA device while this lasts."""
    computing = _Computing(driver)
    held: list[torch.Tensor] = []

    @contextlib.contextmanager
    def stream(which: Any) -> Iterator[None]:
        computing.wait_stream(which)
        yield

    with contextlib.ExitStack() as stack:
        for name, stands_for in {
            "Stream": _stream_class(driver),
            "current_stream": lambda device: computing,
            "stream": stream,
            "device": lambda device: contextlib.nullcontext(),
        }.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, stands_for))
        stack.enter_context(mock.patch.object(_cuda, "is_gpu", lambda device: True))
        keep = mock.patch.object(_cuda.CudaEngine, "keep", lambda self, values: held.append(values))
        stack.enter_context(keep)
        yield
