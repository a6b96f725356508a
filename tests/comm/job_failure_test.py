"""Ranks as processes: how they are started, how they fail, and that all others say who did.

Started as `python3 FILE PROBE [unittest arguments]`: PROBE is the built comm_probe. Standard library
only; mpirun where it is installed.
"""
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
import unittest

PROBE = ""
# Survivors end within this time after the end of a rank.
WITHIN_S = 5
# For what is not in question: against hanging.
TIMEOUT_S = 60
HOST = socket.gethostname()
LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "TORCHELASTIC_", "PMI", "OMPI_", "SLURM_",
             "MV2_", "FLUX_", "PENSTOCK_JOB_TOKEN")
ENVIRONMENT = {name: value for name, value in os.environ.items()
               if not name.startswith(LAUNCHERS)}


def main():
    global PROBE
    if len(sys.argv) < 2:
        raise SystemExit(f"usage: {sys.argv[0]} PROBE [unittest arguments]")
    PROBE = os.path.abspath(sys.argv[1])
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], module="__main__", verbosity=2)


def is_free(port):
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return one.connect_ex(("127.0.0.1", port)) != 0


def free_ports():
    """Ports below those that the kernel gives away, and as Slurm's job numbers choose them; other
    tests begin elsewhere."""
    port = 20000 + os.getpid() % 240 * 50
    while True:
        if is_free(port):
            yield port
        port += 1


PORTS = free_ports()


def is_running(pid):
    """Whether a process that is no child of this one has not ended; nobody may have waited for it."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


class RanksTest(unittest.TestCase):
    """Starts processes that end with the test."""

    def started(self, command, environment=None):
        process = subprocess.Popen(command, env={**ENVIRONMENT, **(environment or {})}, text=True,
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, bufsize=1)
        self.addCleanup(process.__exit__, None, None, None)
        self.addCleanup(process.kill)
        return process

    def rank(self, rank, size, port, *arguments, **environment):
        return self.started([PROBE, *arguments],
                            {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1",
                             "MASTER_PORT": str(port), **environment})

    def ranks(self, size, *arguments):
        port = next(PORTS)
        return [self.rank(rank, size, port, *arguments) for rank in range(size)]

    def await_holding(self, processes):
        for process in processes:
            self.assertRegex(process.stdout.readline(), "^rank .* holds$")

    def holding(self, size, *arguments):
        processes = self.ranks(size, "hold", *arguments)
        self.await_holding(processes)
        return processes

    def end_of(self, process, within=TIMEOUT_S):
        """The exit code, and the last line that the process has left on stderr."""
        try:
            process.wait(within)
        except subprocess.TimeoutExpired:
            self.fail(f"process {process.pid} did not end within {within} s")
        lines = process.stderr.read().splitlines()
        return process.returncode, lines[-1] if lines else ""

    def assert_all_end(self, processes, pattern, code=3, within=TIMEOUT_S):
        for process in processes:
            returned, line = self.end_of(process, within)
            self.assertRegex(line, pattern)
            self.assertEqual(returned, code, line)

    def assert_none_ends(self, processes, within):
        with self.assertRaises(subprocess.TimeoutExpired):
            processes[0].wait(within)
        for process in processes:
            self.assertIsNone(process.poll())

    def finish(self, processes):
        processes[0].stdin.close()
        self.assert_all_end(processes, "^$", code=0)


def hello(rank, size, token=""):
    """What a rank greets rank 0 with (comm/wire.h), but for the name of its run, which is empty."""
    def text(value):
        return struct.pack("<Q", len(value)) + value.encode()
    greeting = text("a-stranger") + text(token)
    payload = struct.pack("<QQQI", rank, size, 4711, 0) + greeting
    return struct.pack("<III", 0x33624A70, 1, len(payload)) + payload


class StrangerTest(RanksTest):
    TOKEN = "the-token-of-this-test"

    def connected(self, port):
        """A connection to rank 0 once it listens."""
        end = time.monotonic() + TIMEOUT_S
        while True:
            stranger = socket.socket()
            self.addCleanup(stranger.close)
            stranger.settimeout(TIMEOUT_S)
            if stranger.connect_ex(("127.0.0.1", port)) == 0:
                return stranger
            self.assertLess(time.monotonic(), end, "rank 0 does not listen")

    @staticmethod
    def rest_of(stranger):
        heard = b""
        while more := stranger.recv(4096):
            heard += more
        return heard

    def test_a_stranger_gets_no_rank_s_place(self):
        port = next(PORTS)
        zero = self.rank(0, 2, port, "talk", PENSTOCK_JOB_TOKEN=self.TOKEN)
        for token in ("", "x" * len(self.TOKEN)):
            stranger = self.connected(port)
            stranger.sendall(hello(1, 2, token))
            self.assertRegex(self.rest_of(stranger), b"rank 1 .host a-stranger, pid 4711. has "
                                                     b"(no|another) token.* rank 0.*; .*"
                                                     b"PENSTOCK_JOB_TOKEN")
        one = self.rank(1, 2, port, "talk", PENSTOCK_JOB_TOKEN=self.TOKEN)
        self.assert_all_end([zero, one], "^$", code=0)

    def test_a_rank_with_another_token_says_so_and_the_place_stays_free(self):
        port = next(PORTS)
        zero = self.rank(0, 2, port, "talk", PENSTOCK_JOB_TOKEN=self.TOKEN)
        for environment in ({}, {"PENSTOCK_JOB_TOKEN": "of-another-run-of-mine"}):
            wrong = self.rank(1, 2, port, "talk", **environment)
            self.assert_all_end([wrong], "(no|another) token.* rank 0.*; all ranks of a run have the same "
                                         "PENSTOCK_JOB_TOKEN, or none")
        one = self.rank(1, 2, port, "talk", PENSTOCK_JOB_TOKEN=self.TOKEN)
        self.assert_all_end([zero, one], "^$", code=0)

    def test_silent_strangers_keep_no_rank_waiting(self):
        port = next(PORTS)
        zero = self.rank(0, 3, port, "talk")
        strangers = [self.connected(port) for _ in range(200)]
        strangers[0].sendall(hello(1, 3)[:20])
        others = [self.rank(rank, 3, port, "talk") for rank in (1, 2)]
        self.assert_all_end([zero, *others], "^$", code=0)

    def test_rank_zero_listens_on_the_address_that_is_given_alone(self):
        port = next(PORTS)
        zero = self.rank(0, 2, port, "talk", MASTER_ADDR="127.0.0.3")
        end = time.monotonic() + TIMEOUT_S
        while True:
            with socket.socket() as one:
                if one.connect_ex(("127.0.0.3", port)) == 0:
                    break
            self.assertLess(time.monotonic(), end, "rank 0 does not listen at its address")
        with socket.socket() as other:
            self.assertNotEqual(other.connect_ex(("127.0.0.1", port)), 0)
        one = self.rank(1, 2, port, "talk", MASTER_ADDR="127.0.0.3")
        self.assert_all_end([zero, one], "^$", code=0)


class StartTest(RanksTest):
    def test_ranks_by_environment(self):
        for size in (1, 2, 4):
            said = []
            for process in self.ranks(size, "talk"):
                self.assertEqual(self.end_of(process), (0, ""))
                said.append(process.stdout.read())
            everyone = ", ".join(f"{rank} at {rank}" for rank in range(size))
            self.assertEqual(said, [f"rank {rank} of {size}, {rank} of {size}, hosts {size}: "
                                    f"{everyone}\n" for rank in range(size)])

    def test_rank_zero_comes_last(self):
        port = next(PORTS)
        late = [self.rank(rank, 3, port, "talk") for rank in (1, 2)]
        self.assert_none_ends(late, 0.5)
        self.assert_all_end([*late, self.rank(0, 3, port, "talk")], "^$", code=0)

    def test_missing_ranks_are_named_by_those_that_came(self):
        port = next(PORTS)
        came = [self.rank(rank, 4, port, "talk", "--join", "4") for rank in (0, 2)]
        self.assert_all_end(came, r"error: ranks 1, 3 of 4 did not join within 4 s")

    def test_missing_rank_zero_is_named(self):
        port = next(PORTS)
        self.assert_all_end([self.rank(1, 2, port, "talk", "--join", "1")],
                            rf"error: rank 1 of 2 did not reach rank 0 within 1 s: "
                            rf"127\.0\.0\.1:{port}: Connection refused")

    def test_another_world_size_is_named(self):
        port = next(PORTS)
        zero = self.rank(0, 2, port, "talk", "--join", "3")
        other = self.rank(1, 3, port, "talk")
        self.assert_all_end([other], rf"error: rank 1 \(host {HOST}, pid {other.pid}\) says that "
                                     "there are 3 ranks, and rank 0 .* that there are 2")
        self.assert_all_end([zero], r"rank 1 of 2 did not join .* there are 3 ranks")

    def test_a_taken_port_is_named(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            self.assert_all_end([self.rank(0, 2, port, "talk")],
                                rf"port {port}: the address is in use; MASTER_PORT says so")

    def test_contradictions_are_refused(self):
        self.assert_all_end([self.rank(4, 4, 1, "talk")], "error: environment: RANK=4")
        self.assert_all_end([self.rank(0, "four", 1, "talk")], "WORLD_SIZE=four is no number")
        self.assert_all_end([self.started([PROBE, "talk"], {"PMI_SIZE": "4"})], "PMI_SIZE=4 .*mpirun")

    def test_ranks_of_torchrun_meet_behind_its_port(self):
        with socket.socket() as agent, socket.socket() as taken:
            port = next(PORTS)
            agent.bind(("127.0.0.1", port))
            agent.listen()
            taken.bind(("127.0.0.1", port + 1))
            taken.listen()
            torchrun = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "none"}
            processes = [self.rank(rank, 2, port, "talk", **torchrun) for rank in range(2)]
            self.assert_all_end(processes, "^$", code=0)

    def test_ranks_of_slurm(self):
        job = next(PORTS) - 20000
        processes = [
            self.started([PROBE, "talk"],
                         {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": str(rank),
                          "SLURM_LOCALID": str(rank), "SLURM_JOB_ID": str(job),
                          "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "localhost,other[1-3]"})
            for rank in range(2)]
        self.assert_all_end(processes, "^$", code=0)


class EndTest(RanksTest):
    size = 3
    doing = "waits for weights of h.2 (tile 17)"

    def others(self, processes, victim):
        return [process for rank, process in enumerate(processes) if rank != victim]

    def test_a_killed_rank_is_named_by_all(self):
        for victim in range(self.size):
            with self.subTest(victim=victim):
                processes = self.holding(self.size, "--doing", *[self.doing] * self.size,
                                         "--inside", *["3"] * self.size)
                processes[victim].kill()
                self.assert_all_end(
                    self.others(processes, victim),
                    rf"error: rank {victim} \(host {HOST}, pid {processes[victim].pid}\) ended in "
                    rf"step 12 while it {re.escape(self.doing)}$", within=WITHIN_S)

    def test_a_stopped_rank_is_named_by_all(self):
        jobs = [self.holding(self.size, "--heartbeat", "4") for _ in range(self.size)]
        for victim, processes in enumerate(jobs):
            processes[victim].send_signal(signal.SIGSTOP)
        for victim, processes in enumerate(jobs):
            with self.subTest(victim=victim):
                line = (rf"error: rank {victim} \(host {HOST}, pid {processes[victim].pid}\) has "
                        "not answered for 4 s$")
                self.assert_all_end(self.others(processes, victim), line, within=4 + WITHIN_S)
                processes[victim].send_signal(signal.SIGCONT)
                self.assert_all_end([processes[victim]], line, within=WITHIN_S)

    def test_a_rank_that_continues_in_time_is_not_missed(self):
        processes = self.holding(self.size, "--heartbeat", "20")
        for process in processes:
            process.send_signal(signal.SIGSTOP)
            self.assert_none_ends(processes, 1)
            process.send_signal(signal.SIGCONT)
        self.finish(processes)

    def test_a_job_that_is_stopped_as_a_whole_continues(self):
        processes = self.holding(self.size, "--heartbeat", "3", "--operation", "3")
        for process in processes:
            process.send_signal(signal.SIGSTOP)
        self.assert_none_ends(processes, 6)
        for process in processes:
            process.send_signal(signal.SIGCONT)
        self.assert_none_ends(processes, 2)
        self.finish(processes)

    def test_a_rank_that_is_an_operation_behind_is_named_with_both(self):
        processes = self.ranks(self.size, "hold", "--operation", "2",
                               "--inside", "17", "16", "17", "--doing", "", self.doing)
        self.assert_all_end(processes, r"error: rank 1 .* is in weights of h.16 \(operation 16 of "
                                       r"step 12\) and rank 0 .* in weights of h.17 \(operation 17 "
                                       rf"of step 12\), for 2 s; rank 1 {re.escape(self.doing)}$")

    def test_a_rank_that_does_not_arrive_is_named(self):
        processes = self.ranks(self.size, "hold", "--operation", "2",
                               "--inside", "17", "17", "-", "--doing", "", "", self.doing)
        self.assert_all_end(processes, r"error: weights of h.17 \(operation 17 of step 12\): rank 2 "
                                       rf".* did not arrive within 2 s; rank 2 {re.escape(self.doing)}$")

    def test_an_error_of_a_rank_is_everyones(self):
        for rank in range(self.size):
            with self.subTest(rank=rank):
                self.assert_all_end(self.ranks(self.size, "fail", "--rank", str(rank)),
                                    rf"error: rank {rank} \(host {HOST}\): the drive is full$")
                self.assert_all_end(self.ranks(self.size, "disagree", "--rank", str(rank)),
                                    rf"error: rank {rank} \(host {HOST}\): lr is 0.002$")

    def test_a_rank_that_leaves_without_a_word_is_named(self):
        for victim in range(self.size):
            with self.subTest(victim=victim):
                processes = self.ranks(self.size, "leave", "--rank", str(victim))
                self.assert_all_end(self.others(processes, victim),
                                    rf"error: rank {victim} \(.*, pid {processes[victim].pid}\) ended",
                                    within=WITHIN_S)


class MpirunTest(RanksTest):
    def setUp(self):
        if shutil.which("mpirun") is None:
            self.skipTest("no mpirun (scripts/setup --tests installs it)")
        alone = subprocess.run([PROBE, "talk"], env={**ENVIRONMENT, "PMIX_RANK": "0",
                                                     "PMIX_NAMESPACE": "x"},
                               capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        if "this build has no PMIx" in alone.stderr:
            self.skipTest("this build has no PMIx (scripts/setup installs libpmix-dev)")

    def mpirun(self, size, *arguments):
        return self.started(["mpirun", "--oversubscribe", "--allow-run-as-root", "-n", str(size),
                             PROBE, *arguments])

    def test_ranks_meet(self):
        for size in (1, 2, 4):
            mpirun = self.mpirun(size, "talk")
            out, errors = mpirun.communicate(timeout=TIMEOUT_S)
            self.assertEqual(mpirun.returncode, 0, errors)
            everyone = ", ".join(f"{rank} at {rank}" for rank in range(size))
            self.assertEqual(sorted(out.splitlines()),
                             [f"rank {rank} of {size}, {rank} of {size}, hosts {size}: {everyone}"
                              for rank in range(size)])

    def test_a_killed_rank_is_named_by_the_others(self):
        for victim in range(3):
            with self.subTest(victim=victim):
                mpirun = self.mpirun(3, "hold")
                pids = {}
                while len(pids) < 3:
                    rank, pid = re.match(r"rank (\d+) pid (\d+) holds", mpirun.stdout.readline()).groups()
                    pids[int(rank)] = int(pid)
                os.kill(pids[victim], signal.SIGKILL)
                mpirun.wait(WITHIN_S)
                errors = mpirun.stderr.read()
                # mpirun ends the others when the first of them has ended.
                said = [line for line in errors.splitlines() if line.startswith("comm_probe: ")]
                line = f"comm_probe: error: rank {victim} (host {HOST}, pid {pids[victim]}) ended"
                self.assertIn(said, [[line], [line] * 2], errors)
                deadline = time.monotonic() + WITHIN_S
                while any(map(is_running, pids.values())) and time.monotonic() < deadline:
                    time.sleep(0.05)
                self.assertFalse(any(map(is_running, pids.values())))

    def test_an_environment_that_contradicts_mpirun_is_refused(self):
        process = self.started(["mpirun", "--oversubscribe", "--allow-run-as-root", "-n", "2", "-x",
                                "WORLD_SIZE=4", "-x", "RANK=0", PROBE, "talk"])
        _, errors = process.communicate(timeout=TIMEOUT_S)
        self.assertIn("error: environment: WORLD_SIZE=4 and RANK=0 contradict OMPI_COMM_WORLD_SIZE=2",
                      errors)


if __name__ == "__main__":
    main()
