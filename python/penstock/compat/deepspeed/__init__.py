"""DeepSpeed's interface on penstock, for scripts in which only the import changes.

    import penstock.compat.deepspeed as deepspeed

    engine, optimizer, loader, scheduler = deepspeed.initialize(model=model, config="ds_config.json")
    loss = engine(batch)
    engine.backward(loss)
    engine.step()

docs/pytorch_trainer.md lists what is available, and the differences.
"""

from __future__ import annotations

import argparse
from typing import Any

from penstock.compat.deepspeed import zero
from penstock.compat.deepspeed._engine import Engine, initialize

__all__ = ["DeepSpeedEngine", "add_config_arguments", "init_distributed", "initialize", "zero"]

DeepSpeedEngine = Engine


def init_distributed(*_: Any, **__: Any) -> None:
    """Does nothing: penstock works with one process, and ``initialize`` refuses several."""


def add_config_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds ``--deepspeed`` and ``--deepspeed_config``, which ``initialize(args=…)`` reads."""
    group = parser.add_argument_group("DeepSpeed")
    group.add_argument("--deepspeed", action="store_true", help="is always so")
    group.add_argument("--deepspeed_config", help="the configuration")
    return parser
