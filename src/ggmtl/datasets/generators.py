"""Made-up tasks whose relations are known: Line, Tree and Star of the paper, and clusters.

Rows of task t follow y = w_tᵀx + ε with x ~ N(0, I) and ε ~ N(0, noise²). The paper's text draws an X of its
own for every task and noise 1; its published files are noise-free and share one X. ``published=True`` gives
the latter.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ggmtl.data.task_data import TaskData
from ggmtl.errors import ParameterError, check_choice
from ggmtl.graph.task_graph import TaskGraph
from ggmtl.losses.rowwise import LOSSES

STEP = 0.1
STEP_PROBABILITY = 0.7

Seed = int | np.random.Generator | None


def make_line(
    n_tasks: int = 20,
    n_features: int = 30,
    n_samples: int = 20,
    n_test: int = 80,
    noise: float | None = None,
    published: bool = False,
    random_state: Seed = None,
) -> TaskData:
    """Tasks on a line: w_t = w_{t−1} + 0.1 u∘b, u ~ U[0,1], b ~ Bernoulli(0.7), w_0 ~ N(1, I).

    Parameters
    ----------
    n_tasks, n_features, n_samples, n_test : int
        Tasks, features, and training and test rows of each task (``n_test=0``: no test rows).
    noise : float, optional
        Standard deviation of ε; by default 1, or 0 with ``published=True``.
    published : bool
        Like the paper's published files: steps U[−0.1, 0.1], one X shared by all tasks, no noise.
    random_state : int, Generator or None

    Returns
    -------
    TaskData
        Training rows; test rows in `test`, the true graph (weights 1) in `graph`, the models in
        `coefficients`.

    Examples
    --------
    >>> data = make_line(random_state=0)
    >>> data.X.shape, data.test.X.shape, data.graph
    ((400, 30), (1600, 30), TaskGraph(20 tasks, 19 edges))
    """
    _check_sizes(n_tasks=n_tasks, n_features=n_features, n_samples=n_samples)
    parents = np.arange(n_tasks) - 1
    return _make_descent(parents, n_features, n_samples, n_test, noise, published, random_state)


def make_tree(
    n_tasks: int = 31,
    n_features: int = 30,
    n_samples: int = 20,
    n_test: int = 80,
    noise: float | None = None,
    published: bool = False,
    random_state: Seed = None,
) -> TaskData:
    """Tasks on a binary tree: w_t = w_{t'} + 0.1 u∘b with parent t' = ⌊(t − 1)/2⌋ and w_0 ~ N(1, I).

    31 tasks make a tree of five full levels. Parameters and result as in :func:`make_line`.

    Examples
    --------
    >>> make_tree(n_tasks=7, random_state=0).graph.edges.tolist()
    [[0, 1], [0, 2], [1, 3], [1, 4], [2, 5], [2, 6]]
    """
    _check_sizes(n_tasks=n_tasks, n_features=n_features, n_samples=n_samples)
    parents = (np.arange(n_tasks) - 1) // 2
    return _make_descent(parents, n_features, n_samples, n_test, noise, published, random_state)


def make_star(
    n_tasks: int = 11,
    n_features: int = 20,
    n_samples: int = 20,
    n_test: int = 80,
    noise: float | None = None,
    published: bool = False,
    random_state: Seed = None,
) -> TaskData:
    """Leaves around a centre: w_t ~ N(1, I) for t ≥ 1, and w_0 = Σ_t w_t∘(e_{2t−1} + e_{2t}).

    The centre, task 0, copies two coordinates of each of ten leaves; with other sizes, the features are
    dealt to the leaves in equal runs. Parameters and result as in :func:`make_line`.

    Examples
    --------
    >>> make_star(random_state=0).graph.degrees().tolist()
    [10.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    """
    _check_sizes(n_tasks=n_tasks, n_features=n_features, n_samples=n_samples)
    n_leaves = n_tasks - 1
    if n_leaves < 1 or n_features < n_leaves:
        raise ParameterError(
            f"n_tasks must be between 2 and n_features + 1 = {n_features + 1}, so that the centre takes at "
            f"least one coordinate from each leaf. Got {n_tasks} instead."
        )
    rng = np.random.default_rng(random_state)
    models = rng.normal(1.0, 1.0, (n_tasks, n_features))
    column = np.arange(n_features)
    models[0] = models[1 + column * n_leaves // n_features, column]
    edges = np.column_stack([np.zeros(n_leaves, dtype=np.int64), np.arange(1, n_tasks)])
    return _make_data(models, edges, n_samples, n_test, noise, published, rng)


def make_clusters(
    n_clusters: int = 5,
    n_tasks: int = 50,
    n_features: int = 10,
    n_samples: int = 15,
    n_test: int = 80,
    noise: float | None = None,
    spread: float = 0.1,
    family: str = "normal",
    random_state: Seed = None,
) -> TaskData:
    """Tasks in clusters: w_t = c_k + spread·z_t with c_k ~ N(0, I) and z_t ~ N(0, I).

    The true graph is a union of cliques. Clusters are runs of consecutive tasks whose sizes differ by at
    most one. Other parameters and result as in :func:`make_line`.

    Parameters
    ----------
    family : {"normal", "logistic", "poisson"}
        Numbers with noise; zeros and ones of probability 1/(1 + e^−η); or counts of mean e^η. For the latter two
        η = xᵀw_t has no noise, and for counts all w_t are divided by 2√d, so that few counts are large.

    Examples
    --------
    >>> data = make_clusters(random_state=0)
    >>> data.X.shape, data.graph
    ((750, 10), TaskGraph(50 tasks, 225 edges))
    """
    _check_sizes(n_clusters=n_clusters, n_tasks=n_tasks, n_features=n_features, n_samples=n_samples)
    if n_clusters > n_tasks:
        raise ParameterError(f"n_clusters must not exceed n_tasks = {n_tasks}. Got {n_clusters} instead.")
    if not spread >= 0.0:
        raise ParameterError(f"spread must not be negative. Got {spread!r} instead.")
    check_choice("family", family, ("normal", "logistic", "poisson"))
    if family != "normal" and noise is not None:
        raise ParameterError(f'noise is for family="normal". Got noise={noise!r} with family={family!r} instead.')
    rng = np.random.default_rng(random_state)
    cluster = np.arange(n_tasks) * n_clusters // n_tasks
    centres = rng.normal(size=(n_clusters, n_features))
    models = centres[cluster] + spread * rng.normal(size=(n_tasks, n_features))
    if family == "poisson":
        models /= 2.0 * np.sqrt(n_features)
    i, j = np.triu_indices(n_tasks, k=1)
    alike = cluster[i] == cluster[j]
    noise = noise if family == "normal" else 0.0
    data = _make_data(models, np.column_stack([i, j])[alike], n_samples, n_test, noise, False, rng)
    return data if family == "normal" else _drawn(data, family, rng)


def _drawn(data: TaskData, family: str, rng: np.random.Generator) -> TaskData:
    """Classes or counts in place of the predictors."""
    mean = LOSSES[family].mean(data.y)
    target = rng.poisson(mean) if family == "poisson" else rng.uniform(size=len(mean)) < mean
    test = None if data.test is None else _drawn(data.test, family, rng)
    return replace(data, y=target.astype(np.float64), test=test)


def _make_descent(parents, n_features, n_samples, n_test, noise, published, random_state) -> TaskData:
    """Data of tasks that each step away from a parent; task 0 has none."""
    rng = np.random.default_rng(random_state)
    n_tasks = len(parents)
    models = np.empty((n_tasks, n_features))
    models[0] = rng.normal(1.0, 1.0, n_features)
    for t in range(1, n_tasks):
        models[t] = models[parents[t]] + _step(n_features, published, rng)
    edges = np.column_stack([parents[1:], np.arange(1, n_tasks)])
    return _make_data(models, edges, n_samples, n_test, noise, published, rng)


def _step(n_features: int, published: bool, rng: np.random.Generator) -> np.ndarray:
    if published:
        return rng.uniform(-STEP, STEP, n_features)
    return STEP * rng.uniform(size=n_features) * (rng.uniform(size=n_features) < STEP_PROBABILITY)


def _make_data(models, edges, n_samples, n_test, noise, published, rng) -> TaskData:
    if n_test < 0:
        raise ParameterError(f"n_test must not be negative. Got {n_test!r} instead.")
    if noise is None:
        noise = 0.0 if published else 1.0
    if not noise >= 0.0:
        raise ParameterError(f"noise must not be negative. Got {noise!r} instead.")
    known = {"graph": TaskGraph(edges, np.ones(len(edges)), np.arange(len(models))), "coefficients": models}
    train = _rows(models, n_samples, noise, published, rng)
    test = TaskData(*_rows(models, n_test, noise, published, rng), **known) if n_test else None
    return TaskData(*train, test=test, **known)


def _rows(
    models: np.ndarray, n_rows: int, noise: float, shared: bool, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, targets and task labels of `n_rows` rows per task."""
    n_tasks, n_features = models.shape
    X = rng.normal(size=(1 if shared else n_tasks, n_rows, n_features))
    X = np.broadcast_to(X, (n_tasks, n_rows, n_features))
    y = np.einsum("tnd,td->tn", X, models) + noise * rng.normal(size=(n_tasks, n_rows))
    return X.reshape(-1, n_features), y.ravel(), np.repeat(np.arange(n_tasks), n_rows)


def _check_sizes(**sizes: int) -> None:
    for name, value in sizes.items():
        if not isinstance(value, (int, np.integer)) or value < 1:
            raise ParameterError(f"{name} must be a whole number of at least 1. Got {value!r} instead.")
