"""What only fits of classes or counts have: base rate, ranking, calibration, ratios of odds or rates."""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmtl.fit.outcome_scores import observed_interval
from ggmtl.fit.outcomes import OutcomeFamily
from ggmtl.inspection.summary.phrases import count, listing, number, percent, plain

# What a coefficient multiplies.
_RATIOS = {"logistic": "odds", "poisson": "rate"}
_MOST_FEATURES, _MOST_TASKS = 8, 8
_QUANTILE = 1.96
# Expected events that a task must have for its ratio of observed to expected to be shown.
_FEWEST_EXPECTED = 1.0


def target_of(model: Any) -> dict[str, Any] | None:
    """What the target is, and how predictions for held-out rows compare with it; None for the squared loss."""
    outcome: OutcomeFamily | None = getattr(getattr(model, "state_", None), "outcome", None)
    if outcome is None:
        return None
    scores = outcome.scores
    both = np.isfinite(scores.task_auc) & (scores.count > 0)
    classes = getattr(model, "classes_", None)
    found: dict[str, Any] = {
        "kind": outcome.loss,
        "ratio": _RATIOS[outcome.loss],
        "classes": None if classes is None else [str(plain(label)) for label in classes],
        "exposed": scores.exposed,
        "base": _unit(model) * float(scores.total.sum() / scores.amount.sum()),
        "dispersion": float(outcome.dispersion),
        "one_class": [str(label) for label in model.tasks_[_of_one_class(outcome)].tolist()],
        "brier": scores.brier,
        "auc": scores.auc,
        "task_auc": float(scores.task_auc[both].mean()) if both.any() else None,
        "n_both": int(both.sum()),
        "groups": plain(scores.groups),
        "null": None,
        "explained": None,
        "observed": float(scores.observed.sum()),
        "expected": float(scores.expected.sum()),
    }
    if outcome.null is not None and outcome.errors is not None:
        null = float(outcome.null.sum() / outcome.errors.count.sum())
        found["null"] = null
        found["explained"] = 1.0 - model.validation_error_ / null if null > 0 else None
    return found


def task_outcomes(model: Any) -> list[dict[str, Any]] | None:
    """Of every task: its own rate, and observed over expected on held-out rows with the 95 % interval."""
    outcome: OutcomeFamily | None = getattr(getattr(model, "state_", None), "outcome", None)
    if outcome is None:
        return None
    scores, is_class = outcome.scores, outcome.loss == "logistic"
    low, high = observed_interval(scores.observed, scores.count, is_class, outcome.dispersion)
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = _unit(model) * scores.total / scores.amount
        ratios = np.stack([scores.observed, low, high]) / scores.expected
    ratios[:, scores.expected < _FEWEST_EXPECTED] = np.nan
    return [
        {
            "rate": plain(rate[i]),
            "observed": float(scores.observed[i]),
            "expected": float(scores.expected[i]),
            "ratio": plain(ratios[:, i]),
        }
        for i in range(len(scores.total))
    ]


def _unit(model: Any) -> float:
    """Events in one unit of the exposure at the mean rate, by which counts are scaled; one for classes."""
    return float(np.exp(model.scaling_.target_center))


def _of_one_class(outcome: OutcomeFamily) -> np.ndarray:
    """Tasks whose own rows do not show what events depend on: all of one class, or no event at all."""
    total, amount = outcome.scores.total, outcome.scores.amount
    none = total <= 0
    return (amount > 0) & (none if outcome.loss != "logistic" else none | (total >= amount * (1.0 - 1e-12)))


def without_contrast(model: Any) -> np.ndarray:
    """Tasks whose separate model cannot be judged by held-out rows, because all of their rows have one outcome."""
    outcome: OutcomeFamily | None = getattr(getattr(model, "state_", None), "outcome", None)
    known = np.zeros(len(model.tasks_), dtype=bool)
    if outcome is not None:
        known[: len(outcome.scores.total)] = _of_one_class(outcome)
    return known


def common_errors(model: Any) -> np.ndarray | None:
    """Standard errors of the shared model in the units of the data, the intercept last; None for the squared loss."""
    state = getattr(model, "state_", None)
    if state is None or state.outcome is None:
        return None
    T = state.scaling.user_map()
    return np.sqrt(np.maximum(np.einsum("ap,pq,aq->a", T, state.outcome.common, T), 0.0))


def outcome_lines(summary: dict[str, Any]) -> list[str]:
    """What to say of classes and counts; no line for the squared loss."""
    target = summary["target"]
    if target is None:
        return []
    lines = [*quality_lines(summary), *ratio_lines(summary)]
    if target["dispersion"] > 1:
        lines.append(f"The variance of the counts is {number(target['dispersion'])} times that of Poisson counts.")
    return lines


def quality_lines(summary: dict[str, Any]) -> list[str]:
    """What is predicted, and how well; tasks whose own rows say nothing."""
    target = summary["target"]
    lines = [target_line(target), *filter(None, [quality_line(target), balance_line(summary)])]
    if target["one_class"]:
        lines.append(borrowed_line(target))
    return lines


def target_line(target: dict[str, Any]) -> str:
    """What is predicted, and how often it occurs."""
    if target["classes"] is None:
        per = " per unit of exposure" if target["exposed"] else ""
        return f"Target: counts, on average {target['base']:,.4g}{per}."
    first, second = target["classes"]
    share = percent(target["base"])
    return f"Target: the probability of {second!r} rather than {first!r}. {share} of the rows are {second!r}."


def quality_line(target: dict[str, Any]) -> str:
    """How much lower the error is than that of the base rate, ranking and Brier score."""
    if target["explained"] is None:
        return "Nothing was held out, so the error on held-out rows is not known."
    error, share = "deviance" if target["classes"] is None else "log-loss", target["explained"]
    change = f"{percent(abs(share))} {'lower' if share >= 0 else 'higher'}"
    parts = [f"On held-out rows, the {error} is {change} than with the base rate for every row."]
    if target["auc"] is not None:
        within = ""
        if target["task_auc"] is not None:
            tasks = count(target["n_both"], "task")
            within = f" (within tasks {target['task_auc']:.3f}, the mean over {tasks} with both classes in a fold)"
        parts.append(f"AUC {target['auc']:.3f}{within}. Brier score {target['brier']:.4f}.")
    return " ".join(parts)


def balance_line(summary: dict[str, Any]) -> str:
    """Observed and expected on held-out rows, and in how many tasks they differ; empty where nothing was held out."""
    target = summary["target"]
    known = [task["ratio"] for task in summary["tasks"] if task["ratio"][0] is not None]
    if not (target["expected"] or 0.0) > 0:
        return ""
    observed, expected = f"{target['observed']:,.0f}", f"{target['expected']:,.0f}"
    if target["classes"] is None:
        line = f"Held-out rows have {observed} events; {expected} were expected."
    else:
        line = f"Of the held-out rows, {observed} are {target['classes'][1]!r}; {expected} were expected."
    if not known:
        return line
    apart = sum(not low <= 1.0 <= high for _, low, high in known)
    return (
        f"{line} In {apart:,} of {count(len(known), 'task')}, the 95 % interval around the number observed does not "
        f"hold the number expected; chance alone gives about {0.05 * len(known):.0f}."
    )


def ratio_lines(summary: dict[str, Any]) -> list[str]:
    """By what the shared model multiplies odds or rate per unit of each feature, the largest effects first."""
    silent = {"intercept", *summary["single_valued"]}
    entries = [entry for entry in summary["sharing"] if entry["feature"] not in silent and entry.get("ratio")]
    if not entries:
        return []
    entries.sort(key=lambda entry: -abs(entry["common"] * entry["unit"]))
    words = [ratio_text(entry["feature"], entry["ratio"]) for entry in entries[:_MOST_FEATURES]]
    more = len(entries) - len(words)
    text = listing(words, len(words)) + (f" and {count(more, 'more feature')}" if more else "")
    return [
        f"In the shared model, one unit more multiplies the {summary['target']['ratio']} by (95 % interval): {text}."
    ]


def ratio_text(feature: str, ratio: list[float]) -> str:
    """'age 1.25 (1.02–1.53)'."""
    value, low, high = ratio
    # Two digits of the length of the interval.
    digits = int(np.clip(1 - np.floor(np.log10(max(high - low, 1e-9))), 0, 8))
    return f"{feature} {value:.{digits}f} ({low:.{digits}f}–{high:.{digits}f})"


def ratio_of(coefficient: float, error: float) -> list[float]:
    """e^coefficient with its 95 % interval."""
    bounds = np.array([coefficient, coefficient - _QUANTILE * error, coefficient + _QUANTILE * error])
    return np.exp(np.clip(bounds, -300.0, 300.0)).tolist()


def borrowed_line(target: dict[str, Any]) -> str:
    """Tasks whose own rows do not show what events depend on."""
    labels, what = target["one_class"], "no event" if target["classes"] is None else "one class only"
    has, whose = ("has", "its") if len(labels) == 1 else ("have", "their")
    return (
        f"{count(len(labels), 'task')} {has} {what}, so {whose} predictions come mostly from the other tasks: "
        f"{listing(labels, _MOST_TASKS)}."
    )
