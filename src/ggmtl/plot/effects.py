"""The effect of one feature: the common curve with a band, and a thin line for every task."""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmtl.data.columns import feature_position, read_grid
from ggmtl.fit.state import state_of
from ggmtl.inference.effects import effect_of
from ggmtl.plot.style import GREY, MAX_TASKS, OKABE_ITO, axes_of, count_text, label_text

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
        Where to draw it; by default over the range of the training rows.
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
    ax.plot(values, own, color=GREY, linewidth=0.6, alpha=float(np.clip(8.0 / len(shown), 0.15, 0.7)), zorder=1)
    common, error = effect_of(state, position, values, None)
    if np.isfinite(error).all():
        low, high = common - _BAND * error, common + _BAND * error
        ax.fill_between(values, low, high, color=OKABE_ITO[0], alpha=0.25, linewidth=0, zorder=2, label="95 % band")
    ax.plot(values, common, color=OKABE_ITO[0], linewidth=2.2, zorder=3, label="common")
    ax.axhline(0.0, color="0.8", linewidth=0.8, zorder=0)
    ax.set_xlabel(label_text(state.feature_names[position]))
    ax.set_ylabel("effect, in units of the target")
    ax.set_title(count_text(n, "task") + ("" if len(shown) == n else f", {len(shown):,} shown"), fontsize=10)
    ax.legend(frameon=False, fontsize=8)
    return ax
