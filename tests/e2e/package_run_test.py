"""Runs of the Python package: the commands read them, or say why they do not, and change nothing."""
import json
import os
import shutil

import harness
from harness import make_config


class PackageRunTest(harness.PenstockTest):
    def setUp(self):
        super().setUp()
        self.nvme = self.make_folder("nvme")
        self.conf = make_config(dtype="bf16", param="nvme", optimizer="nvme", nvme_path=self.nvme)
        self.trained_run = self.trained(self.conf, steps=2)
        # The state is the engine's, no matter which program wrote run.json.
        self.state = harness.state_path(self.trained_run)
        self.run_folder = self.package_run("run", {"uuid": self.uuid(), "paths": [self.state]})

    def uuid(self):
        return harness.read_info(self.trained_run)["state"]["uuid"]

    def package_run(self, name, state, **changes):
        """A folder with the run.json of docs/pytorch_runs.md."""
        folder = self.make_folder(name)
        said = {"penstock_run": 1, "id": "9f0c3a5b7d112233", "kind": "optimizer", "named": True,
                "place": folder, "folders": [self.nvme], "state": state, **changes}
        with open(os.path.join(folder, "run.json"), "w", encoding="utf-8") as file:
            json.dump(said, file)
        with open(os.path.join(folder, "run.lock"), "w", encoding="utf-8"):
            pass
        return folder

    def assert_refused(self, *words, code, says, at=None):
        before = self.files(self.nvme), self.files(at or self.run_folder)
        outcome = harness.penstock(*words)
        self.assertEqual(outcome.code, code, str(outcome))
        [line] = outcome.stderr.splitlines()
        self.assertIn(says, line)
        self.assertEqual((self.files(self.nvme), self.files(at or self.run_folder)), before)

    @staticmethod
    def files(folder):
        return sorted(os.listdir(folder))

    def test_inspect_verifies_it_and_says_whose_it_is(self):
        outcome = harness.penstock("inspect", self.run_folder)
        self.assertEqual((outcome.code, outcome.stderr), (0, ""), str(outcome))
        self.assertIn("the Python package (optimizer)", outcome.stdout)
        self.assertIn("all verified", outcome.stdout)
        self.assertIn("committed step    2", outcome.stdout)

    def test_compare_finds_the_same_bits(self):
        self.assert_equal_bits(self.run_folder, self.trained_run)

    def test_export_keeps_the_names_of_the_tensors_and_writes_no_config(self):
        outcome = harness.penstock("export", self.run_folder, "--to", self.path("out"))
        self.assertEqual((outcome.code, outcome.stderr), (0, ""), str(outcome))
        self.assertEqual(self.files(self.path("out")), ["model.safetensors"])
        self.assert_equal_bits(self.run_folder, self.trained_run)
        self.assertEqual(harness.penstock("compare", self.run_folder, self.path("out")).code, 0)

    def test_doctor_says_that_it_has_no_rows(self):
        outcome = harness.penstock("doctor", self.run_folder)
        self.assertIn("which writes no rows", outcome.stdout)
        self.assertNotIn("ended before its first step", outcome.stdout)

    def test_a_run_that_was_moved_with_its_state_is_found(self):
        shutil.copytree(self.run_folder, self.path("moved"))
        shutil.move(self.state, self.path("moved"))
        outcome = harness.penstock("inspect", self.path("moved"))
        self.assertEqual((outcome.code, outcome.stderr), (0, ""), str(outcome))

    def test_what_needs_the_training_is_refused_with_the_reason_and_leaves_all_as_it_is(self):
        self.assert_refused("train", "--model", self.make_model(), "--data", self.make_data(), "--config",
                            self.write("config.json", self.conf), "--out", self.run_folder, "--resume",
                            "--device-memory", "1GiB", "--steps", "9", code=2,
                            says="the program that made it resumes it, with run=")
        self.assert_refused("replay", self.run_folder, "--from", "1", "--to", "2", code=2,
                            says="its model and data are that program's")
        self.assert_refused("clean", self.run_folder, "--yes", code=2, says="remove it by hand, with "
                            f"the files of its state: {self.state}")
        self.assert_refused("snapshot", self.run_folder, "name", code=2, says="call snapshot(FOLDER)")

    def test_one_without_a_commit_says_so(self):
        empty = self.package_run("empty", None)
        self.assert_refused("inspect", empty, code=3, says="has no commit yet", at=empty)

    def test_another_version_is_refused_by_its_number_and_no_value_is_taken_on_trust(self):
        state = {"uuid": self.uuid(), "paths": [self.state]}
        for name, changes, says in (("newer", {"penstock_run": 7}, "version 7 is not known"),
                                    ("kind", {"kind": 3}, "is damaged: "),
                                    ("other", {"kind": "cake"}, "its kind is"),
                                    ("paths", {"state": {**state, "paths": []}}, "names no state file"),
                                    ("state", {"state": 3}, "is damaged: ")):
            with self.subTest(name):
                folder = self.package_run(name, **{"state": state, **changes})
                self.assert_refused("inspect", folder, code=3, says=says, at=folder)


if __name__ == "__main__":
    harness.main()
