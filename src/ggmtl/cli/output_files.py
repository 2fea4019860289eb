"""Which files a command may write; asked before any work is done, so that no fit is lost to a wrong name."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ggmtl.errors import ParameterError, require

TABLES = (".csv", ".parquet", ".pq")
MODELS = (".ggmtl",)
PAGES = (".html", ".htm")


def check_output(option: str, path: Path | None, suffixes: Sequence[str], inputs: Sequence[Path] = ()) -> None:
    """Refuse a file that cannot be written, or that must not be."""
    if path is None:
        return
    if path.is_dir():
        raise ParameterError(f"{option} must be a file. Got the folder {str(path)!r} instead.")
    if path.suffix.lower() not in suffixes:
        endings = " or ".join(suffixes[:2])
        raise ParameterError(f"{option} must end in {endings}. Got {str(path)!r} instead.")
    folder = path.parent
    if not folder.is_dir():
        raise ParameterError(
            f"{option} must be in a folder that exists. Got {str(path)!r} instead; make the folder {str(folder)!r} "
            "first."
        )
    if not os.access(folder, os.W_OK):
        raise ParameterError(f"{option} must be in a folder that you may write to. Got {str(path)!r} instead.")
    if any(_same(path, other) for other in inputs):
        raise ParameterError(f"{option} must not be a file that is read. Got {str(path)!r} for both.")


def check_page(option: str, path: Path | None) -> None:
    """The same for a page, which also needs its template engine."""
    if path is not None:
        check_output(option, path, PAGES)
        require("jinja2", "report", "The report")


def _same(path: Path, other: Path) -> bool:
    return path.exists() and other.exists() and os.path.samefile(path, other)
