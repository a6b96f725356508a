"""Run folders: what belongs to a run stays, and nothing else (docs/pytorch_runs.md)."""

from __future__ import annotations

import copy
import errno
import json
import os
import pathlib
import shutil
import subprocess
import sys
import unittest
from typing import Any
from unittest import mock

from optimizer_support import ROOT, OptimizerTest
from penstock import _run
from penstock._run import Run, read_run, write_atomically
from penstock._snapshot import take_snapshot
from penstock.errors import (
    CorruptionError,
    DriveError,
    InvalidArgumentError,
    NotFoundError,
    OutOfSpaceError,
    PathPermissionError,
    PenstockError,
    UnavailableError,
)


def make_file(folder: str, uuid: str, path: int = 0) -> str:
    name = f"penstock-{uuid}.state" if path == 0 else f"penstock-{uuid}.{path}.state"
    file = os.path.join(folder, name)
    pathlib.Path(file).touch()
    return file


class RunsKeepWhatBelongsToThem(OptimizerTest):
    def setUp(self) -> None:
        super().setUp()
        self.named = os.path.join(self.folder, "run")

    def opened(self, *arguments: object) -> Run:
        run = Run.open(*arguments)
        self.addCleanup(run.close)
        return run

    def test_a_run_without_nvme_has_its_files_in_the_run_folder(self) -> None:
        run = self.opened(self.named)
        self.assertEqual(run.folders, [self.named])
        self.assertEqual(run.continued, [])

    def test_a_run_with_nvme_has_a_folder_of_its_own_on_each_drive(self) -> None:
        drives = [os.path.join(self.folder, name) for name in ("a", "b")]
        for drive in drives:
            os.mkdir(drive)
        run = self.opened(self.named, drives)
        for folder, drive in zip(run.folders, drives):
            self.assertEqual(os.path.dirname(folder), drive)
            self.assertTrue(os.path.isdir(folder))

    def test_a_committed_state_is_continued_and_all_other_files_are_removed(self) -> None:
        run = self.opened(self.named, self.folder)
        paths = [make_file(run.folders[0], "aa"), make_file(run.folders[0], "aa", 1)]
        run.note("aa", paths)
        lost = make_file(run.folders[0], "bb")
        theirs = os.path.join(run.folders[0], "notes.txt")
        pathlib.Path(theirs).touch()
        run.close()
        self.assertFalse(os.path.exists(lost))
        again = self.opened(self.named, self.folder)
        self.assertEqual((again.continued, again.uuid), (paths, "aa"))
        self.assertTrue(os.path.exists(theirs))

    def test_a_moved_state_replaces_the_old_one_and_its_folder(self) -> None:
        run = self.opened(self.named, self.folder)
        old = make_file(run.folders[0], "aa")
        run.note("aa", [old])
        run.close()
        other = os.path.join(self.folder, "other")
        os.mkdir(other)
        run = self.opened(self.named, other)
        self.assertEqual(run.continued, [old])
        run.note("bb", [make_file(run.folders[0], "bb")])
        self.assertFalse(os.path.exists(os.path.dirname(old)))
        self.assertEqual(read_run(self.named)["folders"], run.folders)

    def test_a_start_beside_the_state_of_a_run_whose_folder_is_gone_is_refused(self) -> None:
        run = self.opened(self.named, self.folder)
        state = make_file(run.folders[0], "aa")
        run.note("aa", [state])
        run.close()
        shutil.rmtree(self.named)
        for _ in range(2):
            with self.assertRaises(NotFoundError) as caught:
                Run.open(self.named, self.folder)
            self.assert_line(caught.exception, self.named, state)
        self.assertFalse(os.path.exists(self.named))
        self.opened(os.path.join(self.folder, "another"), self.folder)
        shutil.rmtree(run.folders[0])
        self.assertIsNone(self.opened(self.named, self.folder).uuid)

    def test_a_start_where_a_run_was_moved_away_says_so_and_names_each_folder_of_its_states(
        self,
    ) -> None:
        drives = [os.path.join(self.folder, name) for name in ("a", "b")]
        for drive in drives:
            os.mkdir(drive)
        run = self.opened(self.named, drives)
        states = [make_file(folder, "aa", i) for i, folder in enumerate(run.folders)]
        run.note("aa", states)
        run.close()
        os.rename(self.named, self.named + "-moved")
        with self.assertRaises(NotFoundError) as caught:
            Run.open(self.named, drives)
        self.assert_line(
            caught.exception, *states, "if it was moved, open it where it is now", "deletes"
        )
        self.assertNotIn("begin again", str(caught.exception))
        self.assertEqual(self.opened(self.named + "-moved", drives).continued, states)

    def test_a_run_is_open_once(self) -> None:
        run = self.opened(self.named)
        with self.assertRaisesRegex(UnavailableError, "open in this process"):
            Run.open(self.named)
        program = (
            f"import sys; sys.path.insert(0, {str(ROOT / 'python')!r})\n"
            f"from penstock._run import Run\nRun.open({self.named!r})"
        )
        command = [sys.executable, "-c", program]
        refused = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertIn("in use by another process", refused.stderr)
        run.close()
        subprocess.run(command, check=True)

    def test_a_lock_that_cannot_be_had_for_another_reason_says_that_reason(self) -> None:
        for number, expected in ((errno.ENOLCK, DriveError), (errno.EIO, DriveError)):
            failure = OSError(number, os.strerror(number))
            with mock.patch.object(_run.fcntl, "lockf", side_effect=failure):
                with self.assertRaises(expected) as caught:
                    Run.open(self.named)
            self.assert_line(caught.exception, "run.lock", os.strerror(number))
            self.assertNotIn("in use", str(caught.exception))
        self.opened(self.named)

    def test_what_is_no_path_of_a_folder_is_refused_by_its_name(self) -> None:
        odd = ["", b"run", 5, True, [], {}, object(), "\0", "a\0b", "\udc80"]
        for value in odd:
            for name, arguments in (("run", (value,)), ("nvme_path", (self.named, [value]))):
                with self.subTest(value=value, name=name):
                    with self.assertRaises(InvalidArgumentError) as caught:
                        Run.open(*arguments)
                    self.assert_line(caught.exception, f"{name} is {value!r:.80}; give ")
        pathlib.Path(self.folder, "file").touch()
        for name in ("x" * 300, "file", "file/run"):
            with self.subTest(name=name), self.assertRaises(PenstockError) as caught:
                Run.open(os.path.join(self.folder, name))
            self.assert_line(caught.exception, os.path.join(self.folder, name))
        self.assertEqual(os.listdir(self.folder), ["file"])

    def test_a_snapshot_removes_nothing_that_is_not_its_own(self) -> None:
        run = self.opened(self.named)
        run.note("aa", [make_file(self.named, "aa")])
        theirs = pathlib.Path(self.folder, "kept.new", "notes.txt")
        theirs.parent.mkdir()
        theirs.touch()

        def copy_files(targets: Any) -> None:
            for target in targets:
                pathlib.Path(target).touch()

        def fails(targets: Any) -> None:
            copy_files(targets)
            raise OSError(errno.ENOSPC, "No space left on device")

        with self.assertRaises(OutOfSpaceError):
            take_snapshot(run, os.path.join(self.folder, "kept"), fails)
        self.assertEqual(sorted(os.listdir(self.folder)), ["kept.new", "run"])
        kept = take_snapshot(run, os.path.join(self.folder, "kept"), copy_files)
        self.assertTrue(theirs.exists())
        self.assertEqual(sorted(os.listdir(self.folder)), ["kept", "kept.new", "run"])
        self.assertEqual(os.stat(kept).st_mode, os.stat(self.named).st_mode)
        for value in ("", 5, "a\0b", None):
            with self.assertRaises(InvalidArgumentError) as caught:
                take_snapshot(run, value, copy_files)
            self.assert_line(caught.exception, "the folder of the snapshot")

    def test_a_forked_child_neither_holds_nor_ends_a_run(self) -> None:
        run = self.opened(self.named)
        child = os.fork()
        if child == 0:
            run.close()
            os._exit(0)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertTrue(os.path.exists(os.path.join(self.named, "run.json")))

    def test_a_run_that_nobody_named_is_removed_once_its_process_is_gone(self) -> None:
        child = os.fork()
        if child == 0:
            run = Run.open(None, self.folder)
            make_file(run.folders[0], "aa")
            os._exit(0)
        os.waitpid(child, 0)
        (lost,) = os.listdir(self.folder)
        alive = self.opened(None, self.folder)
        second = self.opened(None, self.folder)
        left = sorted(str(r.folder) for r in (alive, second))
        self.assertEqual(
            sorted(os.path.join(self.folder, n) for n in os.listdir(self.folder)), left
        )
        self.assertNotIn(lost, os.listdir(self.folder))

    def test_a_run_that_nobody_named_stays_with_its_commit(self) -> None:
        run = self.opened(None, self.folder)
        run.note("aa", [make_file(run.folders[0], "aa")])
        run.close()
        self.opened(None, self.folder)
        self.assertEqual(read_run(run.folder)["state"]["uuid"], "aa")

    def test_other_kinds_and_other_versions_are_refused(self) -> None:
        run = self.opened(self.named)
        run.note("aa", [make_file(run.folders[0], "aa")])
        run.close()
        with self.assertRaisesRegex(InvalidArgumentError, "of kind optimizer"):
            Run.open(self.named, None, "module")
        path = pathlib.Path(self.named, "run.json")
        said = json.loads(path.read_text())
        for text in (json.dumps({**said, "penstock_run": 2}), "[]", "{", json.dumps("run")):
            write_atomically(path, text)
            with self.assertRaises(CorruptionError) as caught:
                Run.open(self.named)
            self.assert_line(caught.exception, str(path))
        self.assertEqual(len(list(pathlib.Path(self.named).glob("*.state"))), 1)

    def test_a_run_json_that_is_cut_or_was_changed_is_refused_by_the_line_that_is_wrong(
        self,
    ) -> None:
        _, file = self.committed("run")
        path = pathlib.Path(self.named, "run.json")
        said = json.loads(path.read_text())
        wrong: list[Any] = [None, 3, "", [], {}, [3], ["relative"], ["/a\0b"]]
        right: list[Any] = [("state", None), ("folders", [])]
        for key in sorted(said.keys() - {"penstock_run"}):
            without = {name: value for name, value in said.items() if name != key}
            changed = [value for value in wrong if (key, value) not in right]
            changed += [{"uuid": "aa"}, {"paths": [file]}] if key == "state" else []
            for text in (without, *({**said, key: value} for value in changed)):
                with self.subTest(text=text):
                    path.write_text(json.dumps(text))
                    with self.assertRaises(CorruptionError) as caught:
                        Run.open(self.named)
                    self.assert_line(caught.exception, str(path), key)
                    self.assertTrue(os.path.exists(file))
        path.write_text('{"penstock_run": 1}')
        with self.assertRaisesRegex(CorruptionError, "run.json has no id"):
            Run.open(self.named)

    def committed(self, name: str, *arguments: object) -> tuple[str, str]:
        """Returns the folder of a run that has a commit and is closed, and its state file."""
        run = Run.open(os.path.join(self.folder, name), *arguments)
        file = make_file(run.folders[0], "aa")
        run.note("aa", [file])
        run.close()
        return str(run.folder), file

    def test_a_run_of_penstock_train_is_refused_by_what_it_is_and_left_alone(self) -> None:
        os.mkdir(self.named)
        info = pathlib.Path(self.named, "run.json")
        info.write_text('{"version": 1, "program": "0.1.0", "run_uuid": "aa"}')
        with self.assertRaisesRegex(InvalidArgumentError, "is a run of penstock train, which"):
            Run.open(self.named)
        self.assertEqual(os.listdir(self.named), ["run.json"])

    def test_a_state_that_could_not_be_noted_stays_and_is_noted_by_the_next_call(self) -> None:
        """Whether the write failed, was interrupted, or both came behind the rename."""

        def before(error: BaseException) -> Any:
            return mock.patch.object(_run, "write_atomically", side_effect=error)

        def behind(error: BaseException) -> Any:
            return mock.patch.object(_run, "sync_folder", side_effect=error)

        for place in (before, behind):
            for error in (OSError(errno.ENOSPC, "No space left"), KeyboardInterrupt()):
                for replaces in (False, True):
                    with self.subTest(place=place.__name__, error=repr(error), replaces=replaces):
                        self.note_fails(place(error), replaces)

    def note_fails(self, fails: Any, replaces: bool) -> None:
        self.runs += 1
        folder, drive = (os.path.join(self.folder, f"{n}-{self.runs}") for n in ("run", "drive"))
        os.mkdir(drive)
        old = None
        if replaces:
            _, old = self.committed(folder)
        run = self.opened(folder, drive)
        file = make_file(run.folders[0], "bb")
        with fails, self.assertRaises((OutOfSpaceError, KeyboardInterrupt)):
            run.note("bb", [file])
        self.assertTrue(os.path.exists(file))
        self.assertTrue(old is None or os.path.exists(old))
        ended = copy.copy(run)  # of a training that ends now, but for the lock
        ended._lock = mock.Mock()
        ended.close()
        self.assertTrue(os.path.exists(file))
        self.assertTrue(old is None or os.path.exists(old))
        run.note("bb", [file])
        self.assertEqual(read_run(folder)["state"], {"uuid": "bb", "paths": [file]})
        run.close()
        self.assertEqual(self.opened(folder, drive).continued, [file])
        self.assertTrue(os.path.exists(file))

    def test_a_run_that_is_opened_by_a_link_keeps_its_files(self) -> None:
        _, file = self.committed("real/run")
        link = os.path.join(self.folder, "link")
        os.symlink(os.path.join(self.folder, "real"), link)
        run = self.opened(os.path.join(link, "run"))
        self.assertEqual(run.continued, [file])
        with self.assertRaisesRegex(UnavailableError, "open in this process"):
            Run.open(os.path.join(self.folder, "real", "run"))
        run.close()
        self.assertTrue(os.path.exists(file))

    def test_a_run_that_was_moved_keeps_its_files(self) -> None:
        folder, file = self.committed("run")
        moved = os.rename(folder, folder + "-moved") or folder + "-moved"
        run = self.opened(moved)
        self.assertEqual(run.continued, [os.path.join(moved, os.path.basename(file))])
        run.close()
        self.assertTrue(os.path.exists(run.continued[0]))

    def test_a_run_that_was_copied_leaves_the_files_of_the_first(self) -> None:
        for nvme in ((), (self.folder,)):
            with self.subTest(nvme=nvme):
                folder, file = self.committed(f"run-{len(nvme)}", *nvme)
                copy = shutil.copytree(folder, folder + "-copy")
                run = self.opened(copy, *nvme)
                self.assertNotIn(os.path.dirname(file), run.folders)
                run.note("bb", [make_file(run.folders[0], "bb")])
                run.close()
                self.assertTrue(os.path.exists(file))
                self.assertEqual(read_run(folder)["state"]["paths"], [file])

    def test_nothing_is_removed_while_a_file_of_the_commit_is_missing(self) -> None:
        folder, file = self.committed("run")
        other = make_file(folder, "bb")
        os.unlink(file)
        self.opened(folder).close()
        self.assertTrue(os.path.exists(other))

    def test_a_folder_with_state_files_and_no_run_is_refused_and_stays(self) -> None:
        os.mkdir(self.named)
        theirs = make_file(self.named, "0123")
        with self.assertRaisesRegex(InvalidArgumentError, "no run.json") as caught:
            Run.open(self.named)
        self.assert_line(caught.exception)
        self.assertEqual(os.listdir(self.named), [os.path.basename(theirs)])

    def test_what_is_no_path_is_refused_by_name(self) -> None:
        for odd in ("", b"", b"bytes", "a\0b", "\ud800"):
            for arguments in ({"folder": odd}, {"folder": self.named, "nvme_path": odd}):
                with (
                    self.subTest(arguments),
                    self.assertRaisesRegex(InvalidArgumentError, "^penstock: (run|nvme_path) is "),
                ):
                    Run.open(**arguments)
        self.assertEqual(os.listdir(self.folder), [])

    def test_a_path_that_cannot_be_a_folder_is_an_error_of_ours(self) -> None:
        file = os.path.join(self.folder, "file")
        pathlib.Path(file).write_text("x", encoding="utf-8")
        loop = os.path.join(self.folder, "loop")
        os.symlink(loop, loop)
        for odd in (
            "x" * 300,
            os.path.join(self.folder, *["y" * 200] * 30),
            file,
            os.path.join(file, "run"),
            loop,
            os.path.join(loop, "run"),
            "/proc/run",
        ):
            with self.subTest(odd[:80]), self.assertRaises(PenstockError) as caught:
                Run.open(odd)
            self.assertRegex(str(caught.exception), "^penstock: ")

    @unittest.skipIf(os.geteuid() == 0, "root may write everywhere")
    def test_a_folder_that_may_not_be_written_is_named(self) -> None:
        os.chmod(self.folder, 0o500)
        self.addCleanup(os.chmod, self.folder, 0o700)
        with self.assertRaisesRegex(PathPermissionError, "run"):
            Run.open(self.named)


if __name__ == "__main__":
    unittest.main()
