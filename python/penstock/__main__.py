"""The command ``penstock``: replaces this process with the package's program."""

from __future__ import annotations

import os
import pathlib
import sys


def main() -> int:
    """Starts the program with the arguments of this process; returns only if that fails."""
    program = pathlib.Path(__file__).parent / "lib" / "penstock"
    try:
        os.execv(program, ["penstock", *sys.argv[1:]])
    except OSError as error:
        print(
            f"penstock: error: {program} cannot be started: {error.strerror}; install the wheel",
            file=sys.stderr,
        )
    return 3


if __name__ == "__main__":
    sys.exit(main())
