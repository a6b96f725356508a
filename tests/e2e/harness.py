"""What the end-to-end tests share: small models, data and configs, runs of the program, results.

Every test file is started as `python3 FILE PENSTOCK WORK [unittest arguments]`: PENSTOCK is the
built program, WORK a folder on a drive with O_DIRECT. Trainings run on the device that
PENSTOCK_TEST_DEVICE names (cpu); where there is no GPU for "cuda", tests skip, or fail if
PENSTOCK_REQUIRE_GPU is set; "emulated-cuda" is for a PENSTOCK with a GPU of its own
(tests/emulated_cuda). Standard library only.
"""
import array
import contextlib
import ctypes
import errno
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unittest

PROGRAM = ""
WORK = ""
EMULATED = os.environ.get("PENSTOCK_TEST_DEVICE") == "emulated-cuda"
DEVICE = "cuda" if EMULATED else os.environ.get("PENSTOCK_TEST_DEVICE", "cpu")
LONG = os.environ.get("PENSTOCK_LONG_TESTS") == "1"
TIMEOUT_S = 1200 if LONG else 120  # of one program

MODEL = {
    "model_type": "gpt2",
    "n_layer": 3,
    "n_embd": 64,
    "n_head": 2,
    "n_positions": 64,
    "vocab_size": 256,
    "activation_function": "gelu_new",
    "attn_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "resid_pdrop": 0.0,
}


def main():
    """Takes the program and the work folder from the command line, then runs the tests; verbose, so
    that scripts/test finds why one was skipped."""
    global PROGRAM, WORK
    if len(sys.argv) < 3:
        raise SystemExit(f"usage: {sys.argv[0]} PENSTOCK WORK [unittest arguments]")
    PROGRAM, WORK = (os.path.abspath(path) for path in sys.argv[1:3])
    os.makedirs(WORK, exist_ok=True)
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], module="__main__", verbosity=2)


class Outcome:
    """A finished run of the program."""

    def __init__(self, arguments, code, stdout, stderr):
        self.arguments, self.code, self.stdout, self.stderr = arguments, code, stdout, stderr

    @property
    def errors(self):
        return [line for line in self.stderr.splitlines() if line.startswith("penstock: error: ")]

    @property
    def stray(self):
        """Lines on stderr that are neither errors nor notices."""
        return [line for line in self.stderr.splitlines() if not line.startswith("penstock: ")]

    def __str__(self):
        return f"penstock {' '.join(self.arguments)}\nexit code {self.code}\n{self.stderr}"


def penstock(*arguments, env=None, cwd=None):
    """Runs the program to its end."""
    done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S,
                          env=env, cwd=cwd, check=False)
    return Outcome(arguments, done.returncode, done.stdout, done.stderr)


def merge(base, override):
    """`base` with the keys of `override`; objects merge, everything else replaces."""
    merged = dict(base)
    for key, value in override.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def make_config(dtype="fp32", clip=1.0, micro_batches=1, param="none", optimizer="none",
                nvme_path=None, **override):
    """A config in DeepSpeed's format; `override` is merged into it."""
    def home(device):
        return {"device": device, **({"nvme_path": nvme_path} if device == "nvme" else {})}

    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": micro_batches,
        "gradient_clipping": clip,
        "bf16": {"enabled": dtype == "bf16"},
        "fp16": {"enabled": dtype == "fp16"},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.01}},
        "zero_optimization": {"stage": 3, "offload_param": home(param),
                              "offload_optimizer": home(optimizer)},
        "penstock": {"commit_every_seconds": 0, "compute_threads": 1, "tier_split": False},
    }
    return merge(config, override)


def text_bytes(count, seed=1):
    """Words from a small vocabulary: something that a model learns in a few steps."""
    source = random.Random(seed)
    words = [bytes(source.choices(b"abcdefghijklmnopqrstuvwxyz", k=source.randint(2, 8)))
             for _ in range(50)]
    text = b""
    while len(text) < count:
        text += b" ".join(source.choices(words, k=100)) + b".\n"
    return text[:count]


def read_safetensors(path):
    """{name: (dtype, shape, bytes)}"""
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.read()
    return {name: (entry["dtype"], entry["shape"], data[slice(*entry["data_offsets"])])
            for name, entry in header.items() if name != "__metadata__"}


def write_safetensors(path, tensors, padding=0):
    """Tensors in the order of the dictionary; `padding` spaces make the header longer."""
    header, offset = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        end = offset + len(data)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode() + b" " * padding
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, _, data in tensors.values():
            file.write(data)


def missing_engine(engine):
    """Why the kernel does not offer an engine for I/O; None where it does, or "" is given."""
    numbers = {"io_uring": 425, "libaio": 206}  # io_uring_setup, io_setup: on x86-64
    if engine not in numbers:
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    ctypes.set_errno(0)
    libc.syscall(numbers[engine], 0, None)  # where it is there, these arguments are refused
    code = ctypes.get_errno()
    missing = code in (errno.ENOSYS, errno.EPERM, errno.EACCES)
    return f"{engine}: {os.strerror(code)}" if missing else None


def missing_gpu():
    """Why there is no GPU, as CUDA's driver says it; None where there is one."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no GPU: there is no CUDA driver (libcuda.so.1)"
    count = ctypes.c_int(0)
    status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if status != 0:
        return f"no GPU: CUDA's driver does not start (error {status})"
    return None if count.value > 0 else "no GPU: CUDA's driver lists none"


class PenstockTest(unittest.TestCase):
    """Each test has a folder of its own under WORK, removed when it passes or fails."""

    def setUp(self):
        missing = missing_gpu() if DEVICE == "cuda" and not EMULATED else None
        if missing is not None:
            if "PENSTOCK_REQUIRE_GPU" in os.environ:
                self.fail(missing)
            self.skipTest(missing)
        self.folder = tempfile.mkdtemp(prefix=f"{self.id().split('.')[-1]}-", dir=WORK)
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.runs = 0

    def path(self, name):
        return os.path.join(self.folder, name)

    def make_folder(self, name):
        os.makedirs(self.path(name), exist_ok=True)
        return self.path(name)

    def write(self, name, content):
        """Bytes as they are, text as UTF-8, everything else as JSON. Replaces the file whole: another
        program may be reading it."""
        if not isinstance(content, (bytes, str)):
            content = json.dumps(content, indent=1)
        data = content.encode() if isinstance(content, str) else content
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(self.path(name) + ".new", "wb") as file:
            file.write(data)
        os.replace(self.path(name) + ".new", self.path(name))
        return self.path(name)

    def make_model(self, name="model", **override):
        self.write(f"{name}/config.json", {**MODEL, **override})
        return self.path(name)

    def make_data(self, name="data.txt", count=40000):
        return self.write(name, text_bytes(count))

    def train(self, config, *more, steps=30, model=None, data=None, out=None, env=None):
        """`penstock train`; returns (outcome, RUN). Config: an object, or text as it is."""
        self.runs += 1
        run = out or self.path(f"run{self.runs}")
        arguments = ["train", "--model", model or self.make_model(),
                     "--config", self.write(f"config{self.runs}.json", config),
                     "--data", data or self.make_data(), "--out", run]
        if "--device" not in more:
            arguments += ["--device", DEVICE]
        if DEVICE == "cuda" and "--device-memory" not in more:
            # Without it a run takes what is free of the GPU, and others run beside it.
            arguments += ["--device-memory", str(256 << 20)]
        if steps is not None:
            arguments += ["--steps", str(steps)]
        return penstock(*arguments, *more, env=env), run

    def running(self, *arguments, **streams):
        """A run of the program that is killed at the end of the test, if it has not ended by then.
        `streams` are Popen's; by default nobody reads what it writes."""
        streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **streams}
        program = subprocess.Popen([PROGRAM, *arguments], text=True, **streams)
        self.addCleanup(program.__exit__, None, None, None)
        self.addCleanup(program.kill)
        return program

    def wait_until(self, condition, program):
        """Asks until `condition()`, which a running program brings about, is true. Fails where it does
        not in TIMEOUT_S, or where the program has ended before."""
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            self.assertIsNone(program.poll(), "the program has ended")
            self.assertLess(time.monotonic(), deadline, "it did not come in time")
            time.sleep(0.01)

    def wait_for_rows(self, run, count, program):
        """Until a training has written so many rows."""
        metrics = os.path.join(run, "metrics.jsonl")
        self.wait_until(lambda: os.path.exists(metrics) and len(read_rows(run)) >= count, program)

    def wait_for_line(self, text, program):
        """Until a program, whose stderr is a pipe, has written a line with `text` there. Kills it where
        that takes longer than TIMEOUT_S."""
        hang = threading.Timer(TIMEOUT_S, program.kill)
        hang.start()
        try:
            found = any(text in line for line in program.stderr)
        finally:
            hang.cancel()
        self.assertTrue(found, f"the program ended, or was killed, before it wrote {text}")

    def trained(self, config, *more, **keywords):
        """A training that must succeed; returns RUN."""
        outcome, run = self.train(config, *more, **keywords)
        self.assertEqual(outcome.code, 0, str(outcome))
        self.assertEqual(outcome.errors, [], str(outcome))
        return run

    def assert_fails(self, outcome, code, *fragments):
        """One error line with the fragments, nothing else but notices, and that exit code."""
        self.assertEqual(outcome.code, code, str(outcome))
        self.assertEqual(len(outcome.errors), 1, str(outcome))
        self.assertEqual(outcome.stray, [], str(outcome))
        self.assertEqual(outcome.stdout, "", str(outcome))
        for fragment in fragments:
            self.assertIn(fragment, outcome.errors[0])

    def smallest(self, option, config, **keywords):
        """The smallest budget that works, from the message that refuses one byte."""
        outcome, _ = self.train(config, f"--{option}", "1", **keywords)
        self.assert_fails(outcome, 2)
        found = re.search(rf"--{option} (\d+)", outcome.errors[0])
        self.assertIsNotNone(found, str(outcome))
        return int(found.group(1))

    def export(self, run, *more):
        """The exported tensors of a run; checks that the export succeeds."""
        to = f"{run}-export{len(os.listdir(self.folder))}"
        outcome = penstock("export", run, "--to", to, *more)
        self.assertEqual(outcome.code, 0, str(outcome))
        return read_safetensors(os.path.join(to, "model.safetensors")), to

    def large_model(self, name, factor):
        """Of a new model, the weights whose name ends so are multiplied."""
        tensors, folder = self.export(self.trained(make_config(), steps=0))
        [name] = [of for of in tensors if of.endswith(name)]
        dtype, shape, data = tensors[name]
        large = array.array("f", [factor * value for value in array.array("f", data)])
        tensors[name] = (dtype, shape, large.tobytes())
        write_safetensors(os.path.join(folder, "model.safetensors"), tensors)
        return folder

    def numbers(self, run):
        """What nothing but the model, the data and the configuration's arithmetic may change: of its
        rows, and the weights of its last commit."""
        keys = ("step", "loss", "grad_norm", "lr", "loss_scale", "skipped", "tokens")
        return [[row[key] for key in keys] for row in read_rows(run)], self.export(run)[0]

    def compare(self, a, b):
        """What `penstock compare` says; it must succeed."""
        outcome = penstock("compare", a, b)
        self.assertIn(outcome.code, (0, 1), str(outcome))
        self.assertEqual(outcome.stderr, "", str(outcome))
        return outcome

    def assert_equal_bits(self, a, b):
        outcome = self.compare(a, b)
        self.assertEqual(outcome.code, 0, outcome.stdout)
        self.assertIn("equal bits", outcome.stdout)


def read_rows(run):
    with open(os.path.join(run, "metrics.jsonl"), encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def read_summary(run):
    with open(os.path.join(run, "summary.json"), encoding="utf-8") as file:
        return json.load(file)


def read_info(run):
    with open(os.path.join(run, "run.json"), encoding="utf-8") as file:
        return json.load(file)


def older_info(info):
    """Returns what a run.json of version 3 says as versions 1 and 2 say it (docs/run_format.md)."""
    def state_of(state):
        ranks = [{"host": rank["host"], "state_paths": rank["paths"]} for rank in state["ranks"]]
        paths = {"ranks": ranks} if len(ranks) > 1 else {"state_paths": ranks[0]["state_paths"]}
        return {**paths, "state_uuid": state["uuid"]}

    states = [info["state"], *info["leftovers"]]
    version = 2 if any(len(state["ranks"]) > 1 for state in states) else 1
    same = {key: value for key, value in info.items()
            if key in ("program", "run_uuid", "rows_from", "automatic", "changes", "skip_steps")}
    return {"version": version, **same, **state_of(info["state"]), **info["training"],
            "leftovers": [state_of(state) for state in info["leftovers"]]}


def state_paths(run, rank=0):
    """The files in which the last commit is."""
    return [os.path.join(run, path) for path in read_info(run)["state"]["ranks"][rank]["paths"]]


def states_in(folder):
    """Names of states in a folder, where no file names the run of one that is not there."""
    names = os.listdir(folder)
    states = [name for name in names if not name.endswith(".run")]
    alone = [name for name in names
             if name.endswith(".run") and f"{name.removesuffix('.run')}.state" not in states]
    if alone:
        raise AssertionError(f"{folder} has {alone} and no such states")
    return sorted(states)


def state_path(run):
    """Of a run whose state has one file."""
    [path] = state_paths(run)
    return path


def strace_works():
    return shutil.which("strace") is not None and subprocess.run(
        ["strace", "-f", "true"],
        capture_output=True, check=False).returncode == 0


needs_strace = unittest.skipUnless(
    strace_works(), "no strace (scripts/setup --tests installs it), or no ptrace")


@contextlib.contextmanager
def mounted(folder, *mounts):
    """What these calls of mount make of a folder, while a test runs; SkipTest where they fail."""
    is_mounted = False
    try:
        for arguments in mounts:
            done = subprocess.run(["mount", *arguments, folder], capture_output=True, text=True,
                                  check=False)
            if done.returncode != 0:
                raise unittest.SkipTest(f"mount {' '.join(arguments)}: {done.stderr.strip()}")
            is_mounted = True
        yield
    finally:
        if is_mounted:
            subprocess.run(["umount", folder], check=True)
