"""New tasks and new rows: attach a task with the other models held fixed, or solve for the models of more rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.sparse import coo_array, csr_array, diags_array

from ggmtl.bilevel.level import GraphFit, Settings, on_its_columns, refit
from ggmtl.evidence.correlated import models_under
from ggmtl.fit.levels import independent_level, pooled_level, separate_models
from ggmtl.graph.task_graph import relative_to_heaviest
from ggmtl.inference.posterior import embedded, pull_of
from ggmtl.statistics.least_squares import LeastSquares

# Strengths tried for the edges of a new task: in units of the hub's strength if the graph has no edges, else of the
# edges of the task that it may be like.
_STRENGTHS, _NEARBY = np.geomspace(0.1, 30.0, 6), np.array([0.3, 1.0, 3.0])
_MOST_NEIGHBOURS = 5
# Largest number of tasks considered as neighbours of a new one. These are the tasks that predict its rows best.
_MOST_ALIKE = 1000


@dataclass(frozen=True)
class AttachedTask:
    """A new task's model and links.

    Parameters
    ----------
    coefficients : array of shape (p,)
        Its model.
    neighbours : array of int
        Positions of the tasks it is linked to; empty if it is shrunk to the common model only.
    edge_value : float or array of shape (neighbours,)
        e of those edges.
    coupling : array of shape (p,)
        Λ for which `edge_value` holds.
    covariance : array of shape (p, p)
        Of its coefficients, in units of σ².
    """

    coefficients: np.ndarray
    neighbours: np.ndarray
    edge_value: float | np.ndarray
    coupling: np.ndarray
    covariance: np.ndarray

    def on_columns(self, columns: np.ndarray, width: int) -> AttachedTask:
        """The same with `width` columns, of which these are used."""
        wide = np.zeros((2, width))
        wide[:, columns] = self.coefficients, self.coupling
        return replace(
            self, coefficients=wide[0], coupling=wide[1], covariance=embedded(self.covariance, columns, width)
        )


def attach(
    fit: GraphFit,
    rows: LeastSquares,
    noise: float,
    ridge: np.ndarray | float = 0.0,
    known: np.ndarray | None = None,
) -> AttachedTask:
    """Model of one new task, with those of the other tasks held fixed.

    `known` are its task features z, shape (q,), if the fit has any; None stands for an average task. Links and
    shrinkage then apply to its deviation from Bz.

    Linked to tasks j with strengths e_j, the prior of its model has precision P = H + Σe_jΛ (over σ²) and mean
    P⁻¹(Hw_0 + ΛΣe_jw_j). The links maximise the evidence of its own rows. Without rows its model is the common model.
    """
    if fit.columns is not None:
        own_ridge = np.broadcast_to(ridge, rows.n_features)[fit.columns]
        narrow = attach(fit.on_its_columns(), rows.of_columns(fit.columns), noise, own_ridge, known)
        return narrow.on_columns(fit.columns, rows.n_features)
    if fit.means is not None:
        own = np.zeros(fit.coefficients.shape[1]) if known is None else known @ fit.means.effects
        found = attach(fit.centred, rows.shifted(own[None]), noise, ridge)
        return replace(found, coefficients=found.coefficients + own)
    common = fit.common_model()
    none = np.empty(0, dtype=np.int64)
    if not np.isfinite(fit.hub).all():
        return AttachedTask(common, none, 0.0, fit.coupling, _pooled(fit))
    pull = pull_of(fit, noise)
    if rows.count[0] == 0:
        return AttachedTask(common, none, 0.0, fit.coupling, np.diag(1.0 / pull))
    # A ridge on every coefficient acts like one row per coefficient with a target of zero.
    gram = rows.gram[0] + np.diag(np.broadcast_to(ridge, len(common)))
    task = _NewTask(gram, rows.moment[0], float(rows.target_square[0]), noise, pull, common)
    if (fit.edge_values > 0).any() and (fit.coupling > 0).any():
        return _attach_alike(fit, task)
    return _attach_by_steps(fit, task)


def _pooled(fit: GraphFit) -> np.ndarray:
    """Covariance of a task's own deviation at the pooled level: zero."""
    return np.zeros((len(fit.hub),) * 2)


def _attach_by_steps(fit: GraphFit, task: _NewTask) -> AttachedTask:
    """At a level without edges: add neighbours one by one while the evidence pays for the choice among all sets."""
    models, neighbours = fit.coefficients, np.empty(0, dtype=np.int64)
    best, chosen = task.evidence(task.common[None], task.pull)[0], (neighbours, 0.0)
    for k in range(1, min(_MOST_NEIGHBOURS, len(models)) + 1):
        scores = np.array([task.with_one_more(models, neighbours, strength) for strength in _STRENGTHS])
        strength, added = np.unravel_index(np.argmax(scores), scores.shape)
        neighbours = np.append(neighbours, added)
        score = scores[strength, added] - _log_choose(len(models), k) - np.log(len(_STRENGTHS))
        if score <= best:
            break
        best, chosen = score, (np.sort(neighbours), float(_STRENGTHS[strength]))
    neighbours, value = chosen
    mean, precision = task.prior(models[neighbours].sum(axis=0), len(neighbours), value)
    coefficients, covariance = task.posterior(mean, precision)
    return AttachedTask(coefficients, neighbours, value, task.pull if len(neighbours) else fit.coupling, covariance)


def _attach_alike(fit: GraphFit, task: _NewTask) -> AttachedTask:
    """At a level with edges: the new task has no links, or the links of one other task and a link to it.

    All these possibilities have equal prior probability, and the posterior is their mixture. The reported edges are
    those of the most probable set, unless no links has a probability above one half.
    """
    ties = _Ties.of(fit, task)
    kinds = [(scale, ties.priors(fit, task, scale)) for scale in _NEARBY]
    means = np.concatenate([task.common[None], *(mean for _, (mean, _) in kinds)])
    precisions = np.concatenate([task.pull[None], *(precision for _, (_, precision) in kinds)])
    share = ties.share / len(_NEARBY)
    weights = np.concatenate([[1.0 - ties.share.sum()], *[share] * len(_NEARBY)])
    logs = task.evidence(means, precisions) + np.log(weights)
    probability = np.exp(logs - logs.max())
    probability /= probability.sum()
    coefficients, covariance = task.mixture(means, precisions, probability)
    if probability[0] > 0.5:
        return AttachedTask(coefficients, np.empty(0, dtype=np.int64), 0.0, fit.coupling, covariance)
    scale, kind = np.unravel_index(np.argmax(probability[1:]), (len(_NEARBY), len(ties.share)))
    chosen = ties.strengths[[kind]].tocoo()
    order = np.argsort(chosen.col)
    values = _NEARBY[scale] * chosen.data[order]
    return AttachedTask(coefficients, chosen.col[order].astype(np.int64), values, fit.coupling, covariance)


@dataclass(frozen=True)
class _Ties:
    """Sets of edges that a new task may have: those of another task, and an edge to that task itself.

    Parameters
    ----------
    strengths : sparse array of shape (kinds, n)
        e to every task.
    total : array of shape (kinds,)
        Σe_j.
    pulled : array of shape (kinds, p)
        Σe_jw_j.
    share : array of shape (kinds,)
        How many of the n + 1 possibilities are of this kind.
    """

    strengths: csr_array
    total: np.ndarray
    pulled: np.ndarray
    share: np.ndarray

    @classmethod
    def of(cls, fit: GraphFit, task: _NewTask) -> _Ties:
        n, present = len(fit.coefficients), fit.edge_values > 0
        (i, j), values = fit.edges[present].T, fit.edge_values[present]
        table = coo_array((np.tile(values, 2), (np.append(i, j), np.append(j, i))), shape=(n, n)).tocsr()
        table = (table + diags_array(table.max(axis=1).toarray().ravel())).tocsr()
        linked = np.unique(fit.edges[present])
        if len(linked) > _MOST_ALIKE:
            linked = linked[np.argsort(task.misfit(fit.coefficients[linked]))[:_MOST_ALIKE]]
        table = table[linked]
        total, pulled = table.sum(axis=1), table @ fit.coefficients
        # Tasks of one cluster give the same prior mean up to rounding, and are counted as one kind.
        place = np.column_stack([total, pulled])
        largest = np.maximum(np.abs(place).max(axis=0), np.finfo(float).tiny)
        _, first, number = np.unique(np.round(place / largest, 9), axis=0, return_index=True, return_counts=True)
        return cls(table[first], total[first], pulled[first], number / (n + 1.0))

    def priors(self, fit: GraphFit, task: _NewTask, scale: float) -> tuple[np.ndarray, np.ndarray]:
        """Means and diagonal precisions, both of shape (kinds, p), all strengths multiplied by `scale`."""
        hub = np.maximum(fit.hub, 1e-6 * task.pull)
        precision = hub + scale * self.total[:, None] * fit.coupling
        return (hub * task.common + scale * fit.coupling * self.pulled) / precision, precision


@dataclass(frozen=True)
class _NewTask:
    gram: np.ndarray
    moment: np.ndarray
    square: float
    noise: float
    pull: np.ndarray
    common: np.ndarray

    def prior(self, total: np.ndarray, k: int, value: float) -> tuple[np.ndarray, np.ndarray]:
        """Mean(s) and diagonal precision, given the sum(s) of k neighbours' models tied by `value` times the pull."""
        return (self.common + value * total) / (1.0 + k * value), self.pull * (1.0 + k * value)

    def misfit(self, models: np.ndarray) -> np.ndarray:
        """‖y − Zw‖² of given models, shape (r,)."""
        return self.square - np.einsum("rp,rp->r", models, 2.0 * self.moment - models @ self.gram)

    def evidence(self, means: np.ndarray, precision: np.ndarray) -> np.ndarray:
        """ln p(y) up to a constant for every prior mean, shape (r,); the precision is shared, or one for each.

        −½ [ (rᵀr − bᵀ(G + P)⁻¹b)/σ² + ln|G + P| − ln|P| ] with r = y − Zm and b = Zᵀr.
        """
        b = self.moment - means @ self.gram
        matrix = self.gram + precision[..., None] * np.eye(len(self.gram))
        solved = np.linalg.solve(matrix, b[..., None])[..., 0] if precision.ndim > 1 else np.linalg.solve(matrix, b.T).T
        explained = np.einsum("rp,rp->r", b, solved)
        log_det = np.linalg.slogdet(matrix)[1] - np.log(precision).sum(axis=-1)
        return -0.5 * ((self.misfit(means) - explained) / self.noise + log_det)

    def posterior(self, mean: np.ndarray, precision: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and covariance (over σ²) of the model, given its prior."""
        covariance = np.linalg.inv(self.gram + np.diag(precision))
        return covariance @ (self.moment + precision * mean), covariance

    def mixture(
        self, means: np.ndarray, precisions: np.ndarray, probability: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Mean and covariance (over σ²) of the mixture of posteriors, without components of negligible probability."""
        used = np.flatnonzero(probability > 1e-6)
        parts = [self.posterior(means[k], precisions[k]) for k in used]
        share = probability[used] / probability[used].sum()
        centres = np.array([centre for centre, _ in parts])
        mean = share @ centres
        apart = (centres - mean) * np.sqrt(share / self.noise)[:, None]
        return mean, np.einsum("k,kpq->pq", share, np.array([spread for _, spread in parts])) + apart.T @ apart

    def with_one_more(self, models: np.ndarray, neighbours: np.ndarray, value: float) -> np.ndarray:
        """Evidence with every task in turn as one more neighbour, shape (n,); −∞ for present neighbours."""
        means, precision = self.prior(models + models[neighbours].sum(axis=0), len(neighbours) + 1, value)
        out = self.evidence(means, precision)
        out[neighbours] = -np.inf
        return out


def _log_choose(n: int, k: int) -> float:
    return float(np.log(np.arange(n - k + 1, n + 1)).sum() - np.log(np.arange(1, k + 1)).sum())


def attach_alone(
    fit: GraphFit, rows: LeastSquares, noise: float, settings: Settings, row: np.ndarray | None = None
) -> np.ndarray:
    """Model of one new task at a level without links, shape (p,); `row` are its encoded task features."""
    if fit.columns is not None:
        narrow = rows.of_columns(fit.columns), noise, settings.of_columns(fit.columns), row
        model = np.zeros(rows.n_features)
        model[fit.columns] = attach_alone(fit.on_its_columns(), *narrow)
        return model
    if fit.means is not None:
        own = np.zeros(fit.coefficients.shape[1]) if row is None else row @ fit.means.effects
        return own + attach_alone(fit.centred, rows.shifted(own[None]), noise, settings)
    common = fit.common_model()
    if not np.isfinite(fit.hub).all() or rows.count[0] == 0:
        return common
    if fit.kind == "independent":
        return separate_models(rows, settings)[0][0]
    ridge = settings.ridge_for(rows)[0]
    pull = np.diag(pull_of(fit, noise)) if fit.precision is None else fit.precision
    return np.linalg.solve(rows.gram[0] + pull + np.diag(ridge), rows.moment[0] + pull @ common)


def follow(
    fit: GraphFit, loss: LeastSquares, settings: Settings, attached: Sequence[int], noise: float, linked: bool = True
) -> tuple[GraphFit, list[np.ndarray]]:
    """The models of other rows with the same graph and strengths, and the covariances of the attached tasks.

    The tasks that were learned together are solved together. Then the tasks at the positions `attached` are attached to
    them again: by :func:`attach`, or by :func:`attach_alone` (without covariances) where the level is not `linked`.
    """
    if fit.columns is not None:
        own, covariances = follow(*on_its_columns(fit, loss, settings), attached, noise, linked)
        width = loss.n_features
        return own.on_columns(fit.columns, width), [embedded(each, fit.columns, width) for each in covariances]
    together = np.setdiff1d(np.arange(len(fit.coefficients)), attached)
    known = _refitted(among(fit, together), loss.of_tasks(together), settings)
    models, covariances = fit.coefficients.copy(), []
    models[together] = known.coefficients
    for place in attached:
        rows = loss.of_tasks(np.array([place]))
        z = None if fit.means is None else fit.means.known[place]
        if linked:
            task = attach(known, rows, noise, settings.ridge_for(rows)[0], z)
            models[place] = task.coefficients
            covariances.append(task.covariance)
        else:
            models[place] = attach_alone(known, rows, noise, settings, z)
    return replace(fit, coefficients=models, ridge=fit.ridge if linked else None), covariances


def _refitted(fit: GraphFit, rows: LeastSquares, settings: Settings) -> GraphFit:
    """The fit with the models of other rows, graph and strengths as they are."""
    again = {"pooled": pooled_level, "independent": independent_level}.get(fit.kind)
    if again is not None:
        return replace(fit, coefficients=again(rows, settings).coefficients)
    if fit.precision is not None:
        return fit.with_deviations(models_under(fit.weighed(rows), fit.precision))
    return refit(fit, rows, settings)


def among(fit: GraphFit, tasks: np.ndarray) -> GraphFit:
    """The fit of some tasks, in rising order, with the edges among them."""
    if len(tasks) == len(fit.coefficients):
        return fit
    inside = np.isin(fit.edges, tasks).all(axis=1)
    return replace(
        fit,
        edges=np.searchsorted(tasks, fit.edges[inside]),
        edge_values=fit.edge_values[inside],
        reported_weights=None if fit.reported_weights is None else fit.reported_weights[inside],
        coefficients=fit.coefficients[tasks],
        precisions=None if fit.precisions is None else fit.precisions[tasks],
        means=None if fit.means is None else fit.means.of_tasks(tasks),
        ridge=None if fit.ridge is None else fit.ridge[tasks],
    )


def insert_task(fit: GraphFit, attached: AttachedTask, position: int, known: np.ndarray | None = None) -> GraphFit:
    """The fit with the new task at `position`; `known` as in :func:`attach`."""
    if fit.means is not None:
        known = np.zeros(fit.means.known.shape[1]) if known is None else known
        fit = replace(fit, means=fit.means.with_task(position, known))
    edges = fit.edges + (fit.edges >= position)
    others = attached.neighbours + (attached.neighbours >= position)
    new = np.sort(np.column_stack([others, np.full(len(others), position)]).reshape(-1, 2), axis=1)
    values = np.append(fit.edge_values, np.broadcast_to(attached.edge_value, len(new)))
    joined = np.concatenate([edges, new]).astype(np.int64)
    shown, n = fit.reported_weights, len(fit.coefficients) + 1
    return replace(
        fit,
        edges=joined,
        edge_values=values,
        reported_weights=None
        if shown is None
        else np.append(shown, relative_to_heaviest(joined, values, n)[len(edges) :]),
        coupling=attached.coupling,
        coefficients=np.insert(fit.coefficients, position, attached.coefficients, axis=0),
        # Its noise is taken to be the mean of all tasks.
        precisions=None if fit.precisions is None else np.insert(fit.precisions, position, 1.0),
        ridge=None,
    )
