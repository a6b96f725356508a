"""File systems of their own for tests, in sparse files: mounted, filled, and shut down."""

import fcntl
import os
import shutil
import struct
import subprocess
import time

TOOLS = {"xfs": ["mkfs.xfs", "-q"], "ext4": ["mkfs.ext4", "-q"]}
_SHUTDOWN = 0x8004587D  # XFS_IOC_GOINGDOWN, EXT4_IOC_SHUTDOWN
_NO_LOG_FLUSH = 2
_PATIENCE_S = 120.0
_TOOL_PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


class NotHere(Exception):
    """This machine has no such file system, and why."""


class LoopFileSystem:
    """A file system of `kind` in a sparse file in `folder`, mounted at `path`."""

    def __init__(self, kind: str, folder: str, size: int = 1 << 30) -> None:
        tool, *options = TOOLS[kind]
        found = shutil.which(tool, path=_TOOL_PATH)
        if found is None:
            raise NotHere(f"no {tool}; run scripts/setup --tests")
        if os.geteuid() != 0:
            raise NotHere(f"only root may mount an {kind}")
        self.image = os.path.join(folder, f"{kind}.image")
        self.path = os.path.join(folder, kind)
        self.mounted = False
        os.makedirs(self.path)
        with open(self.image, "wb") as file:
            file.truncate(size)
        self._call([found, *options, self.image])
        self.mount()

    @staticmethod
    def _call(command: list[str]) -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise NotHere(f"{' '.join(command)}: {done.stderr.strip()}")

    def mount(self) -> None:
        """Replays the log, if it was shut down."""
        self._call(["mount", "-o", "loop", self.image, self.path])
        self.mounted = True

    def unmount(self) -> None:
        """Nobody may have a file open there. A mount namespace that another test made meanwhile has a
        copy of the mount; the file system lives until that is gone, and a new mount would be it."""
        if self.mounted:
            subprocess.run(["umount", self.path], check=True)
            deadline = time.monotonic() + _PATIENCE_S
            while self._attached():
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{self.image} is still mounted in another mount namespace")
                time.sleep(0.01)
        self.mounted = False

    def _attached(self) -> bool:
        """Whether a loop device still has the image."""
        tool = shutil.which("losetup", path=_TOOL_PATH) or "losetup"
        found = subprocess.run([tool, "-j", self.image], capture_output=True, check=True)
        return bool(found.stdout)

    def free(self) -> int:
        """Bytes that are free for everybody."""
        status = os.statvfs(self.path)
        return status.f_bavail * status.f_frsize

    def fill(self, left: int) -> None:
        """Leaves so many bytes free."""
        with open(os.path.join(self.path, "filler"), "ab") as file:
            while self.free() > left:
                room = self.free() - left
                try:
                    os.posix_fallocate(file.fileno(), file.tell(), room)
                    file.seek(0, os.SEEK_END)
                except OSError:
                    return

    def shut_down(self) -> None:
        """Ends it at once, as a power failure does: nothing that is not on the drive gets there,
        and neither does the log."""
        folder = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(folder, _SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
        finally:
            os.close(folder)

    def remove(self) -> None:
        """The end of it."""
        if self.mounted:
            subprocess.run(["umount", "-l", self.path], check=False)
        self.mounted = False
        if os.path.exists(self.image):
            os.unlink(self.image)
