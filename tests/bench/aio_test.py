"""The benchmarks of I/O run, move what they say, and leave nothing.

    aio_test.py AIO_RUN AIO_BENCH FIO_RATIO WORK [unittest arguments]

WORK: a folder on a drive with O_DIRECT. Standard library only.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

SIZE = 8 << 20
BLOCK = 64 << 10


class BenchTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(dir=WORK)
        self.addCleanup(shutil.rmtree, self.folder)

    def run_program(self, *command, **env):
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False,
                              env={**os.environ, **env})
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout


class AioRunTest(BenchTest):
    def test_each_engine_reads_and_writes_a_file_that_is_there(self):
        path = os.path.join(self.folder, "file")
        for engine in ("io_uring", "libaio", "threads"):
            for operation in ("read", "write"):
                with self.subTest(engine=engine, operation=operation):
                    with open(path, "wb") as file:
                        file.write(bytes(SIZE))
                    found = json.loads(self.run_program(
                        AIO_RUN, "--file", path, "--operation", operation, "--size", str(SIZE),
                        "--engine", engine, "--block-size", str(BLOCK), "--queue-depth", "4"))
                    self.assertGreater(found["gbps"], 0)
                    self.assertEqual("registered" in found["registration"], engine == "io_uring")
                    with open(path, "rb") as file:
                        content = file.read()
                    self.assertEqual(len(content), SIZE)
                    self.assertEqual(content == bytes(SIZE), operation == "read")

    def test_a_missing_file_is_one_line_that_names_it(self):
        missing = os.path.join(self.folder, "missing")
        done = subprocess.run([AIO_RUN, "--file", missing, "--operation", "read", "--size", str(SIZE),
                               "--engine", "threads", "--block-size", str(BLOCK), "--queue-depth", "4"],
                              capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 3)
        self.assertEqual(len(done.stderr.splitlines()), 1)
        self.assertIn(missing, done.stderr)


class AioBenchTest(BenchTest):
    def test_each_engine_and_direction_has_a_row(self):
        text = self.run_program(
            AIO_BENCH, "--benchmark_filter=block_kib:64/depth:8/", "--benchmark_min_time=0.001",
            "--benchmark_format=json", PENSTOCK_BENCH_PATH=self.folder, PENSTOCK_BENCH_SIZE="8MiB")
        rows = {row["name"].split("/")[1]: row for row in json.loads(text)["benchmarks"]}
        self.assertEqual(set(rows), {f"{engine}_{direction}"
                                     for engine in ("io_uring", "libaio", "threads")
                                     for direction in ("read", "write", "both")})
        for name, row in rows.items():
            self.assertFalse(row.get("error_occurred"), f"{name}: {row.get('error_message')}")
            self.assertGreater(row["bytes_per_second"], 0, name)
        self.assertEqual(os.listdir(self.folder), [])


@unittest.skipUnless(shutil.which("fio"), "no fio; scripts/setup --tests installs it")
class FioRatioTest(BenchTest):
    def ratio(self, *more):
        return subprocess.run([sys.executable, FIO_RATIO, AIO_RUN, self.folder, "--size", "8MiB",
                               "--pairs", "1", *more],
                              capture_output=True, text=True, timeout=100, check=False)

    def test_each_case_has_a_line_for_each_way(self):
        done = self.ratio("--fio-pages", "small", "--case", "io_uring,64KiB,2",
                          "--case", "threads,64KiB,2")
        self.assertEqual(done.returncode, 0, done.stderr)
        for start in ("io_uring read 64 KiB x 2:", "io_uring write 64 KiB x 2:",
                      "threads read 64 KiB x 2:", "threads write 64 KiB x 2:"):
            self.assertRegex(done.stdout, rf"(?m)^{start} GB/s ")
        self.assertEqual(os.listdir(self.folder), [])

    def test_it_says_how_many_huge_pages_fio_lacks(self):
        done = self.ratio("--case", f"io_uring,1GiB,{1 << 20}")
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stderr, r"fio needs \d+ huge pages and \d+ are free; .*--fio-pages small")
        self.assertEqual(os.listdir(self.folder), [])


if __name__ == "__main__":
    if len(sys.argv) < 5:
        raise SystemExit(__doc__)
    AIO_RUN, AIO_BENCH, FIO_RATIO, WORK = (os.path.abspath(path) for path in sys.argv[1:5])
    os.makedirs(WORK, exist_ok=True)
    # Verbose, so that scripts/test finds why one was skipped.
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]], verbosity=2)
