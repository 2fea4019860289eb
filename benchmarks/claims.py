"""Do intervals cover, and are the sentences about links true? Simulated tasks of which everything is known.

Every cell makes data sets with one relation between tasks, fits the default model, and compares what the model claims
with the truth. Run with ``python benchmarks/claims.py [sets per cell] [first seed] [scenario, …]``; the tables go to
``results/claims.md``. With 200 sets a cell, a share of 95 % has a standard error of 1.5 points at most.

Sets are kept in ``build/claims.jsonl``, so that a run that was stopped goes on where it was. Delete the file after a
change of the package.
"""

from __future__ import annotations

import itertools
import json
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from joblib import Parallel, delayed
from sklearn.exceptions import ConvergenceWarning

from ggmtl import GGMTLRegressor, TaskStatistics
from ggmtl.fit import path
from ggmtl.fit.average import block_importance, level_weights, precision_elsewhere, relative_gain
from ggmtl.fit.held_out import FoldErrors
from ggmtl.fit.order import Order
from ggmtl.inspection.summary.verdict import average_verdict

RESULTS = Path(__file__).parent / "results" / "claims.md"
CACHE = Path(__file__).parents[1] / "build" / "claims.jsonl"
SETS, FIRST_SEED = 20, 500
SIZES = ((10, 10), (10, 50), (30, 10), (30, 50))
FEATURES, FRESH = 4, 40
# Fresh rows of a task on which the error of the fold models is measured.
TRUTH_ROWS = 2000


@dataclass(frozen=True)
class Truth:
    """Models of all tasks, intercept last; which of them are alike; and how rows are made."""

    models: np.ndarray
    cluster: np.ndarray
    noise: np.ndarray
    correlation: float = 0.0
    heavy: bool = False

    def rows(self, number: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Features, targets and tasks."""
        n, p = len(self.models), self.models.shape[1] - 1
        shared = rng.normal(size=(n * number, 1))
        X = np.sqrt(1.0 - self.correlation) * rng.normal(size=(n * number, p)) + np.sqrt(self.correlation) * shared
        tasks = np.repeat(np.arange(n), number)
        errors = rng.standard_t(3, n * number) / np.sqrt(3.0) if self.heavy else rng.normal(size=n * number)
        mean = np.einsum("rp,rp->r", X, self.models[tasks, :-1]) + self.models[tasks, -1]
        return X, mean + self.noise[tasks] * errors, tasks


def about_one(n: int, rng: np.random.Generator, spread: float = 0.4) -> np.ndarray:
    """Models that differ from one common model, without groups."""
    return rng.normal(size=FEATURES + 1) + spread * rng.normal(size=(n, FEATURES + 1))


def no_relation(n: int, rng: np.random.Generator) -> Truth:
    """Every coefficient of every task drawn for itself."""
    return Truth(rng.normal(size=(n, FEATURES + 1)), np.arange(n), np.ones(n))


def all_equal(n: int, rng: np.random.Generator) -> Truth:
    """One model."""
    return Truth(about_one(n, rng, 0.0), np.zeros(n), np.ones(n))


def two_clusters(n: int, rng: np.random.Generator) -> Truth:
    """Two models, half of the tasks each."""
    cluster = np.arange(n) * 2 // n
    return Truth(rng.normal(size=(2, FEATURES + 1))[cluster], cluster, np.ones(n))


def unequal_noise(n: int, rng: np.random.Generator) -> Truth:
    """One common model; the noise of tasks differs by a factor of up to nine."""
    return Truth(about_one(n, rng), np.arange(n), np.exp(rng.uniform(-np.log(3.0), np.log(3.0), size=n)))


def heavy_tails(n: int, rng: np.random.Generator) -> Truth:
    """One common model; errors of Student's t with three degrees of freedom."""
    return Truth(about_one(n, rng), np.arange(n), np.ones(n), heavy=True)


def correlated_features(n: int, rng: np.random.Generator) -> Truth:
    """One common model; features correlated by 0.9."""
    return Truth(about_one(n, rng), np.arange(n), np.ones(n), correlation=0.9)


SCENARIOS: dict[str, Callable[[int, np.random.Generator], Truth]] = {
    "no relation": no_relation,
    "all equal": all_equal,
    "two clusters": two_clusters,
    "unequal noise": unequal_noise,
    "heavy tails": heavy_tails,
    "correlated features": correlated_features,
}


def one_set(scenario: str, n: int, n_rows: int, seed: int) -> dict[str, float]:
    """Every claim of one fit against the truth; NaN where the model makes no such claim."""
    warnings.simplefilter("ignore", ConvergenceWarning)
    rng = np.random.default_rng([seed, n, n_rows, list(SCENARIOS).index(scenario)])
    truth = SCENARIOS[scenario](n, rng)
    X, y, tasks = truth.rows(n_rows, rng)
    model, levels = fit_with_folds(X, y, tasks)
    fresh, target, of = truth.rows(FRESH, rng)
    low, high = model.predict_interval(fresh, 0.9, tasks=of).T
    bounds = model.conf_int(0.95)
    true = truth.models.ravel()
    graph, found = model.graph_, average_verdict(model.state_.family.average, model.graph_)
    certain = np.zeros(graph.n_edges, bool) if graph.support is None else graph.support >= 0.8
    alike = truth.cluster[graph.edges[:, 0]] == truth.cluster[graph.edges[:, 1]]
    gains = true_gains(model, levels, truth, rng)
    claimed, gain = found["kind"] == "graph" and found["low"] > 0, gains.get("unlinked", np.nan)
    return {
        "prediction": float(((low <= target) & (target <= high)).mean()),
        "worst task": float(min(((low <= target) & (target <= high)).reshape(n, -1).mean(axis=1))),
        "length": float((high - low).mean()),
        "coefficient": float(((bounds["low"] <= true) & (true <= bounds["high"])).mean()),
        "graph": float(graph.n_edges > 0),
        "helps": float(claimed),
        "falsely": float(claimed and gain <= 0.0),
        "certain": float(certain.sum()),
        "certain true": float((certain & alike).sum()),
        **{f"verdict {name}": covers(model, name, value) for name, value in gains.items()},
        "verdict": covers(model, found["against"], gains[found["against"]]) if gains else np.nan,
    }


def covers(model: GGMTLRegressor, name: str, truth: float) -> float:
    """Whether the interval of a gain holds the true gain."""
    interval = model.state_.family.average.gain_over(name)
    return float(interval.low <= truth <= interval.high)


def fit_with_folds(
    X: np.ndarray, y: np.ndarray, tasks: np.ndarray, **options: Any
) -> tuple[GGMTLRegressor, list[np.ndarray]]:
    """A fit, and the models of all its levels without each fold, shape (levels, n, p) each."""
    learned, orders = [], []

    def recording(*arguments, **named):
        learned.append(learn(*arguments, **named))
        return learned[-1]

    def ordering(*arguments):
        orders.append(order_of(*arguments))
        return orders[-1]

    learn, order_of = path.learn_levels, Order.of
    with patch.object(path, "learn_levels", recording), patch.object(Order, "of", ordering):
        model = GGMTLRegressor(**options).fit(X, y, tasks=tasks)
    (order,) = orders
    whole, *folds = learned
    kept = path._without_repetitions(whole, None)[0].values()
    places = [next(k for k, fit in enumerate(whole.values()) if fit is level) for level in kept]
    return model, [
        np.array([order.fit_back(list(levels.values())[k]).coefficients for k in places]) for levels in folds
    ]


def true_gains(
    model: GGMTLRegressor, folds: list[np.ndarray], truth: Truth, rng: np.random.Generator
) -> dict[str, float]:
    """The gains that verdicts speak of, on many fresh rows: the same fold models with the same weights."""
    family = model.state_.family
    if family.average is None:
        return {}
    errors, names = family.errors, list(family.levels)
    (loss,) = model.scaling_.design(TaskStatistics.from_arrays(*truth.rows(TRUTH_ROWS, rng)))
    share = errors.count / loss.count
    cross = np.array([loss.cross_products(models) for models in folds]) * share[:, :, None, None]
    used = [name for name in names if family.levels[name].kind != "graph" or name == family.linked]
    precision = precision_elsewhere(errors.among([names.index(name) for name in used]))
    preferred = family.linked if family.linked and family.levels[family.linked].supported else family_shared(family)

    def gain(theirs: np.ndarray) -> float:
        ours = average_on(cross, errors, [names.index(name) for name in used], used.index(preferred))
        return relative_gain((precision * ours).sum(axis=0), (precision * theirs).sum(axis=0)).value

    out = {}
    for name in ("pooled", "independent"):
        k = names.index(name)
        out[name] = gain(cross[:, :, k, k])
    if family.linked:
        rest = [name for name in used if name != family.linked]
        shared = next(name for name in (preferred, "described", "hub") if name in rest)
        out["unlinked"] = gain(average_on(cross, errors, [names.index(name) for name in rest], rest.index(shared)))
    return out


def family_shared(family) -> str:
    """The shared model that the average is shrunk towards."""
    mean = dict(zip(family.levels, family.errors.mean().tolist()))
    return min((name for name, fit in family.levels.items() if fit.kind == "hub"), key=mean.__getitem__)


def average_on(cross: np.ndarray, errors: FoldErrors, used: list[int], reference: int) -> np.ndarray:
    """Squared errors of the average on other rows, weights learned as :func:`ggmtl.fit.average.cross_fitted` does."""
    kept, chosen = errors.among(used), np.array(used)
    out = np.empty(errors.count.shape)
    for k in range(len(out)):
        others = np.arange(len(out)) != k
        rest = kept.of_folds(others)
        weights = level_weights(rest, block_importance(rest), reference)
        out[k] = np.einsum("l,nlm,m->n", weights, cross[k][:, chosen[:, None], chosen], weights)
    return out


# ---------------------------------------------------------------- the page

SHARES = ("prediction", "worst task", "coefficient", "verdict", "graph", "helps", "falsely")


def kept(path: Path, keys: list[tuple], compute: Callable[..., Any]) -> dict[tuple, Any]:
    """compute(*key) for every key; results in the file are not computed again, new ones are added to it."""
    path.parent.mkdir(exist_ok=True)
    lines = path.read_text().splitlines() if path.exists() else []
    known = {tuple(key): found for key, found in map(json.loads, lines)}
    missing = [key for key in keys if key not in known]
    made = Parallel(n_jobs=-1, return_as="generator")(delayed(compute)(*key) for key in missing)
    with path.open("a") as file:
        for key, found in zip(missing, made):
            known[key] = found
            file.write(json.dumps([key, found]) + "\n")
            file.flush()
    return {key: known[key] for key in keys}


def render(label: str, found: list[dict[str, float]]) -> str:
    """One Markdown row."""
    means = [np.nanmean([one.get(name, np.nan) for one in found]) for name in SHARES]
    certain = sum(one["certain"] for one in found)
    true = f"{sum(one['certain true'] for one in found) / certain:.1%} of {certain:,.0f}" if certain else "–"
    return "| " + " | ".join([label, *(f"{100 * mean:.1f}" for mean in means), true]) + " |"


HEAD = """# Are the claims true?

{sets} sets per cell, seeds {first}–{last}, {features} features; shares in percent. *Prediction*: coverage
of 90 % intervals of `predict_interval` on fresh rows, of all rows and of the task with the lowest (of
{fresh} rows). *Coefficient*: coverage of 95 % intervals of `conf_int`. *Verdict*: coverage of the 95 %
interval in the verdict, against the error of the same fold models on {truth:,} fresh rows of every task.
*Graph*: fits that report links; *helps*: that say that links lower the held-out error; *falsely*: where
they do not, on fresh rows. *True links*: of links found in at least four of five folds, the share between
tasks of one cluster.

| scenario | tasks × rows | prediction | worst task | coefficient | verdict | graph | helps | falsely | true links |
| --- |{columns}"""


def main(n_sets: int = SETS, first: int = FIRST_SEED, *only: str) -> None:
    seeds = range(first, first + n_sets)
    # Seed by seed, so that a run that is stopped has about as many sets in every cell.
    found = kept(CACHE, [(s, *size, seed) for seed in seeds for s in only or SCENARIOS for size in SIZES], one_set)
    facts = {"sets": n_sets, "first": first, "last": first + n_sets - 1, "features": FEATURES, "fresh": FRESH}
    lines = [HEAD.format(**facts, truth=TRUTH_ROWS, columns=" --- |" * (len(SHARES) + 2))]
    for scenario in only or SCENARIOS:
        cells = [[found[scenario, *size, seed] for seed in seeds] for size in SIZES]
        lines += [render(f"{scenario} | {n} × {rows}", cell) for (n, rows), cell in zip(SIZES, cells)]
        lines.append(render(f"{scenario} | all", list(itertools.chain(*cells))))
    print("\n".join(lines))
    if not only:
        RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]), *sys.argv[3:])
