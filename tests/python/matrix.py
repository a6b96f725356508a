"""Cells of the matrix that level 2 must hold in: a model trained by penstock and in plain memory.

python matrix.py                     all cells, or those whose names contain an argument
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
import tempfile
from typing import Any, NamedTuple

import penstock
import tiny_models
import torch
from penstock import reference

STEPS = 20
HOMES = ("device", "host", "nvme", "split")
CHECKPOINTS = {"none": None, "reentrant": True, "non-reentrant": False}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Cell(NamedTuple):
    model: str
    checkpoint: str
    micro_batches: int
    home: str
    dtype: str

    def __str__(self) -> str:
        return f"{self.model}, {self.checkpoint}, {self.micro_batches}, {self.home}, {self.dtype}"


AXES: tuple[tuple[Any, ...], ...] = (
    tuple(tiny_models.MODELS),
    tuple(CHECKPOINTS),
    (1, 3),
    HOMES,
    tuple(DTYPES),
)


def all_cells() -> list[Cell]:
    return [Cell(*values) for values in itertools.product(*AXES)]


def _pairs(cell: Cell) -> set[tuple[int, Any, int, Any]]:
    return {(i, cell[i], j, cell[j]) for i, j in itertools.combinations(range(len(cell)), 2)}


def spread(count: int) -> list[Cell]:
    """Chooses cells so that every two values of two axes meet in one, and then others."""
    left = all_cells()
    open_pairs = set().union(*map(_pairs, left))
    chosen: list[Cell] = []
    while len(chosen) < count:
        # Of cells that are equally new, the one that is least like those chosen before.
        best = max(
            left,
            key=lambda cell: (
                len(_pairs(cell) & open_pairs),
                -sum(len(_pairs(cell) & _pairs(other)) for other in chosen),
            ),
        )
        chosen.append(best)
        left.remove(best)
        open_pairs -= _pairs(best)
    assert not open_pairs, f"{count} cells leave {len(open_pairs)} pairs out"
    return chosen


def config(home: str, path: str, micro_batches: int = 1, dtype: str = "fp32") -> dict[str, Any]:
    """Returns a configuration of AdamW with its states, and but for "device" weights, at home."""
    zero: dict[str, Any] = {"stage": 3, "offload_optimizer": {"device": "cpu"}}
    if home in ("nvme", "split"):
        zero["offload_optimizer"] = {"device": "nvme", "nvme_path": path}
    if home != "device":
        zero["offload_param"] = dict(zero["offload_optimizer"])
    return {
        "train_micro_batch_size_per_gpu": tiny_models.ROWS,
        "gradient_accumulation_steps": micro_batches,
        "gradient_clipping": 0,
        "bf16": {"enabled": dtype == "bf16"},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.1}},
        "zero_optimization": zero,
        # Smaller than a block, so that units have several tiles.
        "penstock": {"tile_elements": 4096, "tier_split": home == "split"},
    }


def _train(cell: Cell, model: torch.nn.Module, optimizer: Any, steps: int) -> list[torch.Tensor]:
    """Trains, and returns the losses of all micro-batches."""
    torch.manual_seed(7)
    losses = []
    plain = isinstance(optimizer, reference.ReferenceOptimizer)
    for number in range(steps * cell.micro_batches):
        batch = tiny_models.batch(cell.model, number, DTYPES[cell.dtype])
        loss = tiny_models.loss_of(model(**batch))
        loss.backward()
        losses.append(loss.detach())
        if plain and cell.micro_batches > 1:
            optimizer.micro_batch()
        if (number + 1) % cell.micro_batches == 0:
            optimizer.step()
            optimizer.zero_grad()
        if number == cell.micro_batches - 1:
            optimizer.late_in_step_1 = 0 if plain else _late(optimizer)
    return losses


def _late(optimizer: Any) -> int:
    late: int = optimizer.counters()["late_uses"]
    return late


def _check_weights(expected: torch.nn.Module, model: torch.nn.Module) -> None:
    weights = model.state_dict()
    for name, weight in expected.state_dict().items():
        assert torch.equal(weight, weights[name]), f"{name} differs from training in plain memory"


def check(cell: Cell, steps: int = STEPS) -> None:
    """Trains a cell both ways, and asserts what must hold."""
    make = functools.partial(
        tiny_models.make, cell.model, DTYPES[cell.dtype], CHECKPOINTS[cell.checkpoint]
    )
    plain = make()
    trained = [parameter for parameter in plain.parameters() if parameter.requires_grad]
    losses = _train(cell, plain, reference.AdamW(trained, lr=1e-3, weight_decay=0.1), steps)
    with tempfile.TemporaryDirectory() as folder:
        settings = config(cell.home, folder, cell.micro_batches, cell.dtype)
        model, optimizer = penstock.initialize(make(), settings, run=os.path.join(folder, "run"))
        try:
            for i, (a, b) in enumerate(zip(losses, _train(cell, model, optimizer, steps))):
                assert torch.equal(a, b), f"loss {i} is {b}, and {a} in plain memory"
            _check_weights(plain, model)
            late = _late(optimizer) - optimizer.late_in_step_1
            assert late == 0, f"{late} uses were out of plan after the first step"
            if cell.home != "device":
                most = optimizer.hooks.runtime.most_repeated
                assert most <= 3, f"{most} repeated units were in memory at once"
        finally:
            optimizer.close()


def main() -> int:
    failed = 0
    for cell in all_cells():
        if not all(word in str(cell) for word in sys.argv[1:]):
            continue
        try:
            check(cell)
            print(f"{cell}: equal", flush=True)
        except Exception as error:
            failed += 1
            print(f"{cell}: {type(error).__name__}: {error}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
