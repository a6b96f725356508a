"""csv_monitor's files beside the rows of a run, after any end; wall_clock_breakdown."""
import csv
import os
import re
import subprocess

import harness
from harness import make_config, merge, read_rows

STEPS = 8
SAMPLES = 2  # of a step


class MonitorTest(harness.PenstockTest):
    def setUp(self):
        super().setUp()
        self.conf = make_config(dtype="fp16", param="nvme", optimizer="nvme",
                                nvme_path=self.make_folder("nvme"), csv_monitor=self.monitor("a"))

    def monitor(self, name):
        return {"enabled": True, "output_path": self.path("curves"), "job_name": name}

    def curve(self, name, job="a"):
        path = os.path.join(self.path("curves"), job, f"Train_Samples_{name}.csv")
        with open(path, encoding="utf-8", newline="") as file:
            return list(csv.reader(file))

    def assert_curves(self, run, job="a"):
        """Every row of the run is in the files, and nothing else."""
        rows = read_rows(run)
        for name, key in (("train_loss", "loss"), ("lr", "lr"), ("loss_scale", "loss_scale")):
            header, *lines = self.curve(name, job)
            self.assertEqual(header, ["step", name])
            self.assertEqual([(int(samples), float(value)) for samples, value in lines],
                             [(SAMPLES * row["step"], row[key]) for row in rows])


class CurvesTest(MonitorTest):
    def test_a_resumed_run_has_one_line_a_step_and_a_replay_writes_none(self):
        run = self.trained(self.conf, steps=3)
        self.assert_curves(run)
        self.assertEqual(harness.penstock("snapshot", run, "kept").code, 0)
        for steps in (3, STEPS):
            outcome, _ = self.train(self.conf, "--resume", steps=steps, out=run)
            self.assertEqual(outcome.code, 0, str(outcome))
            self.assert_curves(run)
        outcome = harness.penstock("replay", run, "--from", "kept", "--to", "5")
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assert_curves(run)
        self.assertEqual(sorted(os.listdir(os.path.join(self.path("curves"), "a"))),
                         [f"Train_Samples_{name}.csv" for name in ("loss_scale", "lr", "train_loss")])

    def test_a_run_that_is_killed_is_mended(self):
        self.conf = merge(self.conf, {"penstock": {"commit_every_steps": 3}})
        run = self.path("run")
        program = self.running("train", "--model", self.make_model(), "--data", self.make_data(),
                               "--config", self.write("killed.json", self.conf), "--device",
                               harness.DEVICE, "--steps", "1000000", "--out", run)
        self.wait_for_rows(run, 5, program)
        program.kill()
        program.wait()
        outcome, _ = self.train(self.conf, "--resume", steps=len(read_rows(run)) + 3, out=run)
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assert_curves(run)

    def test_two_runs_do_not_share_files(self):
        run = self.trained(self.conf, steps=2)
        outcome, other = self.train(self.conf, steps=2)
        self.assert_fails(outcome, 2, "csv_monitor: ", "Train_Samples_train_loss.csv is there already",
                          "csv_monitor.job_name")
        self.assertFalse(os.path.exists(other))
        self.assert_curves(run)
        self.conf["csv_monitor"] = self.monitor("b")
        self.assert_curves(self.trained(self.conf, steps=2), job="b")

    def test_lines_that_find_no_space_end_the_run_and_it_resumes_when_there_is(self):
        with harness.mounted(self.make_folder("curves"), ["-t", "tmpfs", "-o", "size=16K", "none"]):
            # Blocks of 4 KiB for three files: the fourth of one of them finds no room.
            outcome, run = self.train(self.conf, steps=1000)
            self.assert_fails(outcome, 3, "Train_Samples_", "No space left", "is committed")
            done = len(read_rows(run)) + 1
            self.assertIn(f"; step {done} is committed", outcome.errors[0])
            subprocess.run(["mount", "-o", "remount,size=4M", self.path("curves")], check=True)
            outcome, _ = self.train(self.conf, "--resume", steps=done + 2, out=run)
            self.assertEqual(outcome.code, 0, str(outcome))
            self.assert_curves(run)


class BreakdownTest(MonitorTest):
    def test_lines_and_rows_say_what_the_parts_of_steps_took(self):
        self.conf = merge(self.conf, {"wall_clock_breakdown": True, "steps_per_print": 4})
        outcome, run = self.train(self.conf, steps=STEPS)
        self.assertEqual(outcome.code, 0, str(outcome))
        for row in read_rows(run):
            self.assertGreater(row["forward_s"], 0)
            self.assertGreater(row["backward_s"], 0)
            self.assertLessEqual(row["forward_s"] + row["backward_s"], row["step_s"])
        lines = re.findall(r"(?m)^penstock: step (\d+)/8 .*  forward [\d.]+ ms  backward [\d.]+ ms  "
                           r"step [\d.]+ ms$", outcome.stderr)
        self.assertEqual(lines, ["4", "8"])
        for part in ("forward", "backward", "step"):
            header, *curve = self.curve(f"elapsed_time_ms_{part}")
            self.assertEqual(header, ["step", f"elapsed_time_ms_{part}"])
            self.assertEqual(len(curve), STEPS)


if __name__ == "__main__":
    harness.main()
