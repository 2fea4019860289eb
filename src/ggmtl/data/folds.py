"""The parameter ``validation``: rows → folds that are balanced per task and depend on the rows alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from ggmtl.data.task_data import TaskData
from ggmtl.errors import ParameterError

# Rows are compared after scaling every column by the pooled spread and rounding to this many steps per standard
# deviation, so that neither the units of a column nor the last bits of a mean move a row to another fold.
_STEPS = 2.0**16
# Decimal places to which columns are compared.
_DIGITS = 6
# Share of the repeated x that must come with several y for equal rows to be different observations.
_DISCRETE = 0.01


def deal_folds(data: TaskData, n_folds: int, seed: int = 0, *, discrete: bool = False) -> np.ndarray:
    """Fold number of every row, shape (rows,).

    The rows of a task are ordered by a hash of (seed, row) and dealt out in turn, starting at a fold that the
    hashes choose. Neither the order of rows or columns, nor labels, nor units matter.

    Copies of a row share a fold, like one row of a larger weight. Where repeated x come with several y within a task,
    the data are discrete and equal rows are different observations. Then every row is dealt out on its own:
    if equal rows were kept together, all rows of one (x, y) would be predicted from rows with other y only.

    With `discrete`, for classes and counts, every task has an order of its own. Otherwise equal rows of many tasks
    would share a fold: models learned without it would lack most rows of one (x, y), and held-out errors would be
    too large.

    With ``data.groups`` whole groups are dealt out: within each task where every group belongs to one task, over all
    tasks otherwise. Groups of equal rows are treated like equal rows.

    Examples
    --------
    >>> data = TaskData(X=np.arange(6.0)[:, None], y=np.zeros(6), tasks=["a"] * 4 + ["b"] * 2)
    >>> np.bincount(deal_folds(data, 2)[:4]).tolist()
    [2, 2]
    """
    check_fold_number(n_folds)
    rank, first_key = _shuffle(data, seed, discrete)
    start = (_mix(first_key) % np.uint64(n_folds)).astype(np.int64)
    return (rank + start) % n_folds


def deal_holdout(data: TaskData, share: float, seed: int = 0, *, discrete: bool = False) -> np.ndarray:
    """Mask of the rows held out, shape (rows,): `share` of every task to within one row, chosen as in `deal_folds`."""
    if not 0 < share < 1:
        raise ParameterError(f"The share held out must lie between 0 and 1. Got {share} instead.")
    rank, first_key = _shuffle(data, seed, discrete)
    start = _mix(first_key) / 2.0**64
    return np.floor((rank + 1) * share + start) > np.floor(rank * share + start)


def hash_folds(columns: Iterable[np.ndarray], n_rows: int, n_folds: int) -> np.ndarray:
    """Fold of every row of a stream, shape (rows,): a hash of the row's own float64 bits, modulo `n_folds`.

    The fold depends on the row alone, so batches, files, machines and runs agree, and equal rows share a fold. Unlike
    `deal_folds` it cannot balance the folds of a task, because a stream never shows all rows of a task at once.
    """
    check_fold_number(n_folds)
    return (_mix(_hash_bits(columns, n_rows)[1]) % np.uint64(n_folds)).astype(np.int64)


def share_of_repetitions(tasks: np.ndarray, columns: Iterable[np.ndarray]) -> float:
    """Share of the rows (x, y) that repeat another row of their task, where the same x also comes with another y.

    The target is the last of the columns.
    """
    features, keys = _hash_bits(columns, len(tasks))
    varied = _comes_with_several_targets(tasks, features, keys)
    order = np.lexsort((keys, tasks))
    return float((varied[order] & ~_changes(tasks[order], keys[order])).mean())


def _hash_bits(columns: Iterable[np.ndarray], n_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Hashes of the float64 bits of every row, without and with the last column."""
    before = total = np.full(n_rows, _mix(np.zeros(1, dtype=np.uint64))[0])
    for column in columns:
        before = total
        # Adding zero turns −0.0 into 0.0: equal numbers have equal bits.
        total = total ^ (column + 0.0).view(np.uint64)
        total *= np.uint64(0x9E3779B97F4A7C15)
        # Multiplication moves information to higher bits only; this mixes it back into the lower ones.
        total ^= total >> np.uint64(32)
    return before, total


def check_fold_number(n_folds: int) -> None:
    """Refuse fewer than two folds."""
    if n_folds < 2:
        raise ParameterError(f"The number of folds must be at least 2. Got {n_folds} instead.")


def _shuffle(data: TaskData, seed: int, discrete: bool) -> tuple[np.ndarray, np.ndarray]:
    """Rank of every row in its shuffled deck, and the deck's lowest key; copies and groups share a rank."""
    columns = _ordered_columns(data)
    features, keys = _hash_rows(columns, data.sample_weight, seed)
    decks = data.task_index
    # Rows with one key may differ in their weights, or by less than the rounding. Their order must not matter.
    weight = [] if data.sample_weight is None else [data.sample_weight]
    marks = _hash_bits([*columns, *weight], len(data))[1]
    if discrete:
        keys = _salted(decks, features, keys, marks)
    varied = _comes_with_several_targets(decks, features, keys)
    if _are_observations(decks, features, varied):
        varied = np.ones_like(varied)
    if data.groups is None:
        return _rank(_separated(decks, keys, marks, varied), decks)
    group = np.unique(data.groups, return_inverse=True)[1].reshape(-1)
    lowest, highest = _range_by(decks, group)
    of_group = lowest if (lowest == highest).all() else np.zeros_like(lowest)
    keys = _separated(of_group, _sum_of_distinct(keys, group), _sum_by(marks, group), _sum_by(varied, group) > 0)
    return _rank(keys[group], of_group[group])


def _comes_with_several_targets(decks: np.ndarray, features: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Whether the x of each row comes with more than one y in its task, shape (rows,)."""
    order = np.lexsort((keys, features, decks))
    new_x = _changes(decks[order], features[order])
    number = np.cumsum(new_x) - 1
    other_y = _changes(keys[order]) & ~new_x
    varied = np.empty(len(keys), dtype=bool)
    varied[order] = (np.bincount(number, weights=other_y) > 0)[number]
    return varied


def _are_observations(decks: np.ndarray, features: np.ndarray, varied: np.ndarray) -> bool:
    """Whether equal rows are different observations rather than copies, as repeated x with several y show."""
    order = np.lexsort((features, decks))
    first = np.flatnonzero(_changes(decks[order], features[order]))
    repeated = np.diff(np.append(first, len(order))) > 1
    return bool(repeated.any() and varied[order][first][repeated].mean() >= _DISCRETE)


def _salted(decks: np.ndarray, features: np.ndarray, keys: np.ndarray, marks: np.ndarray) -> np.ndarray:
    """The keys, changed by a number of every task: a hash of its rows.

    Tasks with the same rows have the same number where they are copies. Where the same x comes with several y in one
    task or another, they are different observations, and get different numbers.
    """
    everywhere = np.zeros_like(decks)
    varied = _comes_with_several_targets(everywhere, features, keys)
    if _are_observations(everywhere, features, varied):
        content, several = _sum_by(_mix(keys), decks), np.ones(int(decks.max()) + 1, dtype=bool)
        content = _separated(np.zeros(len(several), dtype=np.int64), content, _sum_by(marks, decks), several)
    else:
        content = _sum_of_distinct(keys, decks)
    with np.errstate(over="ignore"):
        return _mix(keys + _mix(content)[decks])


def _separated(decks: np.ndarray, keys: np.ndarray, marks: np.ndarray, varied: np.ndarray) -> np.ndarray:
    """The keys, where rows marked in `varied` get a new key for every repetition."""
    order = np.lexsort((marks, keys, decks))
    first = np.flatnonzero(_changes(decks[order], keys[order]))
    repetition = np.empty(len(keys), dtype=np.uint64)
    repetition[order] = np.arange(len(keys)) - np.repeat(first, np.diff(np.append(first, len(keys))))
    with np.errstate(over="ignore"):
        return np.where(varied & (repetition > 0), _mix(keys + _mix(repetition)), keys)


def _changes(*columns: np.ndarray) -> np.ndarray:
    """Whether each entry differs from the one before it in any column; the first one does."""
    differs = np.ones(len(columns[0]), dtype=bool)
    differs[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    return differs


def _ordered_columns(data: TaskData) -> list[np.ndarray]:
    """The features in an order by their content, and the target last.

    They are compared by averages over rows: of zt, z³ and z²t, where z is the standardised feature and t the target.
    """
    target = _standardised(data.y, data.sample_weight)
    keys = np.empty((3, data.X.shape[1]))
    for k, column in enumerate(data.X.T):
        z = _standardised(column, data.sample_weight)
        keys[:, k] = [np.average(z * other, weights=data.sample_weight) for other in (target, z**2, z * target)]
    # Rounded: sums over the same rows in another order differ in the last digits.
    order = np.lexsort(np.round(keys[::-1], _DIGITS))
    return [*data.X.T[order], data.y]


def _hash_rows(columns: list[np.ndarray], weight: np.ndarray | None, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """64-bit hashes of every row's features, and of its features and target; free of units and of the order of rows."""
    features = total = np.full(len(columns[-1]), np.uint64(seed % 2**64), dtype=np.uint64)
    for k, column in enumerate(columns):
        steps = np.rint(_standardised(column, weight) * _STEPS) + 0.0
        features = total
        with np.errstate(over="ignore"):
            total = _mix(total ^ _mix(steps.view(np.uint64) + np.uint64(k + 1)))
    return features, total


def _standardised(column: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
    centre, spread = _location(column, weight)
    return (column - centre) / spread


def _location(column: np.ndarray, weight: np.ndarray | None) -> tuple[float, float]:
    """Mean and spread of a column; a spread of one where the column is constant."""
    scale = np.abs(column).max(initial=0.0)
    if scale == 0:
        return 0.0, 1.0
    unit = column / scale
    # From the middle of the range, which does not depend on the order of rows: sums over rows round differently in
    # every order, which would show where the mean is large.
    middle = 0.5 * (unit.min() + unit.max())
    rest = unit - middle
    mean = np.average(rest, weights=weight)
    spread = np.sqrt(np.average((rest - mean) ** 2, weights=weight))
    return float((middle + mean) * scale), float(spread * scale) if spread > 1e-12 else float(scale)


def _mix(x: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64: a bijection of 64-bit integers that scatters neighbours."""
    with np.errstate(over="ignore"):
        x = x + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def _sum_of_distinct(keys: np.ndarray, group: np.ndarray) -> np.ndarray:
    """A key of every group: the sum of its distinct row keys, whatever their order.

    Distinct, because a row that appears twice is a row of weight two and must not move its group.
    """
    pairs = np.unique(np.stack([group.astype(np.uint64), keys], axis=1), axis=0)
    return _sum_by(_mix(pairs[:, 1]), pairs[:, 0].astype(np.int64))


def _sum_by(values: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Sum of the values of every group, as 64-bit integers that wrap around."""
    total = np.zeros(group.max() + 1, dtype=np.uint64)
    with np.errstate(over="ignore"):
        np.add.at(total, group, values.astype(np.uint64))
    return total


def _range_by(values: np.ndarray, group: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    lowest = np.full(group.max() + 1, values.max())
    highest = np.full(group.max() + 1, values.min())
    np.minimum.at(lowest, group, values)
    np.maximum.at(highest, group, values)
    return lowest, highest


def _rank(keys: np.ndarray, decks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Position of each row's key among the distinct keys of its deck, and the deck's lowest key."""
    order = np.lexsort((keys, decks))
    key, deck = keys[order], decks[order]
    new_deck = _changes(deck)
    new_key = _changes(deck, key)
    position = np.cumsum(new_key) - 1
    deck_number = np.cumsum(new_deck) - 1
    rank = np.empty(len(keys), dtype=np.int64)
    rank[order] = position - position[new_deck][deck_number]
    first_key = np.empty(len(keys), dtype=np.uint64)
    first_key[order] = key[new_deck][deck_number]
    return rank, first_key


def seed_of(random_state: Any) -> int:
    """The seed of the folds."""
    seed = 0 if random_state is None else random_state
    if not isinstance(seed, (int, np.integer)):
        raise ParameterError(f"random_state must be None or a whole number. Got {seed!r} instead.")
    return int(seed)


def deal_rows(data: TaskData, validation: Any, seed: int, *, discrete: bool = False) -> tuple[np.ndarray | None, int]:
    """Fold of every row, None for no folds; and the first fold that is held out; `discrete` as in `deal_folds`.

    Where some rows are never held out (a single hold-out share, a splitter that leaves rows aside), those are fold 0,
    and folds are held out from 1 on.
    """
    if validation is None:
        return None, 0
    if hasattr(validation, "split") and not isinstance(validation, str):
        folds = _folds_of_splitter(validation, data)
        first = int((folds < 0).any())
        return folds + first, first
    if isinstance(validation, (bool, np.bool_)) or not isinstance(validation, (int, float, np.integer, np.floating)):
        raise ParameterError(
            "validation must be a number of folds, a share of rows to hold out or a splitter. "
            f"Got {validation!r} instead."
        )
    if 0 < validation < 1:
        return deal_holdout(data, float(validation), seed, discrete=discrete).astype(np.int64), 1
    if not np.isfinite(validation) or validation != int(validation) or validation < 2:
        raise ParameterError(
            f"validation must be at least 2 folds or a share between 0 and 1. Got {validation!r} instead."
        )
    return deal_folds(data, int(validation), seed, discrete=discrete), 0


def group_labels(labels: np.ndarray) -> list[Any]:
    """Labels of groups that a file can hold: text and numbers as they are, times as whole numbers."""
    return (labels.view(np.int64) if labels.dtype.kind in "mM" else labels).tolist()


def _splits(splitter: Any, data: TaskData) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Training and test rows of every split; the splitter's own errors are raised again with a remedy."""
    try:
        yield from splitter.split(data.X, data.y, data.groups)
    except (TypeError, ValueError) as error:
        remedy = " Pass fit(..., groups=)." if data.groups is None and "group" in str(error) else ""
        raise ParameterError(
            f"validation: {type(splitter).__name__} cannot split these {len(data)} rows: {error}{remedy}"
        ) from error


def _folds_of_splitter(splitter: Any, data: TaskData) -> np.ndarray:
    """Number of the split that tests each row, −1 for rows that no split tests."""
    fold = np.full(len(data), -1)
    for k, (train, test) in enumerate(_splits(splitter, data)):
        held_out = np.zeros(len(data), dtype=bool)
        held_out[test] = True
        if (fold[held_out] >= 0).any():
            raise ParameterError("validation: the splitter's test sets overlap; every row must be in at most one.")
        trained = np.zeros(len(data), dtype=bool)
        trained[train] = True
        if (trained == held_out).any():
            raise ParameterError(
                f"validation: {type(splitter).__name__} trains split {k} on {int(trained.sum())} rows and tests it on "
                f"{int(held_out.sum())} of {len(data)}; every row outside a test set must be trained on. For rows in "
                "time order use one hold-out, PredefinedSplit(np.where(is_late, 0, -1)), or KFold without shuffling."
            )
        fold[held_out] = k
    if fold.max() < 0:
        raise ParameterError("validation: the splitter gave no test rows.")
    return fold
