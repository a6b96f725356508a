"""Placement changes nothing: weights and losses are those of training in plain memory."""

from __future__ import annotations

import os
import unittest

import matrix
import torch

_LONG = bool(os.environ.get("PENSTOCK_LONG_TESTS"))
_CELLS = matrix.all_cells() if _LONG else matrix.spread(40)


class Matrix(unittest.TestCase):
    """One test for each cell; all of them with PENSTOCK_LONG_TESTS=1."""


def _test_of(cell: matrix.Cell) -> object:
    def test(self: unittest.TestCase) -> None:
        torch.set_num_threads(1)
        matrix.check(cell)

    test.__doc__ = str(cell)
    return test


for _number, _cell in enumerate(_CELLS):
    setattr(Matrix, f"test_{_number:03}_equals_plain_memory", _test_of(_cell))


if __name__ == "__main__":
    unittest.main()
