"""scripts/hostile's judge finds what no command may do; the programs that it runs are stand-ins."""

import pathlib
import random
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "hostile"))

import commands
import judge
import mutators


class JudgeTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        case = self.root / "case"
        (case / "outside").mkdir(parents=True)
        (case / "run").mkdir()
        (case / "outside" / "victim.txt").write_text("not yours", encoding="utf-8")
        self.case = commands.Case(folder=str(case), arguments=["inspect", "run"], may_make="run/.*",
                                  may_change="run/.*")

    def findings(self, script):
        """Of a program that does what a shell script says."""
        program = self.root / "program"
        program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        program.chmod(0o755)
        return judge.judge(str(program), self.case).findings

    def assert_found(self, script, finding):
        self.assertEqual(self.findings(script), [finding])

    def test_what_a_command_may_do_is_no_finding(self):
        allowed = "echo x; echo 'penstock: a notice' >&2; echo y >run/made"
        self.assertEqual(self.findings(allowed), [])
        for code in (2, 3, 4):
            self.assertEqual(self.findings(f"echo 'penstock: error: x' >&2; exit {code}"), [])
        self.case.arguments = ["compare", "run", "run"]
        self.assertEqual(self.findings("exit 1"), [])

    def test_deaths_and_exit_codes(self):
        self.assert_found("kill -ABRT $$", "killed by signal 6")
        for code in (1, 5, 99, 130):
            self.assert_found(f"exit {code}", f"exit code {code}")

    def test_messages(self):
        self.assert_found("exit 3", "0 error lines")
        error = "echo 'penstock: error: x' >&2"
        self.assert_found(f"{error}; {error}; exit 3", "2 error lines")
        self.assert_found(error, "1 error lines")
        self.assert_found("echo 'stray' >&2", "a line that is not penstock's")
        for report in ("bug: a.cc:1", "AddressSanitizer: x", "runtime error: x"):
            self.assert_found(f"echo 'penstock: {report}' >&2", "a CHECK or a sanitizer's report")
        self.assert_found("echo 'penstock: error: unexpected failure in a library: x' >&2; exit 3",
                          "an exception that nobody expected")

    def test_files_that_are_not_its_own(self):
        self.assert_found("echo x >outside/made", "made outside/made")
        self.assert_found("mkdir outside/folder", "made outside/folder")
        self.assert_found("echo x >>outside/victim.txt", "changed outside/victim.txt")
        self.assert_found("chmod 600 outside/victim.txt", "changed outside/victim.txt")
        self.assert_found("rm outside/victim.txt", "removed outside/victim.txt")

    def test_a_command_that_does_not_end(self):
        self.addCleanup(setattr, judge, "HANG_S", judge.HANG_S)
        judge.HANG_S = 0.5
        self.assert_found("exec sleep 60", "no end after 0.5 s")

    def test_damage_that_is_not_noticed(self):
        self.case.must_fail = True
        self.assert_found("exit 0", "damage that was not noticed")
        self.assertEqual(self.findings("echo 'penstock: error: x' >&2; exit 3"), [])


class MutatorsTest(unittest.TestCase):
    def test_json_can_be_changed_again_after_any_change(self):
        value = {"a": {"b": {"c": [1, 2]}, "d": 3}, "e": [{"f": 4}, 5]}
        for number in range(20000):
            rng = random.Random(number)
            changed = value
            for _ in range(3):
                changed = mutators.mutate_value(rng, changed, ["a"])
            mutators.dump(changed)


if __name__ == "__main__":
    unittest.main()
