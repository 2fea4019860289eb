"""What a default fit costs, beside the loops, mixed models and relation learners that people would use instead.

Every side gets the same rows of the same sets in this one process, one after the other, after the compiled kernels have
been loaded by a small fit and every package imported. Ratios count; both the clock and processor seconds are given,
because only the latter are comparable on a machine that is busy. Sides below five processor seconds run three times and
their median counts; a side is stopped at ``--limit`` processor seconds (a single call into compiled code cannot be).

- loops: ``Ridge()`` and ``RidgeCV()`` of scikit-learn per task, the rows sorted by task beforehand;
- mixed models with independent random slopes for all features, as :mod:`ggmtl.reproduce.peers` calls them: gpboost,
  mixedlm, and statsmodels, whose slopes are variance components there;
- MTRL, MSSL and BMSL of this package with their defaults. They choose by cross-validation as our default does, BMSL
  samples. MSSL and BMSL run on School only;
- network lasso: the inner problem with unsquared ℓ2 penalty, its edges, λ and smoothing given, by cvxpy as one conic
  program (Clarabel; sparse matrices, no loop over tasks) and by ``solve_inner``; their objectives must agree to 1e-4.

The last table has a default fit against *the same fit with every strength given*. A default fit learns strengths in two
places: of the hub, and of every graph and cluster that it compares. What they were is recorded, in every fold; the
second fit gets them instead of searching, so that it compares the same graphs on the same folds and must end with the
same error. Coupling that is given to the regressor itself would not do: it changes the criterion from evidence to
validation, which is another and dearer problem. The weights of single edges are the graph, and are learned by both.

Hyper-gradients against automatic differentiation are in ``autodiff.py``, many tasks in ``scale.py``. Run with
``GGMTL_DATA_HOME=… python benchmarks/speed.py``; ``--keep`` writes the result file. Takes about five minutes of an
idle machine.
"""

from __future__ import annotations

import argparse
import io
import os
import signal
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self
from unittest.mock import patch

import numpy as np
from scipy import sparse
from sklearn.linear_model import Ridge, RidgeCV

from ggmtl import GGMTLRegressor
from ggmtl.baselines import BMSLRegressor, MSSLRegressor, MTRLRegressor
from ggmtl.bilevel.inner import InnerProblem, solve_inner
from ggmtl.data.task_data import TaskData
from ggmtl.datasets import load_parkinson, load_school, make_clusters
from ggmtl.errors import GGMTLError
from ggmtl.evidence.edge_strength import tune_strengths
from ggmtl.evidence.hub import hub_evidence
from ggmtl.evidence.hub_strengths import HubStrength, learn_hub_by_feature
from ggmtl.graph.candidates import KNN
from ggmtl.reproduce.peers import (
    GpBoost,
    MixedLm,
    StatsmodelsIntercept,
    independent_columns,
    peer_package,
    with_constant,
)
from ggmtl.statistics.least_squares import LeastSquares

RESULTS = Path(__file__).parent / "results" / "speed.md"
LIMIT = 60.0
# Sides below so many processor seconds are repeated so often.
SHORT, REPEATS = 5.0, 3
# Seconds of the clock that a default fit may take, and its largest cost beside a fit with strengths given.
BARS, GIVEN_BAR = {"School": 3.0, "Parkinson": 1.0}, 10.0
NETWORK_TASKS, NETWORK_ROWS, NETWORK_FEATURES, NETWORK_NEIGHBOURS = 60, 15, 10, 10
# λ: no tasks are one, some are, most are.
NETWORK_STRENGTHS = (1.0, 5.0, 20.0)
AGREEMENT = 1e-4


class OverLimit(BaseException):
    """A side took too long; not an Exception, so that no side can swallow it."""


@dataclass(frozen=True)
class Cost:
    """Seconds by the clock and of the processor; or a reason why there are none."""

    wall: float = float("nan")
    processor: float = float("nan")
    reason: str = ""
    remark: str = ""

    def cells(self, unit: Cost) -> str:
        """Seconds, and multiples of `unit`."""
        if self.reason:
            return f"{self.reason} | | | "
        ratios = f"{_short(self.wall / unit.wall)} | {_short(self.processor / unit.processor)}"
        return f"{_short(self.wall)} | {_short(self.processor)} | {ratios}"


def _short(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


@contextmanager
def processor_limit(seconds: float) -> Iterator[None]:
    """Raise OverLimit once this process has computed for so long."""

    def stop(*_: Any) -> None:
        raise OverLimit

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)


def once(call: Callable[[], Any], limit: float = LIMIT) -> tuple[Any, Cost]:
    """A result and its cost; OverLimit where it costs more than `limit`."""
    wall, processor = time.perf_counter(), time.process_time()
    with processor_limit(limit):
        result = call()
    return result, Cost(time.perf_counter() - wall, time.process_time() - processor)


def repeated(call: Callable[[], Any], limit: float = LIMIT) -> tuple[Any, Cost]:
    """The last result, and the median cost where one call is short."""
    result, cost = once(call, limit)
    costs = [cost]
    while cost.processor < SHORT and len(costs) < REPEATS:
        result, again = once(call, limit)
        costs.append(again)
    return result, Cost(statistics.median(c.wall for c in costs), statistics.median(c.processor for c in costs))


def cost_of(call: Callable[[], Any], limit: float) -> Cost:
    """The cost, or why it is not known."""
    try:
        with redirect_stdout(io.StringIO()):  # mixedlm prints what it drops
            result, cost = repeated(call, limit)
        converged = getattr(getattr(result, "result", None), "converged", True)
        return cost if converged else replace(cost, remark=", not converged")
    except OverLimit:
        return Cost(reason=f"over {limit:.0f} s")
    except GGMTLError as error:
        return Cost(reason=f"left out: {error}")
    except Exception as error:  # whatever other packages raise: one side's failure must not end the run
        return Cost(reason=f"failed: {type(error).__name__}: {error}".split("\n")[0][:120])


class StatsmodelsSlopes(StatsmodelsIntercept):
    """Package ``statsmodels``, MixedLM with a random intercept and independent random slopes for all features."""

    def fit(self, train: TaskData) -> Self:
        """Maximise the restricted likelihood."""
        api = peer_package("statsmodels.regression.mixed_linear_model")
        self._scale(train)
        frame, names = self._frame(train)
        columns = independent_columns(with_constant(self._features(train)))
        fixed = " + ".join(names[column - 1] for column in columns if column)
        slopes = {name: f"0 + {name}" for name in names}
        model = api.MixedLM.from_formula(f"y ~ {fixed}", frame, groups="task", re_formula="1", vc_formula=slopes)
        self.result = model.fit(reml=True)
        return self


def default_fit(data: TaskData) -> GGMTLRegressor:
    """As a user calls it, with the folds the same in every call."""
    return GGMTLRegressor(random_state=0).fit(data.X, data.y, tasks=data.tasks)


def shell_fit(regressor: type, data: TaskData) -> Any:
    """A baseline with its defaults."""
    return regressor(random_state=0).fit(data.X, data.y, tasks=data.tasks)


def loop(regressor: type, data: TaskData) -> Callable[[], Any]:
    """One regression per task, the rows dealt to tasks before the clock starts."""
    parts = [(data.X[rows], data.y[rows]) for rows in (data.task_index == k for k in range(len(data.task_names)))]
    return lambda: [regressor().fit(X, y) for X, y in parts]


def sides(data: TaskData, every: bool) -> dict[str, Callable[[], Any]]:
    """What is compared with the default; the slowest only where `every` one is asked for."""
    found: dict[str, Callable[[], Any]] = {
        "loop of `Ridge()`": loop(Ridge, data),
        "loop of `RidgeCV()`": loop(RidgeCV, data),
        "mixedlm, random slopes": lambda: MixedLm().fit(data),
        "gpboost, random slopes": lambda: GpBoost().fit(data),
        "statsmodels MixedLM, random intercept only": lambda: StatsmodelsIntercept().fit(data),
        "statsmodels MixedLM, random slopes": lambda: StatsmodelsSlopes().fit(data),
        "MTRL (own)": lambda: shell_fit(MTRLRegressor, data),
    }
    if every:
        found |= {
            "BMSL (own)": lambda: shell_fit(BMSLRegressor, data),
            "MSSL (own)": lambda: shell_fit(MSSLRegressor, data),
        }
    return found


def warm_up(limit: float) -> None:
    """Import every package, and compile what is compiled at first use."""
    data = make_clusters(2, n_tasks=12, n_features=3, n_test=0, random_state=0)
    default_fit(data)
    cost_of(lambda: peer_package("statsmodels.regression.mixed_linear_model"), limit)
    warnings.simplefilter("ignore")  # once more, as statsmodels turns warnings on when it is imported
    for call in sides(data, every=True).values():
        cost_of(call, limit)


def fits_section(name: str, data: TaskData, say: Callable[[str], None], limit: float) -> None:
    """One set: the default and every side."""
    model, ours = repeated(lambda: default_fit(data), limit)
    chosen = next(row["level"] for row in model.path_ if row["chosen"])
    sizes = f"{len(data.task_names)} tasks, {len(data):,} rows, {data.X.shape[1]} features"
    say(f"\n## {name}: {sizes}\n")
    say(
        "| side | s, clock | s, processor | ÷ default fit, clock | ÷ default fit, processor |\n| --- "
        + "| --- " * 4
        + "|"
    )
    say(f"| GGMTL (default; chose: {chosen}) | {ours.cells(ours)} |")
    found = {}
    for side, call in sides(data, every=name == "School").items():
        found[side] = cost_of(call, limit)
        say(f"| {side}{found[side].remark} | {found[side].cells(ours)} |")
    bar, ridge = BARS[name], found["loop of `Ridge()`"]
    say(
        f"\nA default fit takes {_short(ours.processor / ridge.processor)} times the processor time of the loop of "
        f"`Ridge()`. At most {bar:g} s: {_verdict(ours.wall, bar)} by the clock ({ours.wall:.2f} s), "
        f"{_verdict(ours.processor, bar)} in processor time ({ours.processor:.2f} s)."
    )


def _verdict(value: float, bar: float) -> str:
    return "met" if value <= bar else "not met"


@dataclass
class Strengths:
    """The strengths that a fit has learned, in order, to be given to the same fit."""

    hubs: list[np.ndarray] = field(default_factory=list)
    tuned: list[tuple[float, np.ndarray]] = field(default_factory=list)

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Keep what is learned."""

        def hub(*arguments: Any) -> HubStrength:
            found = learn_hub_by_feature(*arguments)
            self.hubs.append(found.hub)
            return found

        def tuned(*arguments: Any) -> Any:
            found = tune_strengths(*arguments)
            self.tuned.append(found[:2])
            return found

        with _instead(hub, tuned):
            yield

    @contextmanager
    def given(self) -> Iterator[None]:
        """Evaluate once, at what was recorded, wherever strengths would be searched for."""
        hubs, tuned = iter(self.hubs), iter(self.tuned)

        def hub(loss: LeastSquares, slopes: np.ndarray, start: np.ndarray | None = None) -> HubStrength:
            known = next(hubs)
            return HubStrength(known, hub_evidence(loss, known), 0, True)

        def evaluated(evaluate: Callable[..., Any], *_: Any) -> Any:
            known = next(tuned)
            return (*known, evaluate(*known))

        with _instead(hub, evaluated):
            yield


@contextmanager
def _instead(hub: Callable[..., Any], tuned: Callable[..., Any]) -> Iterator[None]:
    """Other functions in place of the two searches, in whichever modules call them."""
    modules = [module for name, module in sys.modules.items() if name.startswith("ggmtl.")]
    with ExitStack() as stack:
        for search, other in ((learn_hub_by_feature, hub), (tune_strengths, tuned)):
            for module in modules:
                if getattr(module, search.__name__, None) is search:
                    stack.enter_context(patch.object(module, search.__name__, other))
        yield


def given_row(name: str, data: TaskData, limit: float) -> str:
    """A default fit against the same with strengths given."""
    strengths = Strengths()
    with strengths.recorded():
        default_fit(data)
    if not (strengths.hubs and strengths.tuned):
        raise RuntimeError("The fit has searched for no strengths: the searches are no longer those patched here.")

    def with_strengths() -> GGMTLRegressor:
        with strengths.given():
            return default_fit(data)

    learned, default = repeated(lambda: default_fit(data), limit)
    same, given = repeated(with_strengths, limit)
    difference = abs(same.validation_error_ / learned.validation_error_ - 1.0)
    searches = len(strengths.hubs) + len(strengths.tuned)
    ratio = default.processor / given.processor
    cells = [
        f"{name}: {len(data.task_names)} tasks, {data.X.shape[1]} features, {len(data):,} rows",
        str(searches),
        f"{_short(default.processor)} | {_short(given.processor)}",
        f"{default.wall / given.wall:.2f} | {ratio:.2f}",
        f"{difference:.0e}, {learned.graph_.n_edges} and {same.graph_.n_edges} edges",
        f"{_verdict(ratio, GIVEN_BAR)} (≤ {GIVEN_BAR:g})",
    ]
    return "| " + " | ".join(cells) + " |"


def network_problem(strength: float) -> tuple[np.ndarray, np.ndarray, InnerProblem]:
    """Rows of every task, shapes (n, N, p) and (n, N), and the inner problem on the tasks' nearest neighbours."""
    n, rows, p = NETWORK_TASKS, NETWORK_ROWS, NETWORK_FEATURES
    data = make_clusters(6, n_tasks=n, n_features=p, n_samples=rows, n_test=0, random_state=0)
    X, y = data.X.reshape(n, rows, p), data.y.reshape(n, rows)
    gram, moment = np.einsum("nra,nrb->nab", X, X), np.einsum("nra,nr->na", X, y)
    loss = LeastSquares(gram, moment, (y**2).sum(axis=1), np.full(n, float(rows)))
    ridge = np.full((n, p), 1e-6)
    edges = KNN(NETWORK_NEIGHBOURS).propose(loss.alone(ridge), np.arange(n)).edges
    return X, y, InnerProblem(loss, edges, np.full(p, strength), np.zeros(p), ridge, penalty="l2")


def by_cvxpy(X: np.ndarray, y: np.ndarray, problem: InnerProblem) -> tuple[np.ndarray, float]:
    """Models by one conic program with the same objective, and the seconds that its solver says it took."""
    cvxpy = peer_package("cvxpy")
    n, _, p = X.shape
    m, edges = len(problem.edges), problem.edges
    ends = (np.repeat(np.arange(m), 2), edges.ravel())
    incidence = sparse.csr_matrix((np.tile([1.0, -1.0], m), ends), shape=(m, n))
    models = cvxpy.Variable((n, p))
    residual = sparse.block_diag(X, format="csr") @ cvxpy.vec(models, order="C") - y.ravel()
    # √(‖u‖² + ε²) is the length of (u, ε).
    lengths = cvxpy.norm(cvxpy.hstack([incidence @ models, np.full((m, 1), problem.smoothing)]), 2, axis=1)
    rest = 0.5 * float(problem.ridge[0, 0]) * cvxpy.sum_squares(models)
    objective = 0.5 * cvxpy.sum_squares(residual) + 0.5 * float(problem.coupling[0]) * cvxpy.sum(lengths) + rest
    program = cvxpy.Problem(cvxpy.Minimize(objective))
    program.solve(solver="CLARABEL")
    return models.value, float(program.solver_stats.solve_time)


def network_section(say: Callable[[str], None], limit: float) -> None:
    """The network lasso at given edges, for several λ."""
    n_edges = len(network_problem(1.0)[2].edges)
    say(
        f"\n## Network lasso: {NETWORK_TASKS} tasks, {NETWORK_FEATURES} features, {NETWORK_ROWS} rows each, "
        f"{n_edges} edges ({NETWORK_NEIGHBOURS} neighbours)\n"
    )
    say(
        "| λ | edges whose tasks are one | linear solves | s, `solve_inner`, clock | the same, processor "
        "| cvxpy ÷ ours, clock | the same, processor | its solver alone ÷ ours, clock "
        f"| relative difference of the objectives (at most {AGREEMENT:g}) |\n" + "| --- " * 9 + "|"
    )
    for strength in NETWORK_STRENGTHS:
        say(network_row(strength, limit))


def network_row(strength: float, limit: float) -> str:
    """One λ; without cvxpy, what it leaves out is said."""
    X, y, problem = network_problem(strength)
    values = np.ones(len(problem.edges))
    solve_inner(problem, values)
    solution, ours = repeated(lambda: solve_inner(problem, values), limit)
    fused = np.linalg.norm(problem.differences(solution.coefficients), axis=1) < 10 * problem.smoothing
    start = (
        f"| {strength:g} | {fused.mean():.0%} | {solution.iterations} | {_short(ours.wall)} | {_short(ours.processor)} "
    )
    try:
        by_cvxpy(X, y, problem)
        (models, inside), theirs = repeated(lambda: by_cvxpy(X, y, problem), limit)
    except GGMTLError as error:
        return f"{start}| left out: {error} | | | |"
    own, other = (problem.objective(found, values) for found in (solution.coefficients, models))
    gap = abs(own - other) / abs(other)
    ratios = (theirs.wall / ours.wall, theirs.processor / ours.processor, inside / ours.wall)
    return f"{start}| {' | '.join(map(_short, ratios))} | {gap:.0e}: {_verdict(gap, AGREEMENT)} |"


def real_sets() -> Iterator[tuple[str, TaskData | str]]:
    """The sets, or why one is not at hand."""
    for name, load in (("School", load_school), ("Parkinson", load_parkinson)):
        try:
            yield name, load()
        except GGMTLError as error:
            yield name, str(error)


def main() -> None:
    """Measure and print; write where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=float, default=LIMIT, help="processor seconds after which a side is stopped")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/speed.md")
    told = parser.parse_args()
    warnings.simplefilter("ignore")
    lines: list[str] = []

    def say(text: str) -> None:
        lines.append(text)
        print(text, flush=True)

    say(f"# Speed\n\n{__doc__.split('Hyper-gradients against')[0].strip()}")
    load = os.getloadavg()[0]
    warm_up(told.limit)
    given = [("clusters (made)", make_clusters(n_tasks=50, n_test=0, random_state=0))]
    for name, data in real_sets():
        if isinstance(data, str):
            say(f"\n## {name}\n\nLeft out: {data}")
            continue
        fits_section(name, data, say, told.limit)
        if name == "School":
            given.insert(0, (name, data))
    network_section(say, told.limit)
    say("\n## A default fit and the same fit with every strength given\n")
    say(
        "| data | searches for strengths | s, default | s, given | ratio, clock | ratio, processor "
        "| relative difference of the error | bar |\n" + "| --- " * 8 + "|"
    )
    for name, data in given:
        say(given_row(name, data, told.limit))
    threads = os.environ.get("GGMTL_THREADS") or os.environ.get("OMP_NUM_THREADS") or "all"
    say(
        f"\nThreads: {threads} of {os.cpu_count()} cores; load of the machine {load:.1f} before, "
        f"{os.getloadavg()[0]:.1f} after."
    )
    if told.keep:
        RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
