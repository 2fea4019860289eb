"""The command line.

In: arguments and files. Out: model files, tables, pages and text. ``app`` has the commands and ``options`` what they
share; ``workflow`` goes from a file to a fitted model and back, by ``table_files``, ``csv_files``, ``columns`` and
``dates``; ``comparison`` and ``demo`` have the commands of these names; ``terminal`` prints.
"""

from __future__ import annotations

import codecs
import sys
from io import TextIOWrapper

from ggmtl.errors import MissingExtraError, require

# For terminals whose encoding lacks a symbol; any other character becomes a question mark.
_ASCII = {"±": "+/-", "−": "-", "–": "-", "←": "<-", "→": "->", "…": "...", "·": "|", "“": '"', "”": '"', "’": "'"}


def main() -> None:
    """Run the command line, or say what to install."""
    try:
        for package in ("typer", "rich", "pyarrow"):
            require(package, "cli", "The command line")
    except MissingExtraError as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(1) from None
    from ggmtl.cli.app import app

    _use_ascii_where_needed()
    app()


def _use_ascii_where_needed() -> None:
    """Replace symbols that an output cannot encode, such as a Windows console redirected to a file."""

    def replace(error: UnicodeError) -> tuple[str, int]:
        if not isinstance(error, UnicodeEncodeError):
            raise error
        return "".join(_ASCII.get(letter, "?") for letter in error.object[error.start : error.end]), error.end

    codecs.register_error("ggmtl_ascii", replace)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="ggmtl_ascii")


__all__ = ["main"]
