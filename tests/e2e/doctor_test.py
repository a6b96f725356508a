"""`penstock doctor`: right lines on machines that lack something, and what bounded a run."""
import contextlib
import ctypes
import glob
import os
import platform
import re
import resource
import shutil
import struct
import subprocess
import unittest

import harness
import ranks_harness
from harness import make_config, penstock, read_rows

STATES = ("ok", "warn", "fail", "unknown")
NOBODY = 65534
EPERM, ENOSYS = 1, 38


class Report:
    """What the doctor printed."""

    def __init__(self, outcome):
        self.outcome = outcome
        *lines, self.counts = outcome.stdout.splitlines()
        self.lines = [(line[:7].strip(), line[9:27].strip(), line[29:]) for line in lines]

    def of(self, name):
        """State and text of the only check of this name."""
        [found] = [(state, text) for state, check, text in self.lines if check == name]
        return found


class DoctorTest(harness.PenstockTest):
    def assert_report(self, outcome):
        """Exit code, states and counts agree, and nothing else was said; returns the report."""
        self.assertIn(outcome.code, (0, 1), str(outcome))
        self.assertEqual(outcome.stderr, "", str(outcome))
        report = Report(outcome)
        counts = {state: sum(line[0] == state for line in report.lines) for state in STATES}
        self.assertEqual(sum(counts.values()), len(report.lines), outcome.stdout)
        self.assertEqual(
            report.counts, f"{len(report.lines)} checks: " +
            ", ".join(f"{counts[state]} {state}" for state in STATES))
        self.assertEqual(outcome.code, int(counts["fail"] > 0), outcome.stdout)
        for state, name, text in report.lines:
            self.assertTrue(name and text, (state, name, text))
            if state in ("warn", "fail"):
                self.assertIn("; ", text)
        return report

    def doctor(self, *arguments):
        return self.assert_report(penstock("doctor", *arguments))

    def doctor_under(self, prepare, *arguments, command=(), env=None):
        """The same in a process that `prepare` has restricted."""
        try:
            done = subprocess.run([*command, harness.PROGRAM, "doctor", *arguments],
                                  capture_output=True, text=True, timeout=harness.TIMEOUT_S,
                                  preexec_fn=prepare, env=env, check=False)
        except (PermissionError, subprocess.SubprocessError) as error:
            self.skipTest(f"the program cannot be started so: {error}")
        return self.assert_report(
            harness.Outcome(("doctor", *arguments), done.returncode, done.stdout, done.stderr))

    def assert_line(self, report, name, state, *fragments):
        found, text = report.of(name)
        self.assertEqual(found, state, f"{name}: {text}")
        for fragment in fragments:
            self.assertIn(fragment, text)


def become_nobody():
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


def refuse_io_uring(error_number):
    """Installs a seccomp filter that lets io_uring_setup (425 everywhere) fail with this number."""
    load, jump_if_equal, give_back = 0x20, 0x15, 0x06
    refuse, allow = 0x00050000 | error_number, 0x7FFF0000
    program = b"".join(struct.pack("HBBI", *instruction) for instruction in (
        (load, 0, 0, 0), (jump_if_equal, 0, 1, 425), (give_back, 0, 0, refuse),
        (give_back, 0, 0, allow)))
    code = ctypes.create_string_buffer(program)
    libc = ctypes.CDLL(None, use_errno=True)
    filters = struct.pack("HxxxxxxP", 4, ctypes.addressof(code))
    no_new_privileges, set_seccomp, by_filter = 38, 22, 2
    if (libc.prctl(no_new_privileges, 1, 0, 0, 0) != 0
            or libc.prctl(set_seccomp, by_filter, ctypes.create_string_buffer(filters)) != 0):
        raise OSError(ctypes.get_errno(), "seccomp")


@contextlib.contextmanager
def memory_group(limit):
    """The folder of a control group with this limit, in version 1 or 2."""
    name = f"penstock-doctor-{os.getpid()}"
    for parent, files in (("/sys/fs/cgroup/memory", ("memory.limit_in_bytes",)),
                          ("/sys/fs/cgroup", ("memory.max",))):
        folder = os.path.join(parent, name)
        try:
            os.mkdir(folder)
        except OSError:
            continue
        try:
            with open(os.path.join(folder, files[0]), "w", encoding="utf-8") as file:
                file.write(str(limit))
            yield folder
            return
        except OSError:
            continue
        finally:
            with contextlib.suppress(OSError):
                os.rmdir(folder)
    raise unittest.SkipTest("no control group for memory can be made here")


needs_root = unittest.skipUnless(os.geteuid() == 0, "only root can do this to a process")


class MachineTest(DoctorTest):
    def test_this_machine_and_its_drive(self):
        drive = self.make_folder("drive")
        report = self.doctor("--nvme-path", drive)
        self.assert_line(report, "program", "ok", "penstock ", "commit ")
        self.assertIn(report.of("SIMD")[0], ("ok", "warn"))
        self.assert_line(report, "threads", "ok")
        self.assert_line(report, "O_DIRECT", "ok", "aligned to")
        self.assertIn("GB/s", report.of("speed")[1])
        self.assertEqual(os.listdir(drive), [])

    def test_a_folder_that_is_missing_fails(self):
        report = self.doctor("--nvme-path", self.path("none"))
        self.assert_line(report, "folder", "fail", "does not exist")
        self.assertEqual(report.outcome.code, 1)

    def test_memory_in_place_of_a_drive(self):
        drive = self.make_folder("drive")
        with harness.mounted(drive, ["-t", "tmpfs", "none"]):
            report = self.doctor("--nvme-path", drive)
        self.assert_line(report, "drive", "warn", "memory (tmpfs)")
        self.assert_line(report, "speed", "ok", "not measured")

    def test_without_direct_io(self):
        drive = self.make_folder("drive")
        with harness.mounted(drive, ["-t", "ramfs", "none"]):
            report = self.doctor("--nvme-path", drive)
        self.assert_line(report, "O_DIRECT", "fail", "O_DIRECT")

    @unittest.skipUnless(platform.machine() in ("x86_64", "aarch64"), "other numbers of calls")
    def test_without_io_uring(self):
        for error_number in (EPERM, ENOSYS):
            report = self.doctor_under(lambda number=error_number: refuse_io_uring(number))
            self.assert_line(report, "io_uring", "warn", "a seccomp filter", "io_uring_setup")
            self.assertNotIn("aio engine io_uring", report.of("engine")[1])

    def test_64_kibibytes_of_locked_memory(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (64 << 10, 64 << 10))

        def limit_nobody():
            limit()
            become_nobody()

        report = self.doctor_under(limit)
        self.assertIn("64.0 KiB", report.of("locked memory")[1])
        if os.geteuid() == 0:
            report = self.doctor_under(limit_nobody)
        self.assert_line(report, "locked memory", "warn", "64.0 KiB", "ulimit -l")

    @needs_root
    def test_a_control_group_of_512_mebibytes(self):
        drive = self.make_folder("drive")
        with memory_group(512 << 20) as group:
            def enter():
                with open(os.path.join(group, "cgroup.procs"), "w", encoding="utf-8") as file:
                    file.write("0")

            report = self.doctor_under(enter, "--nvme-path", drive)
        self.assert_line(report, "memory limit", "warn", "512.0 MiB", os.path.basename(group))
        self.assert_line(report, "memory", "warn", "available of")
        self.assertIn("GB/s", report.of("speed")[1])

    @needs_root
    def test_user_nobody(self):
        drive = self.make_folder("drive")
        os.chmod(self.folder, 0o755)
        os.chmod(drive, 0o755)
        report = self.doctor_under(become_nobody, "--nvme-path", drive)
        self.assert_line(report, "folder", "fail", "cannot be written to by this user")
        os.chmod(drive, 0o777)
        report = self.doctor_under(become_nobody, "--nvme-path", drive)
        if report.of("folder")[0] == "fail":
            self.skipTest("nobody cannot reach this folder")
        self.assert_line(report, "O_DIRECT", "ok")

    @needs_root
    def test_without_proc_and_sys(self):
        if shutil.which("unshare") is None:
            self.skipTest("no unshare")
        hide = "mount -t tmpfs none /sys && mount -t tmpfs none /proc || exit 99; exec \"$@\""
        command = ["unshare", "--mount", "sh", "-c", hide, "sh"]
        if subprocess.run([*command, "true"], capture_output=True, check=False).returncode != 0:
            self.skipTest("no mounts of our own can be made here")
        report = self.doctor_under(None, "--nvme-path", self.make_folder("drive"), command=command,
                                   env={**os.environ, "OMP_WAIT_POLICY": "passive"})
        for name in ("kernel", "CPUs", "NUMA", "memory", "huge pages", "locked memory", "IOMMU"):
            self.assert_line(report, name, "unknown", "unknown: ")
        self.assertEqual(report.outcome.code, 0, report.outcome.stdout)


class ConfigTest(DoctorTest):
    def test_a_configuration_is_held_against_the_machine(self):
        drive = self.make_folder("drive")
        config = make_config(param="nvme", optimizer="nvme", nvme_path=drive,
                             penstock={"host_memory": "1000000GiB", "optimizer_threads": 4096})
        report = self.doctor("--config", self.write("ds.json", config))
        self.assert_line(report, "folder", "ok", drive)
        self.assert_line(report, "config", "ok", "AdamW", "stage 3", "nvme")
        self.assert_line(report, "config memory", "fail", "lower penstock.host_memory")
        self.assert_line(report, "config threads", "warn", "4096")

    @unittest.skipIf(harness.DEVICE != "cpu", "the program may compute on a GPU")
    def test_device_memory_of_a_program_without_cuda_is_the_hosts(self):
        config = make_config(penstock={"device_memory": "1000000GiB"})
        report = self.doctor("--config", self.write("ds.json", config))
        self.assert_line(report, "config memory", "fail", "lower penstock.host_memory or "
                         "penstock.device_memory", "as the CPU computes")

    def test_a_configuration_of_several_ranks_is_read_for_them(self):
        config = self.write("ds.json", {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4,
                                        "gradient_accumulation_steps": 2})
        self.assert_line(self.doctor("--config", config), "config", "fail", "launch --ranks 4")
        self.assert_line(self.doctor("--config", config, "--ranks", "4"), "config", "ok", "AdamW")
        for fragment, arguments in (("--nodes 3 does not divide --ranks 4",
                                     ("--config", config, "--ranks", "4", "--nodes", "3")),
                                    ("give --config", ("--ranks", "4"))):
            self.assert_fails(penstock("doctor", *arguments), 2, fragment)

    def test_a_configuration_that_train_refuses_fails_with_its_words(self):
        report = self.doctor("--config", self.write("ds.json", {"zero_optimisation": {}}))
        self.assert_line(report, "config", "fail", "zero_optimisation")

    def test_options_that_name_nothing(self):
        self.assert_fails(penstock("doctor", "--config", self.path("none.json")), 3, "none.json")
        self.assert_fails(penstock("doctor", self.folder), 3, "run.json")
        self.assert_fails(penstock("doctor", "--nvme-path", ""), 2)
        self.assert_fails(penstock("doctor", "--speed"), 2, "--speed")


class RunTest(DoctorTest):
    """Runs on simulated drives. How fast one is for a run is told by the run's own rows: noise of the
    machine changes the time of computation."""
    ATTEMPTS = 12
    # How many times as fast as needed a drive is to be, from where to where that is so, and what a run
    # on it is bounded by.
    DRIVES = ((0.5, (0.3, 0.68), ("warn", "io-bound")), (1, (0.74, 1.5), ("ok", "balanced")),
              (4, (2.5, 8), ("ok", "compute-bound")))

    def config_on(self, gbps):
        nvme = self.make_folder(f"nvme{self.runs}")
        return make_config(
            dtype="bf16", clip=0.0, micro_batches=4, param="nvme", optimizer="nvme", nvme_path=nvme,
            bf16={"check_grad_overflow": False}, train_micro_batch_size_per_gpu=4,
            penstock={"tile_elements": 16384, "optimizer_threads": 1,
                      "aio": {"simulate": {"read_gbps": gbps, "write_gbps": gbps, "shared": True}}})

    def run_on(self, gbps, *more):
        return self.trained(self.config_on(gbps), *more, steps=12, model=self.make_larger_model())

    def make_larger_model(self):
        return self.make_model(n_embd=128, n_layer=4)

    @staticmethod
    def needed_gbps(run):
        """The speed at which the drive needs as long as computation."""
        rows = read_rows(run)[1:-1]
        moved = sum(row["nvme_read_bytes"] + row["nvme_write_bytes"] for row in rows)
        return moved / 1e9 / sum(row["compute_s"] for row in rows)

    def diagnosis(self, run):
        """State and name of what bounded a run's steps."""
        report = self.doctor(run)
        self.assert_line(report, "run", "ok", "12 steps")
        self.assert_line(report, "run end", "ok", "finished")
        self.assert_line(report, "speed", "ok", "not measured: the run's drive is simulated")
        state, text = report.of("bound by")
        return state, text.split(":")[0]

    def test_three_drives_have_three_diagnoses(self):
        needed, found = 0.7, {times: [] for times, _, _ in self.DRIVES}  # GB/s: a guess at first
        for _ in range(self.ATTEMPTS):
            gbps = needed * next(times for times, _, right in self.DRIVES if right not in found[times])
            run = self.run_on(gbps)
            needed = self.needed_gbps(run)
            for times, (low, high), _ in self.DRIVES:
                if low < gbps / needed < high:
                    found[times].append(self.diagnosis(run))
            if all(right in found[times] for times, _, right in self.DRIVES):
                return
        # A run that other programs kept from its CPUs has waited for them, not for its drive.
        self.fail(f"diagnoses by how many times as fast as needed the drive was: {found}")

    def test_host_memory_that_is_too_small_to_read_ahead(self):
        smallest = self.smallest("host-memory", self.config_on(3), model=self.make_larger_model())
        needed, found = 0.4, []  # GB/s: a guess at first
        while ("warn", "host memory too small") not in found:
            self.assertLess(len(found), self.ATTEMPTS, found)
            # The bytes take a third of the time of computation: much to wait for, little for the drive.
            run = self.run_on(3 * needed, "--host-memory", str(smallest))
            needed = self.needed_gbps(run)
            found.append(self.diagnosis(run))

    def test_a_run_on_this_drive_is_held_against_its_speed(self):
        nvme = self.make_folder("nvme")
        run = self.trained(make_config(param="nvme", optimizer="nvme", nvme_path=nvme), steps=6)
        before = os.listdir(nvme)
        report = self.doctor(run)
        self.assert_line(report, "folder", "ok", nvme)
        self.assertIn("GB/s", report.of("speed")[1])
        self.assertIn("the drive needs", report.of("bound by")[1])
        self.assertEqual(os.listdir(nvme), before)

    def test_a_folder_that_is_not_the_runs_changes_nothing_of_its_drives_speed(self):
        nvme, other = self.make_folder("nvme"), self.make_folder("other")
        run = self.trained(make_config(param="nvme", optimizer="nvme", nvme_path=nvme), steps=6)
        report = self.doctor(run, "--nvme-path", self.path("none"))
        self.assertIn("the drive needs", report.of("bound by")[1])
        # The same file system: it is measured once, and the run has that speed.
        report = self.doctor(run, "--nvme-path", other)
        self.assertIn("GB/s", report.of("speed")[1])
        self.assertIn("the drive needs", report.of("bound by")[1])

    def test_the_folder_of_a_simulated_drive_is_measured_only_if_it_is_named(self):
        run = self.run_on(3)
        report = self.doctor(run, "--nvme-path", self.path("none"))
        self.assert_line(report, "speed", "ok", "not measured: the run's drive is simulated")
        report = self.doctor(run, "--nvme-path", self.path("nvme0"))
        self.assertIn("GB/s", report.of("speed")[1])

    def test_a_run_in_memory_needs_no_drive_and_writes_a_report(self):
        run = self.trained(make_config(), steps=6)
        taken = self.write("taken.txt", "mine")
        self.assert_fails(penstock("doctor", run, "--bug-report", taken), 2, "--bug-report", taken)
        path = self.path("report.txt")
        secret = {**os.environ, "HF_TOKEN": "do-not-tell", "NCCL_DEBUG": "INFO"}
        report = self.assert_report(penstock("doctor", run, "--bug-report", path, env=secret))
        with open(path, encoding="utf-8") as file:
            text = file.read()
        self.assertIn(report.outcome.stdout, text)
        self.assertIn('"step":6', text.replace(" ", ""))
        self.assertIn("NCCL_DEBUG=INFO", text)
        self.assertNotIn("do-not-tell", text)
        self.assertEqual(glob.glob(path + ".tmp*"), [])


class RanksRunTest(DoctorTest, ranks_harness.RanksTest):
    RANKS = 2

    def run_of_ranks(self, **aio):
        return self.trained_by(self.RANKS, self.path("run"), self.config(penstock={"aio": aio}))

    def test_each_rank_has_a_simulated_drive_for_its_own_bytes(self):
        gbps = 0.5
        run = self.run_of_ranks(simulate={"read_gbps": gbps, "write_gbps": gbps, "shared": True})
        rows = read_rows(run)[1:-1]
        moved = sum(row["nvme_read_bytes"] + row["nvme_write_bytes"] for row in rows)
        share = moved / self.RANKS / (gbps * 1e9) / sum(row["step_s"] for row in rows)
        found = re.search(r"the drive needs (\d+) % \(for 1/2 of the bytes",
                          self.doctor(run).of("bound by")[1])
        self.assertIsNotNone(found)
        self.assertAlmostEqual(int(found[1]), 100 * share, delta=1)

    def test_the_drive_of_a_host_is_that_of_all_ranks_that_ran_on_it(self):
        report = self.doctor(self.run_of_ranks())
        self.assert_line(report, "folder", "ok", self.path("nvme"))
        self.assertIn("for the bytes of 2 of 2 ranks, those on " + platform.node(),
                      report.of("bound by")[1])


if __name__ == "__main__":
    harness.main()
