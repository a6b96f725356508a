"""Runs that commit 3077072 has made are read by every command, and a training resumes them with the
bits that it computed itself (tests/older_runs; tests/python/older_runs_test.py resumes the package's).
"""
import os
import pathlib
import re
import sys

import harness

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "older_runs"))

import older_runs

AVX2 = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}


def contents(folder):
    """What all files of a folder hold, by their paths."""
    files = (path for path in pathlib.Path(folder).rglob("*") if path.is_file())
    return {str(path): path.read_bytes() for path in files}


class OlderRunsTest(harness.PenstockTest):
    def unpacked(self, name):
        """A run in a folder of its own; returns what was recorded of it."""
        self.runs += 1
        self.root = self.path(f"{name}-{self.runs}")
        self.recorded = older_runs.unpack(name, self.root)
        return self.recorded

    def at(self, name):
        return os.path.join(self.root, name)

    def penstock(self, *words, codes=(0,)):
        outcome = harness.penstock(*words, cwd=self.root, env=AVX2)
        self.assertIn(outcome.code, codes, str(outcome))
        if codes == (0,):
            self.assertEqual(outcome.errors, [], str(outcome))
        return outcome

    def resume(self, steps, *more):
        ranks = ["launch", "--ranks", "2", "--"] if "ranks" in self.root else []
        return self.penstock(*ranks, *older_runs.training(self.root), "--steps", str(steps), *more)

    def resume_with_the_same_bits(self, *more):
        """Goes on to step 6, and compares what each step computed with what was recorded."""
        outcome = self.resume(6, *more)
        rows = older_runs.numbers(self.at("run/metrics.jsonl"))
        other = re.search("the run computed with .*", outcome.stderr)
        if rows != self.recorded["rows"] and other:
            self.skipTest(f"this processor computes otherwise than the one that recorded it: {other[0]}")
        self.assertEqual(rows, self.recorded["rows"])

    def assert_read(self, of, weights, step, dtype=None):
        """The commands that read one commit find its weights, and that every byte of it holds."""
        inspected = self.penstock("inspect", of).stdout
        self.assertRegex(inspected, r"(?m)^checksums +all verified$")
        self.assertRegex(inspected, rf"(?m)^committed step +{step}$")
        self.assertEqual(self.exported(of, dtype and ("--dtype", dtype)), weights)
        self.exported(of)
        self.assertIn("equal bits", self.penstock("compare", of, self.last_export).stdout)

    def exported(self, of, more=()):
        """SHA-256 of the weights of a run or snapshot."""
        self.last_export = self.path(f"export-{len(os.listdir(self.folder))}")
        self.penstock("export", of, "--to", self.last_export, *(more or ()))
        return older_runs.digests(os.path.join(self.last_export, "model.safetensors"))

    def assert_commands_read_the_run(self, run, other):
        self.assertIn("equal bits", self.penstock("compare", run, run).stdout)
        self.penstock("compare", run, other, codes=(1,))
        self.penstock("numerics", run)
        doctor = self.penstock("doctor", run, codes=(0, 1))  # 1: what it says of this machine
        self.assertEqual(doctor.errors, [], str(doctor))

    def kept(self):
        """The snapshots in a run of penstock train, by name."""
        return {name: f"run/snapshots/{name}" for name in self.recorded["weights"] if name != "run"}

    def assert_train_is_read(self, weights, step):
        self.assert_read("run", weights, step)
        for name, of in self.kept().items():
            self.assert_read(of, self.recorded["weights"][name], self.recorded["steps"][name])
        self.assert_commands_read_the_run("run", "run/snapshots/kept")
        listed = self.penstock("snapshots", "run").stdout
        for name in self.kept():
            self.assertRegex(listed, rf"(?m)^{name} +step ")

    def test_every_command_reads_a_run_of_penstock_train_and_changes_nothing(self):
        for name in older_runs.TRAIN:
            with self.subTest(name):
                recorded = self.unpacked(name)
                before = contents(self.root)
                self.assert_train_is_read(recorded["weights"]["run"], 4)
                self.assertEqual(contents(self.root), before)

    def test_penstock_train_resumes_it_with_the_same_bits(self):
        for name in older_runs.TRAIN:
            with self.subTest(name):
                recorded = self.unpacked(name)
                states = set(harness.states_in(self.at("nvme")))
                self.resume_with_the_same_bits("--resume")
                self.assertEqual(harness.read_info(self.at("run"))["version"], 3)
                self.assertLessEqual(states, set(harness.states_in(self.at("nvme"))), "its files stay")
                self.assert_train_is_read(recorded["after"], 6)
                self.penstock("snapshot", "run", "new")
                self.assertIn("equal bits", self.penstock("compare", "run", "run/snapshots/new").stdout)

    def test_it_goes_back_to_its_snapshot_with_the_same_bits(self):
        for name in older_runs.TRAIN:
            with self.subTest(name):
                recorded = self.unpacked(name)
                older_runs.set_rate(self.root, 0.01)  # train-memory has changed it behind the snapshot
                behind = older_runs.BEHIND_KEPT.get(name, [])
                self.resume_with_the_same_bits("--resume-from", "kept", *behind)
                self.assert_train_is_read(recorded["after"], 6)

    def test_snapshot_keeps_what_was_not_resumed_yet(self):
        for name in older_runs.TRAIN:
            with self.subTest(name):
                recorded = self.unpacked(name)
                self.penstock("snapshot", "run", "new")
                self.assert_read("run/snapshots/new", recorded["weights"]["run"], 4)
                self.assert_train_is_read(recorded["weights"]["run"], 4)
                self.resume_with_the_same_bits("--resume-from", "new")

    def test_clean_leaves_nothing_of_it_before_and_after_it_is_resumed(self):
        for name in older_runs.TRAIN:
            for resumed in (False, True):
                with self.subTest(name, resumed=resumed):
                    self.unpacked(name)
                    if resumed:
                        self.resume(6, "--resume")
                    before = contents(self.root)
                    self.penstock("clean", "run")
                    self.assertEqual(contents(self.root), before)
                    self.penstock("clean", "run", "--yes")
                    self.assertFalse(os.path.exists(self.at("run")))
                    for folder in ("nvme", "nvme2", "nvme3"):
                        self.assertEqual(os.listdir(self.at(folder)), [])

    def test_every_command_reads_a_run_of_the_package_and_changes_nothing(self):
        for name in older_runs.PACKAGE:
            with self.subTest(name):
                recorded = self.unpacked(name)
                before = contents(self.root)
                run = older_runs.package_run(self.root)
                dtype = "bf16" if name.endswith("paths") else None
                self.assert_read(run, recorded["weights"], 4, dtype)
                self.assert_read("kept", recorded["kept"], 2, dtype)
                self.assert_commands_read_the_run(run, "kept")
                self.penstock("snapshots", run)
                self.assertEqual(contents(self.root), before)

    def test_snapshot_keeps_a_commit_of_a_run_of_the_package(self):
        for name in older_runs.PACKAGE:
            with self.subTest(name):
                recorded = self.unpacked(name)
                run = older_runs.package_run(self.root)
                dtype = "bf16" if name.endswith("paths") else None
                self.penstock("snapshot", run, "new")
                self.assertRegex(self.penstock("snapshots", run).stdout, r"(?m)^new +step 4 ")
                for of in (run, os.path.join(run, "snapshots/new")):
                    self.assert_read(of, recorded["weights"], 4, dtype)

    def test_clean_leaves_nothing_of_a_run_of_the_package(self):
        for name in older_runs.PACKAGE:
            for snapshot in (False, True):
                with self.subTest(name, snapshot=snapshot):
                    recorded = self.unpacked(name)
                    run = older_runs.package_run(self.root)
                    others = {path for path in contents(self.root) if not self.is_of(path, run)}
                    if snapshot:
                        self.penstock("snapshot", run, "new")
                    before = contents(self.root)
                    self.penstock("clean", run)
                    self.assertEqual(contents(self.root), before)
                    self.penstock("clean", run, "--yes")
                    self.assertFalse(os.path.exists(run))
                    self.assertEqual(set(contents(self.root)), others)
                    dtype = "bf16" if name.endswith("paths") else None
                    self.assert_read("kept", recorded["kept"], 2, dtype)

    def is_of(self, path, run):
        """Whether a file is the run's: in its folder, or a state of it in a folder of nvme_path."""
        nvme = any(path.startswith(self.at(folder) + "/") for folder in ("nvme", "nvme2", "nvme3"))
        return nvme or path.startswith(run + "/")


if __name__ == "__main__":
    harness.main()
