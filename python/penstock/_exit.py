"""Lets a process end normally after an interrupted backward.

If an exception ends a backward, torch (2.15) leaves the remaining nodes in the thread's queue. A
later backward frees them, or else the end of the thread. The main thread ends after the
interpreter: if nodes hold Python objects, such as the hooks of non-reentrant checkpointing, the
process ends by SIGSEGV.
"""

from __future__ import annotations

import atexit
import contextlib
import functools

import torch


@functools.cache
def free_nodes_at_exit() -> None:
    """Empties the queue of the main thread before the interpreter ends.

    A backward processes the queue from the newest node to the oldest. So one through a node from
    before the first step processes all the others.
    """
    with torch.inference_mode(False), torch.enable_grad():
        oldest = torch.zeros((), requires_grad=True) * 1

    def free() -> None:
        with contextlib.suppress(RuntimeError):  # in a fork's child, torch may refuse
            oldest.backward()

    atexit.register(free)
