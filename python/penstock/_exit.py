"""Lets a process end that a backward was interrupted in.

If an exception ends a backward, torch (2.15) leaves the nodes whose turn had not come in the queue of
the thread. A later backward frees them, if there is one, or else the end of the thread. That of the
main thread comes when the interpreter has ended already: if nodes hold something of Python, such as
the hooks of non-reentrant checkpointing, the process ends by SIGSEGV.
"""

from __future__ import annotations

import atexit
import contextlib
import functools

import torch


@functools.cache
def free_nodes_at_exit() -> None:
    """Has the queue of the main thread emptied before the interpreter ends.

    A backward takes what is in the queue in the order of age, the newest first. So one through a
    node from before the first step takes all that is left.
    """
    with torch.inference_mode(False), torch.enable_grad():
        oldest = torch.zeros((), requires_grad=True) * 1

    def free() -> None:
        with contextlib.suppress(RuntimeError):  # in a fork's child, torch may refuse
            oldest.backward()

    atexit.register(free)
