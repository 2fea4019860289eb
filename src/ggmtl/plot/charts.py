"""Coefficients, effects of features, sparsity path and gains: pictures of tables."""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmtl.data.columns import feature_position, read_grid
from ggmtl.errors import InputError, InputTypeError, require
from ggmtl.fit.state import state_of
from ggmtl.graph.task_graph import TaskGraph
from ggmtl.inference.uncertainty import effect_of, own_range
from ggmtl.inspection.summary.collect import summarize
from ggmtl.inspection.summary.phrases import count
from ggmtl.inspection.summary.words import level_title, measured_levels
from ggmtl.plot.style import (
    GAIN_COLOR,
    GREY,
    LOSS_COLOR,
    MAX_TASKS,
    OKABE_ITO,
    axes_of,
    cluster_styles,
    clusters_of,
    graph_of,
    label_text,
)

_MAX_BARS = 60
# Colours end at the largest difference, or, where a few are much larger than the rest, at this quantile.
_MOST_CELLS, _MUCH_LARGER = 0.98, 2.0
# Inches of a new figure for every level of the path.
_ROW = 0.27


def coefficients(model: Any, ax: Any = None, clusters: Any = None) -> Any:
    """Draw how the coefficients differ between tasks: a row per task, ordered by cluster, and a column per feature.

    Colour is the difference from the mean over tasks, times the standard deviation of the feature: by how much it
    changes the target (the log of the odds or of the rate). So all columns have one scale, a column without colour is
    the same in all tasks, and the mean itself, in the units of the data, stands below.

    Examples
    --------
    >>> from ggmtl import plot
    >>> from ggmtl.baselines import HubRegressor
    >>> from ggmtl.datasets import make_clusters
    >>> data = make_clusters(2, n_tasks=6, n_features=3, random_state=0)
    >>> model = HubRegressor().fit(data.X, data.y, tasks=data.tasks)
    >>> [label.get_text() for label in plot.coefficients(model).get_xticklabels()]
    ['x0\\nmean 0.389', 'x1\\nmean -0.269', 'x2\\nmean 0.558']
    """
    graph = graph_of(model)
    values = np.asarray(model.coef_, dtype=float)
    clusters = clusters_of(graph, clusters)
    order = np.lexsort((np.arange(len(values)), clusters))
    means = values.mean(axis=0)
    shown = ((values - means) * np.asarray(model.scaling_.scale)[: values.shape[1]])[order]
    ax = axes_of(ax, (6.4, matrix_height(len(values))))
    bound = _colour_bound(np.abs(shown))
    image = ax.imshow(shown, cmap="RdBu_r", vmin=-bound, vmax=bound, aspect="auto", interpolation="nearest")
    label_rows(ax, np.asarray(model.tasks_)[order], [ax.yaxis])
    _label_features(ax, [f"{label_text(name)}\nmean {mean:.3g}" for name, mean in zip(model.feature_names_, means)])
    mark_clusters(ax, clusters[order])
    extend = "both" if np.abs(shown).max(initial=0) > bound else "neither"
    ax.figure.colorbar(image, ax=ax, label="difference from the mean × s.d. of the feature", extend=extend)
    return ax


def _colour_bound(sizes: np.ndarray) -> float:
    """Where the colours end."""
    largest = float(sizes.max(initial=0.0))
    most = float(np.quantile(sizes, _MOST_CELLS)) if sizes.size else 0.0
    return (most if 0.0 < _MUCH_LARGER * most < largest else largest) or 1.0


def path(model_or_rows: Any, ax: Any = None) -> Any:
    """Draw the held-out error of every level, from simple to dense, with its standard error; the model is ringed.

    Parameters
    ----------
    model_or_rows : fitted model, or rows as in its ``path_``
        Mappings with the keys ``level``, ``n_edges``, ``error``, ``standard_error`` and ``chosen``. Of a model, the
        average of the levels is one more row, and the share of every level stands behind its name.
    ax : matplotlib Axes, optional
        Where to draw; a new figure if missing.

    Returns
    -------
    matplotlib Axes

    Examples
    --------
    >>> from ggmtl import plot
    >>> from ggmtl import GGMTLRegressor
    >>> from ggmtl.datasets import make_clusters
    >>> data = make_clusters(2, n_tasks=6, n_features=3, random_state=0)
    >>> model = GGMTLRegressor().fit(data.X, data.y, tasks=data.tasks)
    >>> plot.path(model).get_xlabel()
    'held-out error'
    """
    rows, error = _levels_of(model_or_rows)
    ax = axes_of(ax, (7.2, max(2.4, _ROW * len(rows) + 0.9)))
    x, spread = (np.array([_number(row[key]) for row in rows]) for key in ("error", "standard_error"))
    place, chosen = np.arange(len(rows)), np.array([row["chosen"] for row in rows], dtype=bool)
    ax.errorbar(
        x, place, xerr=np.nan_to_num(spread), fmt="o", color=GAIN_COLOR, ecolor=GREY, markersize=5, capsize=2, zorder=2
    )
    if chosen.any():
        ax.plot(x[chosen], place[chosen], "o", ms=12, mfc="none", mec=LOSS_COLOR, mew=2, label="the model", zorder=3)
        ax.axvline(x[chosen][0], color=LOSS_COLOR, linewidth=0.8, linestyle=":", zorder=0)
        ax.legend(frameon=False)
    ax.set_yticks(place)
    ax.set_yticklabels([label_text(_row_title(row), 80) for row in rows], fontsize=8, parse_math=False)
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right"]].set_visible(False)
    ax.set_xlabel(f"held-out {error}")
    return ax


def _levels_of(model_or_rows: Any) -> tuple[list[Any], str]:
    """Rows from simple to dense, and what their errors are called."""
    if hasattr(model_or_rows, "state_"):
        summary = summarize(model_or_rows)
        return measured_levels(summary), summary["measure"]["short"]
    rows = getattr(model_or_rows, "path_", model_or_rows)
    return [{**row, "name": row["level"]} for row in rows], "error"


def _row_title(row: Any) -> str:
    """'linked tasks, 14 links (76 %)'."""
    share = f" ({100 * row['weight']:.0f} %)" if row.get("weight") and not row["chosen"] else ""
    return f"{level_title(row)}{share}"


def gain(model_or_tasks: Any, gain: Any = None, ax: Any = None) -> Any:
    """Draw what every task gains from the others, largest first; losses in another colour.

    Above 60 tasks the bars have no names.

    Parameters
    ----------
    model_or_tasks : fitted model, result of ``transfer_report``, or task names
        A model: by what share the held-out error is lower than that of separate models (of the best simple model
        where the levels are not averaged), shrunk towards the gain of all tasks, as on its page. A report: lower than
        that of separate models.
    gain : array of shape (n,), optional
        Gains of the named tasks.
    ax : matplotlib Axes, optional
        Where to draw; a new figure if missing.

    Returns
    -------
    matplotlib Axes

    Examples
    --------
    >>> from ggmtl import plot
    >>> plot.gain(["a", "b", "c"], [0.2, -0.1, 0.3]).get_title()
    '2 of 3 tasks gain'
    """
    task_names, gain = _gains(model_or_tasks) if gain is None else (model_or_tasks, gain)
    names, values = np.asarray(task_names), np.asarray(gain, dtype=float)
    if values.shape != names.shape or values.ndim != 1:
        raise InputError(f"gain must have one number per task ({len(names)}). Got shape {values.shape} instead.")
    if not np.isfinite(values).all():
        raise InputError(f"gain must be finite. Task {names[~np.isfinite(values)][0]!r} has none.")
    order = np.argsort(-values, kind="stable")
    names, values = names[order], values[order]
    few = len(values) <= _MAX_BARS
    ax = axes_of(ax, (6.4, max(2.4, 0.18 * len(values) + 1.0)) if few else (6.4, 4.0))
    colors = np.where(values >= 0, GAIN_COLOR, LOSS_COLOR)
    (_named_bars if few else _many_bars)(ax, names, values, colors)
    ax.set_title(f"{(values > 0).sum():,} of {count(len(values), 'task')} gain", fontsize=10)
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def _gains(model: Any) -> tuple[np.ndarray, np.ndarray]:
    """Tasks of a model or of a transfer report, and their gains; tasks whose gain is not known are left out."""
    if hasattr(model, "task_gains"):
        names, values = np.asarray(model.tasks), np.array([entry.share for entry in model.task_gains])
    elif hasattr(model, "graph_"):
        tasks = summarize(model)["tasks"]
        names, values = np.asarray(model.tasks_), np.array([_number(task["gain"]) for task in tasks])
    else:
        raise InputTypeError(
            "plot.gain takes a fitted model, a transfer report, or task names and gains. "
            f"Got {type(model).__name__} alone."
        )
    known = np.isfinite(values)
    if not known.any():
        raise InputError(
            "The model has no errors on held-out rows, so gains are not known. Fit it with validation=5, or give names "
            "and gains."
        )
    return names[known], values[known]


def _number(value: Any) -> float:
    return np.nan if value is None else float(value)


def _label_features(ax: Any, names: list[str]) -> None:
    points = ax.get_window_extent().width * 72 / ax.figure.dpi
    fontsize = min(9.0, 0.85 * points / max(len(names), 1))
    if fontsize < 5.0:
        ax.set_xticks([])
        ax.set_xlabel(f"{len(names):,} features")
        return
    ax.set_xticks(range(len(names)))
    longest = max((len(line) for name in names for line in name.split("\n")), default=0)
    wide = longest * 0.6 * fontsize > points / max(len(names), 1)
    ax.set_xticklabels(names, fontsize=fontsize, rotation=90 if wide else 0, parse_math=False)
    ax.tick_params(axis="x", length=0)


def _named_bars(ax: Any, names: np.ndarray, values: np.ndarray, colors: np.ndarray) -> None:
    place = np.arange(len(values))
    ax.barh(place, values, color=colors)
    ax.axvline(0, color="0.3", linewidth=0.8)
    ax.set_yticks(place)
    ax.set_yticklabels([label_text(name) for name in names], fontsize=8, parse_math=False)
    ax.set_ylim(len(values) - 0.4, -0.6)
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel("gain")


def _many_bars(ax: Any, names: np.ndarray, values: np.ndarray, colors: np.ndarray) -> None:
    place = np.arange(len(values))
    for color in (GAIN_COLOR, LOSS_COLOR):
        ax.fill_between(place, values, where=colors == color, step="mid", color=color, linewidth=0.5)
    ax.axhline(0, color="0.3", linewidth=0.8)
    ax.set_xlim(-0.5, len(values) - 0.5)
    ax.set_xlabel(f"{len(names):,} tasks, ordered by gain")
    ax.set_ylabel("gain")


_MAX_CELLS = 250
_SMALLEST_FONT = 5.0


def adjacency_cells(tasks: TaskGraph, order: np.ndarray) -> np.ndarray:
    """Weights in the order given; of many tasks several share a cell, which holds the heaviest edge."""
    n_cells = min(tasks.n_tasks, _MAX_CELLS)
    place = np.empty(tasks.n_tasks, dtype=np.int64)
    place[order] = np.arange(tasks.n_tasks) * n_cells // max(tasks.n_tasks, 1)
    cells = np.zeros((max(n_cells, 1),) * 2)
    i, j = place[tasks.edges].T
    np.maximum.at(cells, (i, j), tasks.weights)
    return np.maximum(cells, cells.T)


def cluster_runs(ordered: np.ndarray) -> list[tuple[int, int, int]]:
    """(cluster, first row, number of rows) of every cluster of two or more, rows ordered by cluster."""
    starts = np.flatnonzero(np.diff(ordered, prepend=-1))
    lengths = np.diff(np.append(starts, len(ordered)))
    return [(int(ordered[s]), int(s), int(k)) for s, k in zip(starts, lengths) if k > 1]


def frame_clusters(ax: Any, ordered: np.ndarray) -> None:
    """Draw a frame in the colour of the cluster around its block on the diagonal."""
    patches = require("matplotlib.patches", "plot", "ggmtl.plot")
    styles = cluster_styles(ordered)
    for number, start, length in cluster_runs(ordered):
        frame = patches.Rectangle((start - 0.5, start - 0.5), length, length)
        frame.set(fill=False, edgecolor=styles[number][0], linewidth=1.4)
        ax.add_patch(frame)


def mark_clusters(ax: Any, ordered: np.ndarray) -> None:
    """Draw a bar in the colour of the cluster along the left side of its rows."""
    patches = require("matplotlib.patches", "plot", "ggmtl.plot")
    styles = cluster_styles(ordered)
    for number, start, length in cluster_runs(ordered):
        bar = patches.Rectangle((0.0, start - 0.5), 0.012, length)
        bar.set(facecolor=styles[number][0], edgecolor="white", linewidth=0.5, transform=ax.get_yaxis_transform())
        ax.add_patch(bar)


def matrix_height(n_rows: int) -> float:
    """Height of a new figure in inches: up to 60 rows are tall enough for their names."""
    return float(np.clip(1.8 + 0.11 * n_rows, 4.8, 8.4)) if n_rows <= 60 else 4.8


def label_rows(ax: Any, names: np.ndarray, axes: list[Any]) -> None:
    """Write names along the axes if every one has room, else only say how many tasks there are."""
    size = ax.get_window_extent()
    room = min(size.height if axis is ax.yaxis else size.width for axis in axes) * 72 / ax.figure.dpi
    fontsize = min(9.0, 0.85 * room / max(len(names), 1))
    for axis in axes:
        if fontsize < _SMALLEST_FONT:
            axis.set_ticks([])
            axis.set_label_text(f"{len(names):,} tasks, ordered by cluster")
        else:
            _write_names(axis, names, fontsize, 90 if axis is ax.xaxis else 0)


def _write_names(axis: Any, names: np.ndarray, fontsize: float, rotation: float) -> None:
    axis.set_ticks(range(len(names)))
    texts = [label_text(name) for name in names]
    axis.set_ticklabels(texts, fontsize=fontsize, rotation=rotation, parse_math=False)
    axis.set_tick_params(length=0)


# The band is so many standard errors wide on either side: 95 %.
_BAND = 1.96


def effect(model: Any, feature: str | int, grid: Any = None, ax: Any = None) -> Any:
    """Draw the effect of one feature: the common one with its 95 % band, and a thin line for every task.

    Effects are in the units of the target and zero on average over the training rows, so lines differ in shape only.
    More than 500 tasks are shown by 500 of them, evenly spaced in their order.

    Parameters
    ----------
    model : GGMTLRegressor
        Fitted. Without the statistics of its rows (a loaded model: ``keep_statistics=True``) there is no band.
    feature : str or int
        Its name, or its position among the features.
    grid : array of shape (values,), optional
        Where to draw it; by default over the range of the training rows, and every task where most of its own rows lie.
    ax : matplotlib Axes, optional
        Where to draw; a new figure if missing.

    Returns
    -------
    matplotlib Axes

    Examples
    --------
    >>> import numpy as np
    >>> from ggmtl import GGMTLRegressor, plot
    >>> rng = np.random.default_rng(0)
    >>> x, tasks = rng.uniform(0, 6, size=200), np.repeat(np.arange(10), 20)
    >>> model = GGMTLRegressor(effects="smooth").fit(x[:, None], np.sin(x), tasks=tasks)
    >>> plot.effect(model, "x0").get_xlabel()
    'x0'
    """
    state = state_of(model, "plot.effect")
    position = feature_position(feature, state.feature_names)
    values = np.sort(state.scaling.default_grid(position) if grid is None else read_grid(grid))
    ax, n = axes_of(ax), len(state.task_names)
    shown = np.unique(np.linspace(0, n - 1, min(n, MAX_TASKS)).round().astype(np.int64))
    own = state.scaling.effect_rows(position, values) @ state.coefficients[shown].T
    ranges = own_range(state, position) if grid is None else None
    if ranges is not None:
        low, high = ranges[shown].T
        own[(values[:, None] < low) | (values[:, None] > high)] = np.nan
    ax.plot(values, own, color=GREY, linewidth=0.6, alpha=float(np.clip(8.0 / len(shown), 0.15, 0.7)), zorder=1)
    common, error = effect_of(state, position, values, None)
    if np.isfinite(error).all():
        low, high = common - _BAND * error, common + _BAND * error
        ax.fill_between(values, low, high, color=OKABE_ITO[0], alpha=0.25, linewidth=0, zorder=2, label="95 % band")
    ax.plot(values, common, color=OKABE_ITO[0], linewidth=2.2, zorder=3, label="common")
    ax.axhline(0.0, color="0.8", linewidth=0.8, zorder=0)
    ax.set_xlabel(label_text(state.feature_names[position]))
    ax.set_ylabel("effect, in units of the target")
    ax.set_title(count(n, "task") + ("" if len(shown) == n else f", {len(shown):,} shown"), fontsize=10)
    ax.legend(frameon=False, fontsize=8)
    return ax
