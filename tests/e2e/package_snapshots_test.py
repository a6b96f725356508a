"""`penstock snapshot` on runs of the package while their programs train."""
import os
import re
import subprocess

import harness
from package_harness import PackageTest


class SnapshotsTest(PackageTest):
    def training(self, **options):
        """A process that trains a run as it is told to, and its RUN."""
        process = self.start(run=self.path("run"), nvme_path=[self.nvme], end="asks", **options)
        self.addCleanup(process.__exit__, None, None, None)
        self.addCleanup(process.kill)
        return process, process.stdout.readline().strip()

    @staticmethod
    def tell(process, *lines):
        for line in lines:
            process.stdin.write(line + "\n")
            process.stdin.flush()
            assert process.stdout.readline() == "done\n"

    def asked(self, run, name):
        """The command, once the training can see its request."""
        command = self.running("snapshot", run, name, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)
        self.wait_until(lambda: os.path.exists(self.request(run, name)), command)
        return command

    @staticmethod
    def request(run, name):
        return os.path.join(run, "snapshots", f".{name}.request")

    def answered(self, command, code=0):
        out, errors = command.communicate(timeout=harness.TIMEOUT_S)
        self.assertEqual(command.returncode, code, errors)
        said = [line for line in errors.splitlines() if "asking the program that trains" not in line]
        return out, said

    def clear(self, process, run):
        process.stdin.close()
        self.assertEqual(process.wait(timeout=harness.TIMEOUT_S), 0)
        self.says("clean", run, "--yes")

    def test_a_step_answers_with_the_newest_commit_at_both_levels(self):
        for kind in ("optimizer", "module"):
            process, run = self.training(kind=kind, snapshots=["own"])
            self.tell(process, "step", "step")
            command = self.asked(run, "asked")
            self.tell(process, "step")
            out, said = self.answered(command)
            self.assertEqual(said, [])
            self.assertIn(f"step 2 of {run} is kept as asked; ", out)
            self.assertEqual(self.step_of(run + "/snapshots/asked"), 2)
            self.assertIn("equal bits",
                          self.says("compare", run + "/snapshots/own", run + "/snapshots/asked"))
            self.assertIn("2 steps", self.says("numerics", run + "/snapshots/asked"))
            self.tell(process, "commit", "step")  # the copy is not in the way
            self.clear(process, run)

    def test_several_requests_are_answered_and_the_next_commit_waits_for_the_copies(self):
        process, run = self.training()
        commands = [self.asked(run, name) for name in ("one", "two")]
        self.tell(process, "step", "commit")
        for name, command in zip(("one", "two"), commands):
            self.assertIn(f"step 2 of {run} is kept as {name}; ", self.answered(command)[0])
        command = self.asked(run, "three")
        self.tell(process, "step")
        self.assertIn(f"step 3 of {run} is kept as three; ", self.answered(command)[0])
        self.clear(process, run)

    def test_a_request_waits_while_the_newest_commit_is_in_doubt(self):
        process, run = self.training()
        command = self.asked(run, "asked")
        self.tell(process, "not finite")
        self.assertTrue(os.path.exists(self.request(run, "asked")))
        self.assertIsNone(command.poll())
        self.tell(process, "step")
        self.assertIn("step 2 of ", self.answered(command)[0])
        self.clear(process, run)

    def test_with_one_slot_a_request_waits_for_the_next_commit(self):
        process, run = self.training(durable=False)
        command = self.asked(run, "asked")
        self.tell(process, "step")
        self.assertTrue(os.path.exists(self.request(run, "asked")))
        self.tell(process, "commit")
        self.assertIn("step 3 of ", self.answered(command)[0])
        self.clear(process, run)

    def test_without_a_commit_a_request_is_refused_with_the_reason(self):
        process, run = self.training(steps=0)
        command = self.asked(run, "asked")
        self.tell(process, "step")
        out, [line] = self.answered(command, code=3)
        self.assertEqual(out, "")
        self.assertIn(f"nothing is committed yet in {run}", line)
        self.assertFalse(os.path.exists(self.request(run, "asked")))
        process.stdin.close()
        process.wait(timeout=harness.TIMEOUT_S)

    def test_a_training_that_ends_leaves_the_snapshot_to_the_command(self):
        process, run = self.training()
        command = self.asked(run, "asked")
        process.stdin.close()
        self.assertEqual(process.wait(timeout=harness.TIMEOUT_S), 0)
        self.assertIn("step 2 of ", self.answered(command)[0])

    def test_a_snapshot_that_cannot_be_taken_is_said_and_the_training_goes_on(self):
        process, run = self.training()
        self.write("run/snapshots/.asked.unfinished/mine.txt", "mine")
        command = self.asked(run, "asked")
        self.tell(process, "step")
        _, [line] = self.answered(command, code=3)
        self.assertRegex(line, re.escape(run) + r".*\.asked\.unfinished is there and was not made by")
        self.tell(process, "step", "commit")
        self.clear(process, run)


if __name__ == "__main__":
    harness.main()
