"""Does NCCL work with one rank?  Runs comm_cuda_test if NCCL is installed."""

from __future__ import annotations

import ctypes
import os

from said import KIT, leave_out


def main() -> None:
    try:
        ctypes.CDLL("libnccl.so.2")
    except OSError as error:
        leave_out(f"NCCL: {error}")
    program = str(KIT / "comm_cuda_test")
    os.execv(program, [program])


if __name__ == "__main__":
    main()
