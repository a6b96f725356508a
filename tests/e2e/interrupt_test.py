"""Ctrl-C: a running step is finished and committed; anything else that was begun is removed."""
import os
import pathlib
import signal
import subprocess

import harness
from harness import make_config, read_rows, read_summary

NOTICE = "penstock: finishing this step and committing; interrupt again to quit at once\n"


def tree(folder):
    """The files of a folder, with when they were last changed."""
    return {path: os.stat(path).st_mtime_ns for path in map(str, pathlib.Path(folder).rglob("*"))
            if os.path.isfile(path)}


def opened_by(program):
    """The paths of the files that a process has open now."""
    folder = pathlib.Path("/proc", str(program.pid), "fd")
    try:
        return {os.readlink(link) for link in folder.iterdir()}
    except OSError:  # one was closed meanwhile
        return set()


class InterruptTest(harness.PenstockTest):
    def start(self, config, until, **model):
        """A training that would take very long; returns when it has written a line with `until`."""
        run = self.path("run")
        arguments = ["train", "--model", self.make_model(**model), "--data",
                     self.make_data(), "--config", self.write("config.json", config), "--out", run,
                     "--steps", "1000000"]
        program = self.running(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.wait_for_line(until, program)
        return program, run

    def check(self, stop, **homes):
        config = make_config(steps_per_print=1, **homes)
        program, run = self.start(config, until="step 2/")
        program.send_signal(stop)
        stdout, stderr = program.communicate(timeout=harness.TIMEOUT_S)
        self.assertEqual(program.returncode, 130, stderr)
        summary = read_summary(run)
        last = summary["last_step"]
        self.assertTrue(summary["interrupted"])
        self.assertEqual(summary["committed_step"], last)
        self.assertEqual([row["step"] for row in read_rows(run)], list(range(1, last + 1)))
        self.assertIn(f"step {last}", stdout)
        self.assertEqual(stderr.count(NOTICE), 1, stderr)
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

    def test_sighup_when_the_terminal_is_closed(self):
        run, _, _ = self.check(signal.SIGHUP, param="cpu", optimizer="cpu")
        self.export(run)

    def test_readers_of_stdout_and_stderr_that_are_gone_cost_no_commit(self):
        config = make_config(steps_per_print=1, param="cpu", optimizer="cpu")
        program, run = self.start(config, until="step 2/")
        program.stdout.close()
        program.stderr.close()
        program.send_signal(signal.SIGINT)
        self.assertEqual(program.wait(timeout=harness.TIMEOUT_S), 130)
        summary = read_summary(run)
        self.assertEqual(summary["committed_step"], summary["last_step"])
        self.export(run)

    def test_before_the_first_step_nothing_is_left(self):
        # 85 million weights are seconds of work; the engine's notice comes before the first of them.
        nvme = self.make_folder("nvme")
        config = make_config(dtype="bf16", param="nvme", optimizer="nvme", nvme_path=nvme)
        program, run = self.start(config, until="aio engine", n_layer=12, n_embd=768, n_head=12)
        self.assertEqual(len(harness.states_in(nvme)), 1)
        program.send_signal(signal.SIGINT)
        stdout, stderr = program.communicate(timeout=harness.TIMEOUT_S)
        self.assertEqual((program.returncode, stdout), (130, ""), stderr)
        self.assertIn("interrupted before the first step", stderr)
        self.assertFalse(os.path.exists(run))
        self.assertEqual(os.listdir(nvme), [])

    def test_a_resume_that_verifies_its_commit_leaves_the_run_as_it_was(self):
        # 38 million weights take long enough to be interrupted.
        nvme = self.make_folder("nvme")
        config = make_config(dtype="bf16", param="nvme", optimizer="nvme", nvme_path=nvme)
        model = self.make_model("large", n_layer=12, n_embd=512, n_head=8)
        run = self.trained(config, steps=0, model=model)
        state, = (os.path.join(nvme, name) for name in os.listdir(nvme) if name.endswith(".state"))
        before = tree(run)
        program = self.running("train", "--model", model, "--data", self.make_data(), "--config",
                               self.write("config.json", config), "--out", run, "--resume",
                               "--steps", "1000000", stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)
        self.wait_until(lambda: state in opened_by(program), program)
        program.send_signal(signal.SIGINT)
        stdout, stderr = program.communicate(timeout=harness.TIMEOUT_S)
        self.assertEqual((program.returncode, stdout), (130, ""), stderr)
        self.assertIn("penstock: stopping; interrupt again to quit at once\n", stderr)
        self.assertIn("interrupted while the commit was verified: the run is as it was", stderr)
        self.assertEqual(tree(run), before)
        self.trained(config, "--resume", steps=1, model=model, out=run)

    def test_an_export_leaves_nothing_behind(self):
        # 38 million weights take long enough to be interrupted.
        model = self.make_model("large", n_layer=12, n_embd=512, n_head=8)
        run = self.trained(make_config(param="cpu", optimizer="cpu"), steps=0, model=model)
        to = self.path("above/export")
        program = self.running("export", run, "--to", to, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)
        self.wait_until(lambda: os.path.exists(to), program)
        program.send_signal(signal.SIGINT)
        stdout, stderr = program.communicate(timeout=harness.TIMEOUT_S)
        self.assertEqual((program.returncode, stdout), (130, ""), stderr)
        self.assertIn("penstock: removing what was exported so far", stderr)
        self.assertFalse(os.path.exists(self.path("above")))


if __name__ == "__main__":
    harness.main()
