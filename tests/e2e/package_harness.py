"""What the tests of the package's runs share: trainings of its library in processes of their own
(package_training.py)."""
import json
import os
import subprocess
import sys

import harness

LIBRARY = os.environ.get("PENSTOCK_LIBRARY", "")
TRAINING = os.path.join(os.path.dirname(os.path.abspath(__file__)), "package_training.py")


class PackageTest(harness.PenstockTest):
    def setUp(self):
        super().setUp()
        self.assertTrue(LIBRARY, "PENSTOCK_LIBRARY does not name libpenstock.so")
        self.nvme = self.make_folder("nvme")

    def start(self, **options):
        return subprocess.Popen([sys.executable, TRAINING, LIBRARY, json.dumps(options)], text=True,
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE)

    def package(self, **options):
        """A training in a process of its own; returns RUN."""
        with self.start(**options) as process:
            said, errors = process.communicate()
        self.assertEqual((process.returncode, errors), (0, ""))
        return said.strip()

    def refused(self, **options):
        """What the package says, in one line."""
        with self.start(**options) as process:
            said, errors = process.communicate()
        self.assertEqual((process.returncode, said), (1, ""))
        [line] = errors.splitlines()
        return line

    def held(self, **options):
        """A run that another process has open until the test ends; returns RUN."""
        process = self.start(**options, end="wait")
        self.addCleanup(process.__exit__, None, None, None)
        self.addCleanup(process.communicate)
        return process.stdout.readline().strip()

    def run_in(self, name, kind="optimizer", nvme=True, **options):
        if nvme:
            options["nvme_path"] = [self.nvme]
        return self.package(run=self.path(name), kind=kind, **options)

    def says(self, *words, code=0):
        outcome = harness.penstock(*words)
        self.assertEqual((outcome.code, outcome.stderr), (code, ""), str(outcome))
        return outcome.stdout

    def one_line(self, *words, code=2):
        outcome = harness.penstock(*words)
        self.assertEqual((outcome.code, outcome.stdout, outcome.stray), (code, "", []), str(outcome))
        [line] = outcome.errors
        return line

    def everything(self, *folders):
        """Paths of all files, with their bytes."""
        found = {}
        for top in folders or (self.folder,):
            for folder, _, names in os.walk(top):
                for name in names:
                    with open(os.path.join(folder, name), "rb") as file:
                        found[os.path.join(folder, name)] = file.read()
        return found

    @staticmethod
    def path_text(path):
        with open(path, encoding="utf-8") as file:
            return file.read()

    def step_of(self, run):
        found = [line for line in self.says("inspect", run).splitlines()
                 if line.startswith("committed step")]
        return int(found[0].split()[-1])
