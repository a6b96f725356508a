"""Runs that the Python package wrote in version 1 of its format (docs/run_format.md): the commands
read them, or say why they do not. Those of today: package_tools_test.py."""
import json
import os
import shutil

import harness
from harness import make_config

ID = "9f0c3a5b7d112233"


class PackageRunTest(harness.PenstockTest):
    def setUp(self):
        super().setUp()
        self.nvme = self.make_folder("nvme")
        self.conf = make_config(dtype="bf16", param="nvme", optimizer="nvme", nvme_path=self.nvme)
        trained = self.trained(self.conf, steps=2)
        self.export(trained)
        [self.exported] = [self.path(name) for name in os.listdir(self.folder) if "export" in name]
        # The state is the engine's, no matter which program wrote run.json.
        self.own = self.make_folder(f"nvme/penstock-{ID}")
        self.state = shutil.move(harness.state_path(trained), self.own)
        self.uuid = harness.read_info(trained)["state"]["uuid"]
        shutil.rmtree(trained)
        os.remove(f"{self.nvme}/penstock-{self.uuid}.run")
        self.run_folder = self.package_run("run", self.named())
        self.write(f"nvme/penstock-{ID}/run.name", {"penstock_run": 1, "run": self.run_folder})

    def named(self):
        return {"uuid": self.uuid, "paths": [self.state]}

    def package_run(self, name, state, **changes):
        folder = self.make_folder(name)
        said = {"penstock_run": 1, "id": ID, "kind": "optimizer", "named": True, "place": folder,
                "folders": [self.own], "state": state, **changes}
        with open(os.path.join(folder, "run.json"), "w", encoding="utf-8") as file:
            json.dump(said, file)
        with open(os.path.join(folder, "run.lock"), "w", encoding="utf-8"):
            pass
        return folder

    def assert_refused(self, *words, code, says, at=None):
        before = self.files(self.own), self.files(at or self.run_folder)
        outcome = harness.penstock(*words)
        self.assertEqual(outcome.code, code, str(outcome))
        [line] = outcome.errors
        self.assertIn(says, line)
        self.assertEqual((self.files(self.own), self.files(at or self.run_folder)), before)

    @staticmethod
    def files(folder):
        return sorted(os.listdir(folder))

    def done(self, *words):
        outcome = harness.penstock(*words)
        self.assertEqual((outcome.code, outcome.stderr), (0, ""), str(outcome))
        return outcome.stdout

    def test_inspect_verifies_it_and_says_whose_it_is(self):
        said = self.done("inspect", self.run_folder)
        self.assertIn("the Python package (optimizer)", said)
        self.assertIn("all verified", said)
        self.assertIn("committed step    2", said)

    def test_compare_finds_the_same_bits(self):
        self.assert_equal_bits(self.run_folder, self.exported)

    def test_export_keeps_the_names_of_the_tensors_and_writes_no_config(self):
        self.done("export", self.run_folder, "--to", self.path("out"))
        self.assertEqual(self.files(self.path("out")), ["model.safetensors"])
        self.assert_equal_bits(self.run_folder, self.path("out"))

    def test_doctor_says_that_it_has_no_rows(self):
        outcome = harness.penstock("doctor", self.run_folder)
        self.assertIn("without rows: its steps report no loss", outcome.stdout)
        self.assertNotIn("ended before its first step", outcome.stdout)

    def test_a_run_that_was_moved_with_its_state_is_found(self):
        shutil.copytree(self.run_folder, self.path("moved"))
        shutil.move(self.state, self.path("moved"))
        self.done("inspect", self.path("moved"))

    def test_snapshot_makes_it_a_run_of_today_that_knows_its_snapshots(self):
        outcome = harness.penstock("snapshot", self.run_folder, "kept")
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assertIn("step 2", outcome.stdout)
        # The commit has a row, as penstock train made it, and the run has no file of rows.
        self.assertIn("has no rows of steps 1 to 1", outcome.stderr)
        info = harness.read_info(self.run_folder)
        kept = harness.read_info(self.run_folder + "/snapshots/kept")
        self.assertEqual((info["version"], kept["run_uuid"]), (3, info["run_uuid"]))
        self.assert_equal_bits(self.run_folder, self.run_folder + "/snapshots/kept")
        self.done("clean", self.run_folder, "--yes")
        self.assertEqual((os.path.exists(self.run_folder), self.files(self.nvme)), (False, []))

    def test_clean_removes_it_with_the_folder_that_was_made_for_its_states(self):
        others = self.trained(self.conf, steps=2)
        shutil.copy(self.state, f"{self.own}/penstock-{'1' * 32}.state")
        self.assert_refused("clean", self.run_folder, "--yes", code=3, says="1111.state")
        os.remove(f"{self.own}/penstock-{'1' * 32}.state")
        self.assertIn("nothing is removed", self.done("clean", self.run_folder))
        self.assertEqual(self.files(self.own), [os.path.basename(self.state), "run.name"])
        self.done("clean", self.run_folder, "--yes")
        self.assertFalse(os.path.exists(self.run_folder) or os.path.exists(self.own))
        self.assertEqual(harness.states_in(self.nvme), [os.path.basename(harness.state_path(others))])

    def test_what_needs_the_training_is_refused_with_the_reason_and_leaves_all_as_it_is(self):
        self.assert_refused("train", "--model", self.make_model(), "--data", self.make_data(), "--config",
                            self.write("config.json", self.conf), "--out", self.run_folder, "--resume",
                            "--device-memory", "1GiB", "--steps", "9", code=2,
                            says="its own program resumes it, with run=")
        self.assert_refused("replay", self.run_folder, "--from", "1", "--to", "2", code=2,
                            says="its model and data are that program's")

    def test_one_without_a_commit_says_so(self):
        empty = self.package_run("empty", None, folders=[self.nvme])
        self.assert_refused("inspect", empty, code=3, says="has no commit yet", at=empty)

    def test_another_version_is_refused_by_its_number_and_no_value_is_taken_on_trust(self):
        for name, changes, says in (("newer", {"penstock_run": 7}, "version 7 is not known"),
                                    ("kind", {"kind": 3}, "is damaged: "),
                                    ("other", {"kind": "cake"}, "its kind is"),
                                    ("paths", {"state": {**self.named(), "paths": []}},
                                     "names no state file"),
                                    ("state", {"state": 3}, "is damaged: ")):
            with self.subTest(name):
                folder = self.package_run(name, **{"state": self.named(), **changes})
                self.assert_refused("inspect", folder, code=3, says=says, at=folder)


if __name__ == "__main__":
    harness.main()
