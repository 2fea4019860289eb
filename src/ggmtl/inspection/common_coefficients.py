"""Which coefficients linked tasks have in common."""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmtl.data.frames import as_table
from ggmtl.evidence.search_l1 import probability_of_sharing
from ggmtl.fit.state import state_of
from ggmtl.inference.model_evidence import hub_alone


def shared_features(model: Any) -> Any:
    """How likely it is that two linked tasks share a coefficient, edge by edge and feature by feature, as a tidy table.

    Meant for ``penalty="l1"``, whose edges may stand for a few coefficients only; it answers for any graph. The columns
    are task, other, feature and probability, the likeliest features of an edge first. Intercepts are not asked about.

    Parameters
    ----------
    model : GGMTLRegressor
        Fitted with a hub, with its statistics (a loaded model: saved with ``keep_statistics=True``).

    Examples
    --------
    >>> from ggmtl import GGMTLRegressor
    >>> from ggmtl.datasets import make_clusters
    >>> data = make_clusters(2, n_tasks=6, n_features=2, random_state=0)
    >>> model = GGMTLRegressor(penalty="l1").fit(data.X, data.y, tasks=data.tasks)
    >>> len(shared_features(model)["feature"]) == 2 * model.graph_.n_edges
    True
    """
    state = state_of(model, "shared_features")
    state.rows("shared_features")
    fit = state.level
    edges, names = model.graph_.edges, np.array(model.feature_names_, dtype=str)
    share = np.zeros((len(edges), len(names)))
    if len(edges) and "hub" in state.family.levels:
        settings, loss = state.settings, state.folded().total
        hub = hub_alone(state, fit, loss)
        share = probability_of_sharing(fit.weighed(loss), settings, hub, edges)[:, settings.slopes]
    order = np.argsort(-share, axis=1, kind="stable")
    return as_table(
        {
            "task": np.repeat(model.tasks_[edges[:, 0]], len(names)),
            "other": np.repeat(model.tasks_[edges[:, 1]], len(names)),
            "feature": names[order].ravel(),
            "probability": np.take_along_axis(share, order, axis=1).ravel(),
        },
        state.form.table_kind,
    )
