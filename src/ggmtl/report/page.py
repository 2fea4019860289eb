"""Summary → page. Names are untrusted: the template escapes them, and the script sets them as text only."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

from ggmtl.errors import require
from ggmtl.inspection.summary.collect import summarize
from ggmtl.inspection.summary.outcomes import quality_lines
from ggmtl.inspection.summary.words import (
    cut_short,
    describe_blend,
    describe_curves,
    describe_gain,
    describe_meaning,
    explained_rows,
    measured_levels,
    note_lines,
    weighing_note,
)
from ggmtl.report.payload import own_words, page_data
from ggmtl.runtime.files import write_whole

# The parts of the script share one scope, in this order.
_SCRIPTS = (
    "tools",
    "state",
    "drawing",
    "panel",
    "choosing",
    "charts",
    "curves",
    "outcomes",
    "table",
    "downloads",
    "start",
)


def write_report(model: Any, path: str | Path, title: str | None = None) -> Path:
    """Write a self-contained HTML page about a fitted model.

    Parameters
    ----------
    model : fitted regressor of this package
    path : str or Path
        File to write; it appears whole or not at all.
    title : str, optional
        Heading of the page.

    Returns
    -------
    Path
        The file written.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from ggmtl.baselines import HubRegressor
    >>> from ggmtl.datasets import make_clusters
    >>> data = make_clusters(2, n_tasks=6, n_features=3, random_state=0)
    >>> model = HubRegressor().fit(data.X, data.y, tasks=data.tasks)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_report(model, Path(folder) / "report.html").name
    'report.html'
    """
    write_whole(
        path, render_report(summarize(model, with_standard_errors=True), title).encode("utf-8", errors="replace")
    )
    return Path(path)


def render_report(summary: dict[str, Any], title: str | None = None) -> str:
    """The page of a summary as text.

    Examples
    --------
    >>> from ggmtl.inspection.summary.collect import summarize
    >>> from ggmtl.baselines import HubRegressor
    >>> from ggmtl.datasets import make_clusters
    >>> data = make_clusters(2, n_tasks=6, n_features=3, random_state=0)
    >>> model = HubRegressor().fit(data.X, data.y, tasks=data.tasks)
    >>> "Six schools" in render_report(summarize(model), title="Six schools")
    True
    """
    jinja2 = require("jinja2", "report", "The report")
    folder = files("ggmtl.report")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    template = environment.from_string((folder / "page.html.jinja").read_text(encoding="utf-8"))
    markup = require("markupsafe", "report", "The report").Markup
    tasks = summary["n_tasks"]
    return template.render(
        title=title or (f"Which of the {tasks:,} tasks are alike" if tasks > 1 else "One task"),
        summary=summary,
        verdict=_unbroken(summary["verdict"]["text"]),
        cut_short=cut_short(summary),
        meaning=describe_meaning(summary),
        detail=" ".join(filter(None, [describe_gain(summary), describe_blend(summary)])),
        graph_words=own_words(summary),
        notes=note_lines(summary),
        outcome_words=[] if summary["target"] is None else quality_lines(summary),
        measure_name=f"{summary['measure']['name'][0].upper()}{summary['measure']['name'][1:]}",
        weighing=weighing_note(summary),
        curve_words=describe_curves(summary),
        explained=explained_rows(summary),
        measured=bool(measured_levels(summary)),
        outcome=_outcome(summary["outcome"]),
        style=markup((folder / "page.css").read_text(encoding="utf-8")),
        script=markup(_script()),
        data=page_data(summary),
    )


def _unbroken(text: str) -> str:
    """Percentages, ranges and hyphens stay on one line."""
    return text.replace(" %", "\u00a0%").replace("–", "\u2060–\u2060").replace("held-out", "held\u2011out")


def _outcome(outcome: dict[str, Any]) -> dict[str, Any]:
    """How the fit ended; a stop by design is no failure to converge."""
    known = {name: value for name, value in outcome.items() if value is not None}
    if known.get("status") != "stopped":
        return known
    words = "finished after its fixed number of steps"
    return {name: words if name == "status" else value for name, value in known.items() if name != "converged"}


def _script() -> str:
    """The parts of the script as one function, so that no name of theirs is seen outside."""
    folder = files("ggmtl.report") / "scripts"
    parts = [(folder / f"{name}.js").read_text(encoding="utf-8") for name in _SCRIPTS]
    return '"use strict";\n(() => {\n' + "\n".join(parts) + "})();\n"
