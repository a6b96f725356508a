"""The parts of scripts/gpu/gpu-day that are programs of ours, at tiny sizes on the emulated GPU: a
misspelt option or a result that nobody reads would otherwise show on the day itself.

gpu_day_parts_test.py PENSTOCK WORK; PENSTOCK_DAY_PROGRAMS: adam_run and device_cuda_test, with ":"
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys

import harness

SOURCE = pathlib.Path(__file__).resolve().parents[2]

# Stands in for Nsight Compute: runs the command and writes the two tables that it would.
NCU = """#!/bin/bash
while [[ $1 != */penstock ]]; do
  if [[ $1 == --log-file ]]; then log=$2; fi
  if [[ $1 == --metrics ]]; then metrics=$2; fi
  shift
done
"$@" || exit
echo "==PROF== Disconnected" >$log
if [[ ${metrics:-} == gpu__time_duration.sum ]]; then
  echo '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"' >>$log
  echo '"0","a kernel","gpu__time_duration.sum","us","1,500.0"' >>$log
  echo '"1","a kernel","gpu__time_duration.sum","ns","500,000"' >>$log
else
  printf '%s\\n' '"ID","Kernel Name"' '"",""' '"0","penstock::x"' >>$log
fi
"""


class GpuDayPartsTest(harness.PenstockTest):
    def setUp(self):
        super().setUp()
        self.kit = pathlib.Path(self.path("kit"))
        shutil.copytree(SOURCE / "scripts/gpu", self.kit, ignore=shutil.ignore_patterns("__pycache__"))
        (self.kit / "tests").mkdir()
        shutil.copy(SOURCE / "tests/e2e/harness.py", self.kit / "tests")
        programs = os.environ["PENSTOCK_DAY_PROGRAMS"].split(":")
        for name, program in zip(("penstock", "adam_run", "device_cuda_test"),
                                 (harness.PROGRAM, *programs), strict=True):
            (self.kit / name).symlink_to(program)

    def day(self, *parts, **environment):
        command = [sys.executable, str(self.kit / "gpu-day"), "--tiny", "--only", ",".join(parts),
                   "--out", self.path("out"), "--work", self.path("work")]
        done = subprocess.run(command, capture_output=True, text=True, check=False,
                              timeout=harness.TIMEOUT_S, env={**os.environ, **environment})
        with open(self.path("out/results.jsonl"), encoding="utf-8") as file:
            results = [json.loads(line) for line in file]
        return done.returncode, done.stdout + done.stderr, results

    def assert_ok(self, printed, *parts):
        for part in parts:
            self.assertRegex(printed, rf"(?m)^ok +{part} ")

    def test_trainings_memory_doctor_and_facts_run_and_say_what_the_figures_need(self):
        parts = ("facts", "doctor", "device", "smoke-train", "memory", "train-host", "train-nvme",
                 "attention-cudnn")
        code, printed, results = self.day(*parts)
        self.assertEqual(code, 0, printed)
        self.assert_ok(printed, *parts)
        smoke = {row["name"]: row for row in results if row["part"] == "smoke-train"}
        self.assertEqual(set(smoke), {"none", "cpu", "nvme io_uring", "nvme libaio", "nvme threads"})
        for name, row in smoke.items():
            self.assertTrue(row.get("bits") == "equal" or "missing" in row, (name, row))
        for figure in ("host memory, copy", "update, 1 threads", "drive, read and written in turn",
                       "train-host against the floor", "train-nvme against the floor"):
            self.assertIn(figure, printed)

    def test_attention_by_cudnn_is_left_out_only_where_there_is_no_cudnn(self):
        program = self.kit / "penstock"
        for error, outcome in (("attention by cuDNN: libcudnn.so.9: not found", "left out"),
                               ("no GPU", "FAILED")):
            program.unlink()
            program.write_text(f"#!/bin/bash\necho 'penstock: error: {error}' >&2\nexit 3\n",
                               encoding="utf-8")
            program.chmod(0o755)
            _, printed, _ = self.day("attention-cudnn")
            self.assertRegex(printed, rf"(?m)^{outcome} +attention-cudnn .*{error}")

    def test_the_time_of_each_kernel_is_added_up_in_the_unit_of_its_row(self):
        tool = pathlib.Path(self.path("tools/ncu"))
        self.write("tools/ncu", NCU)
        tool.chmod(0o755)
        code, printed, results = self.day("ncu", PATH=f"{tool.parent}:{os.environ['PATH']}")
        self.assertEqual(code, 0, printed)
        [step, limits] = results
        self.assertEqual((step["kernels"], step["ms"]), (2, 2.0))
        self.assertEqual(limits["kernels"], 1)

    def test_without_ncu_its_part_is_left_out(self):
        if shutil.which("ncu"):
            self.skipTest("this machine has one")
        code, printed, _ = self.day("ncu")
        self.assertEqual(code, 0, printed)
        self.assertRegex(printed, r"(?m)^left out +ncu .*ncu is not on the PATH")

    def test_without_o_direct_what_needs_a_drive_is_a_line(self):
        folders = self.kit / "day/folders.py"
        text = folders.read_text(encoding="utf-8")
        self.write("kit/day/folders.py", text.replace("def best(", "def refusal(_folder):\n"
                                                      "    return 'Invalid argument'\n\n\ndef best("))
        code, printed, results = self.day("smoke-train", "train-nvme")
        self.assertEqual(code, 0, printed)
        self.assertRegex(printed, r"(?m)^left out +train-nvme .*no folder has O_DIRECT")
        lines = {row["name"]: row.get("missing") for row in results if row["part"] == "smoke-train"}
        self.assertEqual(lines["nvme io_uring"], "no folder has O_DIRECT")
        self.assertIsNone(lines["cpu"])


if __name__ == "__main__":
    harness.main()
