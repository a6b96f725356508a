"""Ctrl-C: the running step is finished and committed, and the run can be used."""
import signal
import subprocess

import harness
from harness import make_config, read_rows, read_summary


class InterruptTest(harness.PenstockTest):
    def start(self, config):
        """A training that would take very long, stopped by the test after its second step."""
        run = self.path("run")
        arguments = [harness.PROGRAM, "train", "--model", self.make_model(), "--data",
                     self.make_data(), "--config", self.write("config.json", config), "--out", run,
                     "--steps", "1000000"]
        program = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True)
        self.addCleanup(program.communicate)
        self.addCleanup(program.kill)
        for line in program.stderr:
            if line.startswith("penstock: step 2/"):
                return program, run
        self.fail("the training ended before its second step")

    def check(self, stop, **homes):
        config = make_config(steps_per_print=1, **homes)
        program, run = self.start(config)
        program.send_signal(stop)
        stdout, stderr = program.communicate(timeout=harness.TIMEOUT_S)
        self.assertEqual(program.returncode, 130, stderr)
        summary = read_summary(run)
        last = summary["last_step"]
        self.assertTrue(summary["interrupted"])
        self.assertEqual(summary["committed_step"], last)
        self.assertEqual([row["step"] for row in read_rows(run)], list(range(1, last + 1)))
        self.assertIn(f"step {last}", stdout)
        self.assertNotIn("error", stderr)
        inspected = harness.penstock("inspect", run)
        self.assertRegex(inspected.stdout, rf"committed step +{last}\n", str(inspected))
        return run, last, config

    def test_sigint_commits_what_an_uninterrupted_run_would_have(self):
        homes = {"param": "nvme", "optimizer": "nvme", "nvme_path": self.make_folder("nvme")}
        run, last, config = self.check(signal.SIGINT, **homes)
        whole = self.trained(config, steps=last)
        self.assertEqual(self.export(run)[0], self.export(whole)[0])

    def test_sigterm_in_host_memory(self):
        run, _, _ = self.check(signal.SIGTERM, param="cpu", optimizer="cpu")
        self.export(run)


if __name__ == "__main__":
    harness.main()
