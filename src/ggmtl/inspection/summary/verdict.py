"""What was found, in a sentence, and the gain over the simple models with its interval."""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmtl.bilevel.level import OTHER_NOISE, STRAIGHT
from ggmtl.fit.family import Family
from ggmtl.fit.held_out import FoldErrors
from ggmtl.fit.levels import CORRELATED
from ggmtl.fit.outcome_levels import COMMON_SLOPES
from ggmtl.graph.task_graph import TaskGraph
from ggmtl.inspection.summary.phrases import count, interval, percent

# Simple levels where a reader expects them: before all graphs, and after. The average of all comes last.
AVERAGE = "average"
LEVEL_PLACES: dict[str, float] = {
    "pooled": -5.0,
    COMMON_SLOPES: -4.5,
    "intercepts": -4.0,
    "hub": -3.0,
    CORRELATED: -1.0,
    "described": -0.5,
    "independent": 1e18,
    AVERAGE: float("inf"),
}
LEVEL_NAMES = {
    "pooled": "one model for all",
    "hub": "shared model + own deviations",
    CORRELATED: "shared model + correlated deviations",
    "described": "shared model by task features + own deviations",
    COMMON_SLOPES: "common slopes + own intercepts",
    "intercepts": "separate intercepts + partly shared slopes",
    "graph": "linked tasks",
    "independent": "separate models",
    AVERAGE: "the average of all levels",
    "unlinked": "the same average without links",
}
# How the levels are called where their shares of the average are told.
KINDS = {
    "pooled": "one model for all",
    "hub": "shared model + own deviations",
    CORRELATED: "shared model + own deviations",
    "described": "shared model by task features + own deviations",
    COMMON_SLOPES: "common slopes + own intercepts",
    "intercepts": "separate intercepts + partly shared slopes",
    "graph": "linked tasks",
    "independent": "separate models",
}
# Levels under the other noise stand after those under the chosen one; files of earlier versions have the hub, too.
for _name in ("intercepts", "hub", CORRELATED):
    LEVEL_PLACES[_name + OTHER_NOISE] = LEVEL_PLACES[_name] + 0.25
    LEVEL_NAMES[_name + OTHER_NOISE] = f"{LEVEL_NAMES[_name]}, other noise"
    KINDS[_name + OTHER_NOISE] = KINDS[_name]
# Levels of straight lines stand before those with curves, where there are both.
LEVEL_PLACES |= {f"{name}{STRAIGHT}": place - 10.0 for name, place in LEVEL_PLACES.items()}
LEVEL_PLACES[f"independent{STRAIGHT}"] = 1e9
SIMPLE_LEVELS = tuple(name for name in LEVEL_PLACES if name != AVERAGE)
KINDS |= {f"{name}{STRAIGHT}": words for name, words in KINDS.items()}
LEVEL_NAMES |= {f"{name}{STRAIGHT}": f"{words}, straight lines" for name, words in LEVEL_NAMES.items()}
_SIMPLE_VERDICTS = {
    "pooled": "One model serves all tasks: no task differs from the others beyond noise.",
    "hub": "The tasks differ, but no groups of similar tasks were found.",
    "described": "The tasks differ as their task features tell; no groups of similar tasks were found beyond that.",
    "intercepts": "The tasks differ, most of all in their intercepts; no groups of similar tasks were found.",
    "independent": "Separate models predict best: every task is best served by its own rows.",
}
_MEANINGS = {
    "single": "If the rows belong to several tasks, name the column that says to which: task=… in Python, --task on "
    "the command line.",
    "pooled": "The rows do not show that the tasks differ: a model of its own for every task predicts no better.",
    "hub": "All tasks share one model, and each differs from it in its own way. Links between tasks did not "
    "improve held-out predictions, so none is shown.",
    "described": "The shared model is a function of what is known about the tasks, and each task differs from it in "
    "its own way. Links did not improve held-out predictions.",
    "unmeasured described": "The shared model is a function of what is known about the tasks, and each task differs "
    "from it in its own way. The evidence supports no links.",
    "intercepts": "The slopes are partly shared. Each task has its own intercept, learned from its own rows: "
    "intercepts are correlated with the features, so shrinking them would bias the slopes (use fixed effects).",
    "independent": "What one task shows does not carry over to another: each model is learned from its own rows.",
    "shared": "Each task has its own model. It is pulled towards a shared model by an amount that is estimated from "
    "the data. No groups of similar tasks were found.",
    "links unclear": "The evidence supports these links. Predictions are about as good without them, so treat them as "
    "hints.",
    "unmeasured hub": "All tasks share one model, and each differs from it in its own way. The evidence "
    "supports no links between tasks.",
    "empty": "The tasks differ, but no two are similar enough for a link.",
    "graph": "Linked tasks have models that are closer than the shared model explains, and learn from each other.",
}
# Normal quantile of the intervals given: 95 %.
_QUANTILE = 1.96
# Errors are about the same where the whole interval of the gain lies within so much of zero.
_CLOSE = 0.02


def average_verdict(family: Family, graph: TaskGraph) -> dict[str, Any]:
    """What was found, where the levels are averaged: each claim follows from the interval of a gain.

    What links add is the change in held-out error when they are left out of the average; what sharing adds, the change
    when every task is left to its own rows.
    """
    average = family.average
    if average is None:
        raise ValueError("The levels are not averaged.")

    def over(name: str) -> dict[str, Any]:
        found = average.gain_over(name)
        return {"gain": found.value, "low": found.low, "high": found.high, "against": name}

    sharing, error = over("independent"), average.measure.short
    if graph.n_edges and "unlinked" in average.losses:
        return _links_verdict(over("unlinked"), error)
    if over("pooled")["low"] <= 0:
        return {"kind": "pooled", "text": "One model for all tasks predicts about as well as any other.", **sharing}
    none = "No links between tasks were found."
    if sharing["low"] > 0:
        change = f"lowers the held-out {error} by {percent(sharing['gain'])} ({interval(sharing)})"
        text = f"Sharing {change} against separate models. {none}"
        return {"kind": "shared", "text": text, **sharing}
    if sharing["high"] < 0:
        loss = {"low": -sharing["high"], "high": -sharing["low"], "gain": -sharing["gain"]}
        change = f"raises the held-out {error} by {percent(loss['gain'])} ({interval(loss)})"
        text = f"Sharing {change} against separate models."
        return {"kind": "independent", "text": text, **sharing}
    if max(-sharing["low"], sharing["high"]) < _CLOSE:
        text = f"The tasks differ. Sharing predicts about as well as separate models. {none}"
    else:
        text = f"The tasks differ. It is not clear whether sharing predicts better than separate models. {none}"
    return {"kind": "tie", "text": text, **sharing}


def _links_verdict(gain: dict[str, Any], error: str) -> dict[str, Any]:
    if gain["low"] > 0:
        text = f"Links between tasks lower the held-out {error} by {percent(gain['gain'])} ({interval(gain)})."
        return {"kind": "graph", "text": text, **gain}
    if gain["high"] < 0:
        loss = {"low": -gain["high"], "high": -gain["low"], "gain": -gain["gain"]}
        text = f"Links between tasks raise the held-out {error} by {percent(loss['gain'])} ({interval(loss)})."
        return {"kind": "graph", "text": text, **gain}
    text = f"Links between tasks were found. It is not clear whether they lower the held-out {error}."
    return {"kind": "links unclear", "text": text, **gain}


def blend_words(weights: dict[str, float]) -> str:
    """'62 % shared model + own deviations, 25 % separate models, 13 % linked tasks', largest share first."""
    shares: dict[str, float] = {}
    for name, weight in weights.items():
        kind = KINDS.get(name, name)
        shares[kind] = shares.get(kind, 0.0) + weight
    ranked = sorted(shares.items(), key=lambda item: -item[1])
    return ", ".join(f"{100 * share:.0f} % {kind}" for kind, share in ranked)


def verdict_of(
    levels: list[dict[str, Any]],
    errors: FoldErrors | None,
    chosen: int | None,
    graph: TaskGraph,
    rows: np.ndarray | None = None,
) -> dict[str, Any]:
    """What was found, in a sentence; with the gain over the best simple level and its 95 % interval."""
    if graph.n_tasks == 1:
        return {"kind": "single", "text": "There is one task, so nothing can be shared."}
    if chosen is None:
        links = count(graph.n_edges, "link") if graph.n_edges else "no links"
        return {"kind": "method", "text": f"The method has found {links} between {graph.n_tasks:,} tasks."}
    name = levels[chosen]["name"].removesuffix(STRAIGHT)
    if rows is not None and rows.max() <= 1.0:
        text = "Every task has one row only, so nothing can be said about how tasks differ."
        return {"kind": "one row", "text": text}
    if name in _SIMPLE_VERDICTS:
        return {"kind": name, "text": _SIMPLE_VERDICTS[name], **gain_over_simple(levels, errors, chosen)}
    return graph_verdict(levels, errors, chosen, graph)


def graph_verdict(levels, errors, chosen, graph) -> dict[str, Any]:
    """The verdict where a level with a graph was chosen: praise only where the whole interval is a gain."""
    gain = gain_over_simple(levels, errors, chosen)
    if graph.n_edges == 0:
        return {"kind": "empty", "text": "No structure found: the learned graph has no edges.", **gain}
    if not gain:
        text = f"{count(graph.n_edges, 'link')} between {count(graph.n_tasks, 'task')}."
        return {"kind": "unmeasured", "text": text}
    if gain["low"] > 0:
        change = f"lowers the error by {percent(gain['gain'])} ({interval(gain)})"
    elif gain["high"] < 0:
        loss = {"low": -gain["high"], "high": -gain["low"], "gain": gain["gain"]}
        change = f"raises the error by {percent(-gain['gain'])} ({interval(loss)})"
    else:
        text = "Predictions are about as good as the best simpler model's. Treat the links as hints."
        return {"kind": "graph", "text": text, **gain}
    return {"kind": "graph", "text": f"The graph {change} against the best simple model.", **gain}


def meaning_of(kind: str, measured: bool = True) -> str:
    """What a verdict means, for someone who has never seen one; empty where it speaks for itself.

    Only where errors were `measured` on rows held out does it speak of them.
    """
    known = _MEANINGS.get(kind, "")
    return known if measured else _MEANINGS.get(f"unmeasured {kind}", known)


def gain_over_simple(levels: list[dict[str, Any]], errors: FoldErrors | None, chosen: int) -> dict[str, Any]:
    """Share by which the chosen level lowers the error of the best other simple level.

    With D the difference of the mean squared errors and r = 1 − D/mse_simple, the gain is 1 − √r (1 − r of log-loss or
    deviance); its interval comes from the paired standard error of D. The level was chosen by the same errors, so with
    many levels the gain is a little too large.
    """
    best = best_simple(levels, errors, chosen)
    if errors is None or best is None:
        return {}
    excess, deviation = errors.excess(chosen)
    simple = errors.mean()[best]
    if not simple > 0:
        return {}
    shares = (excess[best] + _QUANTILE * deviation[best] * np.array([0.0, -1.0, 1.0])) / simple
    gain, low, high = errors.measure.gain(1.0 - shares).tolist()
    return {"gain": gain, "low": low, "high": high, "against": levels[best]["name"]}


def best_simple(levels: list[dict[str, Any]], errors: FoldErrors | None, chosen: int) -> int | None:
    """The simple level with the lowest error, other than the chosen one."""
    if errors is None:
        return None
    simple = [k for k, level in enumerate(levels) if level["name"] in SIMPLE_LEVELS and k != chosen]
    return min(simple, key=lambda k: errors.mean()[k], default=None)
