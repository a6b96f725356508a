"""Trains a small model in a run of the library (front/penstock.h), as the Python package does.

  package_training.py LIBRARY OPTIONS

OPTIONS is a JSON object: "run", "nvme_path" and "kind" are those of penstock_open_run; "steps" are
made, each with a commit, whose text has "caller" bytes more, and then each of "snapshots" is taken.
Each reports its loss, unless "losses" is false. "durable" is that of the configuration. "end" says
what comes then:
  "close"     everything is closed
  "uncommitted"  one more step, without a commit, and the process ends as if it were killed
  "unnamed"   one more step and its commit, and the process ends as if it were killed before it had
              run.json name the commit
  "not finite"  two more steps whose loss is NaN, an attempt to begin another, and all is closed
  "wait"      the run stays open until the standard input ends
  "asks"      for each line of the standard input: "step" and "not finite" make a step, "commit"
              commits; a line is written when that is done
Writes the path of the run when that point is reached. Standard library only.
"""
import array
import ctypes
import json
import os
import sys

UNITS = ("encoder", "decoder")
TENSORS = {"weight": [40, 50], "bias": [50]}
IDENTITY = {"rule": "AdamW", "names": "1234"}


class Group(ctypes.Structure):
    _fields_ = [(name, ctypes.c_double) for name in ("lr", "beta1", "beta2", "eps", "weight_decay")]


class Outcome(ctypes.Structure):
    _fields_ = [("step", ctypes.c_uint64), ("optimizer_steps", ctypes.c_uint64),
                ("grad_norm", ctypes.c_double), ("skipped", ctypes.c_int32),
                ("notices", ctypes.c_uint32)]


def elements(shape):
    count = 1
    for size in shape:
        count *= size
    return count


class Library:
    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        self.library.penstock_error.restype = ctypes.c_char_p

    def call(self, name, *arguments):
        if getattr(self.library, name)(*arguments) != 0:
            raise SystemExit(f"{name}: {self.library.penstock_error().decode()}")

    def text(self, name, handle):
        text = ctypes.c_void_p()
        self.call(name, handle, ctypes.byref(text))
        value = json.loads(ctypes.string_at(text))
        self.library.penstock_free(text)
        return value

    def handle(self, name, *texts):
        """Of a function that makes something from texts, written as JSON."""
        handle = ctypes.c_void_p()
        self.call(name, *[text if isinstance(text, ctypes.c_void_p) else json.dumps(text).encode()
                          for text in texts], ctypes.byref(handle))
        return handle


class Training:
    """Weights and gradients are 32-bit floats. A gradient depends on nothing but the step."""

    def __init__(self, library, options):
        self.library, self.kind = library, options.get("kind", "optimizer")
        self.reports = options.get("losses", True)
        self.caller = options.get("caller", 0)
        asked = {"run": options.get("run"), "nvme_path": options.get("nvme_path", []),
                 "kind": self.kind}
        self.run = library.handle("penstock_open_run",
                                  {key: value for key, value in asked.items() if value is not None})
        self.folder = library.text("penstock_describe_run", self.run)["folder"]
        drives = options.get("nvme_path", [])
        self.durable = options.get("durable", True)
        self.engine = library.handle("penstock_create_in", self.run, self.config(drives),
                                     self.model(), {"identity": {"kind": self.kind, **IDENTITY}})
        self.steps = library.text("penstock_describe", self.engine)["step"]
        if self.steps == 0:
            self.fill()

    def config(self, drives):
        home = {"device": "nvme", "nvme_path": drives} if drives else {"device": "cpu"}
        homes = {"offload_optimizer": home}
        if self.kind == "module":
            homes["offload_param"] = home
        return {"train_micro_batch_size_per_gpu": 1,
                "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
                "zero_optimization": {"stage": 3, **homes}, "penstock": {"durable": self.durable}}

    @staticmethod
    def model():
        units = [{"name": unit,
                  "tensors": [{"name": f"{unit}.{name}", "shape": shape, "group": 0}
                              for name, shape in TENSORS.items()]} for unit in UNITS]
        return {"units": units, "groups": [{"name": "all", "dtype": "fp32"}]}

    def fill(self):
        for unit in range(len(UNITS)):
            values = [array.array("f", [0.01 * (i % 101) for i in range(elements(shape))])
                      for shape in TENSORS.values()]
            places = (ctypes.c_void_p * len(values))(*[value.buffer_info()[0] for value in values])
            self.library.call("penstock_fill", self.engine, unit, places)

    def step(self, loss=1.0):
        self.steps += 1
        for use in (0, 1):  # forward, backward
            for unit in range(len(UNITS)):
                size = self.library.text("penstock_describe", self.engine)["units"][unit]["bytes"]
                self.library.call("penstock_use", self.engine, unit, use,
                                  ctypes.create_string_buffer(size))
        for unit in range(len(UNITS)):
            for tensor, shape in enumerate(TENSORS.values()):
                values = array.array("f", [0.001 * ((self.steps + i) % 7)
                                           for i in range(elements(shape))])
                self.library.call("penstock_gradient", self.engine, unit, tensor,
                                  ctypes.c_void_p(values.buffer_info()[0]), 0)
        if self.reports:
            self.library.call("penstock_report_loss", self.engine, ctypes.c_double(loss))
        self.library.call("penstock_end_step", self.engine, ctypes.byref(Group(1e-2, 0.9, 0.99,
                                                                               1e-8, 0.1)),
                          1, ctypes.c_double(0), ctypes.c_double(1), ctypes.byref(Outcome()))

    def commit(self):
        text = {"text": f"{self.steps}" * self.caller} if self.caller else {}
        self.library.call("penstock_begin_commit", self.engine, json.dumps(text).encode())
        self.library.call("penstock_finish_commit", self.engine)

    def snapshot(self, name):
        folder = ctypes.c_void_p()
        self.library.call("penstock_snapshot", self.engine, name.encode(), ctypes.byref(folder))
        self.library.library.penstock_free(folder)

    def close(self):
        self.library.library.penstock_close(self.engine)
        self.library.call("penstock_close_run", self.run)


def main():
    options = json.loads(sys.argv[2])
    training = Training(Library(sys.argv[1]), options)
    for _ in range(options.get("steps", 2)):
        training.step()
        training.commit()
    for name in options.get("snapshots", []):
        training.snapshot(name)
    end = options.get("end", "close")
    if end in ("uncommitted", "unnamed"):
        training.step()
    if end == "not finite":
        for _ in range(2):
            training.step(float("nan"))
        try:
            training.step()
        except SystemExit:
            pass
    if end == "unnamed":
        info = os.path.join(training.folder, "run.json")
        with open(info, "rb") as file:
            before = file.read()
        training.commit()
        with open(info, "wb") as file:
            file.write(before)
    print(training.folder, flush=True)
    if end in ("uncommitted", "unnamed"):
        os._exit(0)
    if end == "wait":
        sys.stdin.read()
    if end == "asks":
        for line in sys.stdin:
            if line == "commit\n":
                training.commit()
            else:
                training.step(float("nan") if line == "not finite\n" else 1.0)
            print("done", flush=True)
    training.close()


if __name__ == "__main__":
    main()
