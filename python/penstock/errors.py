"""What goes wrong, as exceptions with the library's own line: what failed, where, why, what to do."""

from __future__ import annotations


class PenstockError(RuntimeError):
    """The base of all errors of penstock.

    Attributes:
        code: the number of the C interface (``penstock_code``).
    """

    code = 12


class InvalidArgumentError(PenstockError, ValueError):
    """An argument, the configuration or the order of calls is wrong."""

    code = 1


class BudgetError(PenstockError):
    """A memory budget is too small; the message has the smallest that works."""

    code = 2


class NotFoundError(PenstockError):
    """A path is missing."""

    code = 3


class PathPermissionError(PenstockError):
    """A path is not readable or not writable."""

    code = 4


class OutOfSpaceError(PenstockError):
    """The drive is full."""

    code = 5


class OutOfMemoryError(PenstockError, MemoryError):
    """The machine has no memory left."""

    code = 6


class DriveError(PenstockError):
    """A read or a write failed."""

    code = 7


class UnavailableError(PenstockError):
    """Something is not offered here, or is in use by another process."""

    code = 8


class CorruptionError(PenstockError):
    """A checksum or a format is wrong."""

    code = 9


class NumericError(PenstockError, ArithmeticError):
    """Values are not finite where they cannot be skipped."""

    code = 10


class CancelledError(PenstockError):
    """The work was given up because something else failed."""

    code = 11


_CLASSES = {
    cls.code: cls
    for cls in (
        InvalidArgumentError,
        BudgetError,
        NotFoundError,
        PathPermissionError,
        OutOfSpaceError,
        OutOfMemoryError,
        DriveError,
        UnavailableError,
        CorruptionError,
        NumericError,
        CancelledError,
    )
}


def error_of(code: int, message: str) -> PenstockError:
    """Returns the exception of a code."""
    return _CLASSES.get(code, PenstockError)(message)
