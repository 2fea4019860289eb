"""Working sums, against the definition row by row and central differences; Newton against scikit-learn."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, PoissonRegressor

from ggmtl.losses.rowwise import LOSSES
from ggmtl.losses.task_rows import newton, row_quadratics, sorted_rows


def make_rows(name, seed=0, n_tasks=5, n_rows=60, p=3, offset=True, weight=True):
    """Rows in random order; the last task has none, and the first has one class only."""
    rng = np.random.default_rng(seed)
    task = rng.integers(0, n_tasks - 1, n_rows)
    design = np.column_stack([rng.standard_normal((n_rows, p - 1)), np.ones(n_rows)])
    models = 0.7 * rng.standard_normal((n_tasks, p))
    shift = 0.3 * rng.standard_normal(n_rows) if offset else None
    eta = np.einsum("rp,rp->r", design, models[task]) + (0.0 if shift is None else shift)
    loss = LOSSES[name]
    target = {
        "squared": lambda: eta + rng.standard_normal(n_rows),
        "logistic": lambda: (rng.random(n_rows) < loss.mean(eta)).astype(float),
        "poisson": lambda: rng.poisson(loss.mean(eta)).astype(float),
    }[name]()
    if name == "logistic":
        target[task == 0] = 1.0
    return sorted_rows(design, target, task, n_tasks, shift, rng.integers(1, 4, n_rows) * 1.0 if weight else None)[0]


@pytest.mark.parametrize("name", LOSSES)
def test_working_sums_have_the_gradient_and_curvature_of_the_loss(name):
    rows, loss = make_rows(name), LOSSES[name]
    here = 0.3 * np.random.default_rng(1).standard_normal((5, 3))
    sums = rows.working_sums(loss, here)
    np.testing.assert_allclose(sums.gradient(here), rows.gradient(loss, here), atol=1e-10)
    for i, k in np.ndindex(here.shape):
        step = np.zeros_like(here)
        step[i, k] = 1e-5
        up, down = here + step, here - step
        slope = (rows.value(loss, up) - rows.value(loss, down)) / 2e-5
        np.testing.assert_allclose(rows.gradient(loss, here)[i, k], slope, rtol=1e-7, atol=1e-7)
        curvature = (rows.gradient(loss, up) - rows.gradient(loss, down)) / 2e-5
        np.testing.assert_allclose(sums.gram[i, k], curvature[i], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", LOSSES)
def test_working_sums_are_a_sum_of_squares(name):
    sums = make_rows(name).working_sums(LOSSES[name], np.zeros((5, 3)))
    bordered = np.block(
        [[sums.gram, sums.moment[:, :, None]], [sums.moment[:, None], sums.target_square[:, None, None]]]
    )
    eigenvalues = np.linalg.eigvalsh(bordered)
    assert (eigenvalues > -1e-10 * eigenvalues[:, -1:] - 1e-12).all()


def test_working_sums_of_squared_loss_are_the_sums_of_the_rows():
    rows = make_rows("squared", offset=False)
    at_zero = rows.working_sums(LOSSES["squared"], np.zeros((5, 3)))
    elsewhere = rows.working_sums(LOSSES["squared"], np.ones((5, 3)))
    for name in ("gram", "moment", "target_square", "count"):
        np.testing.assert_allclose(getattr(at_zero, name), getattr(elsewhere, name), atol=1e-10)
    np.testing.assert_allclose(at_zero.target_square, rows.sums_by_task((rows.weight * rows.target**2)[:, None])[:, 0])


@pytest.mark.parametrize("name", LOSSES)
def test_weights_are_repetitions(name):
    rows, here = make_rows(name), np.full((5, 3), 0.2)
    times = rows.weight.astype(int)
    copies = rows.take(np.repeat(np.arange(len(times)), times))
    copies = type(copies)(
        copies.design, copies.target, copies.offset, np.ones(len(copies.task)), copies.task, copies.n_tasks
    )
    a, b = rows.working_sums(LOSSES[name], here), copies.working_sums(LOSSES[name], here)
    np.testing.assert_allclose(a.gram, b.gram)
    np.testing.assert_allclose(a.moment, b.moment)
    np.testing.assert_allclose(a.count, b.count)


def test_rows_of_some_tasks_give_their_sums():
    rows, here = make_rows("poisson"), np.full((5, 3), 0.1)
    chosen = np.array([1, 3, 4])
    part = rows.of_tasks(chosen).working_sums(LOSSES["poisson"], here[chosen])
    np.testing.assert_allclose(part.gram, rows.working_sums(LOSSES["poisson"], here).gram[chosen])


@pytest.mark.parametrize("name", ["logistic", "poisson"])
def test_newton_arrives_where_scikit_learn_does(name):
    rows, loss, ridge = make_rows(name, offset=False).as_one_task(), LOSSES[name], 0.5

    def solve(sums):
        return np.linalg.solve(sums.gram[0] + ridge * np.eye(3), sums.moment[0])[None]

    found = newton(rows, loss, np.zeros((1, 3)), solve, lambda w: 0.5 * ridge * float((w**2).sum()))
    assert found.converged
    if name == "logistic":
        other = LogisticRegression(C=1 / ridge, fit_intercept=False, tol=1e-10)
    else:
        other = PoissonRegressor(alpha=ridge / rows.weight.sum(), fit_intercept=False, tol=1e-10)
    other.fit(rows.design, rows.target, sample_weight=rows.weight)
    np.testing.assert_allclose(found.coefficients[0], other.coef_.ravel(), atol=1e-4)


def test_newton_halves_steps_that_overshoot():
    rows, loss = make_rows("poisson", offset=False).as_one_task(), LOSSES["poisson"]

    def solve(sums):
        return np.linalg.solve(sums.gram[0] + 1e-6 * np.eye(3), sums.moment[0])[None]

    far = newton(rows, loss, np.array([[0.0, 0.0, -12.0]]), solve, lambda w: 0.0)
    near = newton(rows, loss, np.zeros((1, 3)), solve, lambda w: 0.0)
    np.testing.assert_allclose(far.coefficients, near.coefficients, atol=1e-5)


def test_row_quadratics_are_those_of_every_row():
    rng = np.random.default_rng(0)
    task, design = rng.integers(0, 6, 40), rng.standard_normal((40, 3))
    root = rng.standard_normal((7, 3, 3))
    blocks = root @ root.transpose(0, 2, 1)
    expected = [x @ blocks[i] @ x for x, i in zip(design, task)]
    np.testing.assert_allclose(row_quadratics(design, blocks, task), expected)
    assert row_quadratics(design[:0], blocks, task[:0]).shape == (0,)
