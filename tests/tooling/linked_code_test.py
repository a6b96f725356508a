"""What is linked where: the operators of a model, and the policy of the tile store.

  linked_code_test.py OPERATORS PROGRAM OFFLOAD SIM LIBRARY WITHOUT...
    OPERATORS  the static library of a model's operators
    PROGRAM    one that has them, as a check of this check
    OFFLOAD    the static library of the policy
    SIM        the static library of virtual time, which runs the same policy
    LIBRARY    libpenstock.so, of which others see the C interface alone, and which brings neither
               operators of a model nor threads of OpenMP into their process
    WITHOUT    programs of the engine, which have no operators of a model: neither linked in nor
               loaded
"""

import re
import subprocess
import sys
import unittest

POLICY = re.compile(r"_ZNK?8penstock7offload(10TilePolicy|11UpdateQueue)\w")


def symbols(file, kinds, *options):
    """The symbols of a library or program that nm shows as of one of these kinds, mangled."""
    done = subprocess.run(["nm", *options, file], check=True, capture_output=True, text=True)
    words = (line.split() for line in done.stdout.splitlines())
    return {word[-1] for word in words if len(word) >= 2 and word[-2] in kinds}


def defined(file):
    """The external functions that a library or program defines."""
    return symbols(file, "T")


def policy(names):
    """Those of the names that are of the policy."""
    return {name for name in names if POLICY.match(name)}


def loaded(program):
    """The shared libraries that a program loads."""
    return subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout


class LinkedOperatorsTest(unittest.TestCase):
    def setUp(self):
        self.operators = defined(OPERATORS)

    def test_programs_of_the_engine_have_none(self):
        for program in WITHOUT:
            self.assertEqual(self.operators & defined(program), set(), program)
            for library in ("libdnnl", "libcublas"):
                self.assertNotIn(library, loaded(program), program)

    def test_a_program_that_has_them_is_seen(self):
        self.assertGreater(len(self.operators & defined(PROGRAM)), 10)


class LinkedPolicyTest(unittest.TestCase):
    def test_virtual_time_runs_the_engines_policy_and_has_none_of_its_own(self):
        self.assertEqual(policy(defined(SIM)), set())
        used = policy(symbols(SIM, "U"))
        self.assertGreater(len(used), 5)
        self.assertLessEqual(used, defined(OFFLOAD))

    def test_a_program_that_trains_has_the_same_one(self):
        self.assertEqual(policy(defined(PROGRAM)), policy(defined(OFFLOAD)))


class LibraryTest(unittest.TestCase):
    def test_it_exports_the_c_interface_and_nothing_else(self):
        exported = symbols(LIBRARY, "TDBRVWu", "--dynamic")
        self.assertIn("penstock_create", exported)
        self.assertEqual({name for name in exported if not name.startswith("penstock_")}, set())

    def test_it_loads_no_operators_no_openmp_and_nothing_of_ranks_and_gpus(self):
        for library in ("libdnnl", "libgomp", "libOpenCL", "libgloo", "libpmix", "libcu", "libnccl"):
            self.assertNotIn(library, loaded(LIBRARY))
        self.assertEqual(defined(OPERATORS) & symbols(LIBRARY, "Tt"), set())


if __name__ == "__main__":
    OPERATORS, PROGRAM, OFFLOAD, SIM, LIBRARY, *WITHOUT = sys.argv[1:]
    unittest.main(argv=sys.argv[:1], verbosity=2)
