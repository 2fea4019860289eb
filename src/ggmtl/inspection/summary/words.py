"""The summary in words, and as a piece of HTML for notebooks: verdict, a small picture, errors.

The HTML has no script; names are untrusted.
"""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np

from ggmtl.inspection.levels import AVERAGE, is_simple, title_of
from ggmtl.inspection.summary.coefficients import CONSTANT
from ggmtl.inspection.summary.outcomes import outcome_lines
from ggmtl.inspection.summary.phrases import count, gain_interval, listing, number, one_line, percent
from ggmtl.inspection.summary.verdict import blend_words, meaning_of

# Among so many tasks, the one that gains most is worth a name.
_MOST_NAMED = 200
# Descriptors with a colour of their own; the rest are one.
_MOST_DESCRIPTORS = 6


def describe(summary: dict[str, Any]) -> str:
    """The summary for people: a few lines of text."""
    lines = [f"{summary['method']}: {', '.join(sizes(summary))}", summary["verdict"]["text"], *details(summary)]
    levels = measured_levels(summary)
    if levels:
        name, width = summary["measure"]["name"], max(len(level_title(level)) for level in levels) + 2
        lines.append(f"{name[0].upper()}{name[1:]} on held-out rows:")
        lines += [f"  {title:<{width}}{error}  {share}".rstrip() for title, error, share in map(level_cells, levels)]
        lines += filter(None, [weighing_note(summary)])
    return "\n".join([*filter(None, [cut_short(summary)]), *lines, *findings(summary)])


def sizes(summary: dict[str, Any]) -> list[str]:
    """'12 tasks', '180 rows' where that is known, and '4 features'."""
    rows = [] if summary["n_rows"] is None else [count(round(summary["n_rows"]), "row")]
    return [count(summary["n_tasks"], "task"), *rows, count(summary["n_features"], "feature")]


def details(summary: dict[str, Any]) -> list[str]:
    """What stands below the verdict: its meaning, the gain, and the shares of the levels."""
    return [*filter(None, [describe_meaning(summary), describe_gain(summary), describe_blend(summary)])]


def findings(summary: dict[str, Any]) -> list[str]:
    """What stands below the errors of the levels: the graph, what is shared, and notes."""
    lines = [*outcome_lines(summary), f"Graph: {describe_graph(summary)}."]
    return [*lines, *sharing_lines(summary), *note_lines(summary), *task_line(summary)]


def cut_short(summary: dict[str, Any]) -> str:
    """A warning where the search was interrupted; empty otherwise."""
    if summary["outcome"]["status"] != "interrupted":
        return ""
    return "The search was interrupted. This is the best model found until then; fit again for the final one."


def describe_meaning(summary: dict[str, Any]) -> str:
    """What the verdict means, where no link was found; a graph is its own explanation."""
    kind = summary["verdict"]["kind"]
    if summary["graph"]["n_edges"] and kind != "links unclear":
        return ""
    return meaning_of(kind, summary["error"] is not None)


def describe_blend(summary: dict[str, Any]) -> str:
    """What share each level has in the model; empty where there is one only."""
    weights = summary.get("blend") or {}
    return f"The model is an average: {blend_words(weights)}." if len(weights) > 1 else ""


def describe_graph(summary: dict[str, Any]) -> str:
    """Edges, clusters, tasks alone and the shape of the graph, in words."""
    graph = summary["graph"]
    if graph["n_edges"] == 0:
        return "no links"
    parts = [count(graph["n_edges"], "link")]
    if graph["n_clusters"]:
        parts.append(count(graph["n_clusters"], "cluster"))
    if graph["n_alone"]:
        parts.append(f"{count(graph['n_alone'], 'task')} alone")
    text = ", ".join(parts)
    if graph.get("support") is not None:
        text += f" ({graph['support']:,} of {count(graph['n_edges'], 'link')} found in at least 80 % of the folds)"
    return f"{text}; its shape: {graph['shape']}" if graph["shape"] not in (None, "clusters") else text


def describe_gain(summary: dict[str, Any]) -> str:
    """The gain with its interval, in a sentence; empty where it is not known, or where the verdict has it."""
    verdict, error = summary["verdict"], summary["measure"]["short"]
    if verdict["kind"] == "unmeasured":
        if summary["error"] is None:
            return f"No rows were held out, so it is not known whether the links lower the {error}."
        return f"No level without links was fitted, so it is not known whether the links lower the {error}."
    if "gain" not in verdict:
        return ""
    is_clear = not verdict["low"] <= 0 <= verdict["high"]
    if is_clear and verdict["kind"] in ("graph", "shared", "independent"):
        return ""
    change = f"{percent(abs(verdict['gain']))} {'lower' if verdict['gain'] >= 0 else 'higher'}"
    against, span = title_of(verdict["against"]), gain_interval(verdict["low"], verdict["high"])
    return f"The held-out {error} is {change} than that of {against} {span}."


def weighing_note(summary: dict[str, Any]) -> str:
    """Why gains and shares may not follow from the errors in the table; empty where rows have equal weights."""
    if summary["blend"] and summary["target"] is None and "gain" in summary["verdict"]:
        return (
            "Gains in per cent and shares give less weight to the rows of noisy tasks and to outliers. The errors of "
            "this table weigh all rows alike, so the two can differ."
        )
    return ""


def measured_levels(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """The levels whose held-out error is known."""
    return [level for level in summary["path"]["levels"] if level.get("error") is not None]


def level_cells(level: dict[str, Any]) -> tuple[str, str, str]:
    """Title, error ± standard error, and whether the level is the model ('← the model') or what share ('76 %')."""
    share = f"{100 * level['weight']:.0f} %" if level.get("weight") else ""
    return level_title(level), error_text(level), "← the model" if level["chosen"] else share


def error_text(level: dict[str, Any]) -> str:
    """Error ± standard error, with two digits of the latter."""
    error, deviation = level["error"], level["standard_error"]
    # Next to an error whose rounding is a billionth, a smaller deviation says nothing.
    if not deviation or deviation <= 1e-9 * abs(error):
        return number(error)
    digits = int(np.clip(1 - np.floor(np.log10(deviation)), 0, 12))
    return f"{error:.{digits}f} ± {deviation:.{digits}f}"


def level_title(level: dict[str, Any]) -> str:
    """'shared model + own deviations', 'linked tasks, 14 links', beside straight lines 'separate models, curves'."""
    title = f"{title_of(level['name'])}{', curves' if level.get('curved') else ''}"
    if is_simple(level["name"]) or level["name"] == AVERAGE:
        return title
    return f"{title}, {count(level['n_edges'], 'link') if level['n_edges'] else 'no links'}"


def sharing_lines(summary: dict[str, Any]) -> list[str]:
    """Which coefficients are shared by all or by linked tasks, partly shared, differ, or can only be one."""
    lines: list[str] = []
    if summary["n_tasks"] == 1:
        return lines
    meanings = {
        "shared": f"Shared by all tasks{'' if summary['known'] is None else ', given their task features'}",
        "shared by links": "Shared by linked tasks",
        "partly shared": "Partly shared (estimated from other tasks and from a task's own rows)",
        "own": "Differ between tasks (estimated mostly from a task's own rows)",
        CONSTANT: "One coefficient for all tasks, because the feature is constant within every task",
    }
    for word, meaning in meanings.items():
        names = [entry["feature"] for entry in summary["sharing"] if entry["word"] == word]
        if names:
            lines.append(f"{meaning}: {listing(names)}.")
    return lines


def known_lines(summary: dict[str, Any]) -> list[str]:
    """What descriptors explain of the differences between tasks; no line without descriptors."""
    known = summary["known"]
    if known is None:
        return []
    parts = sorted(known["descriptors"], key=lambda part: -part["share"])
    total = sum(part["share"] for part in parts)
    useful = [f"{one_line(part['name'])} {percent(part['share'])}" for part in parts if part["share"] >= 0.01]
    if not useful:
        return ["Task features explain less than 1 % of the differences between tasks."]
    lines = [f"Task features explain {percent(total)} of the differences between tasks: {', '.join(useful)}."]
    varying = {entry["feature"] for entry in summary["sharing"] if entry["word"] not in ("shared", CONSTANT)}
    shares = {name: share for name, share in zip(summary["features"], known["by_coefficient"]) if name in varying}
    if not shares:
        return lines
    most, least = max(shares, key=shares.__getitem__), min(shares, key=shares.__getitem__)
    if shares[most] - shares[least] > 0.1:
        lines.append(
            f"They explain most for {most} ({percent(shares[most])} of its differences) and least for {least} "
            f"({percent(shares[least])})."
        )
    return lines


def note_lines(summary: dict[str, Any]) -> list[str]:
    """What to know before reading coefficients: descriptors, features that say nothing or the same, noise of tasks."""
    lines = known_lines(summary)
    if single := summary["single_valued"]:
        they = ("has", "it", "Its coefficient is") if len(single) == 1 else ("have", "them", "Their coefficients are")
        lines.append(
            f"{listing(single)} {they[0]} the same value in every row, so nothing can be learned from {they[1]}. "
            f"{they[2]} 0. Leave {they[1]} out."
        )
    if summary["redundant"]:
        names = listing(summary["redundant"])
        lines.append(
            f"Each of {names} can be computed from the others in this list, so their coefficients cannot be told "
            "apart. Read them together, or leave one out."
        )
    if summary["bends"] is not None:
        lines.append(
            f"The effect of {one_line(summary['bends']['feature'])} is not a straight line: a curve lowers the "
            f'held-out error by {percent(summary["bends"]["gain"])}. Try effects="auto" (--effects auto on the '
            "command line)."
        )
    noise = summary["noise"]
    if noise is not None:
        quiet, noisy = one_line(noise["quietest"]), one_line(noise["noisiest"])
        lines.append(
            f"Tasks differ in noise (standard deviation): from {noise['low']:.2g} ({quiet}) to {noise['high']:.2g} "
            f"({noisy}). "
            + (
                "Tasks with less noise get more weight."
                if noise["weighed"]
                else "Prediction intervals are shorter for tasks with less noise."
            )
        )
    return lines


def task_line(summary: dict[str, Any]) -> list[str]:
    """How many tasks are predicted better, and which most; no line where that is not known."""
    known = [task for task in summary["tasks"] if task["gain"] is not None]
    if not known:
        return []
    scored, error = count(len(known), "task"), summary["measure"]["short"]
    if len(known) < summary["n_tasks"]:
        both = {None: "", "logistic": " and both classes", "poisson": " and an event"}
        kind = None if summary["target"] is None else summary["target"]["kind"]
        scored = f"the {scored} with five or more held-out rows{both[kind]}"
    against = title_of(summary["gain_against"])
    gaining = (
        f"The held-out {error} is lower than that of {against} in {sum(task['gains'] for task in known):,} of {scored}"
    )
    best = max(known, key=lambda task: task["gain"])
    if len(known) > _MOST_NAMED or best["gain"] <= 0:
        # The largest of very many gains, of a few rows each, is chance.
        return [f"{gaining}."]
    return [f"{gaining}, most in {one_line(best['label'])} (by {percent(best['gain'])})."]


def describe_curves(summary: dict[str, Any]) -> str:
    """How to read the curves; empty where effects are straight lines."""
    curves = summary["curves"]
    if not curves:
        return ""
    shown, n = len(curves["tasks"]), summary["n_tasks"]
    thin = "every task" if shown == n else f"{shown:,} of {count(n, 'task')}"
    band = " with its 95 % band" if curves["features"][0]["error"] is not None else ""
    more = f" {count(curves['n_more'], 'feature')} with smaller effects not shown." if curves["n_more"] else ""
    return (
        "Effect of a feature on the target, in the units of the target and zero on average over the training rows. The "
        f"thick line is the shared curve{band}; thin lines are those of {thin}, drawn where most "
        f"of their rows lie.{more}"
    )


def explained_rows(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """What each descriptor explains, one row per coefficient; none without descriptors that explain anything."""
    known = summary["known"] or {"descriptors": []}
    found = sorted(known["descriptors"], key=lambda part: -part["share"])
    if not any(part["share"] > 0 for part in found):
        return []
    named, others = found[:_MOST_DESCRIPTORS], found[_MOST_DESCRIPTORS:]
    parts = [(part["name"], np.array(part["of_coefficients"])) for part in named]
    if others:
        rest = np.sum([part["of_coefficients"] for part in others], axis=0)
        parts.append((f"{len(others)} others", rest))
    rows = []
    for k, name in enumerate(summary["features"]):
        shares = [(label, float(values[k])) for label, values in parts]
        words = ", ".join(f"{label} {percent(share)}" for label, share in shares)
        width = max(sum(max(share, 0.0) for _, share in shares), 1.0)
        rows.append(
            {
                "name": "intercept (average row)" if name == "intercept" else name,
                "parts": [{"name": label, "width": 100.0 * max(share, 0.0) / width} for label, share in shares],
                "words": f"{words}, not explained {percent(1.0 - sum(share for _, share in shares))}",
                "total": percent(sum(share for _, share in shares)),
            }
        )
    return rows


# More tasks or links than these make a picture that is slow and says nothing.
_MOST_TASKS, _MOST_EDGES = 300, 2000
_WIDTH, _HEIGHT, _MARGIN = 320.0, 220.0, 14.0
# Told apart by people with any kind of colour vision (Okabe and Ito). With more clusters, all have the first one:
# no colour stands for two of them.
_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
_ALONE = "#999999"


def notebook_html(summary: dict[str, Any]) -> str:
    """Verdict, picture and errors of a summary."""
    words = [*details(summary), *outcome_lines(summary), f"Graph: {describe_graph(summary)}."]
    paragraphs = "".join(f'<p style="margin:4px 0">{_safe(text)}</p>' for text in words)
    return (
        '<div style="max-width:72em">'
        f'<p style="margin:4px 0;opacity:.7">{_safe(" · ".join([summary["method"], *sizes(summary)]))}</p>'
        f'<p style="margin:4px 0"><b>{_safe(summary["verdict"]["text"])}</b></p>{paragraphs}'
        '<div style="display:flex;flex-wrap:wrap;gap:24px;align-items:flex-start">'
        f"{_errors(summary)}{_picture(summary)}</div></div>"
    )


def _safe(text: Any) -> str:
    return escape(one_line(text))


def _errors(summary: dict[str, Any]) -> str:
    lines = []
    for level in measured_levels(summary):
        style = ' style="font-weight:bold"' if level["chosen"] else ""
        lines.append(f"<tr{style}>{''.join(f'<td>{_safe(cell)}</td>' for cell in level_cells(level))}</tr>")
    if not lines:
        return ""
    error = summary["measure"]["short"]
    head = f"<tr><th>level</th><th>held-out {error} ± s.e.</th><th>share</th></tr>"
    return f"<table><thead>{head}</thead><tbody>{''.join(lines)}</tbody></table>"


def _picture(summary: dict[str, Any]) -> str:
    """Tasks where they lie, or by what their models are like, with their links; nothing where there are too many."""
    tasks, edges = summary["tasks"], summary["graph"]["edges"]
    if not 2 <= len(tasks) <= _MOST_TASKS or len(edges) > _MOST_EDGES:
        return ""
    points = _points(summary)
    lines = "".join(
        f'<line x1="{points[i, 0]:.1f}" y1="{points[i, 1]:.1f}" x2="{points[j, 0]:.1f}" y2="{points[j, 1]:.1f}" '
        f'stroke-opacity="{0.15 + 0.65 * weight * (support[0] if support else 1.0):.2f}"/>'
        for i, j, weight, *support in edges
    )
    sizes = np.bincount([task["cluster"] for task in tasks])
    circles = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{4.5 if len(tasks) <= 100 else 3}" fill="{_colour(task, sizes)}">'
        f"<title>{_safe(task['label'])}</title></circle>"
        for (x, y), task in zip(points.tolist(), tasks)
    )
    caption = "the tasks where they lie" if summary["places"] is not None else "near each other: tasks with like models"
    return (
        f'<figure style="margin:0"><svg role="img" aria-label="Tasks and links" width="{_WIDTH:.0f}" '
        f'height="{_HEIGHT:.0f}" viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}">'
        f'<g stroke="currentColor" stroke-width="1">{lines}</g>{circles}</svg>'
        f'<figcaption style="opacity:.7">Lines are links; {caption}.</figcaption></figure>'
    )


def _colour(task: dict[str, Any], sizes: np.ndarray) -> str:
    if sizes[task["cluster"]] < 2:
        return _ALONE
    return _COLOURS[task["cluster"] if (sizes > 1).sum() <= len(_COLOURS) else 0]


def _points(summary: dict[str, Any]) -> np.ndarray:
    """Points inside the frame, y downwards, shape (n, 2)."""
    n = summary["n_tasks"]
    angle = 2.0 * np.pi * np.arange(n) / n
    found = summary["places"] or (summary["map"] and summary["map"]["points"])
    points = np.array(found, dtype=float) if found else np.column_stack([np.cos(angle), np.sin(angle)])
    span = np.ptp(points, axis=0)
    share = np.where(span > 0, (points - points.min(axis=0)) / np.where(span > 0, span, 1.0), 0.5)
    share[:, 1] = 1.0 - share[:, 1]
    return _MARGIN + share * (np.array([_WIDTH, _HEIGHT]) - 2 * _MARGIN)
