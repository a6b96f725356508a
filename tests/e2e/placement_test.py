"""Placement changes nothing: every home, budget, engine and thread count gives the same bits."""
import os
import re

import harness
from harness import make_config, merge, read_rows, read_summary


def nvme(param="nvme", optimizer="nvme", **penstock_keys):
    return {"param": param, "optimizer": optimizer, "penstock": penstock_keys}


# Homes and config keys by name, as make_config takes them; and over how many folders, if several.
PLACEMENTS = {
    "host": {"param": "cpu", "optimizer": "cpu"},
    "optimizer on nvme": nvme(param="cpu"),
    "all on nvme": nvme(),
    "io_uring": nvme(aio={"engine": "io_uring"}),
    "threads": nvme(aio={"engine": "threads"}),
    "queue depth 1": {**nvme(), "aio": {"queue_depth": 1, "block_size": 4096}},
    "queue depth 32": {**nvme(), "aio": {"queue_depth": 32, "block_size": 65536}},
    "2 optimizer threads": nvme(optimizer_threads=2),
    "host, 2 optimizer threads": {"param": "cpu", "optimizer": "cpu",
                                  "penstock": {"optimizer_threads": 2}},
    "tiles of 4096": nvme(tile_elements=4096),
    "tiles of 20480": nvme(tile_elements=20480),
    "on nvme, all of it fits in memory": nvme(tier_split=True),
    "checkpoints on the host": nvme(activation_home="host"),
    "two folders": {**nvme(), "drives": 2},
    "overlap off": nvme(overlap=False),
    "host, overlap off": {"param": "cpu", "optimizer": "cpu", "penstock": {"overlap": False}},
}


class PlacementCase(harness.PenstockTest):
    """A training in memory, and the same one in each placement."""
    placements = PLACEMENTS

    def config(self, numerics, placement):
        keys = dict(placement)
        folders = [self.make_folder(f"nvme{i}") for i in range(keys.pop("drives", 1))]
        path = folders if len(folders) > 1 else folders[0]
        return make_config(**numerics, nvme_path=path, **keys)

    def assert_same(self, expected, run, name):
        rows, tensors = self.numbers(run)
        for row, expected_row in zip(rows, expected[0], strict=True):
            self.assertEqual(row, expected_row, name)
        self.assertEqual(tensors.keys(), expected[1].keys(), name)
        for tensor, content in tensors.items():
            self.assertTrue(content == expected[1][tensor], f"{name}: {tensor} differs")

    def assert_did(self, placement, run, name):
        """The run used what the placement asks for."""
        summary = read_summary(run)
        keys = placement.get("penstock", {})
        on_nvme = placement["optimizer"] == "nvme" and not keys.get("tier_split", False)
        self.assertEqual(summary["nvme_read_bytes"] > 0, on_nvme, name)
        self.assertEqual(summary["nvme_write_bytes"] > 0, on_nvme, name)
        self.assertGreater(summary["nvme_commit_bytes"], 0, name)
        engine = keys.get("aio", {}).get("engine")
        if engine is not None:
            self.assertEqual(summary["aio_engine"], engine, name)
        self.assertEqual(len(harness.state_paths(run)), placement.get("drives", 1), name)
        self.assertGreater(summary["optimizer_s"], 0, name)
        overlap = keys.get("overlap", True)
        self.assertEqual(summary["config"]["penstock"]["overlap"], overlap, name)
        if not overlap:
            self.assertEqual(summary["update_overlap_s"], 0, name)

    def tries(self, _number, **_numerics):
        """Whether these numerics are tried with the placement of that number."""
        return True

    def compare(self, **numerics):
        in_memory = {"param": "none", "optimizer": "none"}
        reference = self.trained(self.config(numerics, in_memory))
        summary = read_summary(reference)
        self.assertEqual(summary["nvme_read_bytes"] + summary["nvme_write_bytes"], 0)
        expected = self.numbers(reference)
        losses = [row[1] for row in expected[0]]
        self.assertLess(losses[-1], losses[0], "the model must learn, or the test shows little")
        for number, (name, placement) in enumerate(self.placements.items()):
            if not self.tries(number, **numerics):
                continue
            missing = harness.missing_engine(placement.get("penstock", {}).get("aio", {}).get("engine"))
            with self.subTest(placement=name, **numerics):
                if missing is not None:
                    self.skipTest(missing)
                run = self.trained(self.config(numerics, placement))
                self.assert_same(expected, run, name)
                self.assert_did(placement, run, name)
        return expected


class PlacementTest(PlacementCase):
    def tries(self, number, dtype, clip, micro_batches):
        """Two of the eight numerics for each placement, which differ in everything.

        So every pair of a placement and a value is tried. All are with PENSTOCK_LONG_TESTS=1.
        """
        if os.environ.get("PENSTOCK_LONG_TESTS") == "1":
            return True
        values = [dtype == "bf16", clip > 0, micro_batches > 1]
        pair = [value == values[0] for value in values[1:]]
        return number % 4 == 2 * pair[0] + pair[1]

    def compare(self, **numerics):
        expected = super().compare(**numerics)
        if self.tries(len(self.placements), **numerics):
            with self.subTest(placement="smallest memory", **numerics):
                self.compare_smallest(expected, numerics)

    def compare_smallest(self, expected, numerics):
        placement = nvme(tile_elements=16384)
        config = self.config(numerics, placement)
        device = self.smallest("device-memory", config)
        host = self.smallest("host-memory", config)
        run = self.trained(config, "--device-memory", str(device), "--host-memory", str(host))
        self.assert_same(expected, run, "smallest memory")
        self.assert_did(placement, run, "smallest memory")
        summary = read_summary(run)
        self.assertEqual(summary["device_memory_bytes"], device)
        self.assertEqual(summary["host_memory_bytes"], host)
        self.assertLessEqual(summary["device_peak_bytes"], device)
        self.assertLessEqual(summary["host_peak_bytes"], host)
        self.assertGreater(summary["evictions"], 0)

    def test_a_run_says_where_it_placed_its_io(self):
        outcome, _ = self.train(self.config({}, nvme()), steps=1)
        self.assertEqual(outcome.code, 0, str(outcome))
        lines = re.findall(r"(?m)^penstock: (?:one NUMA node|\d+ NUMA nodes): .*$", outcome.stderr)
        self.assertEqual(len(lines), 1, str(outcome))

    def test_eight_micro_batches_move_no_more_bytes_than_one(self):
        # The smallest memory: nothing stays that a step needs twice.
        moved = []
        for micro_batches in (1, 8):
            config = self.config({"micro_batches": micro_batches}, nvme(tile_elements=16384))
            host = str(self.smallest("host-memory", config))
            summary = read_summary(self.trained(config, "--host-memory", host))
            moved.append((summary["nvme_read_bytes"], summary["nvme_write_bytes"]))
        (read_1, written_1), (read_8, written_8) = moved
        self.assertGreater(read_1, 0)
        self.assertEqual(written_8, written_1)
        # What is still in host memory when it is needed again depends on the moment.
        self.assertLessEqual(read_8, 1.05 * read_1)

    def test_updates_run_under_the_next_forward_and_change_nothing(self):
        # Layers that compute for milliseconds, and memory for a few tiles: the later layers' states are
        # read and updated while the first ones compute.
        model = self.make_model("larger", n_layer=4, n_embd=256, n_head=4, n_positions=128)
        config = self.config({"dtype": "bf16"}, nvme(tile_elements=65536))
        host = ("--host-memory", str(self.smallest("host-memory", config, model=model)))

        def rows(run):
            return [(row["loss"], row["grad_norm"]) for row in read_rows(run)]

        serial = self.trained(merge(config, {"penstock": {"overlap": False}}), *host, model=model,
                              steps=12)
        self.assertEqual(read_summary(serial)["update_overlap_s"], 0)
        # On a machine that gives its cores to others, one run may not show it.
        for _ in range(5):
            run = self.trained(config, *host, model=model, steps=12)
            self.assertEqual(rows(run), rows(serial))
            if read_summary(run)["update_overlap_s"] > 0:
                return
        self.fail("no update ran under the next forward in five runs")

    def test_fp32_clipped(self):
        self.compare(dtype="fp32", clip=1.0, micro_batches=1)

    def test_fp32_clipped_with_3_micro_batches(self):
        self.compare(dtype="fp32", clip=0.5, micro_batches=3)

    def test_fp32_without_clipping(self):
        self.compare(dtype="fp32", clip=0.0, micro_batches=1)

    def test_fp32_without_clipping_with_3_micro_batches(self):
        self.compare(dtype="fp32", clip=0.0, micro_batches=3)

    def test_bf16_clipped(self):
        self.compare(dtype="bf16", clip=1.0, micro_batches=1)

    def test_bf16_clipped_with_3_micro_batches(self):
        self.compare(dtype="bf16", clip=0.5, micro_batches=3)

    def test_bf16_without_clipping(self):
        self.compare(dtype="bf16", clip=0.0, micro_batches=1)

    def test_bf16_without_clipping_with_3_micro_batches(self):
        self.compare(dtype="bf16", clip=0.0, micro_batches=3)


if __name__ == "__main__":
    harness.main()
