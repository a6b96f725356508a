"""What a drive can do to a state file: a bit that flips anywhere in it is noticed, or lies where no
commit looks; and of a write that is torn at any sector, the commit before it is left whole.
"""
import os
import random
import re
import shutil
import struct

import harness
from harness import make_config

FLIPS = 60
SECTOR = 512


class State:
    """A reader of the first file of a state, from nothing but docs/state_format.md."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self.bytes = file.read()
        self.tile_count = self.u64(80)
        self.descriptors = self.u64(104)
        self.commits = [self.u64(120), self.u64(128)]
        self.weights = [self.u64(144), self.u64(152)]
        self.records = [self.u64(160), self.u64(168)]

    def u64(self, offset):
        return struct.unpack_from("<Q", self.bytes, offset)[0]

    def newest(self):
        """The offset of the newest commit; both places hold one after two commits."""
        return max(self.commits, key=lambda place: self.u64(place + 8))

    def parts(self, tile, slot):
        """(begin, end) of a tile's weight and record in a slot."""
        descriptor = self.descriptors + 64 * tile
        elements = self.u64(descriptor + 16)
        weight = self.weights[slot] + self.u64(descriptor + 40)
        record = self.records[slot] + self.u64(descriptor + 48)
        return (weight, weight + 2 * elements), (record, record + 10 * elements)

    def slot(self, tile):
        return struct.unpack_from("<I", self.bytes, self.newest() + 96 + 32 * tile + 24)[0]

    def named(self):
        """(begin, end) of all but guards and the slots that the newest commit does not name."""
        yield 0, self.commits[0]
        for place in self.commits:
            yield place, place + self.u64(136)
        yield self.u64(192), len(self.bytes)  # the second head
        for tile in range(self.tile_count):
            yield from self.parts(tile, self.slot(tile))


class StateTest(harness.PenstockTest):
    def setUp(self):
        super().setUp()
        self.conf = make_config(dtype="bf16", param="nvme", optimizer="nvme",
                                nvme_path=self.make_folder("nvme"),
                                penstock={"tile_elements": 8192, "commit_every_steps": 1})
        self.run_folder = self.trained(self.conf, steps=4)
        self.file, = harness.state_paths(self.run_folder)
        self.state = State(self.file)


class FlippedBitTest(StateTest):
    def inspect_with_flip(self, offset):
        with open(self.file, "r+b") as file:
            file.seek(offset)
            file.write(bytes([self.state.bytes[offset] ^ 4]))
        outcome = harness.penstock("inspect", self.run_folder)
        with open(self.file, "r+b") as file:
            file.seek(offset)
            file.write(self.state.bytes[offset:offset + 1])
        return outcome

    def test_in_what_the_commit_names_it_is_noticed_and_elsewhere_it_is_none(self):
        named = list(self.state.named())
        choose = random.Random(1)
        for _ in range(FLIPS):
            # Half of them in the head and the commits, which are small beside the tiles.
            end = choose.choice([self.state.weights[0], len(self.state.bytes)])
            offset = choose.randrange(end)
            with self.subTest(offset=offset):
                outcome = self.inspect_with_flip(offset)
                if any(begin <= offset < end for begin, end in named):
                    self.assertEqual(outcome.code, 3, str(outcome))
                    self.assertEqual(len(outcome.errors), 1, str(outcome))
                    self.assertIn(self.file, outcome.errors[0])
                    self.assertRegex(outcome.errors[0], r"at offset \d+")
                else:
                    self.assertEqual(outcome.code, 0, str(outcome))
        self.assertEqual(harness.penstock("inspect", self.run_folder).code, 0)

    def test_all_damage_is_named_not_only_the_first(self):
        tiles = list(self.state.named())[4:]
        with open(self.file, "r+b") as file:
            for begin, _ in (tiles[0], tiles[5], tiles[-1]):
                file.seek(begin)
                file.write(bytes([self.state.bytes[begin] ^ 1]))
        outcome = harness.penstock("inspect", self.run_folder)
        self.assertEqual(outcome.code, 3)
        self.assertEqual(outcome.stdout.count("\ndamaged "), 3, outcome.stdout)
        self.assertIn("damaged parts of its state: 3;", outcome.errors[0])


class ListedFilesTest(StateTest):
    def test_a_state_without_a_commit_is_listed_with_its_error(self):
        for place in self.state.commits:
            with open(self.file, "r+b") as file:
                file.seek(place)
                file.write(bytes(4096))
        outcome = harness.penstock("inspect", self.run_folder)
        self.assertEqual(outcome.code, 3, str(outcome))
        self.assertEqual(len(outcome.errors), 1, str(outcome))
        self.assertRegex(outcome.stdout, rf"state file +{re.escape(self.file)} \([0-9.]+ MiB\)\n")

    def test_a_first_commit_that_run_json_does_not_name_yet_counts(self):
        run = self.trained(make_config(), steps=2)
        info = harness.read_info(run)
        self.write(f"{os.path.basename(run)}/run.json",
                   {**info, "state": None, "leftovers": [info["state"]]})
        outcome = harness.penstock("inspect", run)
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assertIn("committed step    2", outcome.stdout)
        self.assertNotIn("left over", outcome.stdout)

    def test_a_file_that_is_not_there_is_listed_as_such(self):
        os.remove(self.file)
        outcome = harness.penstock("inspect", self.run_folder)
        self.assertEqual(outcome.code, 3, str(outcome))
        self.assertRegex(outcome.stdout, rf"state file +{re.escape(self.file)} \(not there\)\n")

    def test_the_states_of_other_runs_on_the_same_path_are_listed(self):
        other, = harness.state_paths(self.trained(self.conf, steps=1))
        outcome = harness.penstock("inspect", self.run_folder)
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assertRegex(outcome.stdout, rf"beside it +{re.escape(other)} \([^)]+; another run's\)\n")


    def listed(self, folder):
        """{path: (name of the line, what it says behind the size)}"""
        outcome = harness.penstock("inspect", folder)
        self.assertEqual(outcome.code, 0, str(outcome))
        lines = re.findall(r"^(\S+ \S+|\S+) +(/\S+\.state(?:\.tmp)?) \(([^)]+)\)$", outcome.stdout,
                           re.MULTILINE)
        self.assertEqual(len({path for _, path, _ in lines}), len(lines), "each once")
        return {path: (name, note) for name, path, note in lines}

    def test_after_a_move_snapshots_are_listed_as_the_runs(self):
        self.assertEqual(harness.penstock("snapshot", self.run_folder, "kept").code, 0)
        snapshot = os.path.join(self.run_folder, "snapshots", "kept")
        copy, = harness.state_paths(snapshot)
        moved = harness.merge(self.conf, {"penstock": {"tile_elements": 4096}})
        outcome, _ = self.train(moved, "--resume", steps=5, out=self.run_folder)
        self.assertEqual(outcome.code, 0, str(outcome))
        own, = harness.state_paths(self.run_folder)
        listed = self.listed(self.run_folder)
        self.assertEqual(set(listed), {own, copy})
        self.assertEqual(listed[copy][0], "snapshot")
        self.assertIn("kept as kept", listed[copy][1])
        listed = self.listed(snapshot)
        self.assertEqual(listed[copy][0], "state file")
        self.assertIn("whose snapshot this is", listed[own][1])

    def test_an_unfinished_copy_is_listed_and_an_unnamed_one_is_told_apart(self):
        self.assertEqual(harness.penstock("snapshot", self.run_folder, "kept").code, 0)
        snapshot = os.path.join(self.run_folder, "snapshots", "kept")
        copy, = harness.state_paths(snapshot)
        os.rename(copy, copy + ".tmp")
        os.rename(snapshot, os.path.join(self.run_folder, "snapshots", ".kept.unfinished"))
        self.assertEqual(self.listed(self.run_folder)[copy + ".tmp"][0], "left over")
        shutil.rmtree(os.path.join(self.run_folder, "snapshots"))
        name, note = self.listed(self.run_folder)[copy + ".tmp"]
        self.assertEqual(name, "beside it")
        self.assertIn("of this run, but", note)


class TornWriteTest(StateTest):
    def setUp(self):
        super().setUp()
        self.before = self.export(self.run_folder)[0]
        outcome, _ = self.train(self.conf, "--resume", steps=5, out=self.run_folder)
        self.assertEqual(outcome.code, 0, str(outcome))
        self.later = State(self.file)
        self.after = self.export(self.run_folder)[0]
        self.assertNotEqual(self.before, self.after)

    def put(self, content):
        with open(self.file, "r+b") as file:
            file.write(content)

    def test_at_every_sector_of_a_commit_record_a_whole_commit_is_left(self):
        place = self.later.newest()
        size = self.later.u64(place + 32)
        sectors = -(-size // SECTOR)
        self.assertGreater(sectors, 2)
        for torn in range(sectors + 1):
            # All that the commit names is durable before the record is begun.
            end = place + torn * SECTOR
            image = bytearray(self.later.bytes)
            image[end:place + sectors * SECTOR] = self.state.bytes[end:place + sectors * SECTOR]
            with self.subTest(sectors=torn):
                self.put(image)
                whole = torn == sectors
                outcome = harness.penstock("inspect", self.run_folder)
                self.assertRegex(outcome.stdout, rf"committed step +{5 if whole else 4}\n")
                if torn in (0, sectors):
                    self.assertEqual(outcome.code, 0, str(outcome))
                else:
                    self.assertEqual(outcome.code, 3, str(outcome))
                    self.assertEqual(outcome.stdout.count("\ndamaged "), 1, outcome.stdout)
                    self.assertRegex(outcome.errors[0],
                                     rf"{re.escape(self.file)}: the commit place at offset {place} "
                                     r"does not hold .*; the commit of step 4 in the other place "
                                     r"holds, and --resume starts from it$")
                tensors = self.export(self.run_folder)[0]
                self.assertEqual(tensors, self.after if whole else self.before)

    def test_at_every_sector_of_a_tile_the_commit_is_whole(self):
        for part in range(2):
            begin, end = self.later.parts(1, self.later.slot(1))[part]
            for torn in range(begin, end + 1, SECTOR):
                image = bytearray(self.state.bytes)
                image[begin:torn] = self.later.bytes[begin:torn]
                with self.subTest(part=part, bytes=torn - begin):
                    self.put(image)
                    outcome = harness.penstock("inspect", self.run_folder)
                    self.assertEqual(outcome.code, 0, str(outcome))
                    self.assertRegex(outcome.stdout, r"committed step +4\n")
        self.put(self.state.bytes)
        outcome, _ = self.train(self.conf, "--resume", steps=5, out=self.run_folder)
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assertEqual(self.export(self.run_folder)[0], self.after)


if __name__ == "__main__":
    harness.main()
