"""Statistics of a Parquet data set that is never held, against pandas ``groupby.apply`` on the same files.

A script writes rows of many tasks, in random order, to a temporary folder. Every side runs in a process of its own,
one after the other: it reads the files and computes XᵀX, Xᵀy, yᵀy, sums and counts of every task; time includes
reading, not importing; peak memory is that of the whole process (``ru_maxrss``). Run with
``python benchmarks/streaming.py --gigabytes 2``; ``--keep`` writes the result file.
"""

# The parent imports nothing large: a child's peak memory begins at its parent's.
from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "streaming.md"
N_TASKS, N_FEATURES, ROWS_PER_FILE = 20_000, 20, 500_000
BAR_BYTES, BAR_RATIO = 500e6, 5.0
COLUMNS = [f"x{k}" for k in range(N_FEATURES)]


def write(folder: Path, gigabytes: float) -> dict:
    """Random rows of random tasks; float64 noise does not compress, so files are about as large as the floats."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    models = rng.normal(size=(N_TASKS, N_FEATURES))
    left, size = int(gigabytes * 1e9 / (8 * (N_FEATURES + 1))), 0
    rows = left
    for number in range(-(-rows // ROWS_PER_FILE)):
        count = min(left, ROWS_PER_FILE)
        left -= count
        task = rng.integers(N_TASKS, size=count)
        X = rng.normal(size=(N_FEATURES, count))
        y = np.einsum("kr,rk->r", X, models[task]) + rng.normal(size=count)
        table = pa.table({"task": task, "y": y} | dict(zip(COLUMNS, X)))
        path = folder / f"part-{number:04d}.parquet"
        pq.write_table(table, path, use_dictionary=False)
        size += path.stat().st_size
    return {"rows": rows, "bytes": size}


def stream(folder: Path, folds: int | None) -> dict:
    """This package."""
    import numpy as np

    from ggmtl import TaskStatistics

    TaskStatistics.from_arrays(np.ones((4, 2)), np.ones(4), [0, 0, 1, 1])
    before = peak_memory()
    start, processor = time.perf_counter(), time.process_time()
    statistics = TaskStatistics.from_parquet(folder, task="task", target="y", folds=folds)
    seconds, processor = time.perf_counter() - start, time.process_time() - processor
    result = {
        "seconds": seconds,
        "processor": processor,
        "rows": float(statistics.count.sum()),
        "bytes": statistics.cross.nbytes,
    }
    result |= {"peak": peak_memory(), "before": before}
    if folds is None:
        np.savez(folder / "stream.npz", gram=statistics.gram, moment=statistics.moment, square=statistics.target_square)
    return result


def by_pandas(folder: Path, tasks: int) -> dict:
    """The same sums of the first `tasks` tasks, one group after another."""
    import numpy as np
    import pandas as pd

    def sums(group: pd.DataFrame) -> pd.Series:
        X, y = group[COLUMNS].to_numpy(), group["y"].to_numpy()
        parts = {"gram": X.T @ X, "moment": X.T @ y, "square": y @ y}
        return pd.Series(parts | {"feature_sum": X.sum(axis=0), "target_sum": y.sum(), "count": len(y)})

    start, processor = time.perf_counter(), time.process_time()
    chosen = [("task", "<", tasks)] if tasks < N_TASKS else None
    frame = pd.read_parquet(sorted(folder.glob("*.parquet")), filters=chosen)
    groups = frame.groupby("task").apply(sums)
    seconds, processor = time.perf_counter() - start, time.process_time() - processor
    with np.load(folder / "stream.npz") as ours:
        difference = max(
            float(np.abs(np.stack(list(groups[name])) - ours[name][: len(groups)]).max() / np.abs(ours[name]).max())
            for name in ("gram", "moment", "square")
        )
    result = {"seconds": seconds, "processor": processor, "rows": len(frame)}
    return result | {"peak": peak_memory(), "difference": difference}


def peak_memory() -> int:
    """Largest resident memory of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def in_child(*arguments: object) -> dict:
    command = [sys.executable, __file__, "--part", *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    output = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    return json.loads(output)


def tasks_for_pandas(size: float) -> int:
    """How many tasks pandas can hold: it needs about four times the data."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(N_TASKS, int(N_TASKS * free / (4 * size)))


def measure(gigabytes: float) -> str:
    with tempfile.TemporaryDirectory() as name:
        data = in_child("write", name, gigabytes)
        runs = {None: in_child("stream", name, 0), 5: in_child("stream", name, 5)}
        tasks = tasks_for_pandas(data["bytes"])
        pandas = in_child("pandas", name, tasks)
    return report(data, runs, pandas, tasks)


def times(run: dict) -> str:
    """Three cells: seconds by the clock, processor seconds, rows per second."""
    return f"{run['seconds']:.1f} | {run['processor']:.1f} | {run['rows'] / run['seconds']:,.0f}"


def report(data: dict, runs: dict, pandas: dict, tasks: int) -> str:
    speed = pandas["rows"] / pandas["seconds"]
    lines = [
        "# Statistics of a Parquet data set that is never held",
        "",
        f"{data['rows']:,} rows of {N_TASKS:,} tasks in random order, d = {N_FEATURES}, {data['bytes'] / 1e9:.2f} GB "
        "of Parquet files written for the run. Each side in a process of its own, one BLAS thread of "
        f"{os.cpu_count()} cores; time includes reading and is that of the clock, on a machine with a load of "
        f"{os.getloadavg()[1]:.0f}; peak memory is that of the whole process, interpreter and libraries included.",
        "",
        "| | seconds | processor seconds | rows/s | statistics, MB | peak, MB | peak − statistics, MB "
        "| times pandas' rows/s |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for folds, run in runs.items():
        memory = " | ".join(f"{size / 1e6:.0f}" for size in (run["bytes"], run["peak"], run["peak"] - run["bytes"]))
        title = "from_parquet" + (f", {folds} folds" if folds else "")
        lines.append(f"| {title} | {times(run)} | {memory} | {run['rows'] / run['seconds'] / speed:.1f} |")
    lines.append(f"| pandas groupby.apply | {times(pandas)} | | {pandas['peak'] / 1e6:.0f} | | 1 |")
    scope = "all rows" if tasks == N_TASKS else f"the rows of the first {tasks:,} tasks, scaled by rows"
    worst = max(run["peak"] - run["bytes"] for run in runs.values())
    plain = runs[None]
    ratio = plain["rows"] / plain["seconds"] / speed
    processor_ratio = plain["rows"] / plain["processor"] * pandas["processor"] / pandas["rows"]
    lines += [
        "",
        f"pandas: {scope}. Interpreter and imports alone: {runs[None]['before'] / 1e6:.0f} MB. Largest relative "
        f"difference of the sums: {pandas['difference']:.1e}.",
        f"Peak under statistics + {BAR_BYTES / 1e6:.0f} MB: {'met' if worst < BAR_BYTES else 'missed'} "
        f"({worst / 1e6:.0f} MB). At least {BAR_RATIO:.0f} times pandas: "
        f"{'met' if ratio >= BAR_RATIO else 'missed'} ({ratio:.1f} by the clock, "
        f"{processor_ratio:.1f} in processor time).",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--keep", action="store_true", help="write the result file")
    parser.add_argument("--part", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        part, folder, value = arguments.part
        call = {
            "write": lambda: write(Path(folder), float(value)),
            "stream": lambda: stream(Path(folder), int(value) or None),
            "pandas": lambda: by_pandas(Path(folder), int(value)),
        }[part]
        print(json.dumps(call()))
        return
    text = measure(arguments.gigabytes)
    print(text)
    if arguments.keep:
        RESULTS.write_text(text)


if __name__ == "__main__":
    main()
