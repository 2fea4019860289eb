"""Optimisers on problems whose solutions are known."""

import numpy as np
import pytest

from ggmtl.bilevel.optimizers import Box, projected_gradient, quasi_newton, trial_steps

OPTIMISERS = {
    "projected_gradient": projected_gradient,
    "quasi_newton": quasi_newton,
    "trial_steps": lambda f, x, box, **options: trial_steps(f, lambda _: None, x, box, **options),
}


def quadratic(seed: int = 0, size: int = 8):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(size, size))
    matrix, vector = root @ root.T + np.eye(size), rng.normal(size=size) * 3
    return lambda x: (float(0.5 * x @ matrix @ x - vector @ x), matrix @ x - vector)


def box_of(size: int = 8) -> Box:
    return Box(np.zeros(size), np.ones(size))


@pytest.mark.parametrize("name", OPTIMISERS)
@pytest.mark.parametrize("seed", range(5))
def test_solution_satisfies_the_conditions_of_optimality_on_the_box(name, seed):
    function, box = quadratic(seed), box_of()
    optimum = OPTIMISERS[name](function, np.full(8, 0.5), box, max_iter=2000, tol=1e-8)
    gradient = function(optimum.x)[1]
    inside = (optimum.x > 1e-9) & (optimum.x < 1 - 1e-9)
    assert optimum.status in ("converged", "flat")
    assert np.abs(gradient[inside]).max(initial=0) < 1e-4
    assert (gradient[optimum.x <= 1e-9] > -1e-6).all()
    assert (gradient[optimum.x >= 1 - 1e-9] < 1e-6).all()


@pytest.mark.parametrize("name", OPTIMISERS)
def test_objective_never_rises_and_iterates_stay_in_the_box(name):
    seen = []
    optimum = OPTIMISERS[name](
        quadratic(3), np.full(8, 5.0), box_of(), max_iter=50, tol=1e-9, progress=lambda i, v, x: seen.append(x.copy())
    )
    assert (np.diff(optimum.history) <= 0).all()
    assert all(((x >= 0) & (x <= 1)).all() for x in seen)


@pytest.mark.parametrize("name", OPTIMISERS)
def test_stopping_early_is_reported(name):
    optimum = OPTIMISERS[name](quadratic(1), np.full(8, 0.5), box_of(), max_iter=1, tol=1e-12)
    assert optimum.status == "max_iter"
    assert optimum.certificate > 1e-12


@pytest.mark.parametrize("name", OPTIMISERS)
def test_start_at_the_solution_takes_no_step(name):
    solution = quasi_newton(quadratic(2), np.full(8, 0.5), box_of(), max_iter=500, tol=1e-10).x
    optimum = OPTIMISERS[name](quadratic(2), solution, box_of(), tol=1e-3)
    assert optimum.iterations == 0
    assert optimum.status == "converged"


def test_a_proposal_is_taken_only_where_it_lowers_the_objective():
    function, box = quadratic(4), box_of()
    best = quasi_newton(function, np.full(8, 0.5), box, max_iter=500, tol=1e-10)
    good = trial_steps(function, lambda _: best.x, np.full(8, 0.5), box, tol=1e-4)
    assert good.history[1] == pytest.approx(best.value)
    bad = trial_steps(function, lambda x: np.ones(8) - (best.x > 0.5), np.full(8, 0.5), box, max_iter=500, tol=1e-8)
    assert (np.diff(bad.history) <= 0).all()
    assert bad.value == pytest.approx(best.value, abs=1e-6)


def test_no_variables_at_all():
    empty = np.empty(0)
    optimum = quasi_newton(lambda x: (1.0, x), empty, Box(empty, empty))
    assert optimum.status == "converged"
