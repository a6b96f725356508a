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
from hostile_run import HostileFolderTest

OWN_SUFFIXES = (".unfinished", ".request", ".answer", ".failed", ".tmp-1")


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
            for state in harness.states_in(self.nvme):
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
            program = self.running(*arguments)
            writer = self.open_for_a_reader(self.path("pipe"), program)
            program.send_signal(number)
            self.assertIn(program.wait(harness.TIMEOUT_S), (130, -number))
            os.close(writer)
        program = self.running(*arguments)
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


if __name__ == "__main__":
    harness.main()
