"""A canonical order of tasks and columns, which depends on the rows but not on labels or positions.

Rounding, samples of tasks and ties depend on the order of tasks and columns. So everything is learned in an order that
follows from the sums of the rows. Renaming tasks then changes no coefficient, and permuting columns changes
coefficients by rounding only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ggmtl.bilevel.level import GraphFit, Settings, TaskMeans
from ggmtl.fit.average import Average
from ggmtl.fit.family import Family
from ggmtl.fit.held_out import FoldErrors
from ggmtl.statistics.least_squares import LeastSquares, sum_over_tasks

# Digits that are compared. Sums of the same rows in another order agree to more digits.
_DIGITS = 9
# Columns whose norm is below this share of the largest contain rounding errors only.
_VANISHED = 1e-20
# Columns are weighted by fractional parts of multiples of the golden ratio, so that equal sums by chance are unlikely.
_GOLDEN = 0.6180339887498949


@dataclass(frozen=True)
class Order:
    """Positions, in the user's order, of the tasks and columns in canonical order.

    Parameters
    ----------
    tasks : array of int, shape (n,)
    columns : array of int, shape (p,)
        Features, columns of curves and the intercept keep their ranges.
    """

    tasks: np.ndarray
    columns: np.ndarray

    @classmethod
    def of(cls, parts: Sequence[LeastSquares], settings: Settings) -> Order:
        """The order by the sums of all folds: columns by correlation with the target, tasks by number of rows."""
        count = np.sum([part.count for part in parts], axis=0)
        square = np.sum([part.target_square for part in parts], axis=0)
        moment = np.sum([part.moment for part in parts], axis=0)
        diagonal = np.sum([np.einsum("nkk->nk", part.gram) for part in parts], axis=0)
        columns = _order_of_columns(moment, diagonal, square, settings)
        # One number per task, to order tasks with equally many rows and the same sum of squares.
        weight = np.empty(len(columns))
        weight[columns] = (np.arange(1, len(columns) + 1) * _GOLDEN) % 1.0
        mixed = (moment * weight).sum(axis=1)
        for part in parts:
            mixed += (np.matmul(part.gram, weight) * weight).sum(axis=1)
        return cls(np.lexsort((mixed, _rounded(mixed), _rounded(square), _rounded(count))), columns)

    @cached_property
    def _task_rank(self) -> np.ndarray:
        return np.argsort(self.tasks)

    @cached_property
    def _column_rank(self) -> np.ndarray:
        return np.argsort(self.columns)

    def loss(self, part: LeastSquares) -> LeastSquares:
        """A loss in canonical order."""
        return LeastSquares(
            part.gram[np.ix_(self.tasks, self.columns, self.columns)],
            part.moment[np.ix_(self.tasks, self.columns)],
            part.target_square[self.tasks],
            part.count[self.tasks],
            part.noise,
        )

    def settings(self, settings: Settings) -> Settings:
        """Settings for losses in canonical order; their task features must be in that order already."""
        if len(settings.constant):
            settings = replace(settings, constant=settings.constant[self.columns])
        return settings if settings.coupling is None else replace(settings, coupling=settings.coupling[self.columns])

    def family_back(self, family: Family) -> Family:
        """A family that was learned in canonical order, in the user's order."""
        return replace(
            family,
            levels={name: self.fit_back(fit) for name, fit in family.levels.items()},
            errors=family.errors and self.errors_back(family.errors),
            average=family.average and self.average_back(family.average),
            links=tuple({name: self._edges_back(edges)[0] for name, edges in fold.items()} for fold in family.links),
        )

    def fit_back(self, fit: GraphFit) -> GraphFit:
        """A fit that was learned in canonical order, in the user's order."""
        edges, order = self._edges_back(fit.edges)
        return replace(
            fit,
            edges=edges,
            edge_values=fit.edge_values[order],
            coupling=fit.coupling[self._column_rank],
            hub=fit.hub[self._column_rank],
            coefficients=fit.coefficients[np.ix_(self._task_rank, self._column_rank)],
            reported_weights=None if fit.reported_weights is None else fit.reported_weights[order],
            precisions=None if fit.precisions is None else fit.precisions[self._task_rank],
            means=fit.means and self._means_back(fit.means),
            ridge=None if fit.ridge is None else fit.ridge[np.ix_(self._task_rank, self._column_rank)],
            precision=None if fit.precision is None else fit.precision[np.ix_(self._column_rank, self._column_rank)],
            columns=None if fit.columns is None else np.sort(self.columns[fit.columns]),
        )

    def _edges_back(self, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Edges between the same tasks in the user's order, sorted, and the position of each of them in `edges`."""
        there = np.sort(self.tasks[edges], axis=1)
        order = np.lexsort((there[:, 1], there[:, 0]))
        return there[order], order

    def _means_back(self, means: TaskMeans) -> TaskMeans:
        columns = self._column_rank
        return TaskMeans(means.effects[:, columns], means.strength[:, columns], means.known[self._task_rank])

    def errors_back(self, errors: FoldErrors) -> FoldErrors:
        """Errors in the user's order of the tasks."""
        cross = None if errors.cross is None else errors.cross[:, self._task_rank]
        rank = self._task_rank
        return replace(errors, squared=errors.squared[:, :, rank], count=errors.count[:, rank], cross=cross)

    def average_back(self, average: Average) -> Average:
        """An average of levels in the user's order of the tasks."""
        losses = {name: values[self._task_rank] for name, values in average.losses.items()}
        return replace(average, squared=average.squared[:, self._task_rank], losses=losses)


def _order_of_columns(moment: np.ndarray, diagonal: np.ndarray, square: np.ndarray, settings: Settings) -> np.ndarray:
    """Columns by their correlation with the target, the largest first, then by how it differs between tasks."""
    size = np.sqrt(sum_over_tasks(diagonal))
    # A constant column contains only rounding errors after centring. It gets no correlation.
    size = np.where(size > _VANISHED * size.max(), size, np.inf)
    unit = np.sqrt(sum_over_tasks(square[:, None]))[0] or 1.0
    correlation = sum_over_tasks(moment) / size / unit
    spread = np.sqrt(sum_over_tasks((moment / size / unit) ** 2))
    unequal = np.sqrt(sum_over_tasks((diagonal / size**2) ** 2))
    kind = np.where(settings.slopes, 0, 2)
    if len(settings.bends):
        kind = np.where(settings.bends, 1, kind)
    keys = (unequal, spread, correlation, np.abs(correlation))
    return np.lexsort((*(np.round(-key, _DIGITS) for key in keys), kind))


def _rounded(values: np.ndarray) -> np.ndarray:
    """Values in units of the largest, so that what differs by rounding is equal."""
    return np.round(values / (np.abs(values).max(initial=0.0) or 1.0), _DIGITS)
