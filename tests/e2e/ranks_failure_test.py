"""Ranks of a training that stop, hang or differ: who it is, and where, is said in time."""
import os
import re
import shutil
import signal
import socket
import subprocess
import unittest

import harness
import ranks_harness
from harness import read_rows

# Survivors have ended so long after they can know.
WITHIN_S = 5
HEARTBEAT_S = 3
HOST = socket.gethostname()


def named(rank, program):
    return rf"rank {rank} \(host {re.escape(HOST)}, pid {program.pid}\)"


class StoppedTest(ranks_harness.RanksTest):
    def test_a_stopped_rank_is_named_and_ends_when_it_continues(self):
        def stop(programs, victim):
            programs[victim].send_signal(signal.SIGSTOP)
            line = f"^penstock: error: {named(victim, programs[victim])} has not answered for 3 s"
            self.assert_others_end(programs, victim, line, HEARTBEAT_S + WITHIN_S)
            programs[victim].send_signal(signal.SIGCONT)
            [(code, _, errors)] = self.finish([programs[victim]])
            self.assertEqual(code, 3)
            self.assertEqual(len(errors), 1 if victim == 0 else 0, errors)

        self.check_commits_outlive(stop, heartbeat_seconds=HEARTBEAT_S)

    @unittest.skipUnless(shutil.which("mpirun"), "no mpirun (scripts/setup --tests installs it)")
    def test_a_stopped_rank_of_mpirun_is_named(self):
        run = self.path("run")
        config = self.config(penstock={"heartbeat_seconds": HEARTBEAT_S})
        with subprocess.Popen(
                ["mpirun", "--oversubscribe", "--allow-run-as-root", "-n", "2", harness.PROGRAM, "train",
                 "--model", self.model, "--data", self.data, "--config",
                 self.write("config.json", config), "--out", run, "--steps", "1000"],
                text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as mpirun:
            try:
                self.wait_for_rows(run, 2, mpirun)
                victim = self.pid_of_rank(mpirun.pid, 1)
                os.kill(victim, signal.SIGSTOP)
                _, stderr = mpirun.communicate(timeout=harness.TIMEOUT_S)
            finally:
                mpirun.kill()
        self.assertEqual(mpirun.returncode, 3, stderr)
        self.assertIn(f"penstock: error: rank 1 (host {HOST}, pid {victim}) has not answered for 3 s",
                      stderr)

    def pid_of_rank(self, mpirun, rank):
        with open(f"/proc/{mpirun}/task/{mpirun}/children", encoding="ascii") as children:
            for pid in children.read().split():
                with open(f"/proc/{pid}/environ", encoding="utf-8") as environment:
                    if f"PMIX_RANK={rank}" in environment.read().split("\0"):
                        return int(pid)
        self.fail(f"no rank {rank} below mpirun")


class HangingTest(ranks_harness.RanksTest):
    def hanging(self, **penstock):
        """A run of two ranks, and the line with which it ends when the drive of rank 1 hangs."""
        config = self.config(penstock={"comm_timeout_seconds": 5, "aio": {"engine": "threads"}, **penstock})
        run = self.path("run")
        with self.started(2, run, config, steps=1000) as programs:
            self.wait_for_rows(run, 4, programs[0])
            strace = subprocess.Popen(
                ["strace", "-f", "-qqq", "-o", "/dev/null", "-p", str(programs[1].pid), "-e",
                 "inject=pread64:delay_enter=100000000"], stderr=subprocess.DEVNULL)
            try:
                outcomes = self.finish(programs[:1])
            finally:
                # A thread that strace delays ends only when strace lets go of it.
                strace.kill()
                strace.wait()
            outcomes += self.finish(programs[1:])
        self.assertEqual([code for code, _, _ in outcomes], [3, 3], str(outcomes))
        [[line], []] = [errors for _, _, errors in outcomes]
        self.assertIn(f"rank 1 (host {HOST}, pid {programs[1].pid}) ", line)
        return run, line.removeprefix("penstock: error: ")

    @harness.needs_strace
    def test_a_rank_that_does_not_come_to_an_operation_is_named_with_what_it_does(self):
        run, line = self.hanging()
        self.assertRegex(line, r"^[\w .]+ \(operation \d+ of step \d+\): rank 1 \(.+\) did not arrive "
                         r"within 5 s; rank 1 (reads the data of|waits for|computes with) .+")
        self.assert_reports(run, line)

    @harness.needs_strace
    def test_a_rank_that_does_not_commit_is_named_too(self):
        run, line = self.hanging(commit_every_steps=2)
        self.assertRegex(line, r"(has not made its part|did not arrive) within 5 s; rank 1 .+; step \d+ is "
                         "committed$")
        self.assert_reports(run, line)
        inspected = harness.penstock("inspect", run)
        self.assertEqual(inspected.code, 0, str(inspected))
        self.assertEqual(inspected.stdout.count("failure report"), 2)
        self.trained_by(2, run, self.config(), "--resume", steps=len(read_rows(run)) + 2)
        cleaned = harness.penstock("clean", run, "--yes")
        self.assertEqual(cleaned.code, 0, str(cleaned))
        self.assertFalse(os.path.exists(run))

    def assert_reports(self, run, line):
        """Both ranks have left one."""
        reports = [os.path.join(run, "ranks", f"rank-{rank}.txt") for rank in range(2)]
        self.assertEqual(sorted(os.listdir(os.path.join(run, "ranks"))), ["rank-0.txt", "rank-1.txt"])
        for rank, report in enumerate(reports):
            with open(report, encoding="utf-8") as file:
                text = file.read()
            self.assertTrue(text.startswith(line + "\n"), text)
            self.assertIn(f"rank {rank} of 2 (host {HOST}, pid ", text)
            self.assertRegex(text, r"\d s ago  begun     .+ \(operation \d+ of step \d+\)")
            self.assertEqual("the ranks, when they were last heard:" in text, rank == 0)


class DifferentTest(ranks_harness.RanksTest):
    def assert_refused(self, *parts, **different):
        """All ranks end with code 2, and one line of rank 0 says what differs."""
        run = self.path("run")
        with self.started(3, run, different.pop("config", self.config()), **different) as programs:
            outcomes = self.finish(programs)
        self.assertEqual([code for code, _, _ in outcomes], [2, 2, 2], str(outcomes))
        [[line], *others] = [errors for _, _, errors in outcomes]
        self.assertEqual(others, [[], []])
        for part in ("rank 2", "rank 0", "differs between ranks", *parts):
            self.assertIn(part, line)
        self.assertFalse(os.path.exists(run))
        self.assertEqual(os.listdir(self.path("nvme")), [])

    def of_the_last(self, **penstock):
        return [self.config(), self.config(), self.config(penstock=penstock)]

    def test_in_the_learning_rate(self):
        configs = self.of_the_last()
        configs[2]["optimizer"]["params"]["lr"] = 2e-3
        self.assert_refused("optimizer.params.lr", "0.002", "0.001", config=configs)

    def test_in_the_model(self):
        other = self.make_model("other", n_layer=2, n_embd=48, n_head=4)
        self.assert_refused("model.", model=[self.model, self.model, other])

    def test_in_the_data(self):
        other = self.write("other.txt", harness.text_bytes(40000, seed=2))
        self.assert_refused("data.fingerprint", data=[self.data, self.data, other])

    def test_in_the_compute_threads(self):
        self.assert_refused("penstock.compute_threads", "2 on", "1 on",
                            config=self.of_the_last(compute_threads=2))

    def test_in_how_long_they_wait_for_each_other(self):
        self.assert_refused("penstock.heartbeat_seconds", config=self.of_the_last(heartbeat_seconds=5))


if __name__ == "__main__":
    harness.main()
