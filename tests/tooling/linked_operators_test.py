"""The engine's tests are programs without the operators of a model: neither linked in nor loaded.

  linked_operators_test.py LIBRARY PROGRAM WITHOUT...
    LIBRARY   the static library of those operators
    PROGRAM   one that has them, as a check of this check
    WITHOUT   programs that must not have them
"""

import subprocess
import sys
import unittest


def functions(file):
    """The external functions that a library or program defines."""
    done = subprocess.run(["nm", "--defined-only", file], check=True, capture_output=True,
                          text=True)
    words = (line.split() for line in done.stdout.splitlines())
    return {word[2] for word in words if len(word) == 3 and word[1] == "T"}


def loaded(program):
    """The shared libraries that a program loads."""
    return subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout


class LinkedOperatorsTest(unittest.TestCase):
    def setUp(self):
        self.operators = functions(LIBRARY)

    def test_programs_of_the_engine_have_none(self):
        for program in WITHOUT:
            self.assertEqual(self.operators & functions(program), set(), program)
            for library in ("libdnnl", "libcublas"):
                self.assertNotIn(library, loaded(program), program)

    def test_a_program_that_has_them_is_seen(self):
        self.assertGreater(len(self.operators & functions(PROGRAM)), 10)


if __name__ == "__main__":
    LIBRARY, PROGRAM, *WITHOUT = sys.argv[1:]
    unittest.main(argv=sys.argv[:1], verbosity=2)
