"""A kill before any change of a folder or file name: nothing of the run is lost, nothing unknown is left.

strace kills the program as it enters its n-th rename, unlink, mkdir or sync of a thread, for every n.
"""
import os
import re
import shutil
import subprocess

import harness
from harness import make_config

STEPS = 8
CALLS = ("rename", "renameat", "renameat2", "unlink", "unlinkat", "rmdir", "mkdir", "mkdirat", "ftruncate",
         "fallocate", "fdatasync", "fsync")


@harness.needs_strace
class KillTest(harness.PenstockTest):
    def setUp(self):
        super().setUp()
        self.nvme = self.make_folder("nvme")
        self.conf = self.config()
        self.whole = self.numbers(self.trained(self.conf, steps=STEPS))

    def config(self, **ours):
        return make_config(dtype="bf16", param="nvme", optimizer="nvme", nvme_path=self.nvme,
                           penstock=ours)

    def train_arguments(self, run, config, *more, steps=STEPS):
        self.runs += 1
        return ["train", "--model", self.make_model(), "--data", self.make_data(), "--config",
                self.write(f"killed{self.runs}.json", config), "--out", run, "--steps", str(steps),
                *more]

    def killed(self, call, number, arguments):
        """Whether it was killed; else it has succeeded."""
        done = subprocess.run(
            ["strace", "-f", "-qqq", "-o", "/dev/null", "-e", f"trace={call}", "-e",
             f"inject={call}:signal=SIGKILL:when={number}", harness.PROGRAM, *arguments],
            capture_output=True, text=True, timeout=harness.TIMEOUT_S, check=False)
        if done.returncode not in (-9, 137):
            self.assertEqual(done.returncode, 0, done.stderr)
            return False
        return True

    def calls_of(self, arguments):
        """Those of CALLS that an undisturbed run makes."""
        log = self.path("calls")
        done = subprocess.run(
            ["strace", "-f", "-qqq", "-o", log, "-e", f"trace={','.join(CALLS)}", harness.PROGRAM,
             *arguments], capture_output=True, text=True, timeout=harness.TIMEOUT_S, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(log, encoding="utf-8") as lines:
            made = set(re.findall(r"(?m)^\d+ +(?:<\.\.\. )?(\w+)", lines.read()))
        return [call for call in CALLS if call in made]

    def at_every_call(self, least, prepare, arguments, check):
        """`check` after a kill at each call of what `arguments()` does, which finds each time what
        `prepare` made."""
        prepare()
        before = self.path("before")
        self.copy_files(self.path(""), before)
        calls = self.calls_of(arguments())
        check()
        kills = 0
        for call in calls:
            number, killed = 0, True
            while killed:
                number, killed = number + 1, False
                with self.subTest(call=call, number=number):
                    self.copy_files(before, self.path(""))
                    killed = self.killed(call, number, arguments())
                    kills += killed
                    check()
        self.assertGreaterEqual(kills, least)
        shutil.rmtree(before)

    @staticmethod
    def copy_files(source, target):
        """The run that is killed, and all state files."""
        for name in ("killed", "nvme"):
            to = os.path.join(target, name)
            shutil.rmtree(to, ignore_errors=True)
            if os.path.exists(os.path.join(source, name)):
                shutil.copytree(os.path.join(source, name), to, symlinks=True)

    def run_to(self, steps, *more, out):
        outcome, run = self.train(self.conf, *more, steps=steps, out=out)
        self.assertEqual(outcome.code, 0, str(outcome))
        return run

    def assert_goes_on(self, run):
        """To the end of an undisturbed run, with no file of it left behind after clean."""
        self.run_to(STEPS, "--resume", out=run)
        self.assertEqual(self.numbers(run), self.whole)
        self.assert_cleaned(run)

    def assert_cleaned(self, run):
        outcome = harness.penstock("clean", run, "--yes")
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assertEqual(len(harness.states_in(self.nvme)), 1, "the undisturbed run's")
        self.assertFalse(os.path.exists(run))

    def test_of_a_new_run(self):
        run = self.path("killed")

        def check():
            outcome, _ = self.train(self.conf, "--resume", steps=STEPS, out=run)
            if outcome.code == 0:
                self.assertEqual(self.numbers(run), self.whole)
            else:
                self.assert_fails(outcome, 2, "no commit")
            if os.path.exists(os.path.join(run, "run.json")):
                self.assert_cleaned(run)
            shutil.rmtree(run, ignore_errors=True)
            self.assertEqual(len(harness.states_in(self.nvme)), 1, "the undisturbed run's")

        self.at_every_call(5, lambda: None, lambda: self.train_arguments(run, self.conf, steps=2),
                           check)

    def test_of_a_resume_in_place(self):
        run = self.path("killed")
        self.at_every_call(2, lambda: self.run_to(3, out=run),
                           lambda: self.train_arguments(run, self.conf, "--resume", steps=5),
                           lambda: self.assert_goes_on(run))

    def test_of_a_move_into_other_files(self):
        run = self.path("killed")
        moved = self.config(tile_elements=8192)
        self.at_every_call(6, lambda: self.run_to(3, out=run),
                           lambda: self.train_arguments(run, moved, "--resume", steps=5),
                           lambda: self.assert_goes_on(run))

    def test_of_a_return_to_a_snapshot_ahead(self):
        run = self.path("killed")

        def prepare():
            # Back at step 3, RUN has no rows of steps 4 to 6: they are the snapshot's.
            for step, name in ((2, "early"), (6, "late")):
                self.run_to(step, *(["--resume"] if step > 2 else []), out=run)
                self.assertEqual(harness.penstock("snapshot", run, name).code, 0)
            self.run_to(3, "--resume-from", "early", out=run)

        self.at_every_call(6, prepare,
                           lambda: self.train_arguments(run, self.conf, "--resume-from", "late",
                                                        steps=7),
                           lambda: self.assert_goes_on(run))

    def test_of_a_snapshot(self):
        run = self.path("killed")

        def check():
            kept = harness.penstock("snapshots", run)
            self.assertEqual(kept.code, 0, str(kept))
            if "kept" not in kept.stdout:
                self.assertEqual(kept.stdout, "no snapshots\n")
                self.assertEqual(harness.penstock("snapshot", run, "kept").code, 0)
            self.assertEqual(harness.penstock("inspect", f"{run}/snapshots/kept").code, 0)
            self.run_to(5, "--resume-from", "kept", out=run)
            self.assert_goes_on(run)

        self.at_every_call(4, lambda: self.run_to(3, out=run), lambda: ["snapshot", run, "kept"],
                           check)

    def test_of_a_snapshot_of_a_run_that_then_resumes_elsewhere(self):
        run = self.path("killed")
        moved = self.config(tile_elements=8192)

        def check():
            outcome, _ = self.train(moved, "--resume", steps=5, out=run)
            self.assertEqual(outcome.code, 0, str(outcome))
            copies = [name for name in os.listdir(self.nvme) if ".snapshot-kept." in name]
            kept = "kept" in harness.penstock("snapshots", run).stdout
            self.assertEqual(len(copies), 1 if kept else 0, copies)
            self.assert_cleaned(run)

        self.at_every_call(8, lambda: self.run_to(3, out=run), lambda: ["snapshot", run, "kept"],
                           check)

    def test_of_a_snapshot_then_clean(self):
        for config in (self.conf, make_config(dtype="bf16", param="cpu", optimizer="cpu")):
            run = self.path("killed")

            def prepare():
                outcome, _ = self.train(config, steps=3, out=run)
                self.assertEqual(outcome.code, 0, str(outcome))

            self.at_every_call(8, prepare, lambda: ["snapshot", run, "kept"],
                               lambda: self.assert_cleaned(run))

    def test_of_clean(self):
        run = self.path("killed")

        def prepare():
            self.run_to(3, out=run)
            self.assertEqual(harness.penstock("snapshot", run, "kept").code, 0)

        def check():
            if os.path.exists(run):
                self.assert_cleaned(run)
            self.assertEqual(len(harness.states_in(self.nvme)), 1)

        self.at_every_call(12, prepare, lambda: ["clean", run, "--yes"], check)


if __name__ == "__main__":
    harness.main()
