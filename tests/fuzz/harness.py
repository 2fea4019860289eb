"""How a generated case is run: counted, timed, every warning an error, and only the package's own errors allowed."""

import functools
import os
import signal
import warnings
from contextlib import contextmanager
from datetime import timedelta

import numpy as np
from hypothesis import HealthCheck, given, settings
from sklearn.exceptions import ConvergenceWarning

from ggmtl.errors import GGMTLError

PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "ci")
# Part of the cases of a long run that is run; each run has fresh ones.
SHARE = float(os.environ.get("FUZZ_SHARE", "1"))
# Seconds after which a case counts as hanging.
LIMIT = 60
counts = {"cases": 0, "refused": 0}


class Hang(Exception):
    """A case took longer than `LIMIT`."""


def fuzz(ci, long, **strategies):
    """Run a property on `ci` generated cases, always the same, or in the profile ``long`` on `long` fresh ones."""
    is_long = PROFILE == "long"

    def decorate(test):
        @functools.wraps(test)
        def case(*arguments, **values):
            counts["cases"] += 1
            with time_limit(), warnings.catch_warnings():
                warnings.simplefilter("error")
                # A fit that says it has not reached its tolerance is an answer.
                warnings.simplefilter("ignore", ConvergenceWarning)
                test(*arguments, **values)

        options = settings(
            max_examples=max(int(SHARE * long), 1) if is_long else ci,
            derandomize=not is_long,
            deadline=timedelta(seconds=LIMIT),
            suppress_health_check=list(HealthCheck),
            database=None,
            print_blob=True,
        )
        return options(given(**strategies)(case))

    return decorate


@contextmanager
def time_limit():
    """Interrupt what runs longer than `LIMIT` seconds, where the platform can."""
    if not hasattr(signal, "setitimer"):
        yield
        return

    def interrupt(*_):
        raise Hang(f"more than {LIMIT} s")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, LIMIT)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def attempt(call, *arguments, **options):
    """The result, or None where the package refuses the input in its own words; anything else fails the test."""
    try:
        return call(*arguments, **options)
    except GGMTLError as error:
        message = str(error)
    counts["refused"] += 1
    assert len(message) > 15, f"{message!r} does not say what to do"
    return None


def assert_finite(*arrays):
    """No NaN, no infinity."""
    for array in arrays:
        assert np.isfinite(np.asarray(array, dtype=np.float64)).all()
