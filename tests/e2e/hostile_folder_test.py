"""A user's folder is hostile ground: links, special files, other runs and names lead no command astray.

Each class of what may lie in RUN is put in every place, for every command that looks there: nothing
outside RUN changes, nothing that is not the run's is removed, and the command ends, with one line.
"""
import errno
import json
import os
import shutil
import signal
import subprocess
import time

import harness
from harness import make_config

OWN_SUFFIXES = (".unfinished", ".request", ".answer", ".failed", ".tmp-1")


class HostileFolderTest(harness.PenstockTest):
    def setUp(self):
        super().setUp()
        self.nvme = self.make_folder("nvme")
        self.conf = make_config(dtype="bf16", param="nvme", optimizer="nvme", nvme_path=self.nvme)
        self.run_folder = self.trained(self.conf, steps=2)

    def run_penstock(self, *arguments):
        """One that hangs fails the test early."""
        try:
            done = subprocess.run([harness.PROGRAM, *arguments], capture_output=True, text=True,
                                  timeout=40, check=False)
        except subprocess.TimeoutExpired:
            self.fail(f"penstock {' '.join(arguments)} does not end")
        return harness.Outcome(arguments, done.returncode, done.stdout, done.stderr)

    def train_arguments(self, *more, run=None, steps=4):
        self.runs += 1
        return ["train", "--model", self.make_model(), "--data", self.make_data(), "--config",
                self.write(f"config{self.runs}.json", self.conf), "--out", run or self.run_folder,
                "--steps", str(steps), *more]

    def commands(self, run=None):
        """Every command that takes a RUN, by name."""
        run = run or self.run_folder
        return {
            "resume": self.train_arguments("--resume", run=run),
            "resume-from": self.train_arguments("--resume-from", "kept", run=run),
            "export": ["export", run, "--to", self.path("exported")],
            "inspect": ["inspect", run],
            "snapshot": ["snapshot", run, "another"],
            "snapshots": ["snapshots", run],
            "compare": ["compare", run, run],
            "clean": ["clean", run, "--yes"],
        }

    def in_run(self, *names):
        return os.path.join(self.run_folder, *names)

    def snapshot(self, name="kept", run=None):
        outcome = harness.penstock("snapshot", run or self.run_folder, name)
        self.assertEqual(outcome.code, 0, str(outcome))
        return os.path.join(run or self.run_folder, "snapshots", name)

    def contents(self, folder):
        """{path: text} of all files below a folder; links are not followed."""
        found = {}
        for root, folders, files in os.walk(folder):
            for name in folders + files:
                path = os.path.join(root, name)
                if os.path.islink(path) or os.path.isdir(path):
                    found[path] = None
                elif os.path.isfile(path):
                    with open(path, "rb") as file:
                        found[path] = file.read()
        return found

    def assert_one_line(self, outcome, *codes):
        self.assertIn(outcome.code, codes, str(outcome))
        self.assertEqual(len(outcome.errors), 0 if outcome.code in (0, 1) else 1, str(outcome))
        self.assertEqual(outcome.stray, [], str(outcome))


class LinkTest(HostileFolderTest):
    def test_no_command_writes_through_or_removes_what_a_link_leads_to(self):
        self.snapshot()
        for name in ("run.json", "metrics.jsonl", "summary.json", "snapshots", "snapshots/kept",
                     "snapshots/kept/run.json", "snapshots/kept/metrics.jsonl"):
            outside = os.path.join(self.make_folder("outside"), os.path.basename(name))
            shutil.move(self.in_run(name), outside)
            os.symlink(outside, self.in_run(name))
            before = self.contents(self.path("outside"))
            for command, arguments in self.commands().items():
                # A run without the linked part may be cleaned, which ends this place.
                if command == "clean" and name != "run.json":
                    continue
                with self.subTest(name=name, command=command):
                    outcome = self.run_penstock(*arguments)
                    self.assert_one_line(outcome, 0, 1, 2, 3)
                    if name == "run.json":
                        self.assert_one_line(outcome, 3)
                        self.assertIn("symbolic link", outcome.errors[0])
                    self.assertEqual(self.contents(self.path("outside")), before)
            shutil.rmtree(self.path("exported"), ignore_errors=True)
            shutil.rmtree(self.in_run("snapshots", "another"), ignore_errors=True)
            for state in os.listdir(self.nvme):
                if ".snapshot-another." in state:
                    os.unlink(os.path.join(self.nvme, state))
            if os.path.islink(self.in_run(name)):
                os.unlink(self.in_run(name))
                shutil.move(outside, self.in_run(name))
            shutil.rmtree(self.path("outside"))

    def test_resume_does_not_cut_the_target_of_a_linked_file_of_rows(self):
        target = self.write("mine.txt", "not rows\n")
        os.unlink(self.in_run("metrics.jsonl"))
        os.symlink(target, self.in_run("metrics.jsonl"))
        self.assert_fails(self.run_penstock(*self.train_arguments("--resume")), 3, "metrics.jsonl",
                          "symbolic link")
        self.assertEqual(self.contents(self.folder)[target], b"not rows\n")

    def test_clean_leaves_links_and_names_them(self):
        target = self.write("mine.txt", "mine")
        os.unlink(self.in_run("summary.json"))
        os.symlink(target, self.in_run("summary.json"))
        outcome = self.run_penstock("clean", self.run_folder, "--yes")
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assertIn(self.in_run("summary.json"), outcome.stdout)
        self.assertEqual(os.listdir(self.run_folder), ["summary.json"])
        self.assertTrue(os.path.exists(target))

    def test_clean_of_a_state_that_is_a_link_removes_nothing(self):
        state = harness.state_path(self.run_folder)
        shutil.move(state, self.path("elsewhere"))
        os.symlink(self.path("elsewhere"), state)
        before = self.contents(self.folder)
        self.assert_fails(self.run_penstock("clean", self.run_folder, "--yes"), 3, state)
        self.assertEqual(self.contents(self.folder), before)

    def test_a_run_that_a_link_leads_to_can_be_used(self):
        os.symlink(self.run_folder, self.path("link"))
        for command, arguments in self.commands(self.path("link")).items():
            if command in ("resume-from",):
                continue
            with self.subTest(command=command):
                self.assert_one_line(self.run_penstock(*arguments), 0)
        self.assertFalse(os.path.exists(self.run_folder))


class SpecialFileTest(HostileFolderTest):
    def put(self, kind, path):
        if os.path.isdir(path):
            shutil.rmtree(path)
        elif os.path.lexists(path):
            os.unlink(path)
        if kind == "fifo":
            os.mkfifo(path)
        elif kind == "device":
            os.mknod(path, 0o600 | 0o020000, os.makedev(1, 5))  # /dev/zero
        else:
            os.mkdir(path)

    def kinds(self):
        """A device only where it may be made."""
        try:
            self.put("device", self.path("probe"))
        except PermissionError:
            return ("fifo", "folder")
        os.unlink(self.path("probe"))
        return ("fifo", "device", "folder")

    def test_no_command_waits_for_or_reads_one(self):
        self.snapshot()
        aside = self.path("aside")
        for kind in self.kinds():
            for name in ("run.json", "metrics.jsonl", "summary.json", "snapshots", "snapshots/kept",
                         "snapshots/kept/run.json", "snapshots/kept/metrics.jsonl", "state"):
                if kind == "folder" and name.endswith(("snapshots", "kept")):
                    continue
                path = self.in_run(name)
                if name == "state":
                    path = harness.state_path(self.run_folder)
                shutil.move(path, aside)
                self.put(kind, path)
                for command, arguments in self.commands().items():
                    if command == "clean":
                        arguments = arguments[:-1]
                    with self.subTest(kind=kind, name=name, command=command):
                        outcome = self.run_penstock(*arguments)
                        self.assert_one_line(outcome, 0, 1, 2, 3)
                        if name == "run.json" and command != "compare":
                            self.assertEqual(outcome.code, 3, str(outcome))
                    shutil.rmtree(self.path("exported"), ignore_errors=True)
                    another = self.in_run("snapshots/another")
                    if os.path.isdir(another):
                        subprocess.run([harness.PROGRAM, "clean", another, "--yes"], check=True,
                                       capture_output=True)
                self.put("folder", path)
                os.rmdir(path)
                shutil.move(aside, path)

    def test_in_a_model_or_among_the_data_it_is_refused(self):
        for name in ("config.json", "model.safetensors", "model.safetensors.index.json"):
            with self.subTest(name=name):
                model = self.make_model(f"model-{name}")
                self.put("fifo", os.path.join(model, name))
                outcome = self.run_penstock(
                    "train", "--model", model, "--config", self.write("c.json", self.conf),
                    "--data", self.make_data(), "--out", self.path("new"), "--steps", "1")
                self.assert_fails(outcome, 2, name)
                self.assert_one_line(self.run_penstock("compare", model, model), 2, 3)
        self.put("fifo", self.path("pipe"))
        for option in ("--data", "--model"):
            with self.subTest(option=option):
                arguments = {"--model": self.make_model(), "--data": self.make_data(),
                             "--config": self.write("c.json", self.conf)}
                arguments[option] = self.path("pipe")
                outcome = self.run_penstock(
                    "train", *[word for pair in arguments.items() for word in pair],
                    "--out", self.path("new"), "--steps", "1")
                self.assert_fails(outcome, 2, "pipe")

    def test_a_config_may_come_from_a_pipe_and_one_signal_ends_the_wait_for_it(self):
        self.put("fifo", self.path("pipe"))
        arguments = self.train_arguments(run=self.path("new"), steps=1)
        arguments[arguments.index("--config") + 1] = self.path("pipe")
        for number in (signal.SIGTERM, signal.SIGINT):
            program = subprocess.Popen([harness.PROGRAM, *arguments], stdout=subprocess.DEVNULL,
                                       stderr=subprocess.DEVNULL)
            self.addCleanup(program.kill)
            writer = self.open_for_a_reader(self.path("pipe"), program)
            program.send_signal(number)
            self.assertIn(program.wait(harness.TIMEOUT_S), (130, -number))
            os.close(writer)
        program = subprocess.Popen([harness.PROGRAM, *arguments], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        self.addCleanup(program.kill)
        with open(self.path("pipe"), "w", encoding="utf-8") as pipe:
            json.dump(self.conf, pipe)
        self.assertEqual(program.wait(harness.TIMEOUT_S), 0)
        for device in ("/dev/zero", "/dev/null"):
            arguments[arguments.index("--config") + 1] = device
            self.assert_fails(self.run_penstock(*arguments), 2, device, "device")

    def open_for_a_reader(self, pipe, program):
        """The writing end, once the program has the reading end."""
        deadline = time.monotonic() + harness.TIMEOUT_S
        while True:
            try:
                return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
            except OSError as error:
                self.assertEqual(error.errno, errno.ENXIO)
            self.assertIsNone(program.poll())
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)


class ForeignTest(HostileFolderTest):
    def setUp(self):
        super().setUp()
        self.other = self.trained(self.conf, steps=3)
        self.other_state = harness.state_path(self.other)

    def assert_other_is_whole(self, where):
        outcome = harness.penstock("inspect", where)
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assertTrue(os.path.exists(self.other_state))

    def test_another_run_below_the_snapshots_outlives_clean(self):
        self.snapshot()
        moved = self.in_run("snapshots", "other")
        shutil.move(self.other, moved)
        outcome = self.run_penstock("clean", self.run_folder, "--yes")
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assertIn(moved, outcome.stdout)
        self.assert_other_is_whole(moved)
        self.assertEqual(os.listdir(self.in_run("snapshots")), ["other"])
        self.assertEqual(os.listdir(self.nvme), [os.path.basename(self.other_state)])

    def test_another_run_that_linked_snapshots_lead_to_outlives_clean(self):
        outside = self.make_folder("outside")
        shutil.move(self.other, os.path.join(outside, "other"))
        os.symlink(outside, self.in_run("snapshots"))
        outcome = self.run_penstock("clean", self.run_folder, "--yes")
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assert_other_is_whole(os.path.join(outside, "other"))

    def test_a_snapshot_of_another_run_outlives_clean(self):
        kept = self.snapshot(run=self.other)
        os.mkdir(self.in_run("snapshots"))
        moved = self.in_run("snapshots", "kept")
        shutil.move(kept, moved)
        self.assertEqual(self.run_penstock("clean", self.run_folder, "--yes").code, 0)
        outcome = harness.penstock("inspect", moved)
        self.assertEqual(outcome.code, 0, str(outcome))

    def test_a_run_knows_its_snapshots_after_its_state_was_moved(self):
        self.snapshot("before")
        moved = make_config(dtype="bf16", param="nvme", optimizer="nvme", nvme_path=self.nvme,
                            penstock={"tile_elements": 8192})
        outcome, _ = self.train(moved, "--resume", steps=3, out=self.run_folder)
        self.assertEqual(outcome.code, 0, str(outcome))
        outcome, _ = self.train(self.conf, "--resume-from", "before", steps=4, out=self.run_folder)
        self.assertEqual(outcome.code, 0, str(outcome))
        self.snapshot("after")
        self.assertEqual(self.run_penstock("clean", self.run_folder, "--yes").code, 0)
        self.assertFalse(os.path.exists(self.run_folder))
        self.assertEqual(os.listdir(self.nvme), [os.path.basename(self.other_state)])

    def test_a_run_of_before_the_run_uuid_goes_with_its_snapshots(self):
        for folder in (self.snapshot(), self.run_folder):
            path = os.path.join(folder, "run.json")
            with open(path, encoding="utf-8") as file:
                info = json.load(file)
            info.pop("run_uuid", None)
            with open(path, "w", encoding="utf-8") as file:
                json.dump(info, file)
        self.assertEqual(self.run_penstock("clean", self.run_folder, "--yes").code, 0)
        self.assertFalse(os.path.exists(self.run_folder))
        self.assertEqual(os.listdir(self.nvme), [os.path.basename(self.other_state)])


class NameTest(HostileFolderTest):
    def test_names_that_end_as_our_own_files_do_are_no_snapshots_names(self):
        for suffix in OWN_SUFFIXES:
            with self.subTest(suffix=suffix):
                outcome = self.run_penstock("snapshot", self.run_folder, "good" + suffix)
                self.assert_fails(outcome, 2, "good" + suffix)
        self.snapshot("good.unfinished.not")

    def test_what_only_looks_like_ours_outlives_every_command(self):
        mine = [self.write(os.path.join(os.path.basename(self.run_folder), "snapshots", name), text)
                for name, text in (("y.unfinished/notes.txt", "mine"),
                                   (".y.unfinished/notes.txt", "mine"),
                                   (".z.unfinished/run.json", "{}"),
                                   (".kept.request", "mine"), (".a.failed", "mine"),
                                   (".a.answer", "mine"),
                                   (".b.request.tmp-7", "mine"),
                                   (".kept.unfinished.old/x", "mine"))]
        for path in mine[-1:]:
            self.assertTrue(os.path.exists(path))
        for command in ("resume", "snapshot", "clean"):
            with self.subTest(command=command):
                outcome = self.run_penstock(*self.commands()[command])
                self.assertEqual(outcome.code, 0, str(outcome))
                self.assertEqual([path for path in mine if not os.path.exists(path)], [])
        for path in mine:
            with open(path, encoding="utf-8") as file:
                self.assertIn(file.read(), ("mine", "{}"))

    def test_a_folder_of_somebody_else_in_the_way_of_a_snapshot_is_named_and_stays(self):
        notes = self.write(os.path.join(os.path.basename(self.run_folder), "snapshots",
                                        ".y.unfinished", "notes.txt"), "mine")
        outcome = self.run_penstock("snapshot", self.run_folder, "y")
        self.assert_fails(outcome, 2, ".y.unfinished")
        self.assertTrue(os.path.exists(notes))

    def test_a_snapshot_that_is_not_there_is_not_called_a_run_without_run_json(self):
        for there in ([], ["kept"]):
            for name in there:
                self.snapshot(name)
            outcome = self.run_penstock(*self.train_arguments("--resume-from", "none"))
            self.assert_fails(outcome, 2, "--resume-from none", "no snapshot", *there)
            self.assertNotIn("run.json", outcome.errors[0])

    def test_a_path_through_a_folder_that_is_not_there_makes_a_run_that_can_be_named(self):
        run = self.path("a/../b")
        outcome, _ = self.train(self.conf, steps=1, out=run)
        self.assertEqual(outcome.code, 0, str(outcome))
        for arguments in (["inspect", run], ["export", run, "--to", self.path("c/../d")],
                          ["compare", self.path("c/../d"), run], ["clean", run, "--yes"]):
            self.assertEqual(harness.penstock(*arguments).code, 0, arguments)
        self.assertFalse(os.path.exists(self.path("b")))


class RunJsonTest(HostileFolderTest):
    def edit(self, change):
        with open(self.in_run("run.json"), encoding="utf-8") as file:
            info = json.load(file)
        change(info)
        self.write(os.path.join(os.path.basename(self.run_folder), "run.json"), info)

    def assert_cleaned(self):
        outcome = self.run_penstock("clean", self.run_folder, "--yes")
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assertFalse(os.path.exists(self.run_folder))
        self.assertEqual(os.listdir(self.nvme), [])

    def test_a_path_that_it_names_twice_is_removed_once(self):
        self.edit(lambda info: info["state_paths"].append(
            os.path.join(self.nvme, ".", os.path.basename(info["state_paths"][0]))))
        for command in ("resume", "export", "inspect"):
            outcome = self.run_penstock(*self.commands()[command])
            self.assertEqual(outcome.code, 3, str(outcome))
            self.assertNotIn("in use", str(outcome))
        self.assert_cleaned()

    def test_a_state_over_two_drives_of_which_one_is_named_twice_is_not_in_use(self):
        self.assert_cleaned()
        drives = [self.make_folder("drive0"), self.make_folder("drive1")]
        self.conf = make_config(dtype="bf16", param="nvme", optimizer="nvme", nvme_path=drives)
        self.run_folder = self.trained(self.conf, steps=2)
        self.edit(lambda info: info.update(state_paths=[info["state_paths"][0]] * 2))
        for command in ("resume", "export", "inspect"):
            outcome = self.run_penstock(*self.commands()[command])
            self.assertEqual(outcome.code, 3, str(outcome))
            self.assertIn("twice", outcome.errors[0])
        self.assertEqual(self.run_penstock("clean", self.run_folder, "--yes").code, 0)
        self.assertEqual([len(os.listdir(drive)) for drive in drives], [0, 1])

    def test_its_own_state_among_the_leftovers_is_no_leftover(self):
        def add_own(info):
            info["leftovers"] = [{key: info[key] for key in ("state_paths", "state_uuid")}]

        self.edit(add_own)
        outcome = self.run_penstock(*self.train_arguments("--resume"))
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assertNotIn("in use", outcome.stderr)
        self.edit(add_own)
        self.assert_cleaned()

    def test_a_path_that_is_empty_or_no_file_is_damage(self):
        state = harness.state_path(self.run_folder)
        for path in ("", "/", "."):
            with self.subTest(path=path):
                self.edit(lambda info: info.update(state_paths=[path]))
                for command, arguments in self.commands().items():
                    if command == "resume-from":
                        continue
                    self.assert_one_line(self.run_penstock(*arguments), 3)
                self.assertIn("run.json", self.run_penstock("clean", self.run_folder).stderr)
        self.assertTrue(os.path.exists(state))

    def test_a_name_of_rows_that_leads_out_of_the_snapshots_is_damage(self):
        self.edit(lambda info: info.update(rows_from="../.."))
        self.assert_fails(self.run_penstock(*self.train_arguments("--resume")), 3, "run.json")


class CleanTest(HostileFolderTest):
    def assert_stays(self, folder, kept):
        own = os.path.join(folder, "kept")
        before = {path: text for path, text in self.contents(folder).items()
                  if not path.startswith(own)}
        outcome = self.run_penstock("clean", self.run_folder, "--yes")
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assertIn(f"kept  {kept}, ", outcome.stdout)
        self.assertEqual(self.contents(folder), before)
        self.assertEqual(os.listdir(self.run_folder), ["snapshots"])
        self.assertEqual(os.listdir(self.nvme), [])

    def test_a_run_json_of_another_tool_below_the_snapshots_stays_and_the_run_goes(self):
        self.snapshot()
        for number, text in enumerate(("{}", "[1]", "not JSON", "", '{"version": 7}')):
            self.write(os.path.join(self.run_folder, "snapshots", f"x{number}", "run.json"), text)
        outcome = self.run_penstock("snapshots", self.run_folder)
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assertRegex(outcome.stdout, "kept +step 2")
        self.assert_stays(self.in_run("snapshots"), self.in_run("snapshots", "x0"))

    def test_a_link_or_a_pipe_called_run_json_below_the_snapshots_stays_and_the_run_goes(self):
        for name in ("link", "pipe"):
            os.makedirs(self.in_run("snapshots", name))
        os.symlink(self.write("mine.txt", "mine"), self.in_run("snapshots", "link", "run.json"))
        os.mkfifo(self.in_run("snapshots", "pipe", "run.json"))
        self.assert_stays(self.in_run("snapshots"), self.in_run("snapshots", "pipe"))

    def test_a_damaged_run_json_of_the_runs_own_snapshot_is_refused(self):
        info = os.path.join(self.snapshot(), "run.json")
        with open(info, "r+b") as file:
            file.write(b"x")
        before = self.contents(self.folder)
        self.assert_fails(self.run_penstock("clean", self.run_folder, "--yes"), 3, info)
        self.assertEqual(self.contents(self.folder), before)


class GoneTest(HostileFolderTest):
    """What happens to RUN under a running training."""

    def setUp(self):
        super().setUp()
        shutil.rmtree(self.run_folder)
        self.conf = harness.merge(self.conf, {"penstock": {"commit_every_steps": 5}})

    def start(self, run):
        program = subprocess.Popen(
            [harness.PROGRAM, *self.train_arguments(run=run, steps=1000000)],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.addCleanup(program.kill)
        deadline = time.monotonic() + harness.TIMEOUT_S
        metrics = os.path.join(run, "metrics.jsonl")
        while not os.path.exists(metrics) or len(harness.read_rows(run)) < 7:
            self.assertIsNone(program.poll())
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)
        return program

    def assert_ends(self, program, *fragments):
        _, stderr = program.communicate(timeout=harness.TIMEOUT_S)
        outcome = harness.Outcome(["train"], program.returncode, "", stderr)
        self.assertEqual(outcome.code, 3, str(outcome))
        self.assertEqual(len(outcome.errors), 1, str(outcome))
        for fragment in fragments:
            self.assertIn(fragment, outcome.errors[0])

    def test_a_run_that_is_removed_ends_and_says_what_is_committed_where(self):
        run = self.path("gone")
        program = self.start(run)
        state = harness.state_path(run)
        shutil.rmtree(run)
        self.assert_ends(program, run, "removed", "is committed in " + state)
        self.assertFalse(os.path.exists(run))

    def test_a_run_that_is_removed_with_its_state_does_not_say_that_it_is_committed(self):
        self.conf = make_config(dtype="bf16", param="cpu", optimizer="cpu",
                                penstock={"commit_every_steps": 5})
        run = self.path("gone")
        program = self.start(run)
        state = harness.state_path(run)
        shutil.rmtree(run)
        _, stderr = program.communicate(timeout=harness.TIMEOUT_S)
        self.assertEqual(program.returncode, 3, stderr)
        self.assertNotIn("is committed in " + state, stderr)
        self.assertFalse(os.path.exists(run))

    def test_nothing_is_written_into_a_folder_that_takes_its_place(self):
        run = self.path("replaced")
        program = self.start(run)
        state = harness.state_path(run)
        os.rename(run, run + ".old")
        os.mkdir(run)
        self.assert_ends(program, run, "replaced", "is committed in " + state)
        self.assertEqual(os.listdir(run), [])
        self.assertEqual(harness.penstock("inspect", run + ".old").code, 0)

    def test_a_file_of_the_run_that_is_removed_or_replaced_is_named(self):
        for name in ("run.json", "metrics.jsonl"):
            for replace in (False, True):
                with self.subTest(name=name, replace=replace):
                    run = self.path(f"{name}-{replace}")
                    program = self.start(run)
                    path = os.path.join(run, name)
                    shutil.copy(path, path + ".copy")
                    if replace:
                        os.rename(path + ".copy", path)
                    else:
                        os.unlink(path)
                    self.assert_ends(program, path, "is committed in ")

    def test_a_run_whose_path_cannot_be_looked_at_goes_on_and_says_so(self):
        drive, aside = self.make_folder("drive"), self.path("aside")
        run = os.path.join(drive, "run")
        program = self.start(run)
        os.rename(drive, aside)
        os.symlink(drive, drive)  # ELOOP, as a drive that is gone for a while fails otherwise
        deadline = time.monotonic() + harness.TIMEOUT_S
        before = len(harness.read_rows(os.path.join(aside, "run")))
        while len(harness.read_rows(os.path.join(aside, "run"))) < before + 15:
            self.assertIsNone(program.poll())
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)
        os.unlink(drive)
        os.rename(aside, drive)
        program.send_signal(signal.SIGTERM)
        _, stderr = program.communicate(timeout=harness.TIMEOUT_S)
        self.assertEqual(program.returncode, 130, stderr)
        self.assertIn(f"whether {run} is whole cannot be seen", stderr)

    def test_a_new_run_that_fails_leaves_nothing(self):
        run = self.path("failing")
        outcome = self.run_penstock(
            *self.train_arguments("--trace", self.path("no-folder/trace"), run=run))
        self.assertEqual(outcome.code, 3, str(outcome))
        self.assertFalse(os.path.exists(run))


if __name__ == "__main__":
    harness.main()
