"""Importing penstock needs neither torch nor the library, and takes no time to speak of."""

from __future__ import annotations

import subprocess
import sys
import unittest

from optimizer_support import ROOT


class ImportsAreLazy(unittest.TestCase):
    def python(self, program: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONPATH": str(ROOT / "python"), **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    def test_the_package_imports_neither_torch_nor_the_library(self) -> None:
        done = self.python(
            "import sys, penstock\n"
            "assert 'torch' not in sys.modules and 'penstock._library' not in sys.modules\n"
            "assert 'AdamW' in dir(penstock)\n"
            "print(len([m for m in sys.modules if m.startswith('penstock')]))"
        )
        self.assertEqual(done.stderr, "")
        self.assertEqual(done.stdout, "2\n")  # itself, and its errors

    def test_an_unknown_name_is_an_attribute_error(self) -> None:
        done = self.python("import penstock\npenstock.AdamX")
        self.assertIn("AttributeError: module 'penstock' has no attribute 'AdamX'", done.stderr)

    def test_every_public_name_is_there(self) -> None:
        done = self.python("import penstock\nfor n in penstock.__all__: getattr(penstock, n)")
        self.assertEqual(done.stderr, "")

    def test_a_library_that_is_not_there_is_named(self) -> None:
        done = self.python(
            "import penstock._library as l\nl.library()", PENSTOCK_LIBRARY="/nowhere/libpenstock.so"
        )
        self.assertIn("/nowhere/libpenstock.so cannot be loaded", done.stderr)
        self.assertIn("PENSTOCK_LIBRARY", done.stderr)


if __name__ == "__main__":
    unittest.main()
