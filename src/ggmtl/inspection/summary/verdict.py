"""What was found, in a sentence, and the gain over the simple models with its interval."""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmtl.bilevel.level import STRAIGHT
from ggmtl.fit.held_out import FoldErrors
from ggmtl.graph.task_graph import TaskGraph
from ggmtl.inspection.summary.phrases import count, interval, percent

# Simple levels where a reader expects them: before all graphs, and after.
LEVEL_PLACES: dict[str, float] = {
    "pooled": -3.0,
    "intercepts": -2.0,
    "hub": -1.0,
    "described": -0.5,
    "independent": float("inf"),
}
LEVEL_NAMES = {
    "pooled": "one model for all",
    "hub": "the common model",
    "described": "the common model by task features",
    "intercepts": "common slopes",
    "independent": "separate models",
}
# Levels of straight lines stand before those with curves, where there are both.
LEVEL_PLACES |= {f"{name}{STRAIGHT}": place - 10.0 for name, place in LEVEL_PLACES.items()}
LEVEL_PLACES[f"independent{STRAIGHT}"] = 1e9
SIMPLE_LEVELS = tuple(LEVEL_PLACES)
LEVEL_NAMES |= {f"{name}{STRAIGHT}": f"{words}, straight lines" for name, words in LEVEL_NAMES.items()}
_SIMPLE_VERDICTS = {
    "pooled": "One model serves all tasks: no task differs from the others beyond noise.",
    "hub": "No structure found beyond the common model.",
    "described": "Tasks differ as what is known about them tells; no structure found beyond that.",
    "intercepts": "No structure found beyond common slopes: only the intercepts of the tasks differ.",
    "independent": "Sharing does not help: every task is best served by its own rows.",
}
_MEANINGS = {
    "single": "If the rows belong to several tasks, name the column that says to which: task=… in Python, --task on "
    "the command line.",
    "pooled": "All tasks follow the same model: rows of one task say as much about another as about itself.",
    "hub": "All tasks follow one common model, and each departs from it in its own way. Linking tasks that depart "
    "alike does not predict rows not seen any better, so no link is drawn; every task still learns from all others "
    "through the common model.",
    "described": "The common model is a function of what is known about the tasks, and each task departs from it in "
    "its own way. Links did not improve held-out predictions.",
    "unmeasured described": "The common model is a function of what is known about the tasks, and each task departs "
    "from it in its own way. The evidence supports no links.",
    "intercepts": "What a feature does is the same in all tasks. Each task has an intercept of its own, learned from "
    "its own rows alone, because intercepts go with the features: drawing them together would spoil the slopes.",
    "independent": "What one task shows does not carry over to another: each model is learned from its own rows.",
    "unmeasured hub": "All tasks follow one common model, and each departs from it in its own way. The evidence "
    "supports no link between tasks that depart alike, so none is drawn; every task still learns from all others "
    "through the common model.",
    "empty": "Beyond the common model, no two tasks are alike enough for a link.",
    "graph": "Linked tasks have models that are closer than the common model explains, and learn from each other.",
}
# Normal quantile of the intervals given: 95 %.
_QUANTILE = 1.96


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
        text = "The graph suggests who is alike; its error cannot be told from that of the best simple model."
        return {"kind": "graph", "text": text, **gain}
    return {"kind": "graph", "text": f"The graph {change} against the best simple model.", **gain}


def meaning_of(kind: str, measured: bool = True) -> str:
    """What a verdict means, for someone who has never seen one; empty where it speaks for itself.

    Only where errors were `measured` on rows held out does it speak of them.
    """
    known = _MEANINGS.get(kind, "")
    return known if measured else _MEANINGS.get(f"unmeasured {kind}", known)


def gain_over_simple(levels: list[dict[str, Any]], errors: FoldErrors | None, chosen: int) -> dict[str, Any]:
    """Share by which the chosen level lowers the root mean square error of the best other simple level.

    With D the difference of the mean squared errors and r = 1 − D/mse_simple, the gain is 1 − √r; its
    interval comes from the paired standard error of D. The level was chosen by the same errors, so with many
    levels the gain is a little too large.
    """
    best = best_simple(levels, errors, chosen)
    if errors is None or best is None:
        return {}
    excess, deviation = errors.excess(chosen)
    simple = errors.mean()[best]
    if not simple > 0:
        return {}
    shares = (excess[best] + _QUANTILE * deviation[best] * np.array([0.0, -1.0, 1.0])) / simple
    gain, low, high = (1.0 - np.sqrt(np.maximum(1.0 - shares, 0.0))).tolist()
    return {"gain": gain, "low": low, "high": high, "against": levels[best]["name"]}


def best_simple(levels: list[dict[str, Any]], errors: FoldErrors | None, chosen: int) -> int | None:
    """The simple level with the lowest error, other than the chosen one."""
    if errors is None:
        return None
    simple = [k for k, level in enumerate(levels) if level["name"] in SIMPLE_LEVELS and k != chosen]
    return min(simple, key=lambda k: errors.mean()[k], default=None)
