"""Plant one fault in the mathematics at a time, in a copy of the package, and see whether the tests notice.

Run by ``make faults``; prints a table, writes it to ``tests/faults.md``, and fails if a fault survives. With words, as
in ``python tests/faults.py curve fit/``, only faults whose name, file or tests have one of them, and nothing is
written.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Fault:
    """A slip: what it is, where, and the tests that must see it."""

    name: str
    file: str
    old: str
    new: str
    tests: str


FAULTS = (
    Fault(
        "rows of unseen tasks predicted without a word",
        "estimators/base.py",
        "warn_user(unseen_message(labels, unknown, self.tasks_), UnseenTaskWarning)",
        "pass",
        "data/test_labels.py",
    ),
    Fault(
        "weights that are no counts taken for counts",
        "data/reading.py",
        "return weight / mean",
        "return weight",
        "data/test_weights.py",
    ),
    Fault(
        "task labels joined as floats",
        "data/labels.py",
        'return _exactly([label for part in parts for label in part.tolist()], "task labels")',
        "return np.concatenate(parts)",
        "data/test_labels.py",
    ),
    Fault(
        "task labels of a CSV file read as numbers",
        "statistics/streaming/sources.py",
        "schema = _with_type(schema, options.task, pa.string())",
        "pass",
        "data/test_labels.py",
    ),
    Fault(
        "equal rows of discrete data held out together",
        "data/folds.py",
        "np.where(varied & (repetition > 0), _mix(keys + _mix(repetition)), keys)",
        "keys",
        "data/test_folds.py",
    ),
    Fault(
        "sign of the hyper-gradient flipped",
        "bilevel/hypergradient.py",
        "edges=-np.einsum(",
        "edges=np.einsum(",
        "bilevel/test_hypergradient.py",
    ),
    Fault(
        "Λ dropped from the squared penalty's hyper-gradient",
        "bilevel/inner.py",
        "return differences * self.coupling",
        "return differences",
        "bilevel/test_hypergradient.py",
    ),
    Fault(
        "factor ½ of the ℓ2 and ℓ1 penalties dropped",
        "bilevel/inner.py",
        "return 0.5 * self.coupling * differences / self.lengths(differences)",
        "return self.coupling * differences / self.lengths(differences)",
        "bilevel/test_inner.py",
    ),
    Fault(
        "an edge pulls one of its two tasks twice (transposed edge)",
        "bilevel/inner.py",
        "np.subtract.at(out, self.edges[:, 1], pull)",
        "np.subtract.at(out, self.edges[:, 0], pull)",
        "bilevel/test_inner.py",
    ),
    Fault(
        "Laplacian not symmetric",
        "solve/system.py",
        "np.concatenate([j, i, nodes])",
        "np.concatenate([j, j, nodes])",
        "solve/test_system.py",
    ),
    Fault(
        "adjoint solved for the wrong right-hand side",
        "bilevel/hypergradient.py",
        "prepared.solve(outer_gradient, start, tol)",
        "prepared.solve(problem.loss.moment, start, tol)",
        "bilevel/test_hypergradient.py",
    ),
    Fault(
        "ℓ2 Hessian without the uuᵀ/s³ term",
        "bilevel/inner.py",
        "return replace(self.system(0.5 * edge_values / s[:, 0]), curvature=curvature)",
        "return self.system(0.5 * edge_values / s[:, 0])",
        "bilevel/test_inner.py",
    ),
    Fault(
        "hub's rank-one term missing (dense system)",
        "solve/system.py",
        "matrix[:, index, :, index] -= (self.hub / n)[:, None, None]",
        "matrix[:, index, :, index] -= 0.0",
        "solve/test_system.py",
    ),
    Fault(
        "hub's rank-one term missing (products)",
        "solve/system.py",
        "return kernels.Operator(self.gram, diagonal, weights, self.coupling, self.hub / n)",
        "return kernels.Operator(self.gram, diagonal, weights, self.coupling, 0.0 * self.hub)",
        "solve/test_system.py",
    ),
    Fault(
        "hub's derivative not centred",
        "bilevel/hypergradient.py",
        "a - a.mean(axis=0), b)",
        "a, b)",
        "bilevel/test_hypergradient.py",
    ),
    Fault(
        "entropy term with the wrong sign",
        "bilevel/problem.py",
        "gradient = gradient - self.edge_entropy * logarithm",
        "gradient = gradient + self.edge_entropy * logarithm",
        "bilevel/test_hypergradient.py",
    ),
    Fault(
        "evidence with N instead of N − p degrees of freedom",
        "evidence/hub.py",
        "return max(float(loss.count.sum()) - loss.n_features, 1.0)",
        "return max(float(loss.count.sum()), 1.0)",
        "evidence/test_evidence.py",
    ),
    Fault(
        "effective resistance without one of its two cross terms",
        "evidence/dense.py",
        "diagonal[i] + diagonal[j] - 2 * inverse[i, j]",
        "diagonal[i] + diagonal[j] - inverse[i, j]",
        "evidence/test_evidence.py",
    ),
    Fault(
        "Łukasiewicz' conorm as the paper prints it, min(a, b)",
        "inspection/metrics.py",
        "return np.minimum(a + b, 1.0)",
        "return np.minimum(a, b)",
        "inspection/test_metrics.py",
    ),
    Fault(
        "fold leak: candidates from all rows",
        "bilevel/algorithm.py",
        "[models(loss) for loss in trainings]",
        "[models(folded.total) for loss in trainings]",
        "test_contract.py",
    ),
    Fault(
        "fold leak: the fold held out stays in its training part",
        "statistics/least_squares.py",
        "return sum_of(part for j, part in enumerate(self.parts) if j != k)",
        "return sum_of(part for j, part in enumerate(self.parts))",
        "test_contract.py",
    ),
    Fault(
        "intercept ridged",
        "bilevel/level.py",
        "ridge = np.where(self.slopes, self.ridge, 0.0)",
        "ridge = np.where(self.slopes, self.ridge, self.ridge)",
        "test_contract.py",
    ),
    Fault(
        "coefficients not turned back into the units of X",
        "statistics/scaling.py",
        "* (self.target_scale / self.scale)",
        "* self.target_scale",
        "statistics/test_statistics.py",
    ),
    Fault(
        "weights enter squared",
        "statistics/task_statistics.py",
        "rows *= np.sqrt(weight)[:, None]",
        "rows *= weight[:, None]",
        "statistics/test_statistics.py",
    ),
    Fault(
        "stream folds by position in the batch instead of the row's bits",
        "data/folds.py",
        "total = total ^ (column + 0.0).view(np.uint64)",
        "total = total ^ np.arange(n_rows, dtype=np.uint64)",
        "statistics/test_streams.py",
    ),
    Fault(
        "edges of other levels do not follow a task that comes between",
        "inference/growth.py",
        "edges = level.edges + (level.edges >= position)",
        "edges = level.edges",
        "estimators/test_growing.py",
    ),
    Fault(
        "the given step of projected gradient divided by the scale of the loss instead of multiplied",
        "bilevel/algorithm.py",
        "step=settings.step * objective.scale",
        "step=settings.step / objective.scale",
        "estimators/test_paper.py",
    ),
    Fault(
        "a new task may be linked to tasks that were added before",
        "inference/growth.py",
        "attach(among(state.level, fitted), rows, noise, state.settings.ridge_for(rows)[0], encode_row(state, row))",
        "attach(state.level, rows, noise, known=encode_row(state, row))",
        "inference/test_growth.py",
    ),
    Fault(
        "σ² also from tasks that were added",
        "inference/uncertainty.py",
        "noise_of(among(state.level, fitted), losses.total.of_tasks(fitted), state.settings, held_out=held_out)",
        "noise_of(state.level, losses.total, state.settings, held_out=held_out)",
        "inference/test_growth.py",
    ),
    Fault(
        "undetermined directions of separate models vary by σ²/ρ",
        "inference/posterior.py",
        "inside[:, index, index] += ratio * ridge**2",
        "inside[:, index, index] += ridge",
        "inference/test_noise.py",
    ),
    Fault(
        "models of the shared level without the ridge",
        "fit/levels.py",
        "return refit(fit, loss, settings) if settings.ridge > NEGLIGIBLE_RIDGE else fit",
        "return fit",
        "inference/test_noise.py",
    ),
    Fault(
        "arrays of a model file may overlap",
        "runtime/files.py",
        "        _check_places(table, payload)",
        "        pass",
        "estimators/test_model_file.py",
    ),
    Fault(
        "an explanation moves only one of the two tasks",
        "inference/removal.py",
        "right[j] = -right[i]",
        "pass",
        "inspection/test_inspection_edges.py",
    ),
    Fault(
        "the covariance of an explained difference is that with the edge",
        "inference/removal.py",
        "left, least = self._values_without(i, j), self.problem.sizes.near_tasks",
        "left, least = self.values, self.problem.sizes.near_tasks",
        "inspection/test_inspection_edges.py",
    ),
    Fault(
        "an explained standard error without the noise of the two tasks",
        "inference/removal.py",
        "return covariance if self.ratios is None else covariance + self._own_noise(i, j, self.ratios)",
        "return covariance",
        "inspection/test_inspection_edges.py",
    ),
    Fault(
        "factors of components without the common model",
        "solve/structured.py",
        "return own + self.answer @ (self.common @ own.sum(axis=0))",
        "return own",
        "inspection/test_inspection_edges.py",
    ),
    Fault(
        "the interval of a gain without the noise that folds share",
        "fit/average.py",
        "return 2.0 * float((rest**2).sum()) / total**2",
        "return 0.0",
        "fit/test_average.py",
    ),
    Fault(
        "a gain weighs blocks by their own errors",
        "fit/average.py",
        "if n_folds == 1 or equal_noise:",
        "if True:",
        "fit/test_average.py",
    ),
    Fault(
        "the noise of a task counts as known however few its rows are",
        "inference/intervals.py",
        " + 2.0 / np.maximum(noise_freedom, _FEWEST_FREEDOM)",
        "",
        "inference/test_intervals.py",
    ),
    Fault(
        "weights of the average learned with the fold that they are scored on",
        "fit/average.py",
        "rest = errors.of_folds(np.arange(n_folds) != k)",
        "rest = errors.of_folds(np.arange(n_folds) >= 0)",
        "fit/test_average.py",
    ),
    Fault(
        "the average weighs levels as if the preferred one were as uncertain as the others",
        "fit/average.py",
        "return alpha if objective(alpha)[0] <= objective(first)[0] else first",
        "return first",
        "fit/test_average.py",
    ),
    Fault(
        "the slope of a curve is not given back to the straight line",
        "statistics/scaling.py",
        "return slopes[..., : self.n_features] + added,",
        "return slopes[..., : self.n_features],",
        "data/test_curves.py",
    ),
    Fault(
        "a curve that bends on beyond the training rows",
        "data/curves.py",
        "inside = np.clip(u, 0.0, 1.0)",
        "inside = np.clip(u, -1.0, 2.0)",
        "data/test_curves.py",
    ),
    Fault(
        "the gradient of Laplace's evidence with a third derivative of the wrong sign",
        "evidence/laplace.py",
        "third = rows.weight * loss.third(rows.predictor(models))",
        "third = -rows.weight * loss.third(rows.predictor(models))",
        "evidence/test_laplace.py",
    ),
    Fault(
        "curvature of the logistic loss as if every probability were one half",
        "losses/rowwise.py",
        "return expit(predictor) * expit(-predictor)",
        "return 0.25 + 0.0 * predictor",
        "losses/test_rowwise.py",
    ),
    Fault(
        "probabilities that do not know the doubt about their models",
        "fit/outcomes.py",
        "return predictor / np.sqrt(1.0 + np.pi * variance / 8.0) if loss.name",
        "return predictor if loss.name",
        "estimators/test_classifier.py",
    ),
    Fault(
        "weights of the levels of classes learned with the fold that they are scored on",
        "fit/predictor_average.py",
        "rest = held_out.among(~inside)",
        "rest = held_out.among(inside | ~inside)",
        "fit/test_outcomes.py",
    ),
    Fault(
        "the mean rate is taken out of the exposure twice",
        "estimators/outcomes.py",
        "return offset + rate, rate",
        "return offset + rate, 0.0",
        "estimators/test_counts.py",
    ),
    Fault(
        "labels of classes that NumPy turns into text",
        "estimators/outcomes.py",
        'labels = read_labels(y, "y", len(y))',
        "labels = np.array([str(label) for label in y])",
        "estimators/test_classifier.py",
    ),
    Fault(
        "sums of squares of a model file may be negative",
        "estimators/file_format.py",
        '"errors.squared": ArrayRule("l k n", least=0)',
        '"errors.squared": ArrayRule("l k n")',
        "estimators/test_model_file.py",
    ),
)


def run_tests(source: Path, tests: str) -> str | None:
    """Name of the first test that fails on the package in `source`; None where all pass."""
    environment = os.environ | {"PYTHONPATH": str(source), "GGMTL_KERNELS": "numpy", "OMP_NUM_THREADS": "1"}
    environment |= {"OPENBLAS_NUM_THREADS": "1"}
    options = ["-x", "-q", "-p", "no:cacheprovider", "--tb=no", "-rfE"]
    if tests == "test_contract.py":
        # Repeated runs in other processes have nothing to say about these faults.
        options += ["-k", "not bits and not threads and not numba"]
    command = [sys.executable, "-m", "pytest", *options, str(ROOT / "tests" / tests)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode == 0:
        return None
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0].split("::")[-1].split("[")[0].split(" ")[0] if failed else f"pytest ended with {done.returncode}"


def plant(fault: Fault, source: Path) -> None:
    """Change the one place in the copy."""
    file = source / "ggmtl" / fault.file
    text = file.read_text(encoding="utf-8")
    if text.count(fault.old) != 1:
        raise SystemExit(f"{fault.file} must hold {fault.old!r} once; it does {text.count(fault.old)} times.")
    file.write_text(text.replace(fault.old, fault.new), encoding="utf-8")


def copy_package(folder: Path) -> Path:
    """A fresh copy of the package, without compiled files."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "src" / "ggmtl", folder / "ggmtl", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def seen_by(fault: Fault, folder: Path) -> str | None:
    """The test that sees the fault."""
    source = copy_package(folder)
    plant(fault, source)
    return run_tests(source, fault.tests)


def page(rows: list[tuple[Fault, str | None]]) -> str:
    """The table, and every fault as a change of text."""
    caught = sum(test is not None for _, test in rows)
    lines = [
        "# Seeded faults",
        "",
        f"`make faults` (`tests/faults.py`) plants each of {len(rows)} faults alone in a copy of the package and runs",
        f"a test file on the copy until a test fails. {caught} of {len(rows)} were caught in the last run.",
        "",
        "| # | fault | file | first test that fails |",
        "| --- | --- | --- | --- |",
    ]
    for number, (fault, test) in enumerate(rows, 1):
        lines.append(f"| {number} | {fault.name} | `{fault.file}` | {f'`{test}`' if test else '**none**'} |")
    for number, (fault, _) in enumerate(rows, 1):
        lines += ["", f"{number}. {fault.name}", "", "   ```diff", f"   - {fault.old}", f"   + {fault.new}", "   ```"]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Plant every fault, print what saw it, write the page."""
    words = sys.argv[1:]
    chosen = [fault for fault in FAULTS if not words or any(word in f"{fault}" for word in words)]
    with tempfile.TemporaryDirectory() as folder:
        source = copy_package(Path(folder))
        for tests in sorted({fault.tests for fault in chosen}):
            broken = run_tests(source, tests)
            if broken:
                raise SystemExit(f"{tests} fails without any fault: {broken}")
        rows = []
        for fault in chosen:
            rows.append((fault, seen_by(fault, Path(folder))))
            print(f"{'caught  ' if rows[-1][1] else 'SURVIVED'}  {fault.name}: {rows[-1][1]}", flush=True)
    if not words:
        (ROOT / "tests" / "faults.md").write_text(page(rows), encoding="utf-8")
    survived = [fault.name for fault, test in rows if test is None]
    print(f"{len(rows) - len(survived)} of {len(rows)} faults caught")
    sys.exit(1 if survived else 0)


if __name__ == "__main__":
    main()
