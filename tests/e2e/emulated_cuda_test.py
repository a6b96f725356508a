"""The CUDA side of the program on an emulated GPU (tests/emulated_cuda): losses as on the CPU device,
and placement that changes nothing. Models and runs are small, as each of a kernel's threads is a
fiber.
"""
import os
import subprocess

import harness
import placement_test
import ranks_harness
import recorded_test
from harness import make_config


class EmulatedPlacementTest(placement_test.PlacementCase):
    placements = {name: placement_test.PLACEMENTS[name] for name in (
        "host", "all on nvme", "checkpoints on the host", "overlap off")}

    attention = "auto"

    def trained(self, config, *more, **keywords):
        config["penstock"]["attention"] = self.attention
        model = self.make_model("small", n_layer=2, n_positions=16)
        return super().trained(config, *more, steps=4, model=model, **keywords)

    def test_bf16_clipped(self):
        self.compare(dtype="bf16", clip=1.0, micro_batches=1)

    def test_bf16_without_clipping_with_2_micro_batches(self):
        self.compare(dtype="bf16", clip=0.0, micro_batches=2)

    def test_fp32_clipped(self):
        self.compare(dtype="fp32", clip=1.0, micro_batches=1)

    def test_bf16_with_attention_by_cudnn(self):
        self.attention = "cudnn"
        self.compare(dtype="bf16", clip=0.0, micro_batches=2)

    def test_the_run_names_who_computes_attention_and_the_cpu_device_refuses_cudnn(self):
        config = make_config("bf16", penstock={"attention": "cudnn"})
        model = self.make_model("small", n_layer=2, n_positions=16)
        outcome, _ = self.train(config, steps=1, model=model)
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assertIn("attention by emulated cuDNN", outcome.stderr)
        outcome, _ = self.train(config, "--device", "cpu", steps=1, model=model)
        self.assertEqual(outcome.code, 2, str(outcome))
        self.assertIn("attention by cuDNN is for the CUDA device", outcome.stderr)


class EmulatedLossesTest(recorded_test.RecordedCase):
    def test_steps_in_fp32_have_the_losses_that_were_recorded_on_the_cpu(self):
        self.assert_recorded(3)


class EmulatedThreadsTest(harness.PenstockTest):
    def test_all_cores_of_a_gpus_host_update_but_one_and_that_of_the_io_threads(self):
        for machine, home, threads in (
            ("pack:1 core:16 pu:1", "nvme", 14),
            ("pack:2 core:16 pu:1", "nvme", 30),
            ("pack:1 core:8 pu:2", "cpu", 7),
            ("node:2 core:32 pu:1", "cpu", 63),
        ):
            environment = {**os.environ, "HWLOC_SYNTHETIC": machine, "HWLOC_THISSYSTEM": "0"}
            config = make_config("bf16", 1.0, 1, home, home, self.make_folder("nvme"))
            outcome, _ = self.train(config, steps=1, model=self.make_model("small", n_layer=1),
                                    env=environment, out=self.path(f"threads-{threads}"))
            self.assertEqual(outcome.code, 0, str(outcome))
            if "cgroups leave this process" in outcome.stderr:
                self.skipTest("a container's quota limits the threads")
            self.assertIn(f"threads: {threads} optimizer on CPUs", outcome.stderr)


class EmulatedRanksTest(harness.PenstockTest):
    def together(self, run, config, *more):
        """Two ranks on a GPU each: [(exit code, stderr)]."""
        port = str(ranks_harness.free_port())
        programs = []
        for rank in ("0", "1"):
            environment = {**os.environ, "RANK": rank, "WORLD_SIZE": "2", "MASTER_PORT": port,
                           "MASTER_ADDR": "127.0.0.1"}
            arguments = ["train", "--model", self.model, "--data", self.make_data(), "--config",
                         self.write("config.json", config), "--out", run, "--steps", "3",
                         "--device", "cuda", *more]
            programs.append(self.running(*arguments, env=environment, stderr=subprocess.PIPE))
        ended = [(program.communicate(timeout=harness.TIMEOUT_S)[1], program) for program in programs]
        return [(program.returncode, stderr) for stderr, program in ended]

    def test_what_nccl_holds_counts_as_device_memory_and_two_ranks_have_the_numbers_of_one(self):
        self.model = self.make_model("small", n_layer=2, n_positions=16)
        config = make_config("bf16", 1.0, 1, "nvme", "nvme", self.make_folder("nvme"),
                             communication_data_type="bf16")
        del config["gradient_accumulation_steps"]
        config["train_batch_size"] = 8
        one = self.trained(config, steps=3, model=self.model)
        for code, stderr in self.together(self.path("small-memory"), config, "--device-memory", "36MiB"):
            self.assertEqual(code, 2, stderr)
            self.assertEqual("+ NCCL 6.00 MiB = " in stderr, "penstock: error" in stderr, stderr)
        run = self.path("two")
        for code, stderr in self.together(run, config, "--device-memory", "48MiB"):
            self.assertEqual(code, 0, stderr)
        self.assertEqual(self.numbers(run), self.numbers(one))
        peak = harness.read_summary(run)["device_peak_bytes"]
        self.assertGreater(peak, 38 << 20)  # a rank needs 33 MiB and what NCCL holds
        self.assertLessEqual(peak, 48 << 20)


if __name__ == "__main__":
    harness.main()
