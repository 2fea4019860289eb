"""Which form of a loop runs: compiled where numba can be imported and much is to be read, else NumPy.

The environment variable ``GGMTL_KERNELS`` (``numpy`` or ``numba``) decides otherwise.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import importlib.util
import logging
import os
import shutil
import tempfile
from types import ModuleType
from typing import Any

import numpy as np

from ggmtl.errors import check_choice, require
from ggmtl.runtime.kernels import reference
from ggmtl.runtime.sizes import SIZES, Sizes

logger = logging.getLogger("ggmtl")


def available() -> tuple[str, ...]:
    """Names of the forms that can be used here, the preferred one first."""
    return ("numba", "numpy") if importlib.util.find_spec("numba") is not None else ("numpy",)


@functools.cache
def _form(name: str) -> ModuleType:
    if name:
        check_choice("GGMTL_KERNELS", name, ("numpy", "numba"))
    if name == "numpy":
        return reference
    try:
        require("numba", "fast", "GGMTL_KERNELS=numba")
    except ImportError:
        if name:
            raise
        return reference
    try:
        return importlib.import_module("ggmtl.runtime.kernels.compiled")
    except RuntimeError as error:
        if "locator" not in str(error):
            raise
    return _compiled_with_private_cache()


def _compiled_with_private_cache() -> ModuleType:
    """Compiled kernels where neither the installation nor the home folder can be written."""
    from numba import config

    try:
        folder = tempfile.mkdtemp(prefix="ggmtl-")
    except OSError:
        logger.warning("numba has no place for its cache, so the slower NumPy kernels are used (set NUMBA_CACHE_DIR)")
        return reference
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    config.CACHE_DIR = folder
    logger.warning("numba has no lasting place for its cache: kernels are compiled again (set NUMBA_CACHE_DIR)")
    return importlib.import_module("ggmtl.runtime.kernels.compiled")


def form_for(numbers: float = np.inf) -> ModuleType:
    """The form of a loop that reads so many numbers."""
    told = os.environ.get("GGMTL_KERNELS", "")
    return reference if not told and numbers < SIZES.compiled else _form(told)


def tree_kernels() -> ModuleType:
    """The sampler over spanning trees: :mod:`ggmtl.runtime.kernels.trees`, or the same compiled."""
    name = "trees" if form_for() is reference else "compiled_trees"
    return importlib.import_module(f"ggmtl.runtime.kernels.{name}")


def as_input(array: Any, dtype: Any = np.float64) -> np.ndarray:
    """A contiguous read-only view: one type of argument, hence one compilation per kernel."""
    view = np.ascontiguousarray(array, dtype).view()
    view.flags.writeable = False
    return view


def is_shared(n_numbers: int, sizes: Sizes = SIZES) -> bool:
    """Whether conjugate gradients on matrices of `n_numbers` entries share every pass among threads.

    Such passes wait for memory, so block-Jacobi may then come in float32.
    """
    return form_for(n_numbers) is not reference and n_numbers >= sizes.shared_passes
