"""Error classes, and the messages and checks that several rooms share.

Every class is also a ``ValueError``, ``TypeError``, ``MemoryError`` or ``ImportError``, so that existing handlers keep
working.
"""

import difflib
import importlib
import sys
import warnings
from collections.abc import Iterable
from numbers import Real
from types import ModuleType
from typing import Any

# Modules whose frames are not the user's code.
_WITHIN = {"ggmtl", "contextlib"}


class GGMTLError(Exception):
    """Base of every error this package raises on purpose."""


class InputError(GGMTLError, ValueError):
    """The data given cannot be used; the message names column, value and remedy."""


class InputTypeError(GGMTLError, TypeError):
    """The data given are of a kind that cannot be used."""


class ParameterError(GGMTLError, ValueError):
    """A parameter has a value, or a combination of values, that is refused."""


class UnknownParameterError(ParameterError, TypeError):
    """An estimator has no parameter of this name; the message says what to do instead."""


class UnavailableError(InputError, AttributeError):
    """The estimator does not have this method; the message says why, and what to do instead."""


class SingularSystemError(GGMTLError, ValueError):
    """The models are not determined by the data, the graph and the ridge."""


class SolverError(GGMTLError, ValueError):
    """A linear or convex solver could not reach an acceptable accuracy."""


class ModelFileError(GGMTLError, ValueError):
    """A model file is damaged, truncated, foreign or too new."""


class MemoryShortageError(GGMTLError, MemoryError):
    """More memory is needed than there is; the message gives both amounts and the remedy."""


class MissingExtraError(GGMTLError, ImportError):
    """A feature needs an optional dependency that is not installed."""


class UnseenTaskWarning(UserWarning):
    """Rows of tasks that were not in the training data were predicted with the shared model."""


def require(module: str, extra: str, purpose: str) -> ModuleType:
    """Import an optional module, or say which extra brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"{purpose} needs the package {module.split('.')[0]!r}, which is not installed. "
            f'Install it with: pip install "ggmtl[{extra}]"'
        ) from error


def did_you_mean(name: object, known: Iterable[object]) -> str:
    """Return ' Did you mean …?' when a known name is close, else ''; similar numbers are no misspellings."""
    if not isinstance(name, str):
        return ""
    close = difflib.get_close_matches(str(name), [str(k) for k in known], n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def not_utf8_message(source: object, column: str | None = None) -> str:
    """Say that a file holds text in another encoding, in which column where that is known, and the remedy."""
    where = "" if column is None else f" (column {column!r})"
    return f"{source} is not UTF-8 text{where}. Save it as UTF-8; in Excel: 'CSV UTF-8'."


def check_choice(parameter: str, value: object, choices: Iterable[str]) -> None:
    """Refuse a value that is not among the choices."""
    choices = tuple(choices)
    if value not in choices:
        raise ParameterError(f"{parameter} must be one of {', '.join(map(repr, choices))}. Got {value!r} instead.")


def check_share(parameter: str, value: Any) -> None:
    """Refuse a value that is not a number between zero and one."""
    if not isinstance(value, Real) or not 0.0 < float(value) < 1.0:
        raise ParameterError(f"{parameter} must be between 0 and 1, both excluded. Got {value!r} instead.")


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn with the line of the user's code that led here; decorators make its distance vary."""
    frame, level = sys._getframe(1), 2
    while frame.f_globals.get("__name__", "").split(".")[0] in _WITHIN and frame.f_back is not None:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
