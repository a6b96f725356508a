"""Several ranks, as processes over TCP: any number of them has the numbers of one, and a failure of one
ends all.

With PENSTOCK_LONG_TESTS=1 every combination is compared, in 20 steps of 24 micro-batches, which takes
about an hour, and 24 of the quickstart's model, half an hour:
PENSTOCK_LONG_TESTS=1 python3 ranks_test.py PENSTOCK WORK -k the_numbers_of_one -k the_quickstart
"""
import glob
import os
import resource
import shutil
import signal
import socket
import subprocess
import time
import unittest

import harness
import ranks_cells
import ranks_harness
from harness import read_rows, read_summary
from ranks_cells import Cell
from ranks_harness import LONG, MICRO_BATCHES, STEPS

# Combinations in which most things differ.
CELLS = [
    Cell(2, "bf16", "nvme", "nvme", 1.0, True, 3, "fp32"),
    Cell(3, "fp32", "none", "none", 0.0, True, 2, "fp32"),
    Cell(4, "bf16", "cpu", "cpu", 0.0, False, 3, "fp32"),
    Cell(2, "fp32", "none", "cpu", 1.0, False, 1, "bf16"),
    Cell(3, "bf16", "none", "none", 0.0, True, 0, "fp32"),
    Cell(4, "fp32", "nvme", "nvme", 0.0, True, 3, "fp32"),
    Cell(3, "bf16", "cpu", "nvme", 1.0, False, 3, "bf16"),
    Cell(4, "bf16", "none", "cpu", 1.0, True, 2, "fp32"),
    Cell(2, "bf16", "none", "nvme", 0.0, True, 3, "fp32"),
]
STARTERS = ("environment", "mpirun", "launch")


class RanksTest(ranks_harness.RanksTest):
    def compare_cells(self, cells, *more, **memory):
        """Trains each, and compares it with one rank that keeps everything where it computes."""
        ones = {}
        for number, cell in enumerate(cells):
            with self.subTest(cell=cell):
                key = tuple(cell.numerics().items())
                if key not in ones:
                    ones[key] = self.alone(self.config(**cell.numerics()), *more, **memory)
                run = self.trained_by(cell.ranks, self.path(f"ranks{number}"),
                                      self.config(**cell.numerics(), **cell.placed()), *more,
                                      by=cell.started, **memory)
                self.assert_same_numbers(ones[key], run)
                rows = read_rows(run)
                self.assertEqual([row["tokens"] for row in rows], [MICRO_BATCHES * 64] * STEPS)
                self.assertEqual(read_summary(run)["tokens"], MICRO_BATCHES * 64 * STEPS)
                self.assertEqual(harness.penstock("clean", run, "--yes").code, 0)

    def test_any_number_of_ranks_has_the_numbers_of_one(self):
        self.compare_cells(ranks_cells.every() if LONG else CELLS)

    @unittest.skipUnless(LONG, "it takes half an hour; PENSTOCK_LONG_TESTS=1 runs it")
    def test_so_has_the_model_of_the_quickstart_however_it_is_started(self):
        if not shutil.which("mpirun"):
            self.skipTest("no mpirun (scripts/setup --tests installs it)")
        self.model = self.make_model("quickstart", n_layer=10, n_embd=384, n_head=6,
                                     n_positions=512, vocab_size=256)
        self.compare_cells(ranks_cells.pairs(24, STARTERS), "--sequence-length", "64",
                           device_memory="512MiB", host_memory="512MiB")

    def test_gradients_that_are_rounded_on_their_way_are_a_run_of_their_own(self):
        rounded = self.config(communication_data_type="bf16")
        run = self.trained_by(2, self.path("run"), rounded, steps=2)
        outcome, _ = self.train(self.config(), "--resume", model=self.model, data=self.data, out=run)
        self.assert_fails(outcome, 2, "communication_data_type is not there, was \"bf16\"")
        self.assertNotEqual(self.numbers(run), self.numbers(self.alone(self.config(), steps=2)))

    def test_ranks_that_add_up_their_own_gradients_first_have_the_numbers_of_their_number(self):
        by_rank = self.config(penstock={"gradient_order": "rank"})
        self.assert_same_numbers(self.alone(self.config(), steps=4), self.alone(by_rank, steps=4))
        run = self.trained_by(2, self.path("two"), by_rank, steps=4)
        self.assertNotEqual(self.numbers(run), self.numbers(self.alone(by_rank, steps=4)))
        elsewhere = self.config(param="none", optimizer="none", stage=1,
                                penstock={"gradient_order": "rank"})
        self.assert_same_numbers(run, self.trained_by(2, self.path("again"), elsewhere, steps=4))
        outcome, _ = self.train(self.config(), "--resume", model=self.model, data=self.data, out=run)
        self.assert_fails(outcome, 2, "penstock.gradient_order is not there, was \"rank\"")
        outcome, _ = self.train(by_rank, "--resume", model=self.model, data=self.data, out=run,
                                steps=6)
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assertIn("ranks in the run: 2, and here: 1; with penstock.gradient_order \"rank\" the last"
                      " bits differ", outcome.stderr)

    def test_each_rank_keeps_its_share_and_all_move_what_one_moves(self):
        def sizes(run):
            return [sum(os.path.getsize(path) for path in rank["paths"])
                    for rank in harness.read_info(run)["state"]["ranks"]]

        self.model = self.make_model("wide", n_layer=3, n_embd=96, n_head=3)
        moved = {}
        for ranks in (1, 3):
            run = self.trained_by(ranks, self.path(f"of{ranks}"), self.config())
            summary = read_summary(run)
            moved[ranks] = [summary[key] / summary["parameters"] / STEPS
                            for key in ("nvme_read_bytes", "nvme_write_bytes")]
            # Blocks of 4096 elements are shared, so that of a small model a rank may have more.
            [most, *_] = sorted(sizes(run), reverse=True)
            self.assertLess(most, 1.25 * sum(sizes(run)) / ranks, f"{ranks} ranks: {sizes(run)}")
            self.assertLessEqual(summary["device_peak_bytes"], 16 << 20)
            self.assertLessEqual(summary["host_peak_bytes"], 64 << 20)
            self.assertLessEqual(moved[ranks][0], 14.2, moved)
        # 12 bytes a parameter, and what fills up the blocks of a small model.
        self.assertLessEqual(moved[1][1], 12.5, moved)
        self.assertEqual(moved[3][1], moved[1][1])

    def test_a_commit_resumes_on_any_number_of_ranks_in_any_placement(self):
        whole = self.alone(self.config(), steps=12)
        run = self.trained_by(4, self.path("run"), self.config(), steps=3)
        self.trained_by(4, run, self.config(), "--resume", steps=5)  # in its files
        self.trained_by(2, run, self.config(param="cpu", optimizer="cpu"), "--resume", steps=7)
        self.alone(self.config(), "--resume", steps=9, run=run)
        self.trained_by(3, run, self.config(param="none", optimizer="none", stage=1), "--resume",
                        steps=12)
        self.assert_same_numbers(whole, run)
        inspected = harness.penstock("inspect", run)
        self.assertEqual(inspected.code, 0, str(inspected))
        self.assertIn("all verified", inspected.stdout)
        cleaned = harness.penstock("clean", run, "--yes")
        self.assertEqual(cleaned.code, 0, str(cleaned))
        self.assertFalse(os.path.exists(run))

    def test_ranks_continue_in_files_that_only_they_see(self):
        config = self.config()
        for home in ("offload_param", "offload_optimizer"):
            # A path that is another folder for each rank, as a drive of its node is.
            config["zero_optimization"][home]["nvme_path"] = "/proc/self/cwd"
        nodes = [self.make_folder("node0"), self.make_folder("node1")]
        run = self.path("run")
        self.trained_by(2, run, config, steps=2, folders=nodes)
        [own] = os.listdir(nodes[1])

        def refused(ranks, folders, config, *fragments):
            with self.started(ranks, run, config, "--resume", folders=folders) as programs:
                outcomes = self.finish(programs)
            [line] = [line for _, _, errors in outcomes for line in errors]
            for fragment in fragments:
                self.assertIn(fragment, line)
            return {code for code, _, _ in outcomes}

        host = socket.gethostname()
        wrote = f"/{own}, which rank 1 wrote on host {host}"
        self.assertEqual(refused(2, nodes[::-1], config, f"rank 0 (host {host}) does not see ",
                                 "which rank 0 wrote on host", "start each rank on the host"), {2})
        self.assertEqual(refused(3, [*nodes, nodes[1]], config, "does not see ", "with 2 ranks"), {2})
        self.assertEqual(refused(2, nodes, {**config, "penstock": {**config["penstock"],
                                                                   "tile_elements": 4096}},
                                 "has other tiles"), {2})
        os.rename(os.path.join(nodes[1], own), self.path(own))
        self.assertEqual(refused(2, nodes, config, "no rank sees ", wrote), {3})
        os.rename(self.path(own), os.path.join(nodes[1], own))

        self.trained_by(2, run, config, "--resume", steps=5, folders=nodes)
        self.assertEqual(os.listdir(nodes[1]), [own])
        whole = self.alone(self.config(), steps=5)
        os.link(os.path.join(nodes[1], own), os.path.join(nodes[0], own))
        compared = harness.penstock("compare", run, whole, cwd=nodes[0])
        self.assertEqual(compared.code, 0, str(compared))
        keys = ("step", "loss", "grad_norm")
        self.assertEqual([[row[key] for key in keys] for row in read_rows(run)],
                         [[row[key] for key in keys] for row in read_rows(whole)])

    def test_ranks_that_ended_before_their_first_commit_leave_nothing_to_mount(self):
        run, config = self.path("run"), self.config()

        def refusal():
            with self.started(2, run, config, "--resume") as programs:
                outcomes = self.finish(programs)
            self.assertEqual({code for code, _, _ in outcomes}, {2}, outcomes)
            [line] = [line for _, _, errors in outcomes for line in errors]
            self.assertNotIn("mount its drive", line)
            self.assertNotIn("start a rank there", line)
            for fragment in (f"there is no commit in {run}", "penstock clean", "start a new run"):
                self.assertIn(fragment, line)
            return line

        # What they leave that are killed while they make their files: no rows, and not all files.
        for size in (None, 0):
            self.trained_by(2, run, config, steps=1)
            os.unlink(os.path.join(run, "metrics.jsonl"))
            own = min(harness.states_in(self.path("nvme")))
            os.unlink(os.path.join(self.path("nvme"), own))
            if size is not None:
                self.write(os.path.join("nvme", own), "")
            line = refusal()
            if size is None:
                self.assertIn("no rank sees", line)
                self.assertIn(own, line)
            cleaned = harness.penstock("clean", run, "--yes")
            self.assertEqual(cleaned.code, 0, str(cleaned))
            self.assertEqual(os.listdir(self.path("nvme")), [])

    def test_a_killed_rank_ends_the_others_and_nothing_committed_is_lost(self):
        def kill(programs, victim):
            programs[victim].send_signal(signal.SIGKILL)
            self.assert_others_end(programs, victim, f"rank {victim} ", harness.TIMEOUT_S)

        self.check_commits_outlive(kill)

    def test_what_differs_beside_the_config_is_named_too(self):
        run = self.path("run")
        simulated = self.config(penstock={"aio": {"simulate": {"read_gbps": 1, "write_gbps": 1}}})
        for config, only, parts in (
                (self.config(), {1: ["--resume"]}, ("--resume", "not given", "rank 1")),
                (self.config(), {1: ["--init", "random"]}, ("--init random", "rank 1")),
                ([self.config(), simulated], {}, ("penstock.aio.simulate", "rank 1"))):
            with self.subTest(parts=parts):
                with self.started(2, run, config, only=only) as programs:
                    outcomes = self.finish(programs)
                self.assertEqual([code for code, _, _ in outcomes], [2, 2])
                [line] = [line for _, _, errors in outcomes for line in errors]
                for part in parts:
                    self.assertIn(part, line)
                self.assertFalse(os.path.exists(run))

    def test_a_failure_of_one_rank_in_the_middle_is_the_line_of_all(self):
        run = self.path("run")
        with self.started(3, run, self.config(), steps=1000) as programs:
            self.wait_for_rows(run, 2, programs[0])
            [state] = glob.glob(self.path("nvme") + "/*.r1.state")
            # From now on this rank writes nothing beyond the head of its file.
            resource.prlimit(programs[1].pid, resource.RLIMIT_FSIZE, (4096, 4096))
            outcomes = self.finish(programs)
        self.assertEqual([code for code, _, _ in outcomes], [3, 3, 3], outcomes)
        for rank in (0, 1):
            [line] = outcomes[rank][2]
            self.assertTrue(line.startswith("penstock: error: rank 1 (host "), line)
            self.assertIn(os.path.basename(state), line)
        self.assertEqual(outcomes[2][2], [])

    def test_a_failure_of_one_rank_before_the_first_step_leaves_nothing(self):
        run, trace = self.path("run"), self.path("trace.json")
        os.mkdir(trace + ".r1")
        with self.started(2, run, self.config(), "--trace", trace) as programs:
            outcomes = self.finish(programs)
        self.assertEqual([code for code, _, _ in outcomes], [outcomes[1][0]] * 2, outcomes)
        for _, _, [line] in outcomes:
            self.assertTrue(line.startswith("penstock: error: rank 1 (host "), line)
            self.assertIn("trace.json.r1", line)
        self.assertFalse(os.path.exists(run))
        self.assertEqual(os.listdir(self.path("nvme")), [])

    def test_rows_that_cannot_be_written_end_all_ranks_with_the_reason(self):
        drive = self.make_folder("drive")
        with harness.mounted(drive, ["-t", "tmpfs", "-o", "size=20K", "none"]):
            with self.started(2, os.path.join(drive, "run"), self.config(), steps=1000) as programs:
                outcomes = self.finish(programs)
        self.assertEqual([code for code, _, _ in outcomes], [3, 3], outcomes)
        [line] = outcomes[0][2]
        for part in ("metrics.jsonl", "No space left"):
            self.assertIn(part, line)

    def test_a_mistake_that_all_ranks_make_is_said_once(self):
        with self.started(2, self.path("run"), self.config(), "--sequence-length", "65") as programs:
            outcomes = self.finish(programs)
        self.assertEqual([code for code, _, _ in outcomes], [2, 2])
        [line] = [line for _, _, errors in outcomes for line in errors]
        self.assertIn("--sequence-length", line)
        self.assertTrue(line.startswith("penstock: error: --sequence-length 65"), line)

    def test_an_interrupt_of_any_rank_commits_on_all(self):
        config = self.config()
        run = self.path("run")
        with self.started(3, run, config, steps=1000) as programs:
            self.wait_for_rows(run, 2, programs[0])
            programs[1].send_signal(signal.SIGINT)
            outcomes = self.finish(programs)
        self.assertEqual([(code, errors) for code, _, errors in outcomes],
                         [(130, []), (130, []), (130, [])])
        last = read_summary(run)["last_step"]
        self.assertEqual(read_summary(run)["committed_step"], last)
        self.assert_same_numbers(self.alone(config, steps=last), run)

    def test_a_rank_that_stands_still_for_a_while_changes_nothing(self):
        run = self.path("run")
        with self.started(2, run, self.config(), steps=30) as programs:
            self.wait_for_rows(run, 2, programs[0])
            programs[1].send_signal(signal.SIGSTOP)
            time.sleep(1.5)  # what the test is about: longer than a heartbeat
            programs[1].send_signal(signal.SIGCONT)
            outcomes = self.finish(programs)
        self.assertEqual([code for code, _, _ in outcomes], [0, 0], str(outcomes))
        self.assert_same_numbers(self.alone(self.config(), steps=30), run)

    @unittest.skipUnless(shutil.which("mpirun"), "no mpirun (scripts/setup --tests installs it)")
    def test_mpirun_starts_the_ranks(self):
        run = self.trained_by(2, self.path("run"), self.config(), by="mpirun")
        self.assert_same_numbers(self.alone(self.config()), run)


if __name__ == "__main__":
    harness.main()
