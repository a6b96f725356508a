"""What a plan says before a run is what the run takes."""
import itertools
import json
import os
import shutil
import unittest

import harness
from harness import make_config, merge, read_rows, read_summary, state_paths

SHAPES = {  # parameters, roughly
    "1M": {"n_layer": 4, "n_embd": 128, "n_head": 4, "n_positions": 64, "vocab_size": 1024},
    "18M": {"n_layer": 10, "n_embd": 384, "n_head": 6, "n_positions": 512, "vocab_size": 256},
    "50M": {"n_layer": 12, "n_embd": 576, "n_head": 9, "n_positions": 512, "vocab_size": 4096},
    "125M": {"n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024, "vocab_size": 50257},
}
PLACEMENTS = {"device": ("none", "none"), "host": ("cpu", "cpu"), "nvme optimizer": ("cpu", "nvme"),
              "nvme": ("nvme", "nvme")}
DTYPES = {"fp32": ("fp32", {}), "bf16": ("bf16", {}),
          "bf16 moments": ("bf16", {"bf16": {"bf16_optimizer_states": True}})}
MICRO_BATCHES = (1, 4)
STEPS = 60
START = 3  # rows that are not steady yet
# PENSTOCK_LONG_TESTS says that nothing else runs here. Then plans know the measured speed of the
# drive and have to be within 0.03 of the run; else they are given any speed, and have 0.06.
ALONE = os.environ.get("PENSTOCK_LONG_TESTS") == "1"
NEAR = 0.03 if ALONE else 0.06
CELLS = list(itertools.product(SHAPES, PLACEMENTS, DTYPES, MICRO_BATCHES))
# Of the smallest shape, so many that every two values of the other three meet.
PAIRS = [("1M", "device", "fp32", 1), ("1M", "device", "bf16", 4), ("1M", "device", "bf16 moments", 1),
         ("1M", "host", "fp32", 4), ("1M", "host", "bf16", 1), ("1M", "host", "bf16 moments", 4),
         ("1M", "nvme optimizer", "fp32", 1), ("1M", "nvme optimizer", "bf16", 4),
         ("1M", "nvme optimizer", "bf16 moments", 1), ("1M", "nvme", "fp32", 4),
         ("1M", "nvme", "bf16", 1), ("1M", "nvme", "bf16 moments", 4)]


class PlanTest(harness.PenstockTest):
    def plan_of(self, config, *more, model):
        outcome = harness.penstock("plan", "--model", model, "--config",
                                   self.write("plan.json", config), "--json", "--device", "cpu",
                                   *more)
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assertEqual(outcome.stderr, "", str(outcome))
        return json.loads(outcome.stdout)

    def config_of(self, placement, dtype, micro_batches, **override):
        name, keys = DTYPES[dtype]
        param, optimizer = PLACEMENTS[placement]
        return make_config(dtype=name, micro_batches=micro_batches, param=param, optimizer=optimizer,
                           nvme_path=self.make_folder("nvme"), **merge(keys, override))

    def speed(self):
        """Flags that say how fast the machine is; a plan measures what they leave out."""
        if not ALONE:
            return "--drive", "2,2", "--device-tflops", "0.2"
        file = self.path("tune.json")
        if not os.path.exists(file):
            outcome = harness.penstock("tune", "--quick", "--nvme-path", self.make_folder("tuned"),
                                       "--out", file)
            self.assertEqual(outcome.code, 0, str(outcome))
        return "--tune", file

    def compare(self, cell):
        """Runs a cell, and holds it against its plan."""
        shape, placement, dtype, micro_batches = cell
        model = self.make_model(shape, **SHAPES[shape])
        config = merge(self.config_of(placement, dtype, micro_batches),
                       {"train_micro_batch_size_per_gpu": 1,
                        "penstock": {"tile_elements": 65536 if shape == "1M" else 1048576}})
        limits = ("--sequence-length", "32", "--device-memory", "4GiB", "--host-memory",
                  "64MiB" if shape == "1M" else "4GiB")
        plan = self.plan_of(config, *limits, *self.speed(), model=model)
        run = self.trained(config, *limits, steps=STEPS, model=model)
        summary, rows = read_summary(run), read_rows(run)
        self.assertEqual(plan["parameters"], summary["parameters"], cell)
        self.assertEqual(plan["device_bytes"], summary["device_peak_bytes"], cell)
        self.assertEqual(plan["host_bytes"], summary["host_peak_bytes"], cell)
        self.assertEqual(plan["nvme_file_bytes"],
                         sum(os.path.getsize(path) for path in state_paths(run)), cell)
        # A busy machine moves bytes from one step into the next, so that it takes many steps to tell.
        # The last one waits for all of them.
        for key in ("nvme_read_bytes", "nvme_write_bytes"):
            steady = [row[key] for row in rows[START:-1]]
            of_steps = sum(steady) / len(steady)
            self.assertAlmostEqual(plan[f"{key}_per_step"] / max(of_steps, 1),
                                   1 if of_steps else 0, delta=NEAR, msg=f"{cell} {key}")
        self.assertEqual(summary["planned"]["device_peak_bytes"], plan["device_bytes"])
        self.assertEqual(summary["planned"]["host_peak_bytes"], plan["host_bytes"])
        for path in (*state_paths(run), run):
            shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)

    def test_memory_files_and_bytes_are_those_of_the_run(self):
        for cell in PAIRS:
            with self.subTest(cell=cell):
                self.compare(cell)

    @unittest.skipUnless(ALONE, "96 runs take half an hour; PENSTOCK_LONG_TESTS=1 makes them")
    def test_memory_files_and_bytes_are_those_of_the_run_in_all_cells(self):
        for cell in CELLS:
            with self.subTest(cell=cell):
                self.compare(cell)


class PlanCommandTest(PlanTest):
    """What the command says and refuses; PlanTest's helpers, and none of its tests."""
    test_memory_files_and_bytes_are_those_of_the_run = None
    test_memory_files_and_bytes_are_those_of_the_run_in_all_cells = None

    def plan(self, *arguments):
        return harness.penstock("plan", *arguments)

    def nvme_config(self, **override):
        return self.write("nvme.json", self.config_of("nvme", "bf16", 1, **override))

    def test_a_shape_of_405_billion_parameters_is_planned(self):
        outcome = self.plan("--model", "llama:h=16384,l=126,v=128256,i=53248,heads=128,kv=8",
                            "--config", self.nvme_config(), "--device", "cpu", "--json",
                            "--device-memory", "200GiB", "--host-memory", "1TiB",
                            "--drive", "7,5", "--device-tflops", "400")
        self.assertEqual(outcome.code, 0, str(outcome))
        plan = json.loads(outcome.stdout)
        self.assertEqual(plan["parameters"], 405853388800)
        self.assertFalse(plan["fits"])
        self.assertIn("drive", [shortage["tier"] for shortage in plan["shortages"]])
        self.assertGreater(plan["step_s"], 0, "times are planned despite any shortage")
        self.assertGreater(plan["tokens_per_s"], 0)

    def test_a_drive_that_is_not_here_is_planned_for(self):
        arguments = ["--model", self.make_model(), "--config", self.nvme_config(), "--device", "cpu",
                     "--device-memory", "64MiB", "--host-memory", "64MiB", "--drive", "7,5",
                     "--device-tflops", "1", "--json"]
        needed = json.loads(self.plan(*arguments).stdout)["nvme_file_bytes"]
        for ranks in (1, 2):
            for capacity, fits in ((needed, True), (needed // 2, False)):
                plan = json.loads(self.plan(*arguments, "--ranks", str(ranks), "--drive-capacity",
                                            str(capacity)).stdout)
                of_rank = plan["nvme_file_bytes"]
                self.assertEqual(plan["fits"], of_rank * ranks <= capacity)
                limits = [s["limit_bytes"] for s in plan["shortages"] if s["tier"] == "drive"]
                self.assertEqual(limits, [] if plan["fits"] else [capacity // ranks])
                if ranks == 1:
                    self.assertEqual(plan["fits"], fits)

    def test_what_does_not_fit_comes_with_what_does(self):
        outcome = self.plan("--model", self.make_model(), "--config", self.nvme_config(),
                            "--device", "cpu", "--device-memory", "1MiB", "--host-memory", "1MiB")
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assertEqual(outcome.stdout.count("does not fit"), 2, outcome.stdout)
        self.assertTrue("what fits" in outcome.stdout or "nothing" in outcome.stdout,
                        outcome.stdout)

    def test_a_choice_trains_as_it_was_planned(self):
        model = self.make_model()
        limits = ("--device-memory", "64MiB", "--host-memory", "256MiB")
        outcome = self.plan("--model", model, "--config", self.nvme_config(), "--device", "cpu",
                            "--choose", "memory", "--drive", "2,2", "--device-tflops", "0.1",
                            "--json", *limits)
        self.assertEqual(outcome.code, 0, str(outcome))
        choices = json.loads(outcome.stdout)["choices"]
        self.assertGreater(len(choices), 3)
        sizes = [choice["device_bytes"] + choice["host_bytes"] for choice in choices]
        self.assertEqual(sizes, sorted(sizes))
        run = self.trained(choices[0]["config"], *limits, steps=2, model=model)
        summary = read_summary(run)
        self.assertEqual(summary["device_peak_bytes"], choices[0]["device_bytes"])
        self.assertEqual(summary["host_peak_bytes"], choices[0]["host_bytes"])
        self.assertIsNotNone(summary["planned"]["step_s"], "the config has the speeds")

    def test_a_commit_writes_what_was_planned_and_its_record(self):
        model = self.make_model("1M", **SHAPES["1M"])
        config = merge(self.config_of("nvme", "bf16", 1), {"penstock": {
            "tile_elements": 65536, "tier_split": True, "commit_every_steps": 5}})
        for host in ("12MiB", "64MiB"):
            limits = ("--sequence-length", "32", "--device-memory", "64MiB", "--host-memory", host)
            plan = self.plan_of(config, *limits, model=model)
            few, many = (read_summary(self.trained(config, *limits, steps=steps, model=model))
                         for steps in (5, 10))
            commit = many["nvme_commit_bytes"] - few["nvme_commit_bytes"]
            self.assertGreater(commit, plan["commit_bytes"], host)
            self.assertLess(commit, plan["commit_bytes"] + 2**17, host)

    def test_a_verified_commit_reads_back_what_was_planned(self):
        model = self.make_model("1M", **SHAPES["1M"])
        for home in ("nvme", "host"):
            config = merge(self.config_of(home, "bf16", 1), {"penstock": {
                "tile_elements": 65536, "commit_every_steps": 2, "verify_commits": True}})
            limits = ("--sequence-length", "32", "--device-memory", "64MiB",
                      "--host-memory", "64MiB")
            plan = self.plan_of(config, *limits, model=model)
            self.assertTrue(plan["verify_commits"])
            self.assertEqual(plan["verify_bytes_per_step"], plan["verify_bytes"] / 2)
            few, many = (read_summary(self.trained(config, *limits, steps=steps, model=model))
                         for steps in (2, 4))
            self.assertEqual(many["nvme_verify_bytes"] - few["nvme_verify_bytes"],
                             plan["verify_bytes"], home)
            self.assertEqual(many["host_peak_bytes"], plan["host_bytes"], home)

    def test_a_run_says_what_it_would_lose_where_auto_does_not_verify(self):
        config = merge(self.config_of("nvme", "bf16", 1), {"penstock": {"commit_every_steps": 1}})
        limits = ("--sequence-length", "32", "--device-memory", "64MiB", "--host-memory", "64MiB")
        model = self.make_model()
        outcome = self.plan("--model", model, "--config", self.write("seldom.json", config),
                            "--device", "cpu", *limits)
        self.assertRegex(outcome.stdout, r"(?m)^verification +commits are not verified: .*would "
                                         r"cost 50 %")
        summary = read_summary(self.trained(config, *limits, steps=2, model=model))
        self.assertEqual(summary["nvme_verify_bytes"], 0)

    def test_a_run_verifies_its_commits_where_the_plan_says_so_wherever_tiles_live(self):
        model = self.make_model("1M", **SHAPES["1M"])
        config = merge(self.config_of("nvme", "bf16", 1), {"penstock": {
            "tile_elements": 65536, "tier_split": True, "commit_every_steps": 30}})
        seen = set()
        for host in ("12MiB", "16MiB", "64MiB"):
            limits = ("--sequence-length", "32", "--device-memory", "64MiB", "--host-memory", host)
            plan = self.plan_of(config, *limits, model=model)
            seen.add(plan["verify_commits"])
            summary = read_summary(self.trained(config, *limits, steps=1, model=model))
            self.assertEqual(summary["nvme_verify_bytes"] > 0, plan["verify_commits"], host)
            self.assertEqual(summary["host_peak_bytes"], plan["host_bytes"], host)
        self.assertEqual(seen, {True, False}, "both are tried")

    def test_deepspeeds_estimate_is_exact(self):
        outcome = self.plan("--model", "t5:h=2048,l=24,v=32128,i=5120,heads=32,d=64", "--as",
                            "deepspeed", "--json")
        self.assertEqual(outcome.code, 0, str(outcome))
        rows = json.loads(outcome.stdout)["rows"]
        found = {(row["cpu_bytes"], row["gpu_bytes"]) for row in rows if row["stage"] == 3}
        self.assertIn((75166894080, 263192576), found)
        self.assertIn((66815016960, 5831110656), found)

    def test_the_length_of_a_training_by_its_size_is_megatrons(self):
        outcome = self.plan("--model", "gpt2:h=14336,l=80,v=150257,s=2048", "--tokens", "300e9",
                            "--ranks", "350", "--device-tflops", "150", "--global-batch", "2048",
                            "--json")
        self.assertEqual(outcome.code, 0, str(outcome))
        plan = json.loads(outcome.stdout)
        days = 8 * plan["parameters"] * 300e9 / (350 * 150e12) / 86400
        self.assertAlmostEqual(plan["training"]["days"], days, delta=1e-6)
        self.assertEqual(plan["training"]["steps"], 71526)

    def test_shares_of_tensor_parallelism_are_those_of_the_formula(self):
        outcome = self.plan("--model", "gpt2:h=11600,l=64,v=50257,s=2048", "--tensor-parallel",
                            "1,4", "--json")
        self.assertEqual(outcome.code, 0, str(outcome))
        share = json.loads(outcome.stdout)["shares"][1]
        self.assertEqual((share["tensor"], share["embedding_parameters"], share["layer_parameters"]),
                         (4, 145745300, 403717700))

    def test_a_plan_says_how_long_a_training_lasts_and_what_it_does_to_the_drive(self):
        config = self.nvme_config(gradient_accumulation_steps=4, penstock={
            "rampup_batch_size": [2, 2, 1000], "tile_elements": 65536})
        more = ("--drive", "0.01,0.01", "--device-tflops", "1", "--tokens", "1e6", "--drive-rating",
                "600TBW", "--device-memory", "64MiB", "--host-memory", "8MiB", "--device", "cpu")
        model = self.make_model("1M", **SHAPES["1M"])
        text = self.plan("--model", model, "--config", config, *more)
        self.assertEqual(text.code, 0, str(text))
        for line in ("parameters ", "batch ramp-up ", "training ", "the rating of 600 TB"):
            self.assertIn(line, text.stdout)
        plan = json.loads(self.plan("--model", model, "--config", config, *more, "--json").stdout)
        self.assertEqual(sum(plan["parameters_by_kind"].values()), plan["parameters"])
        self.assertEqual(plan["training"]["steps"], round(1e6 / plan["tokens_per_step"]))
        self.assertGreater(plan["rampup"]["drive_bound_steps"], 0)
        self.assertAlmostEqual(
            plan["drive_wear"]["terabytes_a_day"],
            plan["nvme_write_bytes_per_step"] / plan["step_s"] * 86400 / 1e12, delta=1e-3)

    def test_a_gpu_that_is_not_here_comes_with_its_hints(self):
        outcome = self.plan("--model", "gpt2:h=1000,l=4,v=1024,s=128,heads=10", "--config",
                            self.nvme_config(), "--device", "cuda", "--device-memory", "8GiB",
                            "--host-memory", "1GiB", "--drive", "2,2", "--device-tflops", "100",
                            "--ranks", "2", "--link", "10", "--json")
        self.assertEqual(outcome.code, 0, str(outcome))
        plan = json.loads(outcome.stdout)
        self.assertEqual(len(plan["hints"]), 3, plan["hints"])
        self.assertGreater(plan["floors"]["link_s"], 0)
        self.assertIsNone(plan["floors"]["copies_s"])

    def test_topologies_follow_the_configs_ramp_up(self):
        shape = "gpt2:h=1024,l=8,v=1024,s=128,heads=16"
        ramp = self.write("ramp.json", {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 1,
                                        "penstock": {"rampup_batch_size": [8, 8, 1000]}})
        outcome = self.plan("--model", shape, "--topologies", "--ranks", "8", "--config", ramp,
                            "--json")
        self.assertEqual(outcome.code, 0, str(outcome))
        rows = json.loads(outcome.stdout)
        self.assertTrue(all(8 % (row["dp"] * row["mbs"]) == 0 for row in rows if row["possible"]))
        self.assertTrue(any("ramp-up" in reason for row in rows for reason in row["reasons"]))

    def test_topologies_are_those_of_the_ranks(self):
        outcome = self.plan("--model", "gpt2:h=1024,l=8,v=1024,s=128,heads=16", "--topologies",
                            "--ranks", "8", "--global-batch", "64", "--json")
        self.assertEqual(outcome.code, 0, str(outcome))
        for row in json.loads(outcome.stdout):
            self.assertEqual(row["dp"] * row["tp"] * row["pp"], 8)

    def test_what_fits_on_more_ranks_has_their_link(self):
        config = self.write("ds.json", {
            "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 4,
            "bf16": {"enabled": True}, "zero_optimization": {"stage": 1}})
        limits = ("--device", "cpu", "--device-tflops", "0.1", "--device-memory", "6MiB",
                  "--host-memory", "7MiB")
        outcome = self.plan("--model", "gpt2:h=128,l=4,v=256,s=64,heads=4", "--config", config,
                            *limits, "--choose", "speed", "--link", "0.001", "--json")
        self.assertEqual(outcome.code, 0, str(outcome))
        choices = json.loads(outcome.stdout)["choices"]
        self.assertTrue(choices)
        for choice in choices:
            self.assertGreater(choice["world_size"], 1)
            self.assertEqual(choice["bound_by"], "link")
            self.assertIn("link 0.001 GB/s", choice["speeds"])

    def test_each_path_has_a_simulated_drive(self):
        drive = {"simulate": {"read_gbps": 0.02, "write_gbps": 0.01}}
        floors = []
        for paths in (["a"], ["a", "b"]):
            config = make_config(dtype="bf16", param="nvme", optimizer="nvme",
                                 nvme_path=[self.make_folder(path) for path in paths],
                                 penstock={"aio": drive, "tile_elements": 16384})
            plan = self.plan_of(config, "--device-tflops", "0.1", "--device-memory", "64MiB",
                                "--host-memory", "64MiB", model=self.make_model())
            floors.append(plan["floors"]["drive_s"])
        self.assertAlmostEqual(floors[0] / floors[1], 2, delta=0.2)

    def test_a_gpt2_with_a_head_of_its_own_is_planned_with_it(self):
        plans = []
        for head in ("0", "1"):
            outcome = self.plan("--model", f"gpt2:h=1024,l=4,v=50257,s=128,heads=16,head={head}",
                                "--config", self.nvme_config(), "--device-memory", "8GiB",
                                "--host-memory", "1GiB", "--drive", "2,2", "--device-tflops", "1",
                                "--json")
            self.assertEqual(outcome.code, 0, str(outcome))
            plans.append(json.loads(outcome.stdout))
            self.assertEqual(plans[-1]["parameters"],
                             sum(plans[-1]["parameters_by_kind"].values()))
        self.assertEqual(plans[1]["parameters"] - plans[0]["parameters"], 1024 * 50257)

    def test_each_mistake_has_its_one_line(self):
        config, model = self.nvme_config(), self.make_model()
        for fragment, arguments in (
                ("--config is required", ("--model", model)),
                ("--drive: \"7;5\"", ("--model", model, "--config", config, "--drive", "7;5")),
                ("--device-tflops: -1 is not in (0, 1000000000]",
                 ("--model", model, "--config", config, "--device-tflops=-1")),
                ("--nodes 2 does not divide --ranks 3",
                 ("--model", model, "--config", config, "--ranks", "3", "--nodes", "2")),
                ("gpt2", ("--model", "gtp2:h=1,l=1,v=1,s=1", "--config", config)),
                ("--link: 0 is not in", ("--model", model, "--config", config, "--link", "0")),
                ("--tokens needs a speed", ("--model", model, "--tokens", "1e9")),
                ("--tokens: 1e99 is not in",
                 ("--model", model, "--config", config, "--tokens", "1e99")),
                ("no rating of a drive", ("--model", model, "--config", config,
                                          "--drive-rating", "600")),
                ("--drive has no effect on a plan by --as", ("--model", model, "--as", "deepspeed",
                                                             "--drive", "1")),
                ("--tensor-parallel: \"\" is not a whole number",
                 ("--model", model, "--tensor-parallel", "1,,2"))):
            outcome = self.plan(*arguments)
            self.assert_fails(outcome, 2, fragment)


if __name__ == "__main__":
    harness.main()
