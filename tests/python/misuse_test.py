"""Misuses end in the right result or in an exception, and never in a crash or in NaN on disk."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import unittest

_SEEDS = 200 if os.environ.get("PENSTOCK_LONG_TESTS") else 12


class Misuse(unittest.TestCase):
    def test_random_misuses_leave_the_process_alive_and_files_without_nan(self) -> None:
        program = pathlib.Path(__file__).with_name("misuse.py")
        ended = subprocess.run(
            [sys.executable, "-X", "faulthandler", str(program), "0", str(_SEEDS)],
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual(ended.returncode, 0, ended.stderr[-4000:])
        self.assertIn(f"{_SEEDS} seeds", ended.stdout)


if __name__ == "__main__":
    unittest.main()
