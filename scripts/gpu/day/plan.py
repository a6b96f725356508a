"""The parts of a day, by priority: what each runs, and how long it may take.

A part's command is run without a shell. "{scratch}" in it is the part's own folder, "{drive}" one
on a drive with O_DIRECT (or {scratch} if there is none), "{seconds}" its limit less five, in which
it reports its results. The exit code LEFT_OUT means that the machine lacks something, which a line
"missing: WHAT" names.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import sys
from collections.abc import Iterable, Mapping

LEFT_OUT = 77


@dataclasses.dataclass(frozen=True)
class Part:
    """One part. `limit`: it is ended after so many seconds; `least`: with fewer it does not start."""

    name: str
    answers: str
    command: tuple[str, ...]
    limit: float
    least: float = 5
    cuda: bool = False  # finds CUDA's libraries by find-cuda
    beside: bool = False  # the next groups do not wait for it, but for a quiet one
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Group:
    """Parts that run at once. `quiet`: nothing else may run then."""

    parts: tuple[Part, ...]
    quiet: bool = False


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How large the models are, and where torch computes."""

    device: str
    large: str  # 1.3 billion parameters, 16 Ki tokens a micro-batch
    small: str  # 0.35 billion
    layers4: str  # four layers of the large one
    steps: int
    memory: tuple[str, ...]  # elements, and numbers of threads
    dtypes: tuple[str, ...]


_LARGE = "width=2048,heads=16,rows=8,length=2048"
FULL = Sizes(
    device="cuda",
    large=f"layers=24,{_LARGE}",
    small="layers=24,width=1024,heads=16,rows=8,length=2048",
    layers4=f"layers=4,{_LARGE},device_memory=24GiB",
    steps=6,
    memory=("268435456", "1", "2", "4", "8", "12", "14", "16"),
    dtypes=("bfloat16", "float32"),
)
_TINY = "layers=1,width=64,heads=2,rows=2,length=16,vocabulary=256"
TINY = Sizes(
    device="cpu",
    large=_TINY,
    small=_TINY,
    layers4=f"{_TINY},device_memory=64MiB",
    steps=3,
    memory=("2097152", "1", "2"),
    dtypes=("bfloat16",),
)


def _contender(kind: str, model: str, **keys: object) -> str:
    return f"{kind}:{model}," + ",".join(f"{key}={value}" for key, value in keys.items())


class _Maker:
    """Makes parts of programs in a kit."""

    def __init__(self, kit: pathlib.Path, sizes: Sizes) -> None:
        self._kit = kit
        self._sizes = sizes

    def program(self, name: str, *words: str) -> tuple[str, ...]:
        return (str(self._kit / name), *words)

    def python(self, name: str, *words: str) -> tuple[str, ...]:
        return (sys.executable, str(self._kit / "parts" / name), *words)

    def steps(self, *contenders: str) -> tuple[str, ...]:
        return self.python("steps.py", *contenders)

    def train(self, name: str, answers: str, model: str, limit: float, **keys: object) -> Part:
        """A training by the program itself."""
        words = [f"{key}={value}" for key, value in keys.items()]
        command = self.python("train_steps.py", name, *model.split(","), *words)
        return Part(name, answers, command, limit, 25, cuda=True)

    def first(self) -> Group:
        gpu = {"PENSTOCK_REQUIRE_GPU": "1"}
        return Group(
            (
                Part("facts", "which machine is this?", self.python("facts.py"), 20, 3),
                Part("doctor", "what does penstock find?", self.python("doctor.py"), 40, cuda=True),
                Part(
                    "device",
                    "do streams, events and copies work?",
                    self.program("device_cuda_test"),
                    40,
                    cuda=True,
                    environment=gpu,
                ),
                Part(
                    "smoke-train",
                    "does training run, with equal losses from every home and I/O engine?",
                    self.python("smoke_train.py"),
                    60,
                    cuda=True,
                ),
                Part(
                    "ds-ops",
                    "can DeepSpeed's operators be compiled here?",
                    ("nice", "-n", "10", *self.python("ds_ops.py")),
                    110,
                    40,
                    beside=True,
                ),
            )
        )

    def right(self) -> list[Group]:
        sizes = self._sizes
        check = self.program("gpu-check", "{drive}", "--seconds", "{seconds}", "--without", "nccl")
        return [
            Group(
                (
                    Part(
                        "bits",
                        "are both levels of the package bit for bit penstock.reference?",
                        self.python("bits.py", sizes.device, *sizes.dtypes),
                        100,
                        20,
                    ),
                    Part(
                        "check",
                        "do all tests pass, and sanitizers?",
                        check,
                        *(110, 30),
                        environment={"OUT": ""},  # what failed is in the part's own log
                    ),
                )
            ),
            Group(
                (
                    Part(
                        "nccl",
                        "does NCCL work with one rank?",
                        self.python("nccl.py"),
                        20,
                        cuda=True,
                        environment={"PENSTOCK_REQUIRE_GPU": "1"},
                    ),
                ),
                quiet=True,  # it asks how much of the GPU's memory is free
            ),
        ]

    def ceilings(self) -> list[Group]:
        sizes = self._sizes
        return [
            Group(
                (
                    Part(
                        "cuda-bench",
                        "what do copies, products and attention reach?",
                        self.program("cuda_bench"),
                        40,
                        10,
                        cuda=True,
                    ),
                )
            ),
            Group(
                (
                    Part(
                        "memory",
                        "how fast is memory, and the update with 1 to 16 threads?",
                        self.python("memory.py", *sizes.memory),
                        25,
                        8,
                    ),
                ),
                quiet=True,
            ),
            Group(
                (
                    Part(
                        "ncu",
                        "where does a step's time go, and what limits our kernels?",
                        self.python("ncu.py", *sizes.layers4.split(",")),
                        60,
                        15,
                        cuda=True,
                    ),
                )
            ),
        ]

    def torch_steps(self) -> list[Group]:
        sizes = self._sizes
        large, small, device = sizes.large, sizes.small, sizes.device
        keys = {"device": device, "steps": sizes.steps}
        fewer = {"device": device, "steps": min(4, sizes.steps)}
        steps = self.steps(
            _contender("torch", large, seconds=35, **keys),
            _contender("level1", large, home="cpu", seconds=45, **keys),
            _contender("deepspeed", large, home="cpu", seconds=60, **keys),
            _contender("level2", large, home="cpu", seconds=45, **keys),
        )
        nvme = self.steps(
            _contender("torch", small, seconds=25, **fewer),
            _contender("level2", small, home="nvme", seconds=50, **fewer),
            _contender("deepspeed", small, home="nvme", seconds=80, **fewer),
        )
        return [
            Group(
                (Part("steps", "tokens/s of torch, both levels, DeepSpeed", steps, 185, 40),),
                quiet=True,
            ),
            Group(
                (Part("drive", "how fast is the drive?", self.python("doctor.py"), 20, cuda=True),),
                True,
            ),
            Group((Part("steps-nvme", "the same, all on a drive", nvme, 150, 40),), quiet=True),
        ]

    def own_steps(self) -> list[Group]:
        large, small = self._sizes.large, self._sizes.small
        floor = "penstock train against its floor"
        parts = [
            self.train("train-host", floor, large, 75, home="cpu", steps=7),
            self.train("train-host-64k", floor, large, 75, home="cpu", steps=5, accumulate=4),
            self.train("train-device", floor, large, 75, home="none", steps=7, tile=1 << 20),
            self.train("train-device-big", floor, large, 75, home="none", steps=7, tile=1 << 26),
            self.train("train-nvme", floor, small, 60, home="nvme", steps=5),
            self.train(
                "attention-cudnn",
                "attention by cuDNN against our own (train-host)",
                *(large, 75),
                home="cpu",
                steps=7,
                attention="cudnn",
            ),
        ]
        return [Group((part,)) for part in parts]

    def later(self) -> list[Group]:
        sizes = self._sizes
        large, device = sizes.large, sizes.device
        keys = {"device": device, "steps": min(4, sizes.steps)}
        parts = {
            "accumulate": (
                "the same with four micro-batches, 64 Ki tokens",
                *(120, 40),
                _contender("torch", large, accumulate=4, seconds=40, **keys),
                _contender("level1", large, home="cpu", accumulate=4, seconds=45, **keys),
                _contender("level2", large, home="cpu", accumulate=4, seconds=45, **keys),
            ),
            "larger": (
                "does a module train whose weights take 1.5 times the device's budget?",
                *(60, 25),
                _contender(
                    *("level2", large),
                    **{"home": "cpu", "larger": 1.5, "optional": 1, "seconds": 55, **keys},
                    **{"rows": 1, "length": 512} if device == "cuda" else {},
                ),
            ),
            "steps-device": (
                "tokens/s with states on the device",
                *(70, 25),
                _contender("level1", large, home="none", optional=1, seconds=35, **keys),
                _contender("level2", large, home="none", optional=1, seconds=35, **keys),
            ),
            "trace": (
                "what runs when in a step?",
                *(50, 25),
                _contender("level2", large, home="cpu", trace=1, seconds=45, **keys),
            ),
        }
        return [
            Group((Part(name, answers, self.steps(*contenders), limit, least),))
            for name, (answers, limit, least, *contenders) in parts.items()  # type: ignore[misc]
        ]


def make(kit: pathlib.Path, sizes: Sizes) -> list[Group]:
    """Returns all groups of a day."""
    maker = _Maker(kit, sizes)
    return [
        maker.first(),
        *maker.right(),
        *maker.ceilings(),
        *maker.torch_steps(),
        *maker.own_steps(),
        *maker.later(),
    ]


def only(groups: list[Group], names: Iterable[str]) -> list[Group]:
    """Returns the parts with these names, in the order of the plan; all if there is no name.

    Raises:
        KeyError: a name is not a part's; the message lists those that are.
    """
    wanted = set(names)
    known = [part.name for group in groups for part in group.parts]
    unknown = sorted(wanted - set(known))
    if unknown:
        raise KeyError(f"there is no part {', '.join(unknown)}; there are {', '.join(known)}")
    if not wanted:
        return groups
    chosen = [
        dataclasses.replace(g, parts=tuple(p for p in g.parts if p.name in wanted)) for g in groups
    ]
    return [group for group in chosen if group.parts]


def missing_files(groups: list[Group], kit: pathlib.Path) -> list[str]:
    """A line for each file of the kit that a part needs and that is not there."""
    needed = [
        (part.name, word) for group in groups for part in group.parts for word in part.command
    ]
    if any(name == "nccl" for name, _ in needed):
        needed.append(("nccl", str(kit / "comm_cuda_test")))
    needed += [(part.name, str(kit / "find-cuda")) for g in groups for part in g.parts if part.cuda]
    lines = []
    for name, word in needed:
        if not word.startswith(f"{kit}/"):
            continue
        path = pathlib.Path(word)
        if not path.is_file():
            lines.append(f"{name} needs {path}, which is not there")
        elif path.suffix == "" and path.name != "find-cuda" and not os.access(path, os.X_OK):
            lines.append(f"{name} needs {path}, which cannot be run")
    return lines


def text(groups: list[Group], seconds: float) -> str:
    """The plan as a table, and how long all of it takes at most."""
    lines = [f"{'at most at':>10} {'limit':>6} {'least':>6}  part"]
    at = 0.0
    beside = 0.0  # when the last part that runs beside others has ended
    late = None
    for group in groups:
        if group.quiet:
            at = max(at, beside)
        for part in group.parts:
            also = ", beside the next ones" if part.beside else ""
            lines.append(
                f"{at:>8.0f} s {part.limit:>4.0f} s {part.least:>4.0f} s  "
                f"{part.name}: {part.answers}{also}"
            )
            if late is None and at + part.least > seconds:
                late = part.name
        beside = max([beside, *(at + p.limit for p in group.parts if p.beside)])
        at += max([0.0, *(p.limit for p in group.parts if not p.beside)])
    lines.append(f"all parts to their limits: {max(at, beside):.0f} s; this run: {seconds:.0f} s")
    if late is not None:
        lines.append(f"if all before take their limits, what comes from {late} on is left out")
    return "\n".join(lines)
