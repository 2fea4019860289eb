"""A fitted model as plain data and arrays, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ggmtl.data.task_data import InputForm
from ggmtl.errors import GGMTLError, ModelFileError
from ggmtl.estimators.file_format import (
    decode,
    encode,
    pack_labels,
    read_file,
    round_mantissa,
    unpack_labels,
    write_file,
)
from ggmtl.estimators.file_levels import check_shape, pack_family, unpack_family
from ggmtl.estimators.file_parts import (
    check_numbers,
    pack_curves,
    pack_intervals,
    pack_known,
    pack_outcome,
    pack_rows,
    path_rows,
    unpack_curves,
    unpack_intervals,
    unpack_known,
    unpack_outcome,
    unpack_rows,
)
from ggmtl.fit.lines_or_curves import CurveGain
from ggmtl.fit.state import FittedState
from ggmtl.graph.task_graph import TaskGraph
from ggmtl.inference.uncertainty import noise_ratios, noise_variance, standard_errors
from ggmtl.statistics.scaling import Scaling
from ggmtl.statistics.task_statistics import TaskStatistics

# What the parts of a damaged file raise where they meet.
DAMAGED = (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError)
_KINDS = ("GGMTLRegressor", "GGMTLClassifier")
# Parameters of a machine or a session. A file neither keeps them nor sets them: they come back at their defaults.
_OF_THE_SESSION = ("checkpoint", "n_jobs", "device", "verbose")


def write_model(
    path: str | Path,
    parameters: dict[str, Any],
    state: FittedState,
    keep_statistics: bool = False,
    notes: dict[str, Any] | None = None,
) -> None:
    """Write one file: the parameters of the estimator, its fitted state, and plain notes for :func:`read_notes`."""
    purpose = "save(keep_statistics=True)"
    statistics = state.rows(purpose) if keep_statistics and state.outcome is None else None
    kind, arrays = pack_labels(state.task_names)
    scaling = state.scaling
    content = {
        "kind": _KINDS[state.form.classes is not None],
        "parameters": {name: encode(value, name) for name, value in parameters.items() if name not in _OF_THE_SESSION},
        "facts": encode(_facts(state, keep_statistics) | (notes or {}), "facts"),
        "labels": kind,
        "features": list(state.feature_names),
        "target": [scaling.target_center, scaling.target_scale, scaling.intercept],
        "noise": noise_variance(state),
        **pack_family(state.family, arrays, by_fold=keep_statistics),
    }
    if state.outcome is not None:
        content["outcome"] = pack_outcome(state, arrays)
        if keep_statistics:
            arrays |= pack_rows(state.rows_of_outcome(purpose))
    _pack_graph(state.graph, arrays)
    if len(state.settings.constant):
        arrays["constant"] = state.settings.constant
    if state.settings.known is not None:
        content["known"] = encode(pack_known(state.settings.known, state.level.means, arrays), "known")
    arrays |= {
        "center": scaling.center,
        "scale": scaling.scale,
        **pack_curves(scaling.curves),
        "standard_errors": round_mantissa(standard_errors(state), bits=8),
    }
    ratios = noise_ratios(state)
    if ratios is not None and state.level.precisions is None:
        arrays["noise_ratios"] = ratios
    if statistics is None:
        arrays |= pack_intervals(state)
    else:
        upper = np.triu_indices(statistics.cross.shape[-1])
        arrays["cross"] = statistics.cross[:, :, upper[0], upper[1]]
        arrays["origin"] = statistics.origin
        content["has_folds"] = statistics.has_folds
    write_file(path, content, arrays)


def _facts(state: FittedState, keep_statistics: bool) -> dict[str, Any]:
    """Plain data of a state, under the names that files have had from the start."""
    form, gain = state.form, state.curve_gain
    facts: dict[str, Any] = {
        "path_": state.path,
        "_reads_tasks": form.reads_tasks,
        "_target_is_matrix": form.target_is_matrix,
        "_scored_from": form.scored_from,
        "_table_kind": form.table_kind,
        "_attached": list(state.attached),
        "_named": form.named,
        "_curve_gain": None if gain is None else [gain.feature, gain.gain],
    }
    if form.classes is not None:
        facts["_classes"] = list(form.classes)
    # Only where more rows may come.
    later = {"_group_folds": form.group_folds, "_n_targets": form.n_targets} if keep_statistics else {}
    return facts | {name: value for name, value in later.items() if value}


def read_model(path: str | Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parameters of the estimator and fields of its fitted state, or an error that says what is wrong."""
    content, arrays = read_file(path)
    if content.get("kind") not in _KINDS:
        raise ModelFileError(f"{path} holds no {' or '.join(_KINDS)}. Got {content.get('kind')!r} instead.")
    if "outcome" in content and "levels" in content["outcome"]:
        raise ModelFileError(
            f"{path} holds a model of classes or counts of an earlier version, which cannot be read. Fit it again."
        )
    try:
        return _unpack(content, arrays)
    except (*DAMAGED, RecursionError, GGMTLError) as error:
        raise ModelFileError(f"{path} is damaged: its parts do not fit together ({error}).") from error


def read_notes(path: str | Path) -> dict[str, Any]:
    """Plain data in a file that :func:`read_model` accepts, with the notes given to :func:`write_model`."""
    return decode(read_file(path)[0]["facts"])


def _pack_graph(graph: TaskGraph, arrays: dict[str, np.ndarray]) -> None:
    """The reported graph: which edges of the fit it shows (both are sorted), or its own where it has others."""
    n = graph.n_tasks
    keys, shown = arrays["edges"].astype(np.int64) @ [n, 1], graph.edges @ [n, 1]
    arrays["graph.weights"] = graph.weights
    if graph.support is not None:
        arrays["graph.support"] = graph.support
    if np.isin(shown, keys).all():
        arrays["graph.shown"] = np.isin(keys, shown)
    else:
        arrays["graph.edges"] = graph.edges.astype(np.int32)


def _unpack(content: dict[str, Any], arrays: dict[str, np.ndarray]) -> tuple[dict[str, Any], dict[str, Any]]:
    names = unpack_labels(content["labels"], arrays)
    features = tuple(str(name) for name in content["features"])
    center, scale, intercept = *_floats(content["target"][:2]), content["target"][2]
    curves = unpack_curves(arrays, len(features))
    columns = features + curves.names(features)
    shown, width = len(features) + bool(intercept), len(columns) + bool(intercept)
    _check_shapes(arrays, names, width, len(columns), shown)
    errors = arrays.get("standard_errors")
    noise = float(content["noise"])
    _check_values(arrays, names, center, scale, noise)
    parameters = {k: decode(v) for k, v in content["parameters"].items() if k not in _OF_THE_SESSION}
    facts = decode(content["facts"])
    if not isinstance(facts, dict):
        raise ValueError("the facts are no table")
    edges = arrays["edges"][arrays["graph.shown"]] if "graph.shown" in arrays else arrays["graph.edges"]
    graph = TaskGraph(edges, arrays["graph.weights"], names, arrays.get("graph.support"))
    scaling = Scaling(arrays["center"], arrays["scale"], center, scale, bool(intercept), curves)
    known, means = unpack_known(decode(content["known"]), arrays, names) if "known" in content else (None, None)
    given = {
        "noise": noise,
        "standard_errors": None if errors is None else errors.astype(np.float64),
        "noise_ratios": arrays.get("noise_ratios"),
    }
    fields = {
        "task_names": names,
        "feature_names": features,
        "form": _form(facts),
        "scaling": scaling,
        "family": unpack_family(content, arrays, graph, means, np.flatnonzero(scaling.is_linear)),
        "known": known,
        "constant": arrays.get("constant", np.zeros(0, dtype=bool)).astype(bool),
        "graph": graph,
        "path": path_rows(facts["path_"]),
        "statistics": _unpack_statistics(content, arrays, names, columns) if "cross" in arrays else None,
        "curve_gain": None if facts.get("_curve_gain") is None else CurveGain(*facts["_curve_gain"]),
        "attached": tuple((label, covariance) for label, covariance in facts["_attached"]),
        "given": {name: value for name, value in given.items() if value is not None or name == "noise_ratios"}
        | unpack_intervals(arrays, len(names)),
    }
    if "outcome" in content:
        fields["outcome"] = unpack_outcome(content["outcome"], arrays, fields["family"])
        fields["given"]["count"] = arrays["count"]
        check_shape("count", arrays["count"], (len(names),))
        fields["outcome_rows"] = unpack_rows(arrays, len(names), width, fields["form"].scored_from)
    loss = fields["outcome"].loss if "outcome" in content else "squared"
    if (loss == "logistic") != (fields["form"].classes is not None):
        raise ValueError("a loss and labels of classes do not go together")
    return parameters, fields


def _check_shapes(arrays: dict[str, np.ndarray], names: np.ndarray, width: int, columns: int, shown: int) -> None:
    """Refuse arrays that do not belong to so many tasks, coefficients and columns."""
    n = len(names)
    check_shape("labels", names, (n,))
    needed = {
        "coefficients": (n, width),
        "coupling": (width,),
        "hub": (width,),
        "center": (columns,),
        "scale": (columns,),
    }
    for name, shape in needed.items():
        check_shape(name, arrays[name], shape)
        if arrays[name].dtype.kind != "f":
            raise ValueError(f"{name} holds no numbers")
    optional = {"standard_errors": (n, shown), "precisions": (n,), "noise_ratios": (n,), "constant": (width,)}
    for name, shape in optional.items():
        if name in arrays:
            check_shape(name, arrays[name], shape)


def _check_values(arrays: dict[str, np.ndarray], names: np.ndarray, center: float, scale: float, noise: float) -> None:
    """Refuse numbers that no fit can have."""
    if not (np.isfinite([center, scale, noise]).all() and scale > 0 and noise >= 0):
        raise ValueError("the noise or the scale of the target is not a number that it can be")
    for name in {"scale", "precisions", "noise_ratios"} & arrays.keys():
        if not (arrays[name] > 0).all():
            raise ValueError(f"{name} has an entry that is not positive")
    for name in {"coupling", "hub", "standard_errors"} & arrays.keys():
        if (arrays[name] < 0).any():
            raise ValueError(f"{name} has a negative entry")
    check_numbers(arrays)
    if len(names) > 1 and not (names[:-1] < names[1:]).all():
        raise ValueError("the task names are not sorted")


def _form(facts: dict[str, Any]) -> InputForm:
    return InputForm(
        reads_tasks=facts["_reads_tasks"],
        target_is_matrix=facts["_target_is_matrix"],
        n_targets=facts.get("_n_targets"),
        named=facts["_named"],
        table_kind=facts["_table_kind"],
        scored_from=facts["_scored_from"],
        group_folds=facts.get("_group_folds"),
        classes=tuple(facts["_classes"]) if "_classes" in facts else None,
    )


def _unpack_statistics(
    content: dict[str, Any], arrays: dict[str, np.ndarray], names: np.ndarray, features: tuple[str, ...]
) -> TaskStatistics:
    size = len(features) + 2
    packed = arrays["cross"]
    rows, columns = np.triu_indices(size)
    check_shape("cross", packed, (len(packed), len(names), len(rows)))
    check_shape("origin", arrays["origin"], (size - 1,))
    cross = np.empty((len(packed), len(names), size, size))
    cross[:, :, rows, columns] = packed
    cross[:, :, columns, rows] = packed
    return TaskStatistics(cross, arrays["origin"], names, features, bool(content["has_folds"]))


def _floats(values: list[Any]) -> list[float]:
    return [float(value) for value in values]
