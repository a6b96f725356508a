"""Expects warnings, beside any module.

unittest's assertWarns asks each module that is imported for an attribute. That imports what lazy
modules of transformers stand for, and packages that are not installed.
"""

from __future__ import annotations

import contextlib
import unittest
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def warned(test: unittest.TestCase, text: str) -> Iterator[None]:
    """What happens within gives exactly one warning of ours, in which a pattern is found."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        yield
    said = [str(one.message) for one in seen if issubclass(one.category, UserWarning)]
    test.assertEqual(len(said), 1, said)
    test.assertRegex(said[0], text)
