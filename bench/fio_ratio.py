#!/usr/bin/env python3
"""How near is the I/O engine to fio, with the same engine, block size, depth and file?

Runs bench/aio_run and fio in turn on one file, order alternating, reading and writing, and prints for
each case the medians of both, the median of the pairs' ratios of throughput and of CPU seconds per GB,
and from where to where they range. A drive that is throttled after a burst makes the range wide: keep
the pairs short (--size) and look at it.

    bench/fio_ratio.py AIO_RUN FOLDER [--size 512MiB] [--pairs 9] [--case ENGINE,BLOCK,DEPTH ...] [--buffered]

FOLDER: a folder on the drive to measure. --buffered: without O_DIRECT, as tmpfs needs it. A case is,
say, io_uring,1MiB,32; the thread engine has DEPTH threads, as fio's psync has DEPTH jobs. Needs fio;
otherwise the standard library only.
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
    """Its output, and the CPU seconds of it with all its threads and children."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return json.loads(output), usage.ru_utime + usage.ru_stime


def run_ours(program, case, operation, file, size, direct):
    engine, block, depth = case
    result, cpu = run([program, "--file", file, "--operation", operation, "--size", str(size),
                       "--engine", engine, "--block-size", str(block), "--queue-depth", str(depth),
                       "--direct", str(int(direct))])
    return result["bytes"] / result["seconds"] / 1e9, cpu


def run_fio(case, operation, file, size, direct):
    engine, block, depth = case
    command = ["fio", "--name=ratio", f"--filename={file}", f"--rw={operation}", f"--bs={block}",
               f"--direct={int(direct)}", f"--ioengine={FIO_ENGINES[engine]}", "--fallocate=none",
               "--overwrite=1", "--invalidate=0", "--group_reporting", "--output-format=json"]
    if engine == "threads":
        share = size // depth
        command += ["--iodepth=1", f"--numjobs={depth}", f"--size={share}", f"--offset_increment={share}"]
    else:
        command += [f"--iodepth={depth}", f"--size={size}"]
    if engine == "io_uring":
        command += ["--fixedbufs=1", "--registerfiles=1"]
    result, cpu = run(command)
    return result["jobs"][0][operation]["bw_bytes"] / 1e9, cpu


def measure(runner, size, least):
    """GB/s of a run, and CPU s/GB from its difference to a run of the `least` bytes: so what a
    program spends on starting and on filling its buffers does not count."""
    speed, cpu = runner(size)
    _, cpu_least = runner(least)
    return speed, (cpu - cpu_least) / (size - least) * 1e9


def spread(values):
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def compare(arguments, case, operation, file, direct):
    engine, block, depth = case
    least = block * depth
    if arguments.size < 4 * least:
        raise SystemExit(f"--size must be at least four times {block} x {depth}")
    runners = {
        "ours": lambda size: run_ours(arguments.program, case, operation, file, size, direct),
        "fio": lambda size: run_fio(case, operation, file, size, direct)}
    pairs = []
    for pair in range(arguments.pairs):
        order = ("ours", "fio") if pair % 2 == 0 else ("fio", "ours")
        pairs.append({name: measure(runners[name], arguments.size, least) for name in order})

    def median(name, index):
        return statistics.median(pair[name][index] for pair in pairs)

    def ratios(index):
        return spread([pair["ours"][index] / pair["fio"][index] for pair in pairs])

    print(f"{engine} {operation} {block >> 10} KiB x {depth}: "
          f"GB/s {median('ours', 0):.3f} against {median('fio', 0):.3f}, ratio {ratios(0)}; "
          f"CPU s/GB {median('ours', 1):.4f} against {median('fio', 1):.4f}, ratio {ratios(1)}",
          flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("folder")
    parser.add_argument("--size", type=parse_size, default="512MiB")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--case", action="append")
    parser.add_argument("--buffered", action="store_true")
    arguments = parser.parse_args()
    cases = arguments.case or ["io_uring,1MiB,32", "libaio,1MiB,32", "threads,1MiB,4"]
    file = os.path.join(arguments.folder, f"fio_ratio.{os.getpid()}")
    try:
        # Written once, so that neither side meets unwritten extents.
        with open(file, "wb") as out:
            for _ in range(arguments.size >> 20):
                out.write(os.urandom(1 << 20))
            out.flush()
            os.fsync(out.fileno())
        print(f"{arguments.pairs} pairs of {arguments.size >> 20} MiB in {arguments.folder}, "
              f"{'buffered' if arguments.buffered else 'O_DIRECT'}; ratios are ours over fio's: "
              "median (least to most)")
        for text in cases:
            engine, block, depth = text.split(",")
            for operation in ("read", "write"):
                compare(arguments, (engine, parse_size(block), int(depth)), operation, file,
                        not arguments.buffered)
    finally:
        if os.path.exists(file):
            os.unlink(file)


if __name__ == "__main__":
    sys.exit(main())
