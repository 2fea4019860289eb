"""``python -m ggmtl.reproduce table1 --quick``: the tables and figures without the command-line extra."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from ggmtl.errors import GGMTLError
from ggmtl.reproduce import TARGETS, run


def main(arguments: list[str] | None = None) -> int:
    """Parse, compute, write; 2 on an error that the user can mend."""
    parser = argparse.ArgumentParser(prog="python -m ggmtl.reproduce", description="Compute the paper's tables.")
    parser.add_argument("what", choices=TARGETS)
    parser.add_argument("--quick", action="store_true", help="two runs, small grids, fewer methods")
    parser.add_argument("--output", type=Path, default=Path("results"), help="folder of pages and kept results")
    parser.add_argument("--jobs", type=int, default=None, help="processes (default: one per processor)")
    chosen = parser.parse_args(arguments)
    started = time.perf_counter()

    def report(done: int, total: int, text: str) -> None:
        sys.stderr.write(f"[{time.perf_counter() - started:7.1f} s] {done}/{total} {text}\n")

    try:
        run(chosen.what, chosen.quick, chosen.output, report, chosen.jobs)
    except GGMTLError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
