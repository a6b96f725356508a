"""Ranks that are killed at random moments: the others end in time and say who was, and the run goes on
with any number of ranks as if nothing had been. scripts/kills --ranks does it for longer."""
import os
import random
import sys
import time
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
# A library that makes a process slow where it makes and removes state files (slow_create.c).
SLOW_CREATE = os.environ.get("PENSTOCK_SLOW_CREATE")
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

    @unittest.skipUnless(SLOW_CREATE, "this build has sanitizers, and nothing is preloaded beside them")
    def test_a_state_file_that_is_being_made_when_its_rank_ends_is_known_to_the_run(self):
        life = rank_lives.RankLife(harness.PROGRAM, None, rank_lives.Ports(), random.Random(4),
                                   self.path("life"), most_ranks=2)
        self.assertEqual(life.variant, "nvme")
        life.environment = {"LD_PRELOAD": SLOW_CREATE}
        ranks = life.start(2)
        try:
            deadline = time.monotonic() + rank_lives.TIMEOUT_S
            while not os.path.exists(os.path.join(life.folder, "about-to-create")):
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.01)
            ranks[1].process.kill()
            self.assertEqual(ranks[0].process.wait(rank_lives.TIMEOUT_S), 3)
        finally:
            life.end(ranks)
        try:
            life.check_state()
        except lives.Lost as loss:
            self.fail(str(loss))


if __name__ == "__main__":
    harness.main()
