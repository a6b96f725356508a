"""Two nodes: network namespaces with a link between them and names of their own. A training over both has
the numbers of one rank; when the link is cut, both ends say so and name the other host.
"""
import os
import shutil
import subprocess
import unittest

import harness
import ranks_harness
from ranks_harness import STEPS

# Survivors have ended so long after they can know.
WITHIN_S = 5
HEARTBEAT_S = 3


def run(*arguments):
    """A command that makes or takes away a part of a node; SkipTest where it fails."""
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise unittest.SkipTest(f"{' '.join(arguments)}: {done.stderr.strip()}")


class RanksNodesTest(ranks_harness.RanksTest):
    def setUp(self):
        super().setUp()
        for program in ("ip", "unshare"):
            if shutil.which(program) is None:
                self.skipTest(f"no {program} (scripts/setup --tests installs iproute2)")
        if os.geteuid() != 0:
            self.skipTest("network namespaces take root")
        self.names = [f"penstock-{os.getpid()}-{node}" for node in "ab"]
        for name in self.names:
            run("ip", "netns", "add", name)
            self.addCleanup(subprocess.run, ["ip", "netns", "delete", name], check=False)
        run("ip", "link", "add", "link0", "netns", self.names[0], "type", "veth", "peer", "name", "link0",
            "netns", self.names[1])
        for number, name in enumerate(self.names):
            self.on(name, "ip", "address", "add", f"10.213.7.{number + 1}/24", "dev", "link0")
            for interface in ("lo", "link0"):
                self.on(name, "ip", "link", "set", interface, "up")

    def on(self, name, *arguments):
        run("ip", "netns", "exec", name, *arguments)

    def nodes(self):
        """Under what a rank of each node runs: in its network, with its name."""
        return {number: ["ip", "netns", "exec", name, "unshare", "--uts", "sh", "-c",
                         f'hostname node-{"ab"[number]} && exec "$@"', "sh"]
                for number, name in enumerate(self.names)}

    def test_two_nodes_have_the_numbers_of_one_rank(self):
        run_of_two = self.path("run")
        with self.started(2, run_of_two, self.config(), under=self.nodes(),
                          address="10.213.7.1") as programs:
            outcomes = self.finish(programs)
        self.assertEqual([(code, errors) for code, _, errors in outcomes], [(0, []), (0, [])])
        self.assert_same_numbers(self.alone(self.config(), steps=STEPS), run_of_two)

    def test_when_the_link_is_cut_both_end_and_name_the_other_host(self):
        config = self.config(penstock={"commit_every_steps": 2, "heartbeat_seconds": HEARTBEAT_S})
        run_of_two = self.path("run")
        with self.started(2, run_of_two, config, under=self.nodes(), address="10.213.7.1",
                          steps=1000) as programs:
            self.wait_for_rows(run_of_two, 4, programs[0])
            self.on(self.names[0], "ip", "link", "set", "link0", "down")
            for number, program in enumerate(programs):
                _, stderr = program.communicate(timeout=HEARTBEAT_S + WITHIN_S)
                self.assertEqual(program.returncode, 3, stderr)
                [line] = [line for line in stderr.splitlines() if line.startswith("penstock: error: ")]
                other = 1 - number
                self.assertRegex(line, rf"error: rank {other} \(host node-{'ab'[other]}, pid \d+\) has not "
                                       "answered for 3 s")
        steps = len(harness.read_rows(run_of_two)) + 2
        self.trained_by(2, run_of_two, config, "--resume", steps=steps)
        self.assert_same_numbers(self.alone(config, steps=steps), run_of_two)


if __name__ == "__main__":
    harness.main()
