"""Files that appear whole or not at all."""

from __future__ import annotations

import csv
import errno
import io
import os
import stat
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


def write_whole(path: str | Path, content: bytes) -> None:
    """Write a file at once: a reader sees the old content or the new, never a part.

    A link is followed, and a file that is there keeps its mode. Devices and pipes are refused.
    """
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        mode = target.stat().st_mode if target.exists() else None
        if mode is not None and not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise OSError(errno.EINVAL, "Not a regular file")
        temporary.write_bytes(content)
        if mode is not None:
            temporary.chmod(stat.S_IMODE(mode))
        os.replace(temporary, target)
    except OSError as error:
        if error.errno is None:
            raise
        # The user asked for `path`; the name of the temporary file would mean nothing to them.
        raise type(error)(error.errno, error.strerror, str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)


def write_csv(path: str | Path, rows: Iterable[Sequence[Any]], separator: str = ",") -> None:
    """Write a CSV file at once. A carriage return alone ends a line for many readers, so such cells are quoted."""
    rows = list(rows)
    odd = any("\r" in str(cell) for row in rows for cell in row)
    text = io.StringIO(newline="")
    quoting = csv.QUOTE_ALL if odd else csv.QUOTE_MINIMAL
    csv.writer(text, delimiter=separator, lineterminator="\n", quoting=quoting).writerows(rows)
    write_whole(path, text.getvalue().encode("utf-8", errors="replace"))
