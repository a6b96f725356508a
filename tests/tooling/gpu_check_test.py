"""The scripts of a GPU bundle in the shell: gpu-check with stand-ins for what it runs, find-cuda."""
import pathlib
import shutil
import subprocess
import tarfile
import unittest

from scripts_test import SCRIPTS, ScriptTest


class GpuCheck(ScriptTest):
    """The script of the bundle, with stand-ins for CUDA and for the bundle's programs."""
    PROGRAMS = ("comm_cuda_test", "device_cuda_test", "cuda_plan_test", "operators_gpu_test", "penstock")

    def setUp(self):
        super().setUp()
        shutil.copytree(SCRIPTS / "gpu", self.root / "scripts/gpu")
        self.write("cuda/lib64/libcublasLt.so.13", "")
        self.environment.update(CUDA_HOME=str(self.root / "cuda"), OUT=str(self.root / "out"))
        (self.root / "out").mkdir()
        for name in ("placement_test", "recorded_test"):
            self.write(f"scripts/gpu/tests/{name}.py", "")
        for name in self.PROGRAMS:
            self.stand_in(f"scripts/gpu/{name}")
        self.operators()
        self.stand_in("tools/compute-sanitizer")
        self.stand_in("tools/nvidia-smi")

    def operators(self, body=""):
        """The operators' tests: two suites."""
        self.stand_in("scripts/gpu/operators_gpu_test", f"""
if [[ $1 == --gtest_list_tests ]]; then
  printf 'Running main() from main.cc\\nModes/LayerTest.\\n  A/fp32  # GetParam() = fp32\\nPlainTest.\\n  B\\n'
  exit 0
fi
{body}""")

    def check(self, *options):
        return self.run_script("gpu/gpu-check", str(self.root / "work"), *options)

    def test_every_suite_is_a_process_and_every_check_a_row(self):
        done = self.check()
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        for filter_ in ("Modes/LayerTest.*", "PlainTest.*"):
            self.assertIn(f"operators_gpu_test --gtest_filter={filter_}", self.logged())
        for row in ("operators-Modes-LayerTest", "operators-PlainTest", "recorded", "device",
                    "placement-fp32_clipped", "racecheck-PlainTest", "racecheck-Modes-LayerTest",
                    "memcheck-all-kernels"):
            self.assertRegex(done.stdout, rf"(?m)^{row} +\d+ s  ok$")
        self.assertRegex(done.stdout, r"(?m)^0 of 13 checks failed")

    def test_only_our_kernels_are_checked_for_races_suite_by_suite(self):
        self.check()
        lines = [line for line in self.logged() if "racecheck" in line]
        self.assertEqual(len(lines), 2)
        for line in lines:
            self.assertIn("--kernel-name kns=penstock", line)
        for suite in ("Modes/LayerTest.*-*", "PlainTest.*-*"):
            self.assertTrue(any(f"--gtest_filter={suite}" in line for line in lines), lines)

    def test_suites_without_kernels_are_not_checked_for_races(self):
        self.stand_in("scripts/gpu/operators_gpu_test", """
if [[ $1 == --gtest_list_tests ]]; then printf 'LayerReferenceTest.\\n  A\\nModes/CallsDeathTest.\\n  B\\n'; fi""")
        self.check()
        self.assertFalse([line for line in self.logged() if "racecheck" in line])

    def test_a_sanitizer_that_breaks_is_a_row_and_its_log_is_shown(self):
        self.stand_in("tools/compute-sanitizer", """
[[ $* == *racecheck* ]] || exit 0
echo "========= Internal Sanitizer Error: The Sanitizer failed to handle a hardware exception."
exit 9""")
        done = self.check()
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        row = r"(?m)^racecheck-PlainTest +\d+ s  left out: compute-sanitizer ended with an internal error$"
        self.assertRegex(done.stdout, row)
        self.assertIn("failed to handle a hardware exception", done.stdout)

    def test_a_suite_in_which_nothing_runs_on_the_gpu_is_no_failure_of_a_sanitizer(self):
        self.stand_in("tools/compute-sanitizer", """
[[ $* == *racecheck* ]] || exit 0
echo "========= Error: Target application terminated before first instrumented API call"
exit 255""")
        done = self.check()
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"(?m)^racecheck-PlainTest +\d+ s  left out: it has no kernels$")

    def test_a_suite_that_fails_runs_again_with_blocking_launches_and_fails_alone(self):
        self.operators('[[ $* != *Layer* ]] || { seq 1000; echo "blocking: $CUDA_LAUNCH_BLOCKING"; exit 1; }')
        done = self.check()
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stdout, r"(?m)^operators-Modes-LayerTest +\d+ s  FAILED \(1\)$")
        self.assertRegex(done.stdout, r"(?m)^operators-PlainTest +\d+ s  ok$")
        self.assertIn("1 of 13 checks failed", done.stdout)
        lines = done.stdout.splitlines()
        self.assertIn("blocking: ", lines)
        self.assertIn("blocking: 1", lines)
        self.assertIn("902", lines)
        self.assertNotIn("901", lines)

    def test_the_logs_of_all_checks_are_packed(self):
        self.stand_in("scripts/gpu/device_cuda_test", "echo on the device")
        self.check()
        with tarfile.open(self.root / "out/gpu-check-logs.tar.gz") as logs:
            self.assertEqual(logs.extractfile("logs/device").read(), b"on the device\n")

    def test_without_a_sanitizer_what_needs_it_is_left_out_with_a_row(self):
        (self.root / "tools/compute-sanitizer").unlink()
        if shutil.which("compute-sanitizer"):
            self.skipTest("this machine has one")
        done = self.check()
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"(?m)^racecheck +0 s  left out: compute-sanitizer is")

    def test_a_sanitizer_that_refuses_the_device_leaves_its_checks_out(self):
        self.stand_in("tools/compute-sanitizer", 'echo "Device not supported"; exit 1')
        done = self.check()
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"(?m)^memcheck-device +\d+ s  left out: compute-sanitizer does")

    def test_calls_that_cublaslt_expects_to_fail_are_no_findings(self):
        self.check()
        sanitized = [line for line in self.logged() if line.startswith("compute-sanitizer")]
        self.assertEqual(len(sanitized), 5)
        for line in sanitized:
            self.assertIn("--report-api-errors no", line)

    def test_without_o_direct_placements_are_left_out_with_a_row(self):
        self.write("scripts/gpu/day/folders.py", "import sys\nprint('no folder')\nsys.exit(1)\n")
        done = self.check()
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"(?m)^placement-fp32_clipped +0 s  left out: no folder$")

    def test_without_nccl_its_check_is_left_out_with_a_row(self):
        self.write("scripts/gpu/parts/nccl.py", "import sys\nprint('missing: NCCL: x')\nsys.exit(77)\n")
        done = self.check()
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"(?m)^nccl +\d+ s  left out: NCCL: x$")

    def test_checks_can_be_left_out_and_nccl_runs_alone_at_the_end(self):
        self.write("scripts/gpu/parts/nccl.py", "import glob, os\n"
                   f"others = glob.glob('{self.root}/work/logs/*.outcome')\n"
                   f"open('{self.root}/before', 'w').write(' '.join(others))\n")
        done = self.check("--without", "device,plan")
        self.assertEqual(len((self.root / "before").read_text(encoding="utf-8").split()), 10)
        self.assertIn("0 of 11 checks failed", done.stdout)
        self.assertNotRegex(done.stdout, r"(?m)^(device|plan) ")
        self.assertNotIn("nccl", self.check("--without", "nccl").stdout)

    def test_no_check_begins_when_the_time_is_over(self):
        done = self.check("--seconds", "0")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"(?m)^recorded +0 s  left out: no time$")

    def test_each_outcome_is_said_when_it_is_there(self):
        done = self.check()
        self.assertIn('RESULT {"name": "recorded", "check": "ok", "seconds": ', done.stdout)


class FindCuda(ScriptTest):
    def find(self, **environment):
        shutil.copy(SCRIPTS / "gpu/find-cuda", self.root / "find-cuda")
        return subprocess.run(
            ["bash", "-uo", "pipefail", "-c",
             f"source {self.root}/find-cuda; echo $LD_LIBRARY_PATH; command -v compute-sanitizer"],
            env={**self.environment, **environment}, check=False, capture_output=True, text=True)

    def setUp(self):
        super().setUp()
        self.write("cuda/lib64/libcublasLt.so.13", "")
        self.environment["CUDA_HOME"] = str(self.root / "cuda")

    def test_the_folder_of_cuda_home_comes_first(self):
        self.assertTrue(self.find().stdout.startswith(f"{self.root}/cuda/lib64"))

    def test_cudnn_is_found_beside_the_others(self):
        self.write("cudnn/libcudnn.so.9", "")
        found = self.find(LD_LIBRARY_PATH=str(self.root / "cudnn")).stdout.splitlines()[0].split(":")
        self.assertEqual(found[0], f"{self.root}/cuda/lib64")
        self.assertIn(f"{self.root}/cudnn", found)

    def test_the_sanitizer_of_a_python_package_is_found(self):
        if list(pathlib.Path("/usr/local").glob("cuda*/*/compute-sanitizer")):
            self.skipTest("this machine has one where it is looked for first")
        tool = self.write("site/nvidia/cu13/bin/compute-sanitizer", "")
        tool.chmod(0o755)
        self.write("site/nvidia/cu13/lib/libcublasLt.so.13", "")
        done = self.find(PYTHONPATH=str(self.root / "site"))
        self.assertEqual(done.stdout.splitlines()[1:], [str(tool)], done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
