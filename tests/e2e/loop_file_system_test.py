"""What the file systems of the tests promise to the tests."""

import os
import shutil
import subprocess

import harness
from loop_file_system import TOOLS, LoopFileSystem, NotHere


class LoopFileSystemTest(harness.PenstockTest):
    def test_one_that_was_shut_down_is_mounted_anew_though_another_mount_namespace_had_it(self):
        if shutil.which("unshare") is None:
            self.skipTest("no unshare")
        for kind in sorted(TOOLS):
            with self.subTest(kind):
                try:
                    system = LoopFileSystem(kind, self.make_folder(kind))
                except NotHere as why:
                    self.skipTest(str(why))
                self.addCleanup(system.remove)
                kept = os.path.join(system.path, "kept")
                with open(kept, "wb") as file:
                    os.fsync(file.fileno())
                other = subprocess.Popen(["unshare", "-m", "sh", "-c", "echo; exec sleep 1"],
                                         stdout=subprocess.PIPE)
                self.addCleanup(other.wait)
                self.addCleanup(other.stdout.close)
                other.stdout.readline()
                system.shut_down()
                system.unmount()
                system.mount()
                self.assertTrue(os.path.exists(kept))


if __name__ == "__main__":
    harness.main()
