"""The shell scripts choose, count and fail as they say; the tools they call are stand-ins."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"


class ScriptTest(unittest.TestCase):
    """A folder with a copy of one script, and stand-ins that come first on the PATH."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.log = self.root / "log"
        self.log.touch()
        self.environment = {**os.environ, "PATH": f"{self.root}/tools:{os.environ['PATH']}",
                            "GIT_AUTHOR_NAME": "t", "GIT_AUTHOR_EMAIL": "t@t",
                            "GIT_COMMITTER_NAME": "t", "GIT_COMMITTER_EMAIL": "t@t"}

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def stand_in(self, name, body=""):
        """A program that logs its name and arguments, then runs `body`."""
        path = self.write(name, f'#!/bin/bash\necho "{path_name(name)} $*" >>"{self.log}"\n{body}\n')
        path.chmod(0o755)

    def run_script(self, name, *arguments):
        (self.root / "scripts").mkdir(exist_ok=True)
        shutil.copy(SCRIPTS / name, self.root / "scripts" / name)
        return subprocess.run([self.root / "scripts" / name, *arguments], env=self.environment,
                              cwd="/", check=False, capture_output=True, text=True)

    def logged(self):
        return self.log.read_text(encoding="utf-8").splitlines()


def path_name(name):
    return pathlib.PurePosixPath(name).name


class Setup(ScriptTest):
    def setUp(self):
        super().setUp()
        self.stand_in("tools/apt-get")
        self.stand_in("tools/sudo", 'shift; exec "$@"')

    def answer_installed(self, all_but=""):
        self.stand_in("tools/dpkg-query", 'shift 2; for p in "$@"; do '
                      f'[[ $p == "{all_but}" ]] || echo -n "installed=$p "; done')

    def apt_calls(self):
        return [line for line in self.logged() if line.startswith("apt-get")]

    def test_with_everything_installed_nothing_is_fetched(self):
        self.answer_installed()
        done = self.run_script("setup", "--tests", "--quiet")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))
        self.assertEqual(self.apt_calls(), [])

    def test_only_what_is_missing_is_installed_after_one_update(self):
        self.answer_installed(all_but="liburing-dev")
        done = self.run_script("setup")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(self.apt_calls()), 2)
        self.assertTrue(self.apt_calls()[0].endswith(" update"))
        self.assertTrue(self.apt_calls()[1].endswith("--no-install-recommends liburing-dev"))

    def test_test_packages_are_asked_for_only_with_tests(self):
        self.answer_installed(all_but="clang-tidy")
        self.assertEqual(self.run_script("setup").returncode, 0)
        self.assertEqual(self.apt_calls(), [])
        self.assertEqual(self.run_script("setup", "--tests").returncode, 0)
        self.assertEqual(len(self.apt_calls()), 2)

    def test_packages_for_arm_are_installed_after_their_architecture_is_added(self):
        self.answer_installed(all_but="libhwy-dev:arm64")
        self.stand_in("tools/dpkg")
        done = self.run_script("setup", "--tests")
        self.assertEqual(done.returncode, 0, done.stderr)
        calls = [line for line in self.logged() if line.startswith(("dpkg ", "apt-get"))]
        self.assertEqual(calls[0], "dpkg --add-architecture arm64")
        self.assertTrue(calls[2].endswith("--no-install-recommends libhwy-dev:arm64"))

    def test_a_failing_installation_fails_with_its_reason(self):
        self.answer_installed(all_but="liburing-dev")
        self.stand_in("tools/apt-get", 'echo "no route to the mirror"; exit 100')
        done = self.run_script("setup", "--quiet")
        self.assertEqual(done.returncode, 1)
        self.assertIn("no route to the mirror", done.stderr)

    def test_an_unknown_option_fails(self):
        self.assertEqual(self.run_script("setup", "--everything").returncode, 2)


class Test(ScriptTest):
    CHECKS = ("setup", "check_includes", "check_format", "check_tidy", "hostile", "test_python")

    def setUp(self):
        super().setUp()
        self.stand_in("tools/cmake")
        self.stand_in("tools/ctest", 'echo "100% tests passed, 0 tests failed out of 10"')
        self.write("build/release/CMakeCache.txt", "CMAKE_CUDA_COMPILER:FILEPATH=/usr/bin/nvcc\n")
        for name in self.CHECKS:
            self.stand_in(f"scripts/{name}")

    def last_line(self, done):
        return done.stdout.splitlines()[-1]

    def test_all_stages_run_and_the_tests_of_all_are_added_up(self):
        done = self.run_script("test")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(self.last_line(done), "40 passed, 0 failed, 0 skipped")
        for name in self.CHECKS:
            self.assertIn(name, [line.split()[0] for line in self.logged()])
        for preset in ("release", "asan-ubsan", "tsan", "aarch64"):
            self.assertTrue(any(f"ctest --test-dir build/{preset} --no-tests=error" in line
                                for line in self.logged()), preset)

    def test_quick_is_the_release_build_and_its_tests(self):
        done = self.run_script("test", "--quick")
        self.assertEqual((done.returncode, self.last_line(done)), (0, "10 passed, 0 failed, 0 skipped"))
        self.assertFalse(any("san" in line for line in self.logged()))

    def test_a_build_without_the_cuda_side_is_a_skip(self):
        self.write("build/release/CMakeCache.txt", "PENSTOCK_CUDA:STRING=AUTO\n")
        done = self.run_script("test", "--quick")
        self.assertEqual((done.returncode, self.last_line(done)), (0, "10 passed, 0 failed, 1 skipped"))
        self.assertIn("skipped: the CUDA side: there is no CUDA toolkit\n", done.stdout)

    def test_failed_tests_are_counted_and_fail_the_run(self):
        self.stand_in("tools/ctest", 'echo "70% tests passed, 3 tests failed out of 10"; exit 8')
        done = self.run_script("test")
        self.assertEqual((done.returncode, self.last_line(done)), (1, "28 passed, 12 failed, 0 skipped"))

    def test_a_failed_check_fails_the_run_though_all_tests_pass(self):
        self.stand_in("scripts/check_format", "exit 1")
        done = self.run_script("test")
        self.assertEqual((done.returncode, self.last_line(done)), (1, "40 passed, 0 failed, 0 skipped"))
        self.assertIn("1 of 15 stages failed", done.stdout)
        self.assertRegex(done.stdout, r"(?m)^check_format +FAILED +\d+ s$")

    def test_a_failed_build_fails_the_run_and_skips_the_tests(self):
        self.stand_in("tools/cmake", "exit 1")
        done = self.run_script("test")
        self.assertEqual((done.returncode, self.last_line(done)), (1, "0 passed, 0 failed, 0 skipped"))
        self.assertFalse(any(line.startswith("ctest") for line in self.logged()))

    def test_skipped_cases_are_counted_and_listed_with_their_reasons(self):
        log = """[ RUN      ] Gpu.Copies
/src/gpu_test.cc:12: Skipped
there is no GPU
on this machine
[  SKIPPED ] Gpu.Copies (0 ms)
[ RUN      ] Gpu.Adds
/src/gpu_test.cc:19: Skipped

[  SKIPPED ] Gpu.Adds (0 ms)
[       OK ] Cpu.Adds (0 ms)
[  SKIPPED ] 2 tests, listed below:
[  SKIPPED ] Gpu.Copies
[  SKIPPED ] Gpu.Adds
test_mount (__main__.NvmeTest.test_mount) ... skipped 'mount: must be root'
test_torch (__main__.TorchTest.test_torch)
Compares with PyTorch. ... skipped "it's not there"
test_fine (__main__.TorchTest.test_fine) ... ok
"""
        self.stand_in("tools/ctest", "mkdir -p $2/Testing/Temporary\n"
                      f"cat >$2/Testing/Temporary/LastTest.log <<'LOG'\n{log}LOG\n"
                      'echo "100% tests passed, 0 tests failed out of 3"')
        done = self.run_script("test", "--quick")
        self.assertEqual((done.returncode, self.last_line(done)),
                         (0, "3 passed, 0 failed, 4 skipped"))
        report = done.stdout[done.stdout.index("release-tests: 100%"):]
        for line in ("Gpu.Copies: there is no GPU on this machine", "Gpu.Adds: no reason given",
                     "test_mount: mount: must be root", "test_torch: it's not there"):
            self.assertIn(f"release-tests: skipped: {line}\n", report)

    def test_what_an_earlier_run_skipped_is_not_counted(self):
        self.write("build/release/Testing/Temporary/LastTest.log",
                   "x.cc:1: Skipped\nold\n[  SKIPPED ] Old.Case (0 ms)\n")
        self.assertEqual(self.last_line(self.run_script("test", "--quick")),
                         "10 passed, 0 failed, 0 skipped")


class TestPython(ScriptTest):
    """An environment whose Python only notes what it is told to run."""

    def setUp(self):
        super().setUp()
        self.write("python", f"""#!/bin/bash
echo "python $*" >>"{self.log}"
case "$*" in
  "-m venv "*) mkdir -p "${{@: -1}}/bin"; cp "$0" "${{@: -1}}/bin" ;;
  "-c "*) echo "{self.root}" ;;
  "-m $BROKEN "*) exit 1 ;;
esac
""").chmod(0o755)
        self.write("built.whl", "")
        self.write("tests/python/one_test.py", "")
        self.write("tests/older_runs/older_runs.py", "")
        self.write("tests/front/fake_cuda/CMakeLists.txt", "")
        self.stand_in("scripts/python-env", f'mkdir -p "$1/bin"; cp "{self.root}/python" "$1/bin"')
        self.stand_in("scripts/wheel", f"echo {self.root}/built.whl")
        self.stand_in("tools/ctest", 'cat "$2/CTestTestfile.cmake"; exit "${FAILS:-0}"')
        self.environment.update(PENSTOCK_PYTHON_ENV=str(self.root / "env"), BROKEN="")

    def test_each_test_runs_in_an_environment_with_the_wheel_after_the_checks(self):
        done = self.run_script("test_python", "-R", "one")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r'add_test\(python_one "/[^"]+/venv/bin/python" "/[^"]+/one_test.py" -v\)')
        self.assertTrue(self.logged()[-1].endswith("-R one"))
        ran = [line for line in self.logged() if line.startswith("python ")]
        for words in ("ruff check", "ruff format", "mypy", f"--no-index {self.root}/built.whl"):
            self.assertTrue(any(words in line for line in ran), words)

    def test_without_the_package_index_all_is_skipped_by_name(self):
        self.stand_in("scripts/python-env", 'echo "python-env: no index" >&2; exit 3')
        done = self.run_script("test_python")
        self.assertEqual((done.returncode, done.stdout), (0, "skipped: tests/python: no index\n"))

    def test_an_environment_that_cannot_be_made_is_a_failure(self):
        self.stand_in("scripts/python-env", 'echo "python-env: pip fails" >&2; exit 1')
        done = self.run_script("test_python")
        self.assertEqual(done.returncode, 1)
        self.assertIn("pip fails", done.stdout)

    def test_a_finding_and_a_failed_test_are_failures(self):
        self.assertEqual(self.run_script("test_python").returncode, 0)
        self.environment["BROKEN"] = "mypy"
        self.assertEqual(self.run_script("test_python").returncode, 1)
        self.environment.update(BROKEN="", FAILS="8")
        self.assertEqual(self.run_script("test_python").returncode, 1)


class CheckFormat(ScriptTest):
    def setUp(self):
        super().setUp()
        if not shutil.which("clang-format"):
            self.skipTest("clang-format is not installed")
        self.write(".clang-format", "BasedOnStyle: Google\n")

    def test_a_formatted_tree_passes(self):
        self.write("base/a.h", "int F();\n")
        self.assertEqual(self.run_script("check_format").returncode, 0)

    def test_each_unformatted_file_is_one_line(self):
        self.write("base/a.h", "int F();\n")
        self.write("base/b.cc", "int  F( );\n")
        done = self.run_script("check_format")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"\A(\./)?base/b\.cc: not formatted[^\n]*\n\Z")

    def test_a_tree_without_sources_fails(self):
        self.assertEqual(self.run_script("check_format").returncode, 1)


class CheckTidy(ScriptTest):
    def setUp(self):
        super().setUp()
        self.stand_in("tools/clang-tidy")
        self.stand_in("tools/cmake")
        self.write("base/a.h", "int A();\n")
        self.write("base/a.cc", '#include "base/a.h"\n')
        self.write("base/b.cc", "int B();\n")
        self.write("base/c.cc", "int C();\n")
        entries = ", ".join(f'{{"file": "{self.root}/base/{n}.cc"}}' for n in "abc")
        self.write("build/tidy/compile_commands.json", f"[{entries}]")
        self.write(".gitignore", "build/\nlog\ntools/\nscripts/\n")
        self.git("init", "-q", "-b", "main")
        self.git("add", ".")
        self.git("commit", "-q", "-m", "all")

    def git(self, *arguments):
        subprocess.run(["git", *arguments], cwd=self.root, env=self.environment, check=True)

    def tidied(self, *arguments):
        done = self.run_script("check_tidy", *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return sorted(line.split()[-1] for line in self.logged() if line.startswith("clang-tidy"))

    def test_without_a_base_every_source_is_looked_at(self):
        self.assertEqual(self.tidied(), ["base/a.cc", "base/b.cc", "base/c.cc"])

    def test_with_nothing_changed_nothing_is_looked_at(self):
        self.assertEqual(self.tidied("HEAD"), [])

    def test_a_clone_with_nothing_of_its_own_looks_at_the_newest_commit(self):
        for name in "bc":
            self.write(f"base/{name}.cc", f"int {name}2();\n")
            self.git("commit", "-q", "-a", "-m", name)
        self.git("update-ref", "refs/remotes/origin/main", "HEAD")
        self.assertEqual(self.tidied(), ["base/c.cc"])
        self.write("base/a.cc", "int of_its_own();\n")
        self.log.write_text("", encoding="utf-8")
        self.assertEqual(self.tidied(), ["base/a.cc"])

    def test_a_changed_source_and_the_users_of_a_changed_header_are_looked_at(self):
        self.write("base/b.cc", "int B2();\n")
        self.write("base/a.h", "int A2();\n")
        self.assertEqual(self.tidied("HEAD"), ["base/a.cc", "base/b.cc"])

    def test_a_changed_list_of_checks_means_every_source(self):
        self.write(".clang-tidy", "Checks: '-*'\n")
        self.assertEqual(len(self.tidied("HEAD")), 3)

    def test_a_finding_fails_and_is_shown(self):
        self.stand_in("tools/clang-tidy", '[[ $* != *b.cc ]] || { echo "b.cc:1: error: x"; exit 1; }')
        done = self.run_script("check_tidy")
        self.assertEqual(done.returncode, 1)
        self.assertIn("b.cc:1: error: x", done.stderr)

    def test_a_base_that_is_no_commit_fails(self):
        self.assertEqual(self.run_script("check_tidy", "no-such-branch").returncode, 1)


if __name__ == "__main__":
    unittest.main(verbosity=2)
