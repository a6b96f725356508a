"""The limits that a system sets for a process: every command keeps to them, or says so and ends.

One line and exit code 3, never a signal, and nothing is left behind.
"""
import contextlib
import json
import os
import re
import resource
import shutil
import subprocess

import harness
from harness import make_config

KIB, MIB = 1 << 10, 1 << 20
STEPS = 2


def limited(*arguments, limits=(), closed=(), cwd=None):
    """Runs the program to its end under (resource, soft limit, hard limit), with these descriptors closed."""
    def prepare():
        for which, soft, hard in limits:
            resource.setrlimit(which, (soft, hard))
        for descriptor in closed:
            os.close(descriptor)

    done = subprocess.run([harness.PROGRAM, *arguments], capture_output=True, text=True, cwd=cwd,
                          timeout=harness.TIMEOUT_S, preexec_fn=prepare, check=False)
    return harness.Outcome(arguments, done.returncode, done.stdout, done.stderr)


class CommandsTest(harness.PenstockTest):
    """A run that all commands can work on."""

    def setUp(self):
        super().setUp()
        self.drive = self.make_folder("nvme")
        self.model, self.data = self.make_model(), self.make_data()
        config = make_config(dtype="bf16", param="nvme", optimizer="nvme", nvme_path=self.drive)
        self.config = self.write("config.json", config)
        outcome = harness.penstock(*self.train_arguments("trained"))
        self.assertEqual(outcome.code, 0, str(outcome))
        self.trained_run = self.path("trained")
        self.make_folder("trained/snapshots")  # a folder of the run, which the first snapshot makes

    def train_arguments(self, out, *more):
        return ["train", "--model", self.model, "--config", self.config, "--data", self.data,
                "--out", self.path(out), "--steps", str(STEPS), "--device", harness.DEVICE,
                "--device-memory", str(64 * MIB), "--host-memory", str(64 * MIB), *more]

    def commands(self):
        """{name: arguments} of all commands; none changes the run that is there."""
        run = self.trained_run
        return {
            "train": self.train_arguments("new"),
            "export": ["export", run, "--to", self.path("exported")],
            "inspect": ["inspect", run],
            "compare": ["compare", run, run],
            "snapshot": ["snapshot", run, "kept"],
            "snapshots": ["snapshots", run],
            "clean": ["clean", run],
            "tune": ["tune", "--nvme-path", self.drive, "--size", "4MiB", "--quick",
                     "--out", self.path("tuned.json")],
        }

    def files(self):
        return {os.path.join(parent, name) for parent, folders, files in os.walk(self.folder)
                for name in folders + files}

    def remove(self, paths):
        for path in sorted(paths):
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)

class LimitsTest(CommandsTest):
    def assert_keeps_to(self, outcome, before, *fragments):
        """Success, or one line and nothing left but a commit that it names and that is resumed.

        What was made is removed.
        """
        made = self.files() - before
        try:
            if outcome.code == 0:
                self.assertEqual(outcome.errors, [], str(outcome))
                return
            if outcome.arguments[0] == "inspect":
                outcome.stdout = ""  # what it found before it failed
            self.assert_fails(outcome, 3, *fragments)
            if re.search(r"step \d+ is committed", outcome.errors[0]):
                resumed = harness.penstock(*outcome.arguments, "--resume")
                self.assertEqual(resumed.code, 0, str(resumed))
                made = self.files() - before
            else:
                self.assertEqual(made, set(), str(outcome))
        finally:
            self.remove(made)

    def assert_all_keep_to(self, which, values, *fragments):
        """Every command under each value of the limit; the names of those that failed once."""
        failed = set()
        for value in values:
            for name, arguments in self.commands().items():
                with self.subTest(command=name, limit=value):
                    before = self.files()
                    outcome = limited(*arguments, limits=[(which, value, value)])
                    self.assert_keeps_to(outcome, before, *fragments)
                    if outcome.code != 0:
                        failed.add(name)
        return failed

    def test_the_size_of_files(self):
        failed = self.assert_all_keep_to(
            resource.RLIMIT_FSIZE, [0, 1, 4 * KIB, 64 * KIB, 600 * KIB, 2 * MIB, 4 * MIB], "ulimit -f")
        self.assertEqual(failed, {"train", "export", "snapshot", "tune"})

    def test_open_files(self):
        failed = self.assert_all_keep_to(resource.RLIMIT_NOFILE, range(4, 24), "ulimit -n")
        self.assertLessEqual({"train", "export", "inspect", "snapshot", "clean", "tune"}, failed)

    def test_the_stack_of_the_main_thread_and_of_all_others(self):
        for hard in (64 * KIB, 512 * KIB):
            for name, arguments in self.commands().items():
                with self.subTest(command=name, hard=hard):
                    before = self.files()
                    outcome = limited(*arguments, limits=[(resource.RLIMIT_STACK, hard, hard)])
                    self.assert_fails(outcome, 3, "ulimit -s")
                    self.assertEqual(self.files(), before)
        unlimited = resource.RLIM_INFINITY
        for name, arguments in self.commands().items():
            with self.subTest(command=name):
                before = self.files()
                outcome = limited(*arguments, limits=[(resource.RLIMIT_STACK, 64 * KIB, unlimited)])
                self.assertEqual(outcome.code, 0, str(outcome))
                self.remove(self.files() - before)

    def test_locked_memory(self):
        self.assertEqual(self.assert_all_keep_to(resource.RLIMIT_MEMLOCK, [0]), set())

    def test_the_address_space(self):
        values = [value * MIB for value in (*range(48, 80, 4), *range(80, 280, 8), *range(280, 1000, 60))]
        for command in ("train", "export", "inspect"):
            refused = 0
            for value in values:
                with self.subTest(command=command, limit=value):
                    before = self.files()
                    outcome = limited(*self.commands()[command],
                                      limits=[(resource.RLIMIT_AS, value, value)])
                    if "error while loading shared libraries" in outcome.stderr:
                        continue  # the program did not begin
                    self.assert_keeps_to(outcome, before)
                    refused += outcome.code != 0
            self.assertEqual(limited(*self.commands()[command]).code, 0)
            self.remove({self.path("new"), self.path("exported")})
            self.assertLess(refused, len(values))
            if command == "train":
                self.assertGreater(refused, 0)


class ClosedDescriptorsTest(CommandsTest):
    """Descriptors 0, 1 and 2 that are closed are not given to files, which would take the log."""

    SETS = ((0,), (1,), (2,), (0, 1, 2))

    def test_every_command_works(self):
        for closed in self.SETS:
            for name, arguments in self.commands().items():
                with self.subTest(command=name, closed=closed):
                    before = self.files()
                    outcome = limited(*arguments, closed=closed)
                    self.assertEqual(outcome.code, 0, str(outcome))
                    self.remove(self.files() - before)

    def test_no_line_of_the_log_is_in_a_file(self):
        for closed in self.SETS:
            with self.subTest(closed=closed):
                trace = self.path("trace.json")
                outcome = limited(*self.train_arguments("new", "--trace", trace), closed=closed)
                self.assertEqual(outcome.code, 0, str(outcome))
                with open(trace, encoding="utf-8") as file:
                    self.assertGreater(len(json.load(file)), 0)
                self.assertEqual([row["step"] for row in harness.read_rows(self.path("new"))],
                                 list(range(1, STEPS + 1)))
                self.assertEqual(harness.read_summary(self.path("new"))["seed"], 0)
                self.assertEqual(harness.penstock("inspect", self.path("new")).code, 0)
                self.assertEqual(harness.penstock("clean", self.path("new"), "--yes").code, 0)
                os.unlink(trace)


class GiantLineTest(harness.PenstockTest):
    """A file of a run that is one line of 8 GiB, most of them in no block of the drive."""
    SIZE = 8 << 30
    LIMITS = [(resource.RLIMIT_AS, 2 << 30, 2 << 30)]

    def setUp(self):
        super().setUp()
        self.drive = self.make_folder("nvme")
        config = make_config(dtype="bf16", param="nvme", optimizer="nvme", nvme_path=self.drive,
                             csv_monitor={"enabled": True, "output_path": self.path("curves"),
                                          "job_name": "job"})
        self.model, self.data = self.make_model(), self.make_data()
        self.run_folder = self.trained(config, steps=4, model=self.model, data=self.data)
        self.config = self.path("config1.json")

    def giant(self, name, keep=0):
        """Makes all behind the first `keep` lines of a file one line of SIZE bytes."""
        path = name if os.path.isabs(name) else os.path.join(self.run_folder, name)
        with open(path, "rb") as file:
            kept = b"".join(file.readline() for _ in range(keep))
        with open(path, "wb") as file:
            file.write(kept)
            file.truncate(self.SIZE)
        return path

    def resume(self):
        return limited("train", "--resume", "--model", self.model, "--config", self.config, "--data",
                       self.data, "--out", self.run_folder, "--steps", "6", "--device",
                       harness.DEVICE, "--device-memory", str(64 * MIB), "--host-memory",
                       str(64 * MIB), limits=self.LIMITS)

    def test_a_giant_line_of_the_rows_is_refused_with_its_place(self):
        path = self.giant("metrics.jsonl", keep=2)
        outcome = limited("numerics", self.run_folder, limits=self.LIMITS)
        self.assert_fails(outcome, 3, f"{path}, line 3 (from byte ", "longer than 1048576 bytes",
                          f"the file has {self.SIZE} bytes")
        outcome = self.resume()
        self.assert_fails(outcome, 3, f"{path}, line 3 (from byte ", "longer than 1048576 bytes")
        self.assertEqual(os.path.getsize(path), self.SIZE, "the file is left as it is")
        outcome = limited("doctor", self.run_folder, limits=self.LIMITS)
        self.assertIn(f"{path}, line 3", outcome.stdout + outcome.stderr, str(outcome))

    def test_a_report_of_a_problem_has_the_end_of_a_giant_file(self):
        with open(os.path.join(self.run_folder, "numerics.jsonl"), "wb") as file:
            file.truncate(self.SIZE)
            file.seek(0, os.SEEK_END)
            file.write(b"\nthe last line\n")
        outcome = limited("doctor", self.run_folder, "--bug-report", self.path("report"),
                          limits=self.LIMITS)
        with open(self.path("report"), "rb") as file:
            report = file.read(1 << 20)
        self.assertIn(b"the last line\n", report, str(outcome))
        self.assertLess(len(report), 1 << 20)

    def test_a_giant_line_behind_the_commit_is_cut_off(self):
        self.giant("metrics.jsonl", keep=4)
        self.giant(self.path("curves/job/Train_Samples_train_loss.csv"), keep=5)
        self.assertEqual(self.resume().code, 0)
        self.assertEqual([row["step"] for row in harness.read_rows(self.run_folder)], [1, 2, 3, 4, 5, 6])

    def test_a_giant_line_of_a_curve_is_refused(self):
        path = self.giant(self.path("curves/job/Train_Samples_train_loss.csv"), keep=2)
        self.assert_fails(self.resume(), 3, f"{path}, line 3: csv_monitor did not write this")

    def test_other_giant_files_of_a_run_are_refused(self):
        for name in ("numerics.jsonl", "run.json"):
            with self.subTest(name):
                with open(os.path.join(self.run_folder, name), "ab"):
                    pass
                path = self.giant(name)
                outcome = limited("numerics", self.run_folder, limits=self.LIMITS)
                self.assertNotEqual(outcome.code, 0)
                self.assertIn(f"{path} has more than the 67108864 bytes it may have", outcome.stderr)


if __name__ == "__main__":
    harness.main()
