"""Where the system gives no more threads, a run goes on with those it has, or says so and ends; nothing is lost.

strace refuses the n-th thread that any thread of the program starts, and all behind it, for every n.
"""
import os
import subprocess

import harness
from harness import make_config

STEPS = 4
MOST_THREADS = 64


@harness.needs_strace
class ThreadsTest(harness.PenstockTest):
    def without_threads(self, number, *arguments):
        """An outcome, and whether a thread was refused."""
        log = self.path("strace.log")
        done = subprocess.run(
            ["strace", "-f", "-qqq", "-o", log, "-e", "trace=clone3", "-e",
             f"inject=clone3:error=EAGAIN:when={number}+", harness.PROGRAM, *arguments],
            capture_output=True, text=True, timeout=harness.TIMEOUT_S, check=False)
        with open(log, encoding="utf-8") as file:
            refused = "(INJECTED)" in file.read()
        return harness.Outcome(arguments, done.returncode, done.stdout, done.stderr), refused

    def for_every_thread(self, arguments, check):
        """`check` with the outcome of what `arguments()` does, until no thread is refused; how many were."""
        for number in range(1, MOST_THREADS):
            with self.subTest(number=number):
                outcome, refused = self.without_threads(number, *arguments())
                if outcome.code != 0:
                    self.assert_fails(outcome, 3, "thread", "raise the limit of processes")
                check(outcome)
                if not refused:
                    self.assertEqual(outcome.code, 0, str(outcome))
                    return number - 1
        self.fail("threads without end")

    def test_training_ends_with_one_line_or_has_the_same_bits(self):
        config = make_config(dtype="bf16", param="nvme", optimizer="nvme", nvme_path=self.make_folder("nvme"),
                             penstock={"optimizer_threads": 2})
        whole = self.trained(config, steps=STEPS)
        numbers = self.numbers(whole)
        runs = []

        def arguments():
            runs.append(self.path(f"refused{len(runs)}"))
            return ["train", "--model", self.make_model(), "--data", self.make_data(), "--config",
                    self.write("refused.json", config), "--out", runs[-1], "--steps", str(STEPS),
                    "--device", harness.DEVICE]

        def check(outcome):
            if outcome.code == 0:
                self.assertEqual(self.numbers(runs[-1]), numbers)
            elif os.path.exists(runs[-1]):
                self.assertEqual(harness.penstock("clean", runs[-1], "--yes").code, 0)

        self.assertGreaterEqual(self.for_every_thread(arguments, check), 5)

    def test_inspect_verifies_everything_with_the_threads_there_are(self):
        run = self.trained(make_config(dtype="bf16"), steps=1)

        def without_speed(text):
            return [line for line in text.splitlines() if "GB/s" not in line]

        whole = without_speed(harness.penstock("inspect", run).stdout)

        def check(outcome):
            if outcome.code == 0:
                self.assertEqual(without_speed(outcome.stdout), whole)

        self.assertGreaterEqual(self.for_every_thread(lambda: ["inspect", run], check), 2)


if __name__ == "__main__":
    harness.main()
