"""penstock launch: the processes of several ranks as one program: numbers, output, signals, ends,
codes.

What needs other programs as ranks is tested in tests/train/launch.
"""
import fcntl
import os
import pathlib
import pty
import signal
import socket
import struct
import subprocess
import termios
import threading
import time

import harness
from harness import make_config, penstock, read_rows, read_summary

NOTICE = "penstock: finishing this step and committing; interrupt again to quit at once\n"


def state_of(pid):
    """The letter that the kernel has for what a process does; "" where there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return ""


def children_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="utf-8") as file:
        return [int(child) for child in file.read().split()]


def gone(pid):
    return state_of(pid) in ("", "Z")


def wait_until_gone(pids):
    deadline = time.monotonic() + harness.TIMEOUT_S
    while not all(map(gone, pids)):
        if time.monotonic() > deadline:
            raise AssertionError("a rank still runs")
        time.sleep(0.01)


class LaunchTest(harness.PenstockTest):
    def setUp(self):
        super().setUp()
        if harness.DEVICE != "cpu":
            self.skipTest("ranks on GPUs need one for each of them")

    def words(self, *more, run="run"):
        """What follows `launch --ranks N`: a training that would take very long unless `more` says
        how many steps. 1 to 4 ranks divide its batch."""
        config = make_config(param="nvme", optimizer="nvme", nvme_path=self.make_folder("nvme"),
                             steps_per_print=1)
        del config["gradient_accumulation_steps"]
        config.update(train_micro_batch_size_per_gpu=1, train_batch_size=12)
        return ["--", "train", "--model", self.make_model(n_layer=2, n_embd=48, n_head=3),
                "--data", self.make_data(), "--config", self.write("config.json", config),
                "--out", self.path(run), "--device", "cpu", "--device-memory", "16MiB",
                "--host-memory", "64MiB", *(more or ("--steps", "1000000"))]

    def start(self, ranks, *options, **streams):
        """A launch that has written its second step."""
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
        program = self.running("launch", "--ranks", str(ranks), *options, *self.words(), **streams)
        self.wait_for_line("step 2/", program)
        return program

    def check_committed(self):
        """That the training was interrupted, with a commit of its last step on all ranks."""
        summary = read_summary(self.path("run"))
        self.assertTrue(summary["interrupted"])
        self.assertEqual(summary["committed_step"], summary["last_step"])
        inspected = penstock("inspect", self.path("run"))
        self.assertEqual(inspected.code, 0, str(inspected))
        cleaned = penstock("clean", self.path("run"), "--yes")
        self.assertEqual(cleaned.code, 0, str(cleaned))

    def finish_interrupted(self, program):
        stdout, stderr = program.communicate(timeout=harness.TIMEOUT_S)
        self.assertEqual(program.returncode, 130, stderr)
        self.assertEqual(stderr.count(NOTICE), 1, stderr)
        self.assertIn("which is committed", stderr)
        for tidy in ("error", "rank "):
            self.assertNotIn(tidy, stderr)
        self.assertIn("steps ", stdout)
        self.check_committed()

    def test_any_number_of_ranks_has_the_numbers_of_one(self):
        plain = penstock(*self.words("--steps", "4", run="plain")[1:])
        for ranks in range(1, 5):
            with self.subTest(ranks=ranks):
                run = f"run{ranks}"
                launched = penstock("launch", "--ranks", str(ranks),
                                    *self.words("--steps", "4", run=run))
                self.assertEqual((launched.code, plain.code), (0, 0), str(launched))
                self.assertEqual([line.split()[:1] for line in launched.stdout.splitlines()],
                                 [line.split()[:1] for line in plain.stdout.splitlines()])
                self.assertEqual((launched.errors, launched.stray), ([], []))
                self.assertEqual(self.numbers(self.path("plain")), self.numbers(self.path(run)))
                self.assert_equal_bits(self.path("plain"), self.path(run))

    def test_what_all_ranks_report_is_said_once(self):
        outcome = penstock("launch", "--ranks", "3",
                           *self.words("--steps", "2", "--sequence-length", "65"))
        self.assert_fails(outcome, 2, "--sequence-length 65")
        self.assertFalse(os.path.exists(self.path("run")))

    def test_neither_another_launcher_nor_the_parent_confuses_the_ranks(self):
        others = {"RANK": "3", "WORLD_SIZE": "4", "OMPI_COMM_WORLD_SIZE": "4", "PMI_SIZE": "4",
                  "OMPI_COMM_WORLD_RANK": "3", "PMI_RANK": "3", "PMIX_RANK": "3",
                  "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3"}
        program = self.running("launch", "--ranks", "2", *self.words("--steps", "1"),
                               env={**os.environ, **others},
                               preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
        self.assertEqual(program.wait(harness.TIMEOUT_S), 0)

    def test_signals_are_handed_on_and_the_commit_is_waited_for(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            with self.subTest(signal=number):
                program = self.start(2)
                program.send_signal(number)
                self.finish_interrupted(program)

    def test_ctrl_c_of_the_terminal_reaches_the_ranks_once(self):
        # The terminal's signal goes to the launcher's process group, and no rank is in it.
        program = self.start(3, start_new_session=True)
        os.killpg(program.pid, signal.SIGINT)
        self.finish_interrupted(program)

    def test_a_signal_to_all_processes_of_a_job_gives_a_commit(self):
        # As systemd does when a session ends: SIGTERM and SIGHUP to each process. The launcher hands
        # on what it gets as well.
        program = self.start(3)
        for pid in (program.pid, *children_of(program.pid)):
            os.kill(pid, signal.SIGTERM)
            os.kill(pid, signal.SIGHUP)
        self.finish_interrupted(program)

    def test_a_second_request_ends_all_ranks_at_once(self):
        program = self.start(2)
        first, second = children_of(program.pid)
        os.kill(second, signal.SIGSTOP)  # no step can end

        def ended_when_interrupted_again():
            program.send_signal(signal.SIGINT)
            return gone(first)
        self.wait_until(ended_when_interrupted_again, program)
        os.kill(second, signal.SIGCONT)
        _, stderr = program.communicate(timeout=harness.TIMEOUT_S)
        self.assertEqual(program.returncode, 130, stderr)
        self.assertNotIn("which is committed", stderr)

    def test_under_nohup_a_hang_up_changes_nothing(self):
        program = self.start(
            1, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        program.send_signal(signal.SIGHUP)
        rows = len(read_rows(self.path("run")))
        self.wait_for_rows(self.path("run"), rows + 3, program)
        program.send_signal(signal.SIGINT)
        self.finish_interrupted(program)

    def test_ctrl_z_stops_the_ranks_as_well(self):
        # In a group of its own, which has a parent that could continue it, as under a shell.
        program = self.start(2, preexec_fn=os.setpgrp)
        pids = [program.pid, *children_of(program.pid)]
        self.assertEqual(len(pids), 3)
        program.send_signal(signal.SIGTSTP)
        self.wait_until(lambda: all(state_of(pid) == "T" for pid in pids), program)
        program.send_signal(signal.SIGCONT)
        self.wait_until(lambda: all(state_of(pid) != "T" for pid in pids), program)
        program.send_signal(signal.SIGINT)
        self.finish_interrupted(program)

    def test_a_launcher_that_is_killed_takes_its_ranks_along(self):
        program = self.start(3)
        ranks = children_of(program.pid)
        program.kill()
        program.communicate()  # rank 0 has these pipes, too
        wait_until_gone(ranks)
        self.check_committed()

    def test_a_rank_that_is_killed_ends_all_and_is_named(self):
        for ranks, victim in ((1, 0), (3, 0), (3, 2)):
            with self.subTest(ranks=ranks, victim=victim):
                program = self.start(ranks)
                pids = children_of(program.pid)
                os.kill(pids[victim], signal.SIGKILL)
                _, stderr = program.communicate(timeout=harness.TIMEOUT_S)
                self.assertEqual(program.returncode, 3, stderr)
                self.assertTrue(all(map(gone, pids)))
                ending = f"rank {victim} (pid {pids[victim]}) was killed by signal 9 (Killed)"
                self.assertIn(ending, stderr)
                errors = [line for line in stderr.splitlines()
                          if line.startswith("penstock: error: ")]
                self.assertIn(f"rank {victim} ", errors[0])
                if "still running" not in stderr:  # said where ranks need more than 5 s to end
                    self.assertEqual(len(errors), 1, stderr)
                    self.assertTrue(stderr.endswith(ending + "\n"), stderr)
                penstock("clean", self.path("run"), "--yes")

    def stand_in_for_ssh(self):
        """Options and environment with which ranks run on "other hosts", all of them this one."""
        os.makedirs(self.path("bin"), exist_ok=True)
        ssh = self.write("bin/ssh", "#!/bin/sh\nfor word; do command=$word; done\n"
                                    "exec env --default-signal sh -c \"$command\"\n")
        os.chmod(ssh, 0o700)
        # Rank 0 is here, so that the others find it.
        hosts = self.write("hosts", f"{socket.gethostname()} slots=1\nworker1 slots=2\n")
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = str(server.getsockname()[1])
        return (["--hostfile", hosts, "--master-port", port],
                {**os.environ, "PATH": self.path("bin") + ":" + os.environ["PATH"]})

    def test_ranks_of_other_hosts_train_and_end_with_the_launcher(self):
        for number in (signal.SIGINT, signal.SIGKILL):
            with self.subTest(signal=number):
                options, environment = self.stand_in_for_ssh()
                program = self.start(3, *options, env=environment)
                ranks = children_of(program.pid)
                program.send_signal(number)
                if number == signal.SIGINT:
                    self.finish_interrupted(program)
                else:
                    program.communicate()
                    wait_until_gone(ranks)
                    self.check_committed()

    def test_a_stranger_does_not_take_the_place_of_a_rank_that_is_late(self):
        options, environment = self.stand_in_for_ssh()
        port = int(options[-1])
        # The ranks of the other host come when the test says so.
        with open(self.path("bin/ssh"), "r+", encoding="utf-8") as ssh:
            wait = f"until [ -e {self.path('go')} ]; do sleep 0.01; done\n"
            script = ssh.read().replace("exec", wait + "exec")
            ssh.seek(0)
            ssh.write(script)
        program = self.running("launch", "--ranks", "3", *options, *self.words(), env=environment,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        address = socket.gethostbyname(socket.gethostname())
        for rank in (1, 2, 0, 3):
            with self.connected(address, port) as stranger:
                text = struct.pack("<Q", 1) + b"x" + struct.pack("<Q", 0)
                payload = struct.pack("<QQQI", rank, 3, 4711, 0) + text
                stranger.sendall(struct.pack("<III", 0x33624A70, 1, len(payload)) + payload)
                heard = b""
                while more := stranger.recv(4096):
                    heard += more
                self.assertIn(b"has no token, and rank 0 has one", heard)
        self.write("go", "")
        self.wait_for_line("step 2/", program)
        tokens = {variable for pid in children_of(program.pid)
                  for variable in pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                  if variable.startswith(b"PENSTOCK_JOB_TOKEN=")}
        self.assertEqual(len(tokens), 1, tokens)
        secret = tokens.pop().partition(b"=")[2]
        for line in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            try:
                self.assertNotIn(secret, line.read_bytes())
            except OSError:  # it has ended
                pass
        program.send_signal(signal.SIGINT)
        self.finish_interrupted(program)

    def connected(self, address, port):
        """A connection to rank 0 once it listens."""
        end = time.monotonic() + harness.TIMEOUT_S
        while True:
            try:
                return socket.create_connection((address, port), timeout=harness.TIMEOUT_S)
            except ConnectionRefusedError:
                self.assertLess(time.monotonic(), end, "rank 0 does not listen")

    def seen_on(self, main, program):
        """What a program that must succeed writes to a terminal."""
        hang = threading.Timer(harness.TIMEOUT_S, program.kill)
        hang.start()
        seen = b""
        try:
            while True:
                seen += os.read(main, 4096)
        except OSError:  # nobody has the other side any longer
            pass
        finally:
            hang.cancel()
        self.assertEqual(program.wait(harness.TIMEOUT_S), 0)
        return seen

    def test_a_terminal_that_stops_what_writes_from_the_background(self):
        # The rank is in the background of the terminal, and writes its table there itself.
        main, terminal = pty.openpty()
        self.addCleanup(os.close, main)
        modes = termios.tcgetattr(terminal)
        modes[3] |= termios.TOSTOP
        termios.tcsetattr(terminal, termios.TCSANOW, modes)
        program = self.running("launch", "--ranks", "2", *self.words("--steps", "1"),
                               stdin=terminal, stdout=terminal, start_new_session=True,
                               preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        os.close(terminal)
        self.assertIn(b"steps ", self.seen_on(main, program))

    def test_on_a_terminal_progress_is_one_line(self):
        main, terminal = pty.openpty()
        self.addCleanup(os.close, main)
        program = self.running("launch", "--ranks", "2", *self.words("--steps", "4"),
                               stdout=terminal, stderr=terminal, stdin=subprocess.DEVNULL)
        os.close(terminal)
        seen = self.seen_on(main, program)
        # The table follows the last line of progress, and nothing is written over it.
        self.assertRegex(seen, rb"\r\x1b\[K[^\r\n\x1b]*\r\nsteps +4 in [^\x1b]*$")

    def test_bad_lines_are_refused_before_anything_is_started(self):
        hosts = self.write("hosts", "worker1 slots=2\n")
        bad = self.write("bad", "# hosts\nworker1 slot=2\n")
        rest = self.words("--steps", "1")
        with socket.create_server(("127.0.0.1", 0)) as server:
            taken = str(server.getsockname()[1])
            for code, names, line in [
                    (2, "after --", ["--ranks", "2"]),
                    (2, "after --", ["--ranks", "2", "--"]),
                    (2, "after --", ["--ranks", "2", *rest[1:]]),
                    (2, '"export"', ["--ranks", "2", "--", "export", "r", "--to", "x"]),
                    (2, '"penstock"', ["--ranks", "2", "--", "penstock", *rest[1:]]),
                    (2, "--stpes", ["--ranks", "2", *rest, "--stpes", "1"]),
                    (2, "--ranks", rest),
                    (2, '"0"', ["--ranks", "0", *rest]),
                    (2, '"-1"', ["--ranks", "-1", *rest]),
                    (2, '"abc"', ["--ranks", "abc", *rest]),
                    (2, "65536", ["--ranks", "70000", *rest]),
                    (2, "65535", ["--ranks", "2", "--master-port", "65536", *rest]),
                    (2, "2 slots", ["--ranks", "3", "--hostfile", hosts, *rest]),
                    (2, "bad:2: ", ["--ranks", "1", "--hostfile", bad, *rest]),
                    (3, "none", ["--ranks", "1", "--hostfile", self.path("none"), *rest]),
                    (3, f"port {taken}", ["--ranks", "2", "--master-port", taken, *rest])]:
                with self.subTest(line=line):
                    self.assert_fails(penstock("launch", *line), code, names)
        self.assertFalse(os.path.exists(self.path("run")))

    def test_an_ssh_that_is_missing_or_finds_no_host(self):
        hosts = self.write("hosts", "worker1 slots=2\n")
        line = ["launch", "--ranks", "1", "--hostfile", hosts, *self.words("--steps", "1")]
        bin_folder = self.make_folder("bin")
        environment = {**os.environ, "PATH": bin_folder}
        self.assert_fails(penstock(*line, env=environment), 3, "rank 0 cannot be started", "ssh")
        ssh = self.write("bin/ssh", "#!/bin/sh\n"
                                    "echo 'Permission denied (publickey).' >&2; exit 255\n")
        os.chmod(ssh, 0o700)
        outcome = penstock(*line, env=environment)
        self.assertEqual(outcome.code, 3, str(outcome))
        self.assertEqual(outcome.stray, ["Permission denied (publickey)."])
        self.assertIn("rank 0 (on worker1) ended with ssh's exit code 255", outcome.errors[0])


if __name__ == "__main__":
    harness.main()
