"""The example in C: it trains, and a second call continues where the first one ended.

  c_example_test.py EXAMPLE WORKDIR
"""

import pathlib
import shutil
import subprocess
import sys
import unittest


def run(folder, steps):
    done = subprocess.run([EXAMPLE, str(folder), str(steps)], capture_output=True, text=True)
    return done.returncode, done.stdout.splitlines(), done.stderr


class CExampleTest(unittest.TestCase):
    def folder(self, name):
        folder = pathlib.Path(WORKDIR, name)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def test_two_runs_train_as_one_does(self):
        code, whole, errors = run(self.folder("whole"), 40)
        self.assertEqual(code, 0, errors)
        halves = self.folder("halves")
        rows = []
        for _ in range(2):
            code, half, errors = run(halves, 20)
            self.assertEqual(code, 0, errors)
            rows += half
        self.assertEqual(rows, whole)
        loss = [float(row.split()[3]) for row in whole]
        self.assertLess(loss[-1], 0.5 * loss[0])

    def test_a_folder_that_is_not_there_is_one_line(self):
        code, rows, errors = run(pathlib.Path(WORKDIR, "missing"), 1)
        self.assertEqual((code, rows), (3, []))
        self.assertRegex(errors, r"^train: error: [^\n]*missing[^\n]*\n$")


if __name__ == "__main__":
    EXAMPLE, WORKDIR = sys.argv[1:3]
    unittest.main(argv=sys.argv[:1], verbosity=2)
