"""A run whose folder tests fill with what does not belong there, and every command that looks there."""
import os
import subprocess

import harness
from harness import make_config


class HostileFolderTest(harness.PenstockTest):
    def setUp(self):
        super().setUp()
        self.nvme = self.make_folder("nvme")
        self.conf = make_config(dtype="bf16", param="nvme", optimizer="nvme", nvme_path=self.nvme)
        self.run_folder = self.trained(self.conf, steps=2)

    def run_penstock(self, *arguments):
        """One that hangs fails the test early."""
        try:
            done = subprocess.run([harness.PROGRAM, *arguments], capture_output=True, text=True,
                                  timeout=40, check=False)
        except subprocess.TimeoutExpired:
            self.fail(f"penstock {' '.join(arguments)} does not end")
        return harness.Outcome(arguments, done.returncode, done.stdout, done.stderr)

    def train_arguments(self, *more, run=None, steps=4):
        self.runs += 1
        return ["train", "--model", self.make_model(), "--data", self.make_data(), "--config",
                self.write(f"config{self.runs}.json", self.conf), "--out", run or self.run_folder,
                "--steps", str(steps), *more]

    def commands(self, run=None):
        """Every command that takes a RUN, by name."""
        run = run or self.run_folder
        return {
            "resume": self.train_arguments("--resume", run=run),
            "resume-from": self.train_arguments("--resume-from", "kept", run=run),
            "export": ["export", run, "--to", self.path("exported")],
            "inspect": ["inspect", run],
            "snapshot": ["snapshot", run, "another"],
            "snapshots": ["snapshots", run],
            "compare": ["compare", run, run],
            "clean": ["clean", run, "--yes"],
        }

    def in_run(self, *names):
        return os.path.join(self.run_folder, *names)

    def snapshot(self, name="kept", run=None):
        outcome = harness.penstock("snapshot", run or self.run_folder, name)
        self.assertEqual(outcome.code, 0, str(outcome))
        return os.path.join(run or self.run_folder, "snapshots", name)

    def contents(self, folder):
        """{path: text} of all files below a folder; links are not followed."""
        found = {}
        for root, folders, files in os.walk(folder):
            for name in folders + files:
                path = os.path.join(root, name)
                if os.path.islink(path) or os.path.isdir(path):
                    found[path] = None
                elif os.path.isfile(path):
                    with open(path, "rb") as file:
                        found[path] = file.read()
        return found

    def assert_one_line(self, outcome, *codes):
        self.assertIn(outcome.code, codes, str(outcome))
        self.assertEqual(len(outcome.errors), 0 if outcome.code in (0, 1) else 1, str(outcome))
        self.assertEqual(outcome.stray, [], str(outcome))
