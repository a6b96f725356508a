"""A value of a wrong kind, at any key of a configuration, is one line that names the key and it."""

from __future__ import annotations

import copy
import unittest
from collections.abc import Iterator
from typing import Any

import optimizer_support
import penstock
import torch
from optimizer_support import OptimizerTest
from penstock._config_types import _KINDS, checked
from penstock.compat import deepspeed
from penstock.errors import InvalidArgumentError, PenstockError

_CONFIG = {
    "train_batch_size": 1,
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 1,
    "gradient_clipping": 0.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.99]}},
    "bf16": {"enabled": False, "check_grad_overflow": True},
    "fp16": {"enabled": False},
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": {"device": "nvme", "nvme_path": "", "pin_memory": False},
        "offload_param": {"device": "cpu"},
    },
    "aio": {"block_size": 1048576},
    "activation_checkpointing": {"partition_activations": False},
    "csv_monitor": {"enabled": False, "output_path": "x", "job_name": "y"},
    "tensorboard": {"enabled": False},
    "wandb": {"enabled": False, "group": "x"},
    "dataloader_drop_last": False,
    "penstock": {"tile_elements": 4096, "commit_every_steps": 0, "missing_gradients": "error"},
}
_SCHEDULER = {"type": "WarmupLR", "params": {"warmup_num_steps": 10, "warmup_min_lr": 0.0}}
# What no key takes, as none is for a value of Python's, and what most do not.
_NEVER = [object(), b"x", float("nan"), 10**400, {1: 2}]
_SELDOM = [5, -3, 1.5, "x", "", [1], {"x": 1}, True]


def _paths(config: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in config.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from _paths(value, (*above, key))


class WrongKinds(OptimizerTest):
    def config(self, level: str) -> dict[str, Any]:
        config = copy.deepcopy(_CONFIG)
        config["zero_optimization"]["offload_optimizer"]["nvme_path"] = self.folder
        if level == "optimizer":
            del config["optimizer"]
        if level == "deepspeed":
            config["scheduler"] = copy.deepcopy(_SCHEDULER)
        return config

    def begin(self, level: str, config: dict[str, Any]) -> None:
        model = torch.nn.Linear(3, 3)
        if level == "optimizer":
            optimizer = penstock.AdamW(model.parameters(), config=config)
            optimizer.state_dict()
        elif level == "module":
            _, optimizer = penstock.initialize(model, config)
        else:
            _, optimizer, _, _ = deepspeed.initialize(model=model, config=config)
        optimizer.close()

    def refusal(self, level: str, path: tuple[str, ...], value: Any) -> Any:
        """Returns the error of a training whose configuration has a value; None: it begins."""
        config = self.config(level)
        section = config
        for key in path[:-1]:
            section = section[key]
        section[path[-1]] = value
        try:
            self.begin(level, config)
        except PenstockError as error:
            return error
        return None

    def test_no_key_has_an_error_of_pythons(self) -> None:
        for level in ("optimizer", "module", "deepspeed"):
            for path in _paths(self.config(level)):
                for value in (*_NEVER, *_SELDOM):
                    with self.subTest(level=level, path=path, value=value):
                        refusal = self.refusal(level, path, value)
                        if any(value is each for each in _NEVER):
                            self.assertIsNotNone(refusal)
                            self.assert_line(refusal, ".".join(path), "give ")
                        elif refusal is not None:
                            self.assert_line(refusal)

    def test_a_key_that_python_reads_is_named_with_its_value_and_what_is_wanted(self) -> None:
        for path, kind in _KINDS.items():
            wrong: list[Any] = ["x" if kind.has(5) else 5, [[]]]
            config: dict[str, Any] = {}
            section = config
            for key in path.split(".")[:-1]:
                section = section.setdefault(key, {})
            for value in wrong:
                section[path.split(".")[-1]] = value
                with self.subTest(path=path, value=value):
                    with self.assertRaises(InvalidArgumentError) as caught:
                        checked(config)
                    self.assert_line(caught.exception, f"{path} is {value!r}; give {kind.words}")

    def test_what_is_no_configuration_is_refused(self) -> None:
        for given in (5, ["x"], True, object()):
            with self.assertRaisesRegex(InvalidArgumentError, "give a mapping, or the path"):
                penstock.initialize(torch.nn.Linear(2, 2), given)

    def test_paths_and_tuples_are_what_json_has_for_them(self) -> None:
        self.assertEqual(checked({"a": optimizer_support.ROOT}), {"a": str(optimizer_support.ROOT)})
        self.assertEqual(checked({"b": (1, (2,))}), {"b": [1, [2]]})


if __name__ == "__main__":
    unittest.main()
