"""The runner of scripts/gpu/gpu-day, with parts that are lines of a shell."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

KIT = pathlib.Path(__file__).resolve().parents[2] / "scripts/gpu"
sys.path[:0] = [str(KIT), str(KIT / "parts")]
import ncu  # noqa: E402
from day import figures, folders, plan, report, runner  # noqa: E402

TIMEOUT_S = 60

# Makes a day of parts that it is given as JSON: a list of groups, each of them [quiet, parts].
DAY = """
import json, pathlib, sys
kit, out, work, seconds, groups = sys.argv[1:]
sys.path.insert(0, kit)
from day import folders, plan, report, runner
runner._REPORT_S = 0.0
def part(name, script, **more):
    return plan.Part(name, "?", ("bash", "-c", script), **{"limit": 60, "least": 0, **more})
day = [plan.Group(tuple(part(*p[:2], **(p[2] if p[2:] else {})) for p in parts), quiet)
       for quiet, parts in json.loads(groups)]
places = folders.choose(work, pathlib.Path(kit))
sys.exit(runner.Runner(pathlib.Path(kit), places, report.Report(pathlib.Path(out), places),
                       float(seconds)).run(day))
"""


def says(**row):
    return "echo 'RESULT " + json.dumps(row) + "'"


class DayTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="gpu-day-")
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.out, self.work = self.root / "out", self.root / "work"

    def begin(self, *groups, seconds=60):
        """Starts a day, in which each argument is a group: a list of parts."""
        plan_ = json.dumps([group if isinstance(group, tuple) else (False, group) for group in groups])
        command = [sys.executable, "-c", DAY, str(KIT), str(self.out), str(self.work), str(seconds)]
        day = subprocess.Popen([*command, plan_], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True)
        self.addCleanup(day.__exit__, None, None, None)
        self.addCleanup(day.kill)
        return day

    def day(self, *groups, **options):
        """Returns (exit code, what was printed)."""
        day = self.begin(*groups, **options)
        printed, _ = day.communicate(timeout=TIMEOUT_S)
        return day.returncode, printed

    def wait_until(self, condition):
        until = time.monotonic() + TIMEOUT_S
        while not condition():
            self.assertLess(time.monotonic(), until, "it did not come in time")
            time.sleep(0.01)

    def summary(self):
        try:
            return (self.out / "summary.txt").read_text(encoding="utf-8")
        except FileNotFoundError:
            return ""

    def results(self):
        """Those beside the last summary."""
        text = (self.out / "results.jsonl").read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()]

    def log(self, name):
        with tarfile.open(self.out / "logs.tar.gz") as logs:
            return logs.extractfile(f"logs/{name}").read().decode()

    def assert_row(self, text, outcome, name, why=""):
        self.assertRegex(text, rf"(?m)^{outcome} +{name} +[0-9.]+ s *{why}")

    def is_running(self, pid):
        try:
            state = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
        except FileNotFoundError:
            return False
        return state.rsplit(")", 1)[1].split()[0] != "Z"


class RunnerTest(DayTest):
    def test_every_part_has_a_row_and_a_log_and_its_results_name_it(self):
        code, printed = self.day([["a", says(name="x", value=1)], ["b", "echo words"]])
        self.assertEqual(code, 0, printed)
        self.assert_row(printed, "ok", "a")
        self.assert_row(self.summary(), "ok", "b")
        self.assertEqual(self.results(), [{"part": "a", "name": "x", "value": 1}])
        self.assertEqual(self.log("b"), "words\n")

    def test_a_part_that_fails_is_shown_with_its_first_error_line_and_ends_no_other(self):
        code, printed = self.day([["bad", "echo fine; echo 'x.cc:3: error: no room'; echo; exit 3"]],
                                 [["good", "true"]])
        self.assertEqual(code, 1)
        self.assert_row(printed, "FAILED", "bad", r"exit code 3: x.cc:3: error: no room$")
        self.assert_row(printed, "ok", "good")

    def test_a_program_that_is_missing_fails_its_part_alone(self):
        part = plan.Part("a", "?", ("/nowhere/program",), 5)
        places = folders.choose(str(self.work), KIT)
        kept = report.Report(self.out, places)
        keep = {number: signal.getsignal(number) for number in (1, 2, 15)}
        try:
            code = runner.Runner(KIT, places, kept, 20).run([plan.Group((part,))])
        finally:
            for number, handler in keep.items():
                signal.signal(number, handler)
        self.assertEqual(code, 1)
        self.assertIn("/nowhere/program: No such file", self.summary())

    def test_what_the_machine_lacks_leaves_a_part_out_with_its_line(self):
        code, printed = self.day([["a", f"echo 'missing: no torch here'; exit {plan.LEFT_OUT}"]])
        self.assertEqual(code, 0)
        self.assert_row(printed, "left out", "a", "no torch here$")

    def test_a_part_that_hangs_is_ended_at_its_limit_with_what_it_said(self):
        script = says(step=1) + "; sleep 1000 & echo $!; wait"
        code, printed = self.day([["a", script, {"limit": 0.5}]], [["b", "true"]])
        self.assertEqual(code, 1)
        self.assert_row(printed, "FAILED", "a", "took more than")
        self.assert_row(printed, "ok", "b")
        self.assertEqual(self.results(), [{"part": "a", "step": 1}])
        self.assertFalse(self.is_running(self.log("a").split()[-1]))

    def test_a_process_that_forks_away_from_its_part_ends_with_it(self):
        away = self.root / "away"
        script = f"setsid bash -c 'echo $$ >{away}; exec sleep 1000' & until [[ -s {away} ]]; do :; done"
        code, printed = self.day([["a", script]])
        self.assertEqual(code, 0, printed)
        self.assertFalse(self.is_running(away.read_text(encoding="utf-8").strip()))

    def test_a_part_starts_only_if_its_least_time_is_left(self):
        code, printed = self.day([["a", "true", {"least": 1000}], ["b", "true"]])
        self.assertEqual(code, 0)
        self.assert_row(printed, "left out", "a", "no time: it needs 1000 s")
        self.assert_row(printed, "ok", "b")

    def test_the_next_group_waits_but_not_for_a_part_that_runs_beside(self):
        order, go = self.root / "order", self.root / "go"
        wait = f"until [[ -e {go} ]]; do sleep 0.02; done; echo beside >>{order}"
        code, printed = self.day([["beside", wait, {"beside": True}], ["a", f"echo a >>{order}"]],
                                 [["b", f"echo b >>{order}; touch {go}"]],
                                 (True, [["quiet", f"echo quiet >>{order}"]]))
        self.assertEqual(code, 0, printed)
        self.assertEqual(order.read_text(encoding="utf-8").split(), ["a", "b", "beside", "quiet"])

    def test_folders_of_a_part_are_gone_when_it_has_ended(self):
        self.day([["a", 'touch "$PENSTOCK_DAY_SCRATCH/x"; echo "$PENSTOCK_DAY_SCRATCH"']])
        self.assertFalse(os.path.exists(self.log("a").strip()))

    def test_sigkill_at_any_moment_leaves_what_was_done_and_what_a_long_part_has_said(self):
        long = says(step=7) + "; sleep 1000"
        day = self.begin([["done", says(name="x")]], [["long", long]])
        # The summary comes last, so what it says is in the other files.
        self.wait_until(lambda: "running" in self.summary() and len(self.results()) == 2)
        day.kill()
        day.wait()
        self.assert_row(self.summary(), "ok", "done")
        self.assert_row(self.summary(), "running", "long")
        self.assertEqual(self.results()[1], {"part": "long", "step": 7})
        self.assertIn("RESULT", self.log("long"))

    def test_what_a_part_has_started_ends_when_the_runner_is_killed(self):
        away = self.root / "away"
        script = f"setsid bash -c 'echo $$ >{away}; exec sleep 1000' & sleep 1000"
        day = self.begin([["a", script]])
        self.wait_until(lambda: away.exists() and away.read_text(encoding="utf-8").strip()
                        and "running" in self.summary())
        day.kill()
        day.wait()
        self.wait_until(lambda: not self.is_running(away.read_text(encoding="utf-8").strip()))

    def test_a_process_has_ended_only_when_all_its_threads_have(self):
        """The first thread's end takes the environment, but not what the others have of a device."""
        script = ("import ctypes, threading, time; threading.Thread(target=time.sleep, args=(1000,)).start(); "
                  "ctypes.CDLL(None).pthread_exit(None)")
        process = subprocess.Popen([sys.executable, "-c", script])
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.wait_until(lambda: not self.is_running(process.pid))
        self.assertFalse(runner.has_ended(process.pid))
        process.kill()
        process.wait()
        self.assertTrue(runner.has_ended(process.pid))

    def test_the_next_day_ends_what_a_killed_one_has_left_and_keeps_its_report(self):
        pid = self.root / "pid"
        day = self.begin([["a", f"echo $$ >{pid}; exec sleep 1000"]])
        self.wait_until(lambda: pid.exists() and pid.read_text(encoding="utf-8").strip()
                        and "running" in self.summary())
        day.kill()
        day.wait()
        left = pid.read_text(encoding="utf-8").strip()
        self.day([["b", "true"]])
        self.assertFalse(self.is_running(left))
        earlier = (self.out / "earlier-1/summary.txt").read_text(encoding="utf-8")
        self.assert_row(earlier, "running", "a")
        self.assert_row(self.summary(), "ok", "b")

    def test_sigterm_ends_the_parts_and_writes_the_report(self):
        day = self.begin([["a", says(step=1) + "; sleep 1000"]], [["b", "true"]])
        self.wait_until(lambda: "running" in self.summary() and self.results())
        day.terminate()
        printed, _ = day.communicate(timeout=TIMEOUT_S)
        self.assertEqual(day.returncode, 128 + signal.SIGTERM)
        self.assert_row(printed, "FAILED", "a", "gpu-day was told to end")
        self.assert_row(self.summary(), "not reached", "b")

    def test_two_days_in_one_folder_are_refused(self):
        day = self.begin([["a", "sleep 1000"]])
        self.wait_until(lambda: "running" in self.summary())
        code, printed = self.day([["b", "true"]])
        self.assertEqual(code, 2)
        self.assertIn("another one works in", printed)
        day.terminate()
        day.communicate(timeout=TIMEOUT_S)

    def test_a_log_without_end_does_not_fill_the_report(self):
        script = "echo begin; head -c 5000000 /dev/zero; echo; echo end"
        self.day([["a", script]])
        log = self.log("a")
        self.assertLess(len(log), 3 << 20)
        self.assertTrue(log.startswith("begin\n"))
        self.assertTrue(log.endswith("end\n"))


class CommandLineTest(DayTest):
    def run_program(self, *words):
        command = [sys.executable, str(KIT / "gpu-day"), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=self.root,
                              timeout=TIMEOUT_S)

    def test_an_unknown_part_is_refused_with_the_list(self):
        done = self.run_program("--only", "facts,nothing")
        self.assertEqual(done.returncode, 2)
        self.assertIn("there is no part nothing; there are facts, doctor,", done.stderr)
        self.assertEqual(os.listdir(self.root), [])

    def test_without_cuda_its_parts_fail_with_what_is_missing_and_the_others_run(self):
        kit = self.root / "kit"
        shutil.copytree(KIT, kit)
        (kit / "find-cuda").write_text("echo 'error: libcublasLt.so.13 is nowhere' >&2; exit 3\n")
        command = [sys.executable, str(kit / "gpu-day"), "--only", "facts,doctor,nccl",
                   "--out", str(self.out), "--work", str(self.work)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
        self.assertEqual(done.returncode, 1, done.stderr)
        for part in ("doctor", "nccl"):
            self.assert_row(done.stdout, "FAILED", part, "error: libcublasLt.so.13 is nowhere$")
        self.assert_row(done.stdout, "ok", "facts")

    def test_dry_prints_the_plan_and_what_its_kit_lacks(self):
        done = self.run_program("--dry")
        self.assertEqual(done.returncode, 1)  # this folder has no programs
        self.assertIn("nccl needs", done.stderr)
        self.assertNotIn("parts/", done.stderr)
        self.assertRegex(done.stdout, r"all parts to their limits: \d+ s; this run: 440 s")
        self.assertEqual(os.listdir(self.root), [])

    def test_only_keeps_the_order_of_the_plan(self):
        groups = plan.only(plan.make(KIT, plan.FULL), ["bits", "facts"])
        self.assertEqual([p.name for g in groups for p in g.parts], ["facts", "bits"])


class PartsTest(DayTest):
    def program(self, name, script):
        path = self.root / name
        path.write_text("#!/bin/bash\n" + script, encoding="utf-8")
        path.chmod(0o755)
        return path

    def test_an_update_for_which_no_time_is_left_is_a_line_and_no_failure(self):
        shutil.copytree(KIT, self.root / "kit")
        self.program("kit/adam_run", "if [[ $1 == copy ]]; then echo 2; echo 1; else exec sleep 1000; fi\n")
        kit = self.root / "kit"
        environment = {**os.environ, "PYTHONPATH": f"{kit}:{kit}/parts", "PENSTOCK_DAY_SECONDS": "4"}
        done = subprocess.run([sys.executable, str(kit / "parts/memory.py"), "1000", "1"], check=False,
                              capture_output=True, text=True, env=environment, timeout=TIMEOUT_S)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        copy, update = report.results_in(done.stdout, "memory")
        self.assertEqual(copy["seconds"], 1)
        self.assertEqual(update["missing"], "no time is left")

    def test_what_ncu_has_started_ends_with_its_time(self):
        pid = self.root / "pid"
        self.program("ncu", f"sleep 1000 & echo $! >{pid}.new; mv {pid}.new {pid}; wait\n")
        path = os.environ["PATH"]
        os.environ["PATH"] = f"{self.root}:{path}"
        self.addCleanup(os.environ.update, PATH=path)
        self.assertEqual(ncu.profile([], ["x"], self.root / "log", 2.0), "more than 2 s")
        self.wait_until(lambda: not self.is_running(pid.read_text(encoding="utf-8").strip()))


class PlanTest(unittest.TestCase):
    def setUp(self):
        self.parts = [part for group in plan.make(KIT, plan.FULL) for part in group.parts]

    def test_names_are_unique_and_each_part_can_take_its_least_time(self):
        names = [part.name for part in self.parts]
        self.assertEqual(len(set(names)), len(names))
        for part in self.parts:
            self.assertLess(part.least, part.limit, part.name)

    def test_what_decides_fits_if_every_part_takes_its_limit(self):
        """Whether anything is right and the first comparison begin within 440 s at the latest."""
        table = plan.text(plan.make(KIT, plan.FULL), 440)
        [line] = [line for line in table.splitlines() if " steps: " in line]
        self.assertLess(float(line.split()[0]) + 40, 440)


class ReportTest(unittest.TestCase):
    def test_the_line_that_says_what_was_wrong_is_found(self):
        for log, line in (
            ("RESULT {\"error\": 1}\nTraceback (most recent call last):\n  File x\nValueError: 3\n",
             "ValueError: 3"),
            ("[ RUN ] A\nb.cc:7: Failure\nExpected\n[  FAILED  ] A", "b.cc:7: Failure"),
            ("0 failed\npenstock: error: no GPU\nerror again", "penstock: error: no GPU"),
            ("words\nthe last", "the last"),
            ("", "it printed nothing"),
        ):
            self.assertEqual(report.first_error(log), line)

    def test_a_result_that_was_cut_is_left_out_and_one_behind_words_is_not(self):
        log = 'RESULT {"a": 1}\nRESULT {"b": RESULT {"c": 2}\nRESULT {"d'
        self.assertEqual(report.results_in(log, "p"), [{"part": "p", "a": 1}, {"part": "p", "c": 2}])

    def test_figures_say_what_reaches_its_limit(self):
        def done(kind, part, seconds, **more):
            return {"part": part, "kind": kind, "done": True, "seconds": seconds,
                    "tokens_per_s": 1000 / seconds, "device_peak_mib": 5, **more}

        rows = [
            {"part": "memory", "name": "copy", "threads": 16, "gbps": 100.0},
            done("torch", "steps", 1.0, forward_s=0.25, backward_s=0.5, parameters=1_000_000_000),
            done("level1", "steps", 0.8),
            done("level2", "steps", 1.2),
            done("deepspeed", "steps", 1.3),
            {"part": "doctor", "name": "drive", "both_gbps": 2.6},
            done("torch", "steps-nvme", 1.0, forward_s=0.1, backward_s=0.2, parameters=100_000_000),
            done("level2", "steps-nvme", 1.05),
            {"part": "bits", "name": "a", "bits": "equal"},
            {"part": "bits", "name": "b", "bits": "DIFFER"},
            done("train", "train-host", 0.8, home="cpu", parameters=1_000_000_000, tflops=1.0,
                 forward_s=0.5, backward_s=0.3, compute_s=0.4),
        ]
        text = "\n".join(figures.lines(rows))
        self.assertRegex(text, r"floor of a step.* 0.760  s")  # 0.5 + max(0.25, 26 / 100)
        self.assertRegex(text, r"level1 against the floor +1.05  at most 1.10: yes")
        self.assertRegex(text, r"level2 against the floor +1.58  at most 1.15: NO")
        self.assertRegex(text, r"level1 against deepspeed +1.63  at least 1.40: yes")
        self.assertRegex(text, r"level2 against max.compute, drive. +1.05  at most 1.10: yes")
        self.assertRegex(text, r"train-host against the floor +1.43  at most 1.15: NO")  # 0.3 + 0.26
        self.assertRegex(text, r"bits: .* +1.00  at least 2.00: NO")


class FoldersTest(unittest.TestCase):
    def test_a_folder_without_o_direct_is_passed_over_and_named(self):
        with tempfile.TemporaryDirectory() as name:
            good, bad = pathlib.Path(name, "good"), pathlib.Path(name, "bad")
            told = folders.refusal
            folders.refusal = lambda folder: "Invalid argument" if folder == bad else None
            try:
                good.mkdir()
                folder, lines = folders.best([bad, good])
                none, _ = folders.best([bad])
            finally:
                folders.refusal = told
        self.assertEqual(folder, good)
        self.assertIn(f"O_DIRECT in {bad}: Invalid argument", lines)
        self.assertIsNone(none)

    def test_without_o_direct_anywhere_there_is_a_folder_to_work_in_and_no_drive(self):
        with tempfile.TemporaryDirectory() as name:
            told = folders.refusal
            folders.refusal = lambda folder: "Invalid argument"
            try:
                places = folders.choose(name, KIT)
            finally:
                folders.refusal = told
        self.assertEqual(places.work, pathlib.Path(name))
        self.assertIsNone(places.drive)


if __name__ == "__main__":
    unittest.main(verbosity=2)
