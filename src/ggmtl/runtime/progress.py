"""The package's log, shown on standard error while a verbose call runs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger("ggmtl")


@contextmanager
def verbose_logging(verbose: int) -> Iterator[None]:
    """Show this package's log on standard error while a verbose call runs, unless the user has set up logging."""
    if not verbose or logger.hasHandlers():
        yield
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("[ggmtl] %(message)s"))
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO if verbose == 1 else logging.DEBUG)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
