"""Modules that are imported when they are first used: a help text needs neither numbers nor tables."""

from __future__ import annotations

import importlib
from typing import Any


class Later:
    """Stands for the module of this name; its attributes are those of the module.

    Parameters
    ----------
    module : str
        Full name.
    """

    def __init__(self, module: str):
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._module), name)
