"""What was found, in a sentence, and what it means. Every claim follows from the interval of a gain."""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmtl.fit.average import Average
from ggmtl.fit.levels import CORRELATED
from ggmtl.fit.outcome_levels import COMMON_SLOPES
from ggmtl.graph.task_graph import TaskGraph
from ggmtl.inspection.levels import Gain, Levels, base_name, gain_over, is_simple, kind_of, title_of
from ggmtl.inspection.summary.phrases import count, interval, percent

_SIMPLE_VERDICTS = {
    "pooled": "One model serves all tasks: no task differs from the others beyond noise.",
    "hub": "The tasks differ. No links between tasks were kept.",
    "described": "The tasks differ, in part because of their task features. No links between tasks were kept.",
    "intercepts": "The tasks differ, most of all in their intercepts. No links between tasks were kept.",
    COMMON_SLOPES: "One set of slopes serves all tasks; their intercepts differ.",
    "independent": "Separate models predict best: every task is best served by its own rows.",
}
_MEANINGS = {
    "single": "If the rows belong to several tasks, name the column that says to which: task=… in Python, --task on "
    "the command line.",
    "pooled": "The rows do not show that the tasks differ: a model of its own for every task predicts no better.",
    "pooled unclear": "One model for all tasks may be enough. More rows would tell.",
    "hub": "All tasks share one model, and each differs from it in its own way. Links between tasks did not "
    "improve held-out predictions, so none is shown.",
    "described": "The shared model is a function of what is known about the tasks, and each task differs from it in "
    "its own way. Links did not improve held-out predictions.",
    "unmeasured described": "The shared model is a function of what is known about the tasks, and each task differs "
    "from it in its own way. The evidence supports no links.",
    "intercepts": "The slopes are partly shared. Each task has its own intercept, learned from its own rows: "
    "intercepts are correlated with the features, so shrinking them would bias the slopes (use fixed effects).",
    COMMON_SLOPES: "Each task has an intercept of its own, shrunk towards the mean of all tasks.",
    "independent": "Rows of one task do not help to predict another, so each model is learned from its own rows.",
    "shared": "Each task has its own model. It is pulled towards a shared model by an amount that is estimated from "
    "the data. Links between tasks did not improve held-out predictions; tasks may still be similar in single "
    "coefficients.",
    "links unclear": "The evidence supports these links. Predictions are about as good without them, so treat them as "
    "hints.",
    "unmeasured hub": "All tasks share one model, and each differs from it in its own way. The evidence "
    "supports no links between tasks.",
    "empty": "The tasks differ, but no two are similar enough for a link.",
}
# Errors are about the same where the whole interval of the gain lies within so much of zero.
_CLOSE = 0.02


def verdict_of(levels: Levels, graph: TaskGraph, rows: np.ndarray | None = None) -> dict[str, Any]:
    """What was found, in a sentence; with a gain, its 95 % interval and what it is over, where that was measured."""
    if graph.n_tasks == 1:
        return {"kind": "single", "text": "There is one task, so nothing can be shared."}
    if levels.chosen is None:
        links = count(graph.n_edges, "link") if graph.n_edges else "no links"
        return {"kind": "method", "text": f"The method has found {links} between {graph.n_tasks:,} tasks."}
    if rows is not None and rows.max() <= 1.0:
        text = "Every task has one row only, so nothing can be said about how tasks differ."
        return {"kind": "one row", "text": text}
    if levels.average is not None:
        return average_verdict(levels.average, graph)
    best = levels.best_simple()
    gain = {}
    if levels.errors is not None and best is not None:
        gain = _told(gain_over(levels.errors, levels.chosen, best), levels.names[best])
    kind = base_name(levels.names[levels.chosen])
    kind = "hub" if kind == CORRELATED else kind
    if is_simple(kind):
        return {"kind": kind, "text": _SIMPLE_VERDICTS[kind], **gain}
    if graph.n_edges == 0:
        return {"kind": "empty", "text": "No structure found: the learned graph has no edges.", **gain}
    if not gain:
        text = f"{count(graph.n_edges, 'link')} between {count(graph.n_tasks, 'task')}."
        return {"kind": "unmeasured", "text": text}
    if gain["low"] <= 0 <= gain["high"]:
        text = "Predictions are about as good as the best simpler model's. Treat the links as hints."
    else:
        error, against = levels.errors.measure.short if levels.errors else "error", title_of(gain["against"])
        change = _change("Links between tasks", "lower", "raise", error, gain)
        text = f"{change} against the best simpler model, {against}."
    return {"kind": "graph", "text": text, **gain}


def average_verdict(average: Average, graph: TaskGraph) -> dict[str, Any]:
    """What was found, where the levels are averaged.

    What links add is the change in held-out error when they are left out of the average; what sharing adds, the change
    when every task is left to its own rows.
    """
    error = average.measure.short

    def over(name: str) -> dict[str, Any]:
        found = average.gain_over(name)
        return _told(Gain(found.value, found.low, found.high), name)

    if graph.n_edges and "unlinked" in average.losses:
        links = over("unlinked")
        if links["low"] <= 0 <= links["high"]:
            text = f"Links between tasks were found. It is not clear whether they lower the held-out {error}."
            return {"kind": "links unclear", "text": text, **links}
        return {"kind": "graph", "text": f"{_change('Links between tasks', 'lower', 'raise', error, links)}.", **links}
    sharing, pooled, none = over("independent"), over("pooled"), "No links between tasks were kept."
    if pooled["high"] < _CLOSE:
        return {"kind": "pooled", "text": "One model for all tasks predicts about as well as any other.", **sharing}
    if pooled["low"] <= 0:
        text = f"It is not clear whether the tasks differ. {none}"
        return {"kind": "pooled unclear", "text": text, **pooled}
    if not sharing["low"] <= 0 <= sharing["high"]:
        text = f"{_change('Sharing', 'lowers', 'raises', error, sharing)} against separate models."
        if sharing["low"] > 0:
            return {"kind": "shared", "text": f"{text} {none}", **sharing}
        return {"kind": "independent", "text": text, **sharing}
    if max(-sharing["low"], sharing["high"]) < _CLOSE:
        text = f"The tasks differ. Sharing predicts about as well as separate models. {none}"
    else:
        text = f"The tasks differ. It is not clear whether sharing predicts better than separate models. {none}"
    return {"kind": "tie", "text": text, **sharing}


def _told(gain: Gain, against: str) -> dict[str, Any]:
    return {"gain": gain.share, "low": gain.low, "high": gain.high, "against": against}


def _change(subject: str, lowers: str, raises: str, error: str, gain: dict[str, Any]) -> str:
    """'Sharing lowers the held-out error by 12 % (95 % interval: 9 % to 15 %)', for an interval without zero."""
    verb, low, high = (lowers, gain["low"], gain["high"]) if gain["low"] > 0 else (raises, -gain["high"], -gain["low"])
    share = abs(gain["gain"])
    return f"{subject} {verb} the held-out {error} by {percent(share)} ({interval(low, high)})"


def blend_words(weights: dict[str, float]) -> str:
    """'62 % shared model + own deviations, 25 % separate models, 13 % linked tasks', largest share first."""
    shares: dict[str, float] = {}
    for name, weight in weights.items():
        kind = kind_of(name)
        shares[kind] = shares.get(kind, 0.0) + weight
    ranked = sorted(shares.items(), key=lambda item: -item[1])
    return ", ".join(f"{100 * share:.0f} % {kind}" for kind, share in ranked)


def meaning_of(kind: str, measured: bool = True) -> str:
    """What a verdict means, for someone who has never seen one; empty where it needs no explanation.

    It mentions held-out predictions only where errors were `measured` on held-out rows.
    """
    known = _MEANINGS.get(kind, "")
    return known if measured else _MEANINGS.get(f"unmeasured {kind}", known)
