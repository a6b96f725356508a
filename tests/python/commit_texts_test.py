"""What a commit says is given back as it was (docs/pytorch_runs.md)."""

from __future__ import annotations

import json
import math
import random
import unittest
from typing import Any

import numpy
import torch
from optimizer_support import OptimizerTest
from penstock import _state
from penstock.errors import CorruptionError, InvalidArgumentError


def there_and_back(value: Any) -> Any:
    return _state.decode(json.loads(json.dumps(_state.encode(value, "value"), allow_nan=False)))


class ValuesComeBack(OptimizerTest):
    def test_plain_values_keep_their_types(self) -> None:
        for value in (
            None,
            True,
            7,
            2.5,
            "text",
            b"\x00\xff",
            [1, (2, [3.0])],
            {"a": {"b": (1,)}},
            {1: "one", (2, 3): "pair", "$key": 4, "": 5},
            {"$bytes": "not bytes"},
            math.inf,
            -math.inf,
        ):
            with self.subTest(value=value):
                back = there_and_back(value)
                self.assertEqual(back, value)
                self.assertIs(type(back), type(value))
        self.assertTrue(math.isnan(there_and_back(math.nan)))

    def test_tensors_and_arrays_keep_their_bits(self) -> None:
        for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8):
            tensor = torch.randn(3, 2).mul(4).to(dtype).t()
            back = there_and_back(tensor)
            self.assertEqual((back.dtype, back.shape), (dtype, tensor.shape))
            self.assertTrue(torch.equal(back, tensor))
        self.assertTrue(torch.equal(there_and_back(torch.tensor(3.5)), torch.tensor(3.5)))
        array = numpy.arange(6, dtype=numpy.uint16).reshape(2, 3)
        self.assertTrue(numpy.array_equal(there_and_back(array), array))
        self.assertEqual(there_and_back(numpy.float64(0.1)), 0.1)

    def test_what_json_cannot_hold_is_named(self) -> None:
        with self.assertRaisesRegex(InvalidArgumentError, r"value\.a\[1\] is a function"):
            _state.encode({"a": [0, lambda: None]}, "value")
        with self.assertRaisesRegex(CorruptionError, r"\$later"):
            _state.decode({"$later": 1})

    def test_all_generators_resume_where_they_were(self) -> None:
        def draw() -> list[float]:
            return [random.random(), numpy.random.rand(), torch.rand(()).item()]

        draw()
        numpy.random.standard_normal()
        text = _state.capture({}, {})
        drawn = [draw(), draw()]
        _state.restore(json.loads(json.dumps(text)), {})
        self.assertEqual([draw(), draw()], drawn)

    def test_schedulers_scalers_and_what_is_in_them_come_back(self) -> None:
        def make() -> dict[str, Any]:
            optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
            schedule = torch.optim.lr_scheduler
            return {
                "steps": schedule.MultiStepLR(optimizer, [2, 4]),
                "chain": schedule.SequentialLR(
                    optimizer,
                    [schedule.LinearLR(optimizer), schedule.ExponentialLR(optimizer, 0.5)],
                    milestones=[2],
                ),
                "plateau": schedule.ReduceLROnPlateau(optimizer),
                "scaler": torch.amp.GradScaler("cpu"),
            }

        things = make()
        things["plateau"].step(1.0)
        text = json.loads(json.dumps(_state.capture(things, {})))
        others = make()
        _state.restore(text, others)
        for name, thing in things.items():
            self.assertEqual(str(thing.state_dict()), str(others[name].state_dict()), name)


if __name__ == "__main__":
    unittest.main()
