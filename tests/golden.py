"""Fits whose every number is kept, so that a change which only moves code can be told from one that changes results.

``python tests/golden.py`` compares this tree with ``tests/golden.npz`` and prints the largest difference of every fit;
``--write`` keeps what this tree computes; ``--exact`` fails unless every number is the same bit for bit, which holds on
one machine only. Without it, numbers may differ by 1e-9 of their scale and the graphs must have the same edges.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ggmtl import KNN, GGMTLRegressor, TaskStatistics
from ggmtl.datasets import make_clusters, make_line, make_star

KEPT = Path(__file__).with_name("golden.npz")
TOLERANCE = 1e-9


def _fitted(data, **parameters) -> dict[str, np.ndarray]:
    model = GGMTLRegressor(random_state=0, **parameters).fit(data.X, data.y, tasks=data.tasks)
    return _numbers(model, model.predict(data.X[:50], tasks=data.tasks[:50]))


def _numbers(model: GGMTLRegressor, predicted: np.ndarray) -> dict[str, np.ndarray]:
    errors = [row["error"] for row in model.path_]
    return {
        "coef": model.coef_,
        "intercept": np.asarray(model.intercept_),
        "edges": model.graph_.edges,
        "weights": model.graph_.weights,
        "path": np.array([np.nan if error is None else error for error in errors]),
        "path_edges": np.array([row["n_edges"] for row in model.path_]),
        "predicted": predicted,
    }


def _unequal_noise() -> dict[str, np.ndarray]:
    data = make_clusters(n_tasks=20, n_samples=30, n_features=4, random_state=1)
    scale = np.where(data.tasks % 2 == 0, 0.3, 3.0)
    noisy = data.y + scale * np.random.default_rng(0).standard_normal(len(data.y))
    model = GGMTLRegressor(noise="per_task", random_state=0).fit(data.X, noisy, tasks=data.tasks)
    return _numbers(model, model.predict(data.X[:50], tasks=data.tasks[:50]))


def _shared_design() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    X, W = rng.standard_normal((25, 6)), np.repeat(rng.standard_normal((3, 6)), 10, axis=0)
    y = X @ W.T + 0.5 * rng.standard_normal((25, 30))
    model = GGMTLRegressor(random_state=0).fit(X, y)
    return _numbers(model, model.predict(X))


def _stream() -> dict[str, np.ndarray]:
    import pandas as pd

    data = make_clusters(n_tasks=30, n_samples=20, n_features=5, random_state=4)
    frame = pd.DataFrame(data.X, columns=list("abcde")).assign(unit=data.tasks, y=data.y)
    with tempfile.TemporaryDirectory() as folder:
        frame.to_parquet(Path(folder) / "rows.parquet")
        sums = TaskStatistics.from_parquet(Path(folder) / "rows.parquet", task="unit", target="y", folds=5)
    model = GGMTLRegressor(random_state=0).fit_statistics(sums)
    return _numbers(model, model.predict(data.X[:50], tasks=data.tasks[:50]))


def _grown() -> dict[str, np.ndarray]:
    data = make_clusters(n_tasks=12, n_samples=20, n_features=4, random_state=3)
    known = data.tasks < 11
    model = GGMTLRegressor(random_state=0).fit(data.X[known], data.y[known], tasks=data.tasks[known])
    model.add_task(11, data.X[~known], data.y[~known])
    model.partial_fit(data.X[:5], data.y[:5], tasks=data.tasks[:5])
    return _numbers(model, model.predict(data.X[:50], tasks=data.tasks[:50]))


# The kept numbers are older than `paper` and have the regressor's default ridge and number of neighbours.
PAPER = GGMTLRegressor.paper(ridge=1e-6, candidates="knn").get_params(deep=False)
del PAPER["random_state"]
FITS: dict[str, Callable[[], dict[str, np.ndarray]]] = {
    "small": lambda: _fitted(make_clusters(n_tasks=12, n_samples=15, n_features=4, random_state=0)),
    "fifty": lambda: _fitted(make_clusters(random_state=0)),
    "independent": lambda: _fitted(make_clusters(20, n_tasks=20, n_samples=25, n_features=3, random_state=2)),
    "sampled": lambda: _fitted(make_clusters(10, n_tasks=300, n_samples=12, n_features=5, random_state=0)),
    "large": lambda: _fitted(make_clusters(20, n_tasks=3000, n_samples=8, n_features=4, random_state=0)),
    "paper": lambda: _fitted(make_line(random_state=0), **PAPER | {"max_iter": 30}),
    "paper_l2": lambda: _fitted(make_star(random_state=0), **PAPER | {"penalty": "l2", "max_iter": 20}),
    "closed_form": lambda: _fitted(
        make_line(n_tasks=10, random_state=1),
        criterion="validation",
        edge_solver="closed_form",
        edge_l1=0.1,
        edge_entropy=0.0,
        coupling=1.0,
        max_iter=20,
    ),
    "validation": lambda: _fitted(
        make_clusters(n_tasks=15, n_samples=20, n_features=4, random_state=5),
        criterion="validation",
        candidates=KNN(4),
        max_iter=20,
    ),
    "l2_frozen": lambda: _fitted(
        make_clusters(n_tasks=12, n_samples=20, n_features=4, random_state=6),
        penalty="l2",
        hypergradient="frozen",
        coupling=1.0,
        edge_entropy=0.01,
        max_iter=15,
    ),
    "l1": lambda: _fitted(make_star(n_tasks=12, random_state=0), penalty="l1"),
    "l1_validation": lambda: _fitted(
        make_star(n_tasks=10, random_state=0), penalty="l1", criterion="validation", coupling=0.5, max_iter=10
    ),
    "unequal_noise": _unequal_noise,
    "shared_design": _shared_design,
    "stream": _stream,
    "grown": _grown,
}


def _on_gpu() -> dict[str, np.ndarray]:
    data = make_clusters(20, n_tasks=3000, n_samples=8, n_features=4, random_state=0)
    return _fitted(data, device="cuda")


def compute(names: list[str]) -> dict[str, np.ndarray]:
    """Every number of the fits named, under "fit/number"."""
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in names:
            found |= {f"{name}/{key}": value for key, value in FITS[name]().items()}
            print(f"{name}: fitted", file=sys.stderr)
    return found


def difference(found: np.ndarray, kept: np.ndarray) -> float:
    """Largest difference as a share of the largest number kept; infinite where the shapes differ."""
    if found.shape != kept.shape or not np.array_equal(np.isnan(found), np.isnan(kept)):
        return np.inf
    if not found.size or np.isnan(kept).all():
        return 0.0
    return float(np.nanmax(np.abs(found - kept)) / max(np.nanmax(np.abs(kept)), 1e-300))


def main() -> int:
    """Compare or write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--file", type=Path, default=KEPT)
    parser.add_argument("fits", nargs="*", help="names; all by default")
    arguments = parser.parse_args()
    import torch.cuda  # the fit on the GPU is kept only where there is one

    if torch.cuda.is_available():
        FITS["gpu"] = _on_gpu
    found = compute(arguments.fits or list(FITS))
    if arguments.write:
        np.savez_compressed(arguments.file, **found)
        return 0
    kept, failed = np.load(arguments.file), 0
    for key, value in found.items():
        gap = difference(value, kept[key]) if key in kept.files else np.inf
        allowed = 0.0 if arguments.exact or "edges" in key else TOLERANCE
        failed += gap > allowed
        if gap > 0:
            print(f"{key}: {gap:.1e}{'' if gap <= allowed else '  DIFFERENT'}")
    print(f"{len(found)} numbers compared, {failed} differ")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
