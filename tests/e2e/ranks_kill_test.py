"""Ranks that are killed at random moments: the others end in time and say who was, and the run goes on
with any number of ranks as if nothing had been. scripts/kills --ranks does it for longer."""
import os
import random
import sys
import unittest

import harness

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "hostile"))

try:
    import lives
    import rank_lives
    MISSING = None
except SystemExit as missing:  # a package
    MISSING = str(missing)

RUNS = 6
KILLS = 5  # of each


@unittest.skipIf(MISSING, MISSING)
class RanksKillTest(harness.PenstockTest):
    def setUp(self):
        super().setUp()
        if harness.DEVICE != "cpu":
            self.skipTest("ranks on GPUs need one for each of them")

    def test_at_any_moment(self):
        whole = rank_lives.Undisturbed(harness.PROGRAM, self.path("undisturbed"))
        ports = rank_lives.Ports()
        for number in range(RUNS):
            life = rank_lives.RankLife(harness.PROGRAM, whole, ports, random.Random(number),
                                       self.path(f"life{number}"), most_ranks=4)
            try:
                life.live(KILLS)
            except lives.Lost as loss:
                self.fail(str(loss))


if __name__ == "__main__":
    harness.main()
