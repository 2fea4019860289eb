"""What the commands do between reading and writing: a file of rows → training rows → a model ↔ its file."""

from __future__ import annotations

import csv
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from ggmtl.cli.columns import Encoding, check_column, check_numbers, check_target, is_number
from ggmtl.cli.csv_files import AS_SHOWN, CsvTable, Reading, read_cells
from ggmtl.cli.options import Decimal, Effects, Loss
from ggmtl.cli.table_files import (
    TaskTable,
    check_columns,
    is_parquet,
    read_table,
    read_task_table,
    without_missing,
    write_table,
)
from ggmtl.data.labels import locate_tasks, read_labels, unknown_tasks_message
from ggmtl.data.task_features import TaskFeatures
from ggmtl.errors import InputError, ModelFileError
from ggmtl.estimators.classifier import GGMTLClassifier
from ggmtl.estimators.model_file import read_notes, write_model
from ggmtl.estimators.regressor import GGMTLRegressor, load_model
from ggmtl.inspection.summary.phrases import count, fingerprint_of
from ggmtl.runtime.files import write_csv

_FACT = "command_line"


@dataclass(frozen=True)
class Rows:
    """Training rows of a file.

    Parameters
    ----------
    frame : pyarrow.Table
        Task column and features.
    target : array of shape (rows,)
    task : str
        Name of the task column.
    encoding : Encoding
    n_dropped : int
        Rows left out because a value was missing.
    groups, weights, exposure : array of shape (rows,), optional
        Labels of rows that stay in one fold; weights of the rows; what their counts are proportional to.
    """

    frame: pa.Table
    target: np.ndarray
    task: str
    encoding: Encoding
    n_dropped: int
    groups: np.ndarray | None = None
    weights: np.ndarray | None = None
    exposure: np.ndarray | None = None

    @property
    def labels(self) -> np.ndarray:
        """Task of each row."""
        return self.frame[self.task].to_numpy()

    def notes(self) -> list[str]:
        """How many rows were left out, and what was done to categories and dates."""
        return [*_dropped(self.n_dropped), *(f"{text}." for text in self.encoding.notes())]


@dataclass(frozen=True)
class Columns:
    """Which columns of a file play which part.

    Parameters
    ----------
    task, target : str
    features : list of str
        All others where it is empty.
    exclude : list of str
        Not among those.
    categorical : list of str
        Features that are categories even where they look like numbers.
    groups, weights, exposure : str, optional
        Never features.
    classes : bool
        Whether the target holds two labels, which may be text.
    """

    task: str
    target: str
    features: list[str] = field(default_factory=list)
    exclude: list[str] = field(default_factory=list)
    categorical: list[str] = field(default_factory=list)
    groups: str | None = None
    weights: str | None = None
    exposure: str | None = None
    classes: bool = False

    @property
    def extra(self) -> list[str]:
        """The columns of groups, weights and exposure, where there are any."""
        return [name for name in (self.groups, self.weights, self.exposure) if name is not None]

    def chosen(self, table: pa.Table, path: Path) -> list[str]:
        """The features, once the names make sense together."""
        named = self.features
        check_columns(table, [self.task, self.target, *named, *self.exclude, *self.categorical, *self.extra], path)
        if self.task == self.target:
            raise InputError(f"--task and --target must be different columns. Got {self.task!r} for both.")
        for option, names in (("--features", named), ("--categorical", self.categorical)):
            _refuse_parts(option, names, self.task, self.target)
        own = [name for name in (self.weights, self.exposure) if name is not None]
        if self.target in self.extra or set(own) & {self.task, *named}:
            raise InputError(
                "--groups, --weights and --exposure must be columns of their own, neither the target nor a feature."
            )
        left_out = {self.task, self.target, *self.exclude, *self.extra}
        chosen = [name for name in dict.fromkeys(named or table.column_names) if name not in left_out]
        if not chosen:
            raise InputError(f"{path} has only the task and target columns. Add at least one feature column.")
        unused = [name for name in self.categorical if name not in chosen]
        if unused:
            raise InputError(f"--categorical must name features. Got {unused[0]!r}, which is left out.")
        return chosen


def split_names(names: str | None) -> list[str]:
    """Names separated by commas; a name that has a comma stands in double quotes."""
    parts = next(csv.reader([names or ""], skipinitialspace=True), [])
    return [name.strip() for name in parts if name.strip()]


def reading_of(decimal: Decimal | None, na_values: str | None) -> Reading:
    """How cells are read, from options."""
    missing = None if na_values is None else tuple(split_names(na_values))
    return Reading(None if decimal is None else str(decimal), missing)


def _refuse_parts(option: str, names: list[str], task: str, target: str) -> None:
    if target in names:
        raise InputError(f"{option} must not name the target. Got {target!r}: it cannot be learned from itself.")
    if task in names:
        raise InputError(
            f"{option} must not name the task column. Got {task!r}: every task has its own model, so within a task it "
            "never varies."
        )


def read_rows(path: Path, columns: Columns, drop_missing: bool = False, reading: Reading = AS_SHOWN) -> Rows:
    """Read the columns asked for."""
    source = read_table(path, columns.task, reading)
    table, task, target, chosen = source.table, columns.task, columns.target, columns.chosen(source.table, path)
    if not columns.classes:
        check_target(table[target], target)
    n_tasks = len(table[task].unique())
    for name in chosen:
        if name not in columns.categorical:
            check_column(table[name], name, named=name in columns.features, n_tasks=n_tasks)
    extra = [name for name in dict.fromkeys(columns.extra) if name != task]
    used = table.select([task, target, *chosen, *extra])
    table, dropped = without_missing(used, drop_missing, "leave columns out with --exclude")
    encoding = Encoding.of(table, chosen, target, columns.categorical)
    encoding = replace(encoding, decimal=source.decimal, missing=reading.missing)
    groups = None if columns.groups is None else table[columns.groups].to_numpy()
    weights = _numbers(table, "--weights", columns.weights)
    exposure = _numbers(table, "--exposure", columns.exposure)
    values = np.asarray(table[target].to_numpy(), dtype=None if columns.classes else float)
    return Rows(_frame(table, task, encoding), values, task, encoding, dropped, groups, weights, exposure)


def _numbers(table: pa.Table, option: str, name: str | None) -> np.ndarray | None:
    """The column that an option names, None where it names none."""
    if name is None:
        return None
    if not is_number(table[name].type):
        raise InputError(f"{option} must be a column of numbers. Column {name!r} holds {table[name].type} instead.")
    return np.asarray(table[name].to_numpy(), dtype=float)


@dataclass(frozen=True)
class NewRows:
    """Rows of a file to predict.

    Parameters
    ----------
    source : CsvTable
        All rows of the file.
    kept : array of int
        Positions of those that are predicted.
    frame : pyarrow.Table
        Task column and features of these.
    exposure : array, optional
        What their counts are proportional to.
    """

    source: CsvTable
    kept: np.ndarray
    frame: pa.Table
    exposure: np.ndarray | None

    def notes(self) -> list[str]:
        """How many rows were left out."""
        return _dropped(self.source.table.num_rows - len(self.kept))


def _dropped(number: int) -> list[str]:
    return [f"{count(number, 'row')} with missing values left out."] if number else []


def read_new_rows(
    path: Path,
    model: GGMTLRegressor | GGMTLClassifier,
    encoding: Encoding,
    drop_missing: bool,
    reading: Reading = AS_SHOWN,
    exposure: str | None = None,
) -> NewRows:
    """Read what a model needs; where options do not say how cells are read, they are read as in training."""
    if reading.missing is None:
        reading = replace(reading, missing=encoding.missing)
    task = str(model.task)
    source = read_table(path, task, reading, encoding.decimal)
    table = source.table
    used = [task, *encoding.source_columns]
    if exposure is not None and exposure not in used:
        used.append(exposure)
    check_columns(table, used, path)
    for name, form in encoding.columns:
        if form is None:
            check_numbers(table[name], name)
    position = pa.chunked_array([np.arange(table.num_rows)])
    numbered = table.select(used).append_column("\0row", position)
    kept, _ = without_missing(numbered, drop_missing, "fill in the empty cells")
    time = _numbers(kept, "--exposure", exposure)
    return NewRows(source, kept["\0row"].to_numpy(), _frame(kept, task, encoding), time)


def predictions(
    model: GGMTLRegressor | GGMTLClassifier, rows: NewRows, known: TaskFeatures | None, coverage: float | None
) -> dict[str, np.ndarray]:
    """The column `prediction` (of classes: the probability of the second), and with a coverage `lower` and `upper`."""
    if isinstance(model, GGMTLClassifier):
        options, mean = {}, model.predict_proba(rows.frame)[:, 1]
    else:
        options = {"exposure": rows.exposure, "task_features": known}
        mean = model.predict(rows.frame, **options)
    if coverage is None:
        return {"prediction": mean}
    lower, upper = model.predict_interval(rows.frame, coverage, **options).T
    return {"prediction": mean, "lower": lower, "upper": upper}


def write_predictions(path: Path, file: Path, rows: NewRows, columns: dict[str, np.ndarray]) -> None:
    """The rows of a file that are kept, and the columns of their predictions.

    From CSV to CSV every cell is copied as it is, and predictions are written like the numbers of the file.
    """
    source, table = rows.source, rows.source.table
    named = {_free_name(name, table.column_names): values for name, values in columns.items()}
    cells = None if is_parquet(path) or is_parquet(file) else read_cells(file, source.separator)
    if cells is None or len(cells) != table.num_rows + 1:
        table = table.take(rows.kept)
        for name, values in named.items():
            table = table.append_column(name, pa.chunked_array([values]))
        write_table(table, path)
        return
    mark = "," if source.decimal == "comma" and source.separator != "," else "."
    numbers = zip(*(values.tolist() for values in named.values()))
    written = (
        [*cells[k + 1], *(repr(value).replace(".", mark) for value in row)]
        for k, row in zip(rows.kept.tolist(), numbers)
    )
    write_csv(path, [[*cells[0], *named], *written], source.separator)


def _free_name(name: str, taken: list[str]) -> str:
    """The name, or with as many underscores as it takes to be new."""
    while name in taken:
        name = f"{name}_"
    return name


def read_known(path: Path, rows: Rows, reading: Reading) -> TaskTable:
    """The task table of a file, with a note on tasks without training rows."""
    table = read_task_table(path, rows.task, reading)
    absent = table.without_rows(np.unique(read_labels(rows.labels, rows.task, len(rows.target))))
    return table if absent is None else replace(table, notes=(*table.notes, absent))


def read_known_again(path: Path, model: GGMTLRegressor | GGMTLClassifier, reading: Reading) -> TaskFeatures:
    """The task table of a file, in the columns that the model was fitted with."""
    known = model.state_.settings.known
    if known is None:
        raise InputError("--task-table: the model was fitted without a task table. Fit it with --task-table first.")
    return read_task_table(path, str(model.task), reading, list(known.features.columns)).features


def holds_zeros_and_ones(target: np.ndarray) -> bool:
    """Whether a target has these two values, and no other."""
    return bool(np.isin(target, (0.0, 1.0)).all() and np.ptp(target) > 0)


def holds_counts(target: np.ndarray) -> bool:
    """Whether a target looks like counts: whole numbers from zero on, at least a tenth of them zero, three or more."""
    target = np.asarray(target, dtype=float)
    zeros = np.mean(target == 0.0)
    return bool(holds_whole_numbers(target) and target.min() == 0.0 and zeros >= 0.1 and len(np.unique(target)) > 2)


def holds_whole_numbers(target: np.ndarray) -> bool:
    """Whether all values of a target are whole, as counts are."""
    return bool((np.asarray(target, dtype=float) % 1.0 == 0.0).all())


def check_tasks(model: GGMTLRegressor | GGMTLClassifier, frame: pa.Table, known: TaskFeatures | None = None) -> None:
    """Refuse tasks that neither training nor a task table knows, with the option that lets them through."""
    labels = read_labels(frame[str(model.task)], str(model.task), frame.num_rows)
    labels = np.unique(labels[locate_tasks(model.tasks_, labels) < 0])
    if known is not None:
        labels = labels[locate_tasks(known.task_names, labels) < 0]
    unknown = labels.tolist()
    if unknown:
        described = model.state_.settings.known is not None
        first = "Give a --task-table with their rows, or use" if described else "Use"
        remedy = f"{first} --unseen hub to predict them with the shared model, or fit again with rows of theirs."
        raise InputError(unknown_tasks_message(unknown, model.tasks_, remedy))


def _frame(table: pa.Table, task: str, encoding: Encoding) -> pa.Table:
    features = encoding.features(table)
    if task in features:
        raise InputError(f"A feature would have the name of the task column, {task!r}. Rename one of them.")
    return pa.table({task: table[task], **features})


def save(model: GGMTLRegressor | GGMTLClassifier, path: Path, encoding: Encoding, keep_statistics: bool) -> None:
    """Write the model with what `predict` must know about the columns."""
    fact = {"encoding": encoding.to_plain(), "fingerprint": fingerprint_of(model)}
    write_model(path, model.get_params(deep=False), model.state_, keep_statistics, notes={_FACT: fact})


def load(path: Path) -> tuple[GGMTLRegressor | GGMTLClassifier, Encoding]:
    """Read a model and how its columns become features."""
    model = load_model(path)
    fact = read_notes(path).get(_FACT)
    if fact is None:
        plain = {"target": "y", "columns": [[str(name), None] for name in model.feature_names_]}
        return model, Encoding.from_plain(plain)
    if not isinstance(fact, dict):
        raise ModelFileError(f"{path} is damaged: it does not say how columns become features.")
    model.fingerprint_ = fact.get("fingerprint")
    return model, Encoding.from_plain(fact.get("encoding"))


def check_two_labels(target: np.ndarray) -> None:
    """Refuse a target of more than two labels, before anything is fitted."""
    number = len(np.unique(target))
    if number > 2:
        remedy = " For a target of numbers, use --loss squared." if target.dtype.kind in "iuf" else ""
        raise InputError(f"--loss binary needs a target of two labels. Got {number:,} different values.{remedy}")


def rate_note(model: GGMTLRegressor | GGMTLClassifier, exposure: str | None) -> list[str]:
    """That predictions are rates, where a model of counts with exposures predicts without them."""
    outcome = model.state_.outcome
    if exposure is not None or outcome is None or outcome.loss != "poisson" or not outcome.scores.exposed:
        return []
    return ["The model was fitted with an exposure. Predictions are rates per unit of it; --exposure gives counts."]


LOSS_NAMES = {Loss.squared: "squared", Loss.binary: "logistic", Loss.poisson: "poisson"}


def check_options(
    loss: Loss, exposure: str | None, effects: Effects = Effects.linear, task_table: Path | None = None
) -> None:
    """Refuse options that have no meaning for a loss, before anything is read."""
    if exposure is not None and loss is not Loss.poisson:
        raise InputError(f"--exposure is for --loss poisson. Got --loss {loss} instead.")
    if loss is Loss.squared:
        return
    if effects is not Effects.linear:
        raise InputError(f"--effects is for --loss squared. Got --loss {loss} with --effects {effects}.")
    if task_table is not None:
        raise InputError(f"--task-table is for --loss squared. Got --loss {loss} instead.")


def fit(
    rows: Rows, loss: Loss, known: TaskFeatures | None, seed: int | None, effects: Effects
) -> GGMTLRegressor | GGMTLClassifier:
    """A fitted model of numbers, two labels or counts."""
    given = {"groups": rows.groups, "sample_weight": rows.weights}
    if loss is Loss.binary:
        check_two_labels(rows.target)
        return GGMTLClassifier(task=rows.task, random_state=seed).fit(rows.frame, rows.target, **given)
    model = GGMTLRegressor(task=rows.task, loss=str(loss), effects=str(effects), random_state=seed)
    return model.fit(rows.frame, rows.target, exposure=rows.exposure, task_features=known, **given)
