"""The command line: parse, call, write."""

from __future__ import annotations

import sys

from ggmtl.errors import MissingExtraError, require


def main() -> None:
    """Run the command line, or say what to install."""
    try:
        for package in ("typer", "rich", "pyarrow"):
            require(package, "cli", "The command line")
    except MissingExtraError as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(1) from None
    from ggmtl.cli.app import run

    run()


__all__ = ["main"]
