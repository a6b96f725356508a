#!/usr/bin/env python3
"""How near is the I/O engine to fio, with the same engine, block size, depth and file?

Runs bench/aio_run and fio in turn on one file, order alternating, reading and writing, and prints for
each case the medians of both, the median of the pairs' ratios of throughput and of CPU seconds per GB,
and from where to where they range. A drive that is throttled after a burst makes the range wide: keep
the pairs short (--size) and look at it.

    bench/fio_ratio.py AIO_RUN FOLDER [--size 2GiB] [--pairs 9] [--case ENGINE,BLOCK,DEPTH ...]
                       [--buffered] [--fio-pages huge|small]

FOLDER: a folder on the drive to measure. --buffered: without O_DIRECT, as tmpfs needs it. A case is,
say, io_uring,1MiB,32; the thread engine has DEPTH threads, as fio's psync has DEPTH jobs. Needs fio;
otherwise the standard library only.

Both do the same: registered file and buffers with io_uring, buffers in huge pages (which alone can
double the speed of large blocks: fewer segments a request), data that stays as it is between writes.
Huge pages of fio's must be reserved first; where too few are free it says how many are needed.
--fio-pages small shows fio as it comes.

CPU seconds leave out starting and filling buffers. Ours are the process's CPU clock around the loop,
the kernel's workers among them. With O_DIRECT fio's are its own figures. Those count its jobs alone,
so with --buffered, where the kernel's workers copy, they are the CPU seconds of all of fio less the
median of what it needs for one block of each buffer.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
FIO_ENGINES = {"io_uring": "io_uring", "libaio": "libaio", "threads": "psync"}


def parse_size(text):
    for unit, factor in UNITS.items():
        if text.endswith(unit):
            return int(text[: -len(unit)]) * factor
    return int(text)


def run(command):
    """What it printed, and the CPU seconds of it with all its threads and children."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return json.loads(output), usage.ru_utime + usage.ru_stime


def run_ours(case, operation, file, size, arguments):
    """GB/s, and CPU seconds per GB."""
    engine, block, depth = case
    threads = engine == "threads"
    result, _ = run([arguments.program, "--file", file, "--operation", operation, "--size", str(size),
                       "--engine", engine, "--block-size", str(block),
                       "--queue-depth", str(depth),
                       "--thread-count", str(depth if threads else 1),
                       "--direct", str(int(not arguments.buffered))])
    return result["gbps"], result["cpu_s_per_gb"]


def run_fio(case, operation, file, size, arguments):
    """GB/s, its own figure of CPU seconds per GB, and all its CPU seconds."""
    engine, block, depth = case
    command = ["fio", "--name=ratio", f"--filename={file}", f"--rw={operation}", f"--bs={block}",
               f"--direct={int(not arguments.buffered)}", f"--ioengine={FIO_ENGINES[engine]}",
               "--fallocate=none", "--overwrite=1", "--invalidate=0", "--scramble_buffers=0",
               "--group_reporting", "--output-format=json"]
    if arguments.fio_pages == "huge":
        command.append("--mem=mmaphuge")
    if engine == "threads":
        share = size // depth
        command += ["--iodepth=1", f"--numjobs={depth}", f"--size={share}", f"--offset_increment={share}"]
    else:
        command += [f"--iodepth={depth}", f"--size={size}"]
    if engine == "io_uring":
        command += ["--fixedbufs=1", "--registerfiles=1"]
    result, cpu = run(command)
    job = result["jobs"][0]
    own = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1e3 / (size / 1e9)
    return job[operation]["bw_bytes"] / 1e9, own, cpu


def spread(values):
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def huge_pages_needed(case):
    """Pages that fio takes for its buffers: of each job, rounded up."""
    engine, block, depth = case
    jobs, in_flight = (depth, block) if engine == "threads" else (1, block * depth)
    return jobs * -(-in_flight // huge_page_bytes())


def meminfo(key):
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith(key + ":"):
                return int(line.split()[1])
    return 0


def huge_page_bytes():
    return meminfo("Hugepagesize") * 1024 or 2 * 2**20


def check_huge_pages(cases):
    """fio alone says no more than that it could not initialise."""
    needed, free = max(map(huge_pages_needed, cases)), meminfo("HugePages_Free")
    if free < needed:
        raise SystemExit(f"fio_ratio: fio needs {needed} huge pages and {free} are free; reserve them "
                         f"(sysctl vm.nr_hugepages={needed}) or use --fio-pages small")


def parse_case(text):
    engine, block, depth = text.split(",")
    return engine, parse_size(block), int(depth)


def compare(case, operation, file, arguments):
    _, block, depth = case
    size, least = arguments.size, 2 * block * depth
    if size < 4 * least:
        raise SystemExit(f"--size must be at least eight times {block} x {depth}")
    speeds, costs, least_cpu = {"ours": [], "fio": []}, {"ours": [], "fio": []}, []

    def measure_ours():
        speed, cost = run_ours(case, operation, file, size, arguments)
        speeds["ours"].append(speed)
        costs["ours"].append(cost)

    def measure_fio():
        speed, own, cpu = run_fio(case, operation, file, size, arguments)
        speeds["fio"].append(speed)
        costs["fio"].append(cpu if arguments.buffered else own)
        if arguments.buffered:
            least_cpu.append(run_fio(case, operation, file, least, arguments)[2])

    for pair in range(arguments.pairs):
        for runner in (measure_ours, measure_fio) if pair % 2 == 0 else (measure_fio, measure_ours):
            runner()
    if arguments.buffered:
        start = statistics.median(least_cpu)
        costs["fio"] = [(cpu - start) / ((size - least) / 1e9) for cpu in costs["fio"]]

    def both(values):
        ratios = [ours / fio for ours, fio in zip(values["ours"], values["fio"])]
        return (f"{statistics.median(values['ours']):.4f} against {statistics.median(values['fio']):.4f}, "
                f"ratio {spread(ratios)}")

    print(f"{case[0]} {operation} {block >> 10} KiB x {depth}: GB/s {both(speeds)}; "
          f"CPU s/GB {both(costs)}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("folder")
    parser.add_argument("--size", type=parse_size, default="2GiB")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--case", action="append")
    parser.add_argument("--buffered", action="store_true")
    parser.add_argument("--fio-pages", choices=["huge", "small"], default="huge")
    arguments = parser.parse_args()
    cases = [parse_case(text) for text in
             arguments.case or ["io_uring,1MiB,32", "libaio,1MiB,32", "threads,1MiB,4"]]
    if arguments.fio_pages == "huge":
        check_huge_pages(cases)
    file = os.path.join(arguments.folder, f"fio_ratio.{os.getpid()}")
    try:
        # Written once, so that neither side meets unwritten extents.
        with open(file, "wb") as out:
            for _ in range(arguments.size >> 20):
                out.write(os.urandom(1 << 20))
            out.flush()
            os.fsync(out.fileno())
        print(f"{arguments.pairs} pairs of {arguments.size >> 20} MiB in {arguments.folder}, "
              f"{'buffered' if arguments.buffered else 'O_DIRECT'}, fio in {arguments.fio_pages} pages; "
              "ratios are ours over fio's: "
              "median (min to max)")
        for case in cases:
            for operation in ("read", "write"):
                compare(case, operation, file, arguments)
    finally:
        if os.path.exists(file):
            os.unlink(file)


if __name__ == "__main__":
    sys.exit(main())
