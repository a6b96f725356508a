"""Universal checkpoints of DeepSpeed, in and out (docs/pytorch_trainer.md).

    penstock.universal.load(optimizer, "global_step1000_universal")
    penstock.universal.save(optimizer, "out")

    python -m penstock.universal import DIR MODEL --config ds_config.json --run RUN
    python -m penstock.universal export DIR MODEL --config ds_config.json --run RUN

MODEL is a folder with the config.json of a model of transformers. penstock.initialize(model,
config, run=RUN) resumes from RUN.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Union

import torch

import penstock
from penstock import _rules
from penstock._config import read_config
from penstock._initialize import initialize
from penstock._module_optimizer import ModuleOptimizer
from penstock._offloaded import OffloadedOptimizer
from penstock._universal_files import Reader, write
from penstock.errors import InvalidArgumentError, PenstockError

__all__ = ["Reader", "load", "main", "save"]

Optimizer = Union[OffloadedOptimizer, ModuleOptimizer]


def load(optimizer: Optimizer, folder: str | os.PathLike[str], *, steps: int | None = None) -> None:
    """Begins a training with the weights, moments and steps of a universal checkpoint.

    Parameters have its weights afterwards. It is read tensor by tensor.

    Args:
        optimizer: of this package, before its first step; with level 2 before the module is used.
        folder: the checkpoint.
        steps: the number of updates, for checkpoints that do not have it.

    Raises:
        InvalidArgumentError: the checkpoint is of another model, or has shards of ranks.
    """
    optimizer.begin_with(Reader(folder, steps))


def save(optimizer: Optimizer, folder: str | os.PathLike[str]) -> None:
    """Writes the states of a training after its last step as a universal checkpoint."""
    groups = _rules.group_options(optimizer.param_groups)
    write(folder, optimizer.states(), optimizer.updates, groups)


def _model_of(folder: str, dtype: torch.dtype) -> torch.nn.Module:
    """Makes the module that a folder's config.json describes; its weights do not matter."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder)
    names = config.architectures or []
    cls = getattr(transformers, names[0], None) if names else None
    if cls is None:
        raise InvalidArgumentError(
            f"penstock: {folder}/config.json names no architecture of transformers ({names}); use "
            "penstock.universal.load in a program that makes the module"
        )
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with penstock.init():  # without memory for weights
            module: torch.nn.Module = cls(config)
    finally:
        torch.set_default_dtype(before)
    return module


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m penstock.universal",
        description="Universal checkpoints of DeepSpeed, in and out.",
    )
    parser.add_argument("what", choices=("import", "export"))
    parser.add_argument("folder", metavar="DIR", help="the universal checkpoint")
    parser.add_argument("model", metavar="MODEL", help="a folder with config.json")
    parser.add_argument("--config", required=True, help="the DeepSpeed configuration")
    parser.add_argument("--run", required=True, help="the run that is made, or read")
    parser.add_argument("--steps", type=int, help="of a checkpoint that does not say them")
    return parser.parse_args(given)


def _convert(arguments: argparse.Namespace) -> str:
    config = read_config(arguments.config)
    bf16 = config.get("bf16", config.get("bfloat16", {})).get("enabled") is True
    module = _model_of(arguments.model, torch.bfloat16 if bf16 else torch.float32)
    imports = arguments.what == "import"
    weights = Reader(arguments.folder, arguments.steps) if imports else "random"  # is not read
    if not imports and not os.path.exists(os.path.join(arguments.run, "run.json")):
        raise InvalidArgumentError(f"penstock: there is no run {arguments.run}")
    _, optimizer = initialize(module, config, run=arguments.run, weights=weights)
    try:
        if imports:
            if optimizer.continued:
                raise InvalidArgumentError(
                    f"penstock: run {arguments.run} has a commit already; name another run"
                )
            optimizer.commit()
            return f"{arguments.folder} is in run {arguments.run}, at step {optimizer.steps}"
        if not optimizer.continued:
            raise InvalidArgumentError(f"penstock: run {arguments.run} has no commit to export")
        save(optimizer, arguments.folder)
        return f"step {optimizer.steps} of run {arguments.run} is in {arguments.folder}"
    finally:
        optimizer.close()


def main(given: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0, or 1 after a line with the problem."""
    arguments = _arguments(given)
    try:
        print(_convert(arguments))
    except PenstockError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
