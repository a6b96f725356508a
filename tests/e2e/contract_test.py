"""What scripts rely on: metrics.jsonl, summary.json, epochs, exports, repeated configs."""
import json
import os
import struct

import harness
from harness import make_config, read_rows, read_summary

ROW = ["step", "loss", "grad_norm", "lr", "loss_scale", "skipped", "tokens", "step_s",
       "tokens_per_s", "tflops", "compute_s", "io_wait_s", "optimizer_s", "device_peak_bytes",
       "host_peak_bytes", "nvme_read_bytes", "nvme_write_bytes", "hardware_tflops"]
SUMMARY = ["parameters", "model_state_bytes", "device_memory_bytes", "host_memory_bytes",
           "device_peak_bytes", "host_peak_bytes", "tokens", "step_s", "compute_s", "io_wait_s",
           "optimizer_s", "nvme_read_bytes", "nvme_write_bytes", "nvme_init_bytes",
           "nvme_commit_bytes", "nvme_verify_bytes", "evictions", "update_overlap_s", "aio_engine",
           "device", "seed",
           "parameter_groups", "config"]


def parameters():
    """Of harness.MODEL."""
    c, layers = harness.MODEL["n_embd"], harness.MODEL["n_layer"]
    return (256 + 64) * c + layers * (12 * c * c + 13 * c) + 2 * c


class ContractTest(harness.PenstockTest):
    def setUp(self):
        super().setUp()
        self.config = make_config(dtype="bf16", micro_batches=2, param="nvme", optimizer="nvme",
                                  nvme_path=self.make_folder("nvme"))

    def test_rows_and_summary(self):
        run = self.trained(self.config, "--seed", "5", "--host-memory", "64MiB", steps=4)
        rows, summary = read_rows(run), read_summary(run)
        for row in rows:
            self.assertEqual(list(row), ROW)
            self.assertEqual(row["tokens"], 2 * 2 * 64)
            flops = row["tokens"] * (6 * parameters() + 12 * 3 * 64 * 64)
            self.assertAlmostEqual(row["tflops"] * row["step_s"] * 1e12 / flops, 1, places=9)
            layers = 6 * 3 * (12 * 64 * 64 + 13 * 64) + 12 * 3 * 64 * 64
            flops += row["tokens"] * layers / 3
            self.assertAlmostEqual(row["hardware_tflops"] * row["step_s"] * 1e12 / flops, 1,
                                   places=9)
        self.assertEqual([row["step"] for row in rows], [1, 2, 3, 4])
        self.assertEqual([key for key in SUMMARY if key not in summary], [])
        self.assertEqual(summary["parameters"], parameters())
        self.assertEqual(summary["model_state_bytes"], 16 * parameters())
        self.assertEqual(summary["seed"], 5)
        self.assertEqual(summary["host_memory_bytes"], 64 << 20)
        for key in ("tokens", "nvme_read_bytes", "nvme_write_bytes"):
            self.assertEqual(summary[key], sum(row[key] for row in rows), key)
        self.assertAlmostEqual(summary["step_s"], sum(row["step_s"] for row in rows), places=3)

    def test_waiting_for_a_slow_drive_is_measured(self):
        slow = harness.merge(self.config, {"penstock": {"aio": {"simulate": {
            "read_gbps": 0.02, "write_gbps": 0.02}}}})
        run = self.trained(slow, "--host-memory", str(self.smallest("host-memory", slow)), steps=4)
        for row in read_rows(run)[1:]:
            self.assertGreater(row["io_wait_s"], 0)
        summary = read_summary(run)
        self.assertEqual(summary["aio_engine"], "simulated")
        self.assertAlmostEqual(summary["io_wait_s"],
                               sum(row["io_wait_s"] for row in read_rows(run)), places=6)

    def test_parameter_groups_follow_the_kind_of_tensor(self):
        groups = read_summary(self.trained(self.config, steps=1))["parameter_groups"]
        decay, rest = (group["tensors"] for group in groups)
        self.assertEqual([group["weight_decay"] for group in groups], [0.01, 0.0])
        self.assertEqual(len(decay), 2 + 4 * 3)
        self.assertEqual(len(rest), 2 + 8 * 3)
        self.assertTrue(all(".ln_" not in name and name.endswith("weight") for name in decay))
        self.assertTrue(all(".bias" in name or "ln_" in name for name in rest))

    def test_steps_zero_commits_the_initial_weights(self):
        run = self.trained(self.config, steps=0)
        self.assertEqual(read_rows(run), [])
        tensors, folder = self.export(run)
        again, _ = self.export(self.trained(self.config, steps=0, model=folder))
        self.assertEqual(tensors, again, "loading an export must give the same weights")
        other, _ = self.export(self.trained(self.config, "--seed", "8", steps=0))
        self.assertNotEqual(tensors, other)

    def test_without_steps_one_epoch_is_trained(self):
        data = self.write("epoch.txt", harness.text_bytes(64 * 11 + 1))
        run = self.trained(self.config, steps=None, data=data)
        self.assertEqual(len(read_rows(run)), 11 // 4)

    def test_later_configs_override_earlier_ones(self):
        later = self.write("later.json", {"optimizer": {"params": {"lr": 0.25}}})
        run = self.trained(self.config, "--config", later, steps=1)
        self.assertEqual(read_rows(run)[0]["lr"], 0.25)

    def test_text_and_the_same_tokens_as_integers_train_alike(self):
        text = harness.text_bytes(5000)
        losses = []
        for name, content in (("a.txt", text), ("a.bin", struct.pack(f"<{len(text)}H", *text)),
                              ("a.u32", struct.pack(f"<{len(text)}I", *text))):
            run = self.trained(self.config, steps=3, data=self.write(name, content))
            losses.append([row["loss"] for row in read_rows(run)])
        self.assertEqual(losses[0], losses[1])
        self.assertEqual(losses[0], losses[2])

    def test_data_order_and_sequence_length_change_what_is_read(self):
        losses = {}
        for name, more in {"shuffle": [], "sequential": ["--data-order", "sequential"],
                           "short": ["--sequence-length", "32"]}.items():
            rows = read_rows(self.trained(self.config, *more, steps=2))
            losses[name] = rows[0]["loss"]
            self.assertEqual(rows[0]["tokens"], 128 if name == "short" else 256)
        self.assertEqual(len(set(losses.values())), 3)

    def test_commits_leave_the_rows_alone_and_are_counted(self):
        often = harness.merge(self.config, {"penstock": {"commit_every_steps": 1}})
        once, each = self.trained(self.config, steps=4), self.trained(often, steps=4)
        self.assertEqual([row["loss"] for row in read_rows(once)],
                         [row["loss"] for row in read_rows(each)])
        self.assertEqual(self.export(once)[0], self.export(each)[0])
        self.assertGreater(read_summary(each)["nvme_commit_bytes"],
                           read_summary(once)["nvme_commit_bytes"])

    def test_exports_of_every_dtype_hold_the_whole_model(self):
        run = self.trained(self.config, steps=2)
        for dtype, size in (("fp32", 4), ("bf16", 2), ("fp16", 2)):
            tensors, folder = self.export(run, "--dtype", dtype)
            self.assertEqual(sum(len(data) for _, _, data in tensors.values()),
                             size * parameters())
            with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
                self.assertEqual(json.load(file)["n_embd"], 64)
        fp32, bf16 = self.export(run)[0], self.export(run, "--dtype", "bf16")[0]
        for name, (_, _, data) in bf16.items():
            for high, (word,) in zip(struct.iter_unpack("<H", data),
                                     struct.iter_unpack("<I", fp32[name][2]), strict=True):
                # bf16 exports are the weights that the run computes with: nearest, ties away.
                self.assertEqual(high[0], (word + 0x8000) >> 16 & 0xffff, name)

    def test_a_run_in_host_memory_keeps_its_state_in_its_folder_and_can_be_moved(self):
        run = self.trained(make_config(param="cpu", optimizer="cpu"), steps=2)
        self.assertEqual(os.path.dirname(harness.state_path(run)), run)
        before, _ = self.export(run)
        os.rename(run, self.path("moved"))
        self.assertEqual(before, self.export(self.path("moved"))[0])


if __name__ == "__main__":
    harness.main()
