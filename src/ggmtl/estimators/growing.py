"""More rows, and more tasks, for a model that is already fitted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

import narwhals.stable.v1 as nw
import numpy as np
from sklearn.utils.validation import check_is_fitted

from ggmtl.data.folds import deal_folds, deal_holdout
from ggmtl.data.frames import as_frame
from ggmtl.data.labels import locate_tasks, read_labels
from ggmtl.data.reading import read_training
from ggmtl.data.task_data import TaskData
from ggmtl.errors import InputError, ParameterError
from ggmtl.estimators.base import all_or_nothing
from ggmtl.estimators.fitted import FittedModel
from ggmtl.fit.held_out import FoldErrors
from ggmtl.fit.path import PathResult
from ggmtl.graph.task_graph import TaskGraph, beside_heaviest
from ggmtl.inference.attachment import AttachedTask, attach, follow, insert_task
from ggmtl.inference.posterior import user_units
from ggmtl.kernels import one_blas_thread
from ggmtl.statistics.least_squares import FoldedLoss, LeastSquares
from ggmtl.statistics.task_statistics import TaskStatistics


class GrowingModel(FittedModel):
    """Methods that add to a fitted model."""

    @all_or_nothing
    @one_blas_thread()
    def partial_fit(
        self,
        X: Any,
        y: Any = None,
        tasks: Any = None,
        forget: float = 1.0,
        *,
        sample_weight: Any = None,
        groups: Any = None,
        relearn: bool = True,
    ):
        """Learn from more rows; the old ones are not needed, their statistics are.

        By default everything is learned anew from the statistics of all rows, so the result is that of
        ``fit_statistics(forget · old + new)``, and costs a fit. With ``relearn=False`` graph, strengths and scaling
        stay, and only the models follow the rows: one linear solve. The statistics are the same either way, so that
        many cheap calls and a last one with ``relearn=True`` end where one call with all their rows does, but for the
        folds: the rows of a call are dealt among themselves. A row that is sent again may then be held out in one copy
        and learned from in the other; ``groups`` keep such rows together. New tasks are welcome in long form; with
        ``relearn=False`` they are attached as by ``add_task``.

        Parameters
        ----------
        X, y, tasks, sample_weight
            As in ``fit``.
        forget : float
            What an old row counts beside a new one, in (0, 1].
        groups : array of shape (rows,), optional
            Rows of one group stay in one fold, also those of groups that earlier rows were in.
        relearn : bool
            Whether to learn graph and strengths anew; ``path_`` and ``validation_error_`` are those of the last time.

        Returns
        -------
        self
        """
        if not hasattr(self, "coef_"):
            return self.fit(X, y, tasks, sample_weight=sample_weight, groups=groups)
        if not isinstance(forget, (int, float)) or not 0 < forget <= 1:
            raise ParameterError(f"forget must lie above 0 and at most at 1. Got {forget!r} instead.")
        old = self._kept_statistics("partial_fit")
        if hasattr(self.validation, "split"):
            raise ParameterError(
                f"partial_fit cannot deal rows into the folds of {type(self.validation).__name__}, which must see all "
                "rows. Use validation= with a number of folds or a share, and groups= where rows belong together."
            )
        data = self._read_more(X, y, tasks, sample_weight, groups)
        joined = replace(old, cross=forget * old.cross) + self._collect(data, old)
        return self._fit(joined) if relearn else self._follow(joined)

    @all_or_nothing
    @one_blas_thread()
    def add_task(self, name: Any, X: Any = None, y: Any = None):
        """Attach a new task without refitting the others.

        Neighbours and their strength are chosen by the evidence of the task's own rows; without rows it gets the
        common model. Rows may be as few as one.

        Parameters
        ----------
        name : str, int, …
            Label of the task, of the kind of the others.
        X, y : data frame or array of shape (rows, d), and array of shape (rows,), optional
            Its rows.

        Returns
        -------
        self
        """
        check_is_fitted(self, "coef_")
        label = self._new_label(name)
        data = None if X is None or len(X) == 0 else self._read_task(label, X, y)
        if data is None:
            width = self.n_features_in_ + 2
            rows = TaskStatistics(
                np.zeros((1, 1, width, width)), np.zeros(width - 1), label, tuple(self.feature_names_)
            )
        else:
            rows = TaskStatistics.from_data(data)
        self._attach(label, self._scaling.design(rows)[0])
        if self._statistics is not None:
            empty = np.zeros_like(self._statistics.cross[:, :1])
            more = replace(self._statistics, cross=empty, task_names=label)
            self._statistics = self._statistics + (more if data is None else self._collect(data, self._statistics))
            self._forget_derived()
        return self

    def _attach(self, label: np.ndarray, rows: LeastSquares) -> None:
        self._insert(label, attach(self._fit_used, rows, self._noise_variance()))

    def _follow(self, statistics: TaskStatistics) -> Self:
        """Graph, strengths and scaling as they are, the models of these statistics."""
        noise = self._noise_variance()
        total = FoldedLoss(tuple(self._scaling.design(statistics))).total
        here = locate_tasks(statistics.task_names, self.tasks_)
        labels = [label for label, _ in self._attached]
        positions = locate_tasks(self.tasks_, np.array(labels)).tolist() if labels else []
        fit, covariances = follow(self._fit_used, total.of_tasks(here), self._settings_used, positions, noise)
        levels = list(self._path_result.levels)
        levels[self._path_result.chosen] = fit
        result = replace(self._path_result, levels=tuple(levels))
        self._forget_derived()
        self._attached = list(zip(labels, covariances))
        self._statistics = replace(statistics, cross=statistics.cross[:, here], task_names=self.tasks_)
        self._set_models(self._learned(result, self._settings_used, self.graph_, {"path_": self.path_}))
        for position in np.setdiff1d(np.arange(len(statistics.task_names)), here):
            self._attach(statistics.task_names[[position]], total.of_tasks(np.array([position])))
        self._statistics = statistics
        self._forget_derived()
        return self

    def _deal(self, data: TaskData) -> np.ndarray | None:
        folds = super()._deal(data)
        self._group_folds = None
        if folds is not None and data.groups is not None:
            self._group_folds = dict(zip(_plain_labels(data.groups), folds.tolist()))
        return folds

    def _read_more(self, X: Any, y: Any, tasks: Any, sample_weight: Any, groups: Any) -> TaskData:
        data = read_training(
            X, y, tasks, task=self.task, sample_weight=sample_weight, groups=groups, estimator=type(self).__name__
        )
        if (self.task is not None or tasks is not None or y is None) != self._reads_tasks:
            raise InputError(
                "The model was fitted "
                + ("with tasks: give them here too, as tasks=." if self._reads_tasks else "without tasks.")
            )
        if not self._reads_tasks:
            self._check_columns_of_target(data)
        if data.tasks.dtype.kind in "US" and self.tasks_.dtype.kind not in "US":
            raise InputError(f"The task labels must be of the kind {self.tasks_.dtype}, as in fit.")
        return self._check_features(data)

    def _check_columns_of_target(self, data: TaskData) -> None:
        """One task per column of y: those of ``fit`` must be there, and no others than tasks that came later."""
        given, known = set(data.task_names.tolist()), self.tasks_.tolist()
        if given <= set(known) and len(given) >= (self._n_targets or 0):
            return
        wanted = f"the {self._n_targets or len(known)} columns" if self._target_is_matrix else "the one dimension"
        raise InputError(
            f"y must have {wanted} that it had in fit. Got {len(given)} column(s) instead: "
            f"{', '.join(map(repr, sorted(given, key=str)[:5]))}{' …' if len(given) > 5 else ''}."
        )

    def _check_features(self, data: TaskData) -> TaskData:
        width = data.X.shape[1]
        if width != self.n_features_in_:
            raise InputError(
                f"X has {width} features, but {type(self).__name__} is expecting {self.n_features_in_} features as "
                "input"
            )
        known = tuple(self.feature_names_)
        if data.feature_names is not None and hasattr(self, "feature_names_in_") and data.feature_names != known:
            raise InputError(
                "The feature names should match those that were passed during fit.\n"
                f"Fitted: {list(known)}\nGiven: {list(data.feature_names)}"
            )
        return replace(data, feature_names=known)

    def _collect(self, data: TaskData, like: TaskStatistics) -> TaskStatistics:
        """Statistics of rows, dealt into folds among themselves; groups stay in their folds."""
        if not like.n_folds:
            return TaskStatistics.from_data(data)
        seed = 0 if self.random_state is None else int(self.random_state)
        if self._scored_from and not hasattr(self.validation, "split"):
            share = float(self.validation if self.validation < 1 else 1.0 / self.validation)
            folds = deal_holdout(data, share, seed).astype(np.int64)
        elif like.n_folds - self._scored_from > 1:
            folds = self._scored_from + deal_folds(data, like.n_folds - self._scored_from, seed)
        else:
            folds = np.zeros(len(data), dtype=np.int64)
        if data.groups is not None:
            known, groups = self._group_folds or {}, _plain_labels(data.groups)
            folds = np.array([known.get(group, fold) for group, fold in zip(groups, folds.tolist())])
            self._group_folds = known | dict(zip(groups, folds.tolist()))
        part = TaskStatistics.from_data(data, folds)
        missing = like.n_folds - len(part.cross)
        return replace(part, cross=np.concatenate([part.cross, np.zeros((missing, *part.cross.shape[1:]))]))

    def _new_label(self, name: Any) -> np.ndarray:
        if not self._reads_tasks and not self._target_is_matrix:
            raise InputError("The model was fitted without tasks, so there is nothing to attach a task to.")
        label = read_labels([name], "name", 1)
        if (label.dtype.kind in "US") != (self.tasks_.dtype.kind in "US"):
            raise InputError(
                f"name must be of the kind of the other labels ({self.tasks_.dtype}). Got {name!r} instead."
            )
        if locate_tasks(self.tasks_, label)[0] >= 0:
            raise InputError(f"Task {name!r} is already there. Use partial_fit to give it more rows.")
        return label

    def _read_task(self, label: np.ndarray, X: Any, y: Any) -> TaskData:
        """Rows of one new task; a task column may be there, and must then name this task."""
        frame = as_frame(X, "X")
        named = isinstance(frame, nw.DataFrame) and self.task in frame.columns
        numbered = isinstance(self.task, (int, np.integer)) and np.shape(X)[1:] == (self.n_features_in_ + 1,)
        if named or numbered:
            data = read_training(X, y, task=self.task, estimator=type(self).__name__)
            if (data.tasks != label[0]).any():
                raise InputError(f"add_task({label[0].item()!r}, …): column {self.task!r} of X names other tasks.")
        else:
            data = read_training(X, y, np.repeat(label, len(X)), estimator=type(self).__name__)
        return self._check_features(data)

    def _insert(self, label: np.ndarray, attached: AttachedTask) -> None:
        """Take a task in at its place among the sorted labels."""
        position = int(np.searchsorted(self.tasks_, label[0]))
        old, result, graph = self._fit_used, self._path_result, self.graph_
        fit = insert_task(old, attached, position)
        levels = [
            replace(level, coefficients=level.coefficients[:0], edges=level.edges + (level.edges >= position))
            for level in result.levels
        ]
        levels[result.chosen] = fit
        errors = result.errors and FoldErrors(
            np.insert(result.errors.squared, position, 0.0, axis=2),
            np.insert(result.errors.count, position, 0.0, axis=1),
        )
        names = np.concatenate([self.tasks_[:position], label, self.tasks_[position:]])
        new = fit.edges[len(old.edges) :]
        weights = beside_heaviest(fit.edges, fit.edge_values, len(names))[len(old.edges) :]
        grown = TaskGraph(
            np.concatenate([graph.edges + (graph.edges >= position), new]),
            np.append(graph.weights, weights),
            names,
        )
        self.tasks_ = names
        if self._statistics is None:
            # All that is known of the uncertainty of the others is what the file said.
            T = user_units(self._scaling)
            variance = self._noise_variance() * np.diag(T @ attached.covariance @ T.T)
            self._standard_errors = np.insert(self._standard_errors_used(), position, np.sqrt(variance), axis=0)
            if self._ratios is not None:
                # Its rows are too few to tell how noisy it is.
                self._ratios = np.insert(self._ratios, position, 1.0)
        if np.isfinite(fit.hub).all():
            # Under an infinite hub there is one model for all, which needs no place of its own.
            self._attached = [*self._attached, (label[0], attached.covariance)]
        result = PathResult(tuple(levels), errors, result.chosen, result.criterion)
        self._set_models(self._learned(result, self._settings_used, grown, {"path_": self.path_}))


def _plain_labels(labels: np.ndarray) -> list[Any]:
    """Labels that a file can hold: text and numbers as they are, times as whole numbers."""
    return (labels.view(np.int64) if labels.dtype.kind in "mM" else labels).tolist()
