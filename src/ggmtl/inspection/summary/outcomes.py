"""What was found by a fit of classes or counts, in words."""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmtl.fit.outcomes import OutcomeFamily
from ggmtl.inspection.summary.phrases import count, figure, listing, number, percent, plain

_NAMES = {
    "pooled": "one model for all",
    "intercepts": "common slopes + own intercepts",
    "hub": "shared model + own deviations",
    "graph": "linked tasks",
    "independent": "separate models",
}
# What is measured on held-out rows, the share of the deviance that it is, and what a coefficient multiplies.
_WORDS = {"logistic": ("Log-loss", 0.5, "odds"), "poisson": ("Mean deviance", 1.0, "rate")}
_MOST_FEATURES = 8


def describe_outcomes(model: Any) -> str:
    """The summary for people: a few lines of text."""
    state = model.state_
    outcome: OutcomeFamily = state.outcome
    rows = float(np.sum(state.given.get("count", 0.0)))
    head = f"{type(model).__name__}: {count(len(model.tasks_), 'task')}"
    head += f", {count(round(rows), 'row')}" if rows else ""
    lines = [f"{head}, {count(int(model.n_features_in_), 'feature')}"]
    lines += [_target_line(model), _average_line(outcome), *_error_lines(model, outcome)]
    links = model.graph_.n_edges
    lines.append(f"Graph: {count(links, 'link')}." if links else "Graph: no links; the evidence supports none.")
    lines += _ratio_lines(model, outcome)
    if outcome.dispersion > 1:
        lines.append(f"The counts vary {number(outcome.dispersion)} times as much as Poisson counts would.")
    return "\n".join(line for line in lines if line)


def _target_line(model: Any) -> str:
    classes = getattr(model, "classes_", None)
    if classes is None:
        return "Target: counts; predictions are rates times the exposure."
    return f"Target: probability of {plain(classes[1])!r} rather than {plain(classes[0])!r}."


def _average_line(outcome: OutcomeFamily) -> str:
    parts = sorted(outcome.weights.items(), key=lambda part: -part[1])
    return "The model is " + ", ".join(f"{percent(share)} {_NAMES[name]}" for name, share in parts) + "."


def _error_lines(model: Any, outcome: OutcomeFamily) -> list[str]:
    """Losses on held-out rows, of every level, of the average and of the base rate."""
    if outcome.errors is None or outcome.average is None or outcome.null is None:
        return ["Nothing was held out, so the error on held-out rows is not known."]
    measure, share, _ = _WORDS[outcome.loss]
    total = outcome.errors.count.sum()
    rows = [(_NAMES[name], value) for name, value in zip(outcome.levels, share * outcome.errors.mean())]
    rows = [("the base rate alone", share * outcome.null.sum() / total), *rows]
    rows.append(("this model", share * outcome.average.sum() / total))
    lines = [f"{measure} on held-out rows:", *(f"  {name:<32}{figure(float(value))}" for name, value in rows)]
    gain = 1.0 - outcome.average.sum() / outcome.null.sum() if outcome.null.sum() > 0 else 0.0
    return [*lines, f"The model explains {percent(gain)} of the deviance of the base rate on held-out rows."]


def _ratio_lines(model: Any, outcome: OutcomeFamily) -> list[str]:
    """By what the shared model multiplies odds or rate per unit of each feature, the largest effects first."""
    if not hasattr(model, "hub_coef_"):
        return []
    words = _WORDS[outcome.loss][2]
    effect = np.abs(model.hub_coef_ * model.scaling_.scale)
    order = np.argsort(-effect, kind="stable")[:_MOST_FEATURES]
    ratios = [f"{model.feature_names_[k]} × {number(float(np.exp(model.hub_coef_[k])))}" for k in order]
    return [f"In the shared model, one unit more multiplies the {words} by: {listing(ratios, _MOST_FEATURES)}."]
