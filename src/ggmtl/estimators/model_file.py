"""A fitted model as plain data and arrays, and back."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from ggmtl.data.task_data import InputForm
from ggmtl.errors import GGMTLError, ModelFileError
from ggmtl.estimators.file_arrays import Arrays, check_arrays, symmetric, upper
from ggmtl.estimators.file_format import (
    decode,
    encode,
    pack_labels,
    read_file,
    round_mantissa,
    unpack_labels,
    write_file,
)
from ggmtl.estimators.file_levels import pack_family, unpack_family
from ggmtl.estimators.file_parts import (
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

# Errors that the parts of a damaged file raise when they are put together.
DAMAGED = (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError)
_KINDS = ("GGMTLRegressor", "GGMTLClassifier")
_FORM = tuple(field.name for field in fields(InputForm))
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
        arrays |= {"cross": upper(statistics.cross), "origin": statistics.origin}
        content["has_folds"] = statistics.has_folds
    write_file(path, content, arrays)


def _facts(state: FittedState, keep_statistics: bool) -> dict[str, Any]:
    """Plain data of a state, under the names that files have had from the start."""
    gain = state.curve_gain
    form = {name: getattr(state.form, name) for name in _FORM}
    if not keep_statistics:
        # Only where more rows may come.
        form |= {"group_folds": None, "n_targets": None}
    return {
        "path_": state.path,
        "_attached": list(state.attached),
        "_curve_gain": None if gain is None else [gain.feature, gain.gain],
        **{f"_{name}": value for name, value in form.items() if value is not None or name == "table_kind"},
    }


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


def _pack_graph(graph: TaskGraph, arrays: Arrays) -> None:
    """The reported graph: a mask of the edges of the fit (both are sorted), or edges of its own."""
    n = graph.n_tasks
    keys, shown = arrays["edges"].astype(np.int64) @ [n, 1], graph.edges @ [n, 1]
    arrays["graph.weights"] = graph.weights
    if graph.support is not None:
        arrays["graph.support"] = graph.support
    if np.isin(shown, keys).all():
        arrays["graph.shown"] = np.isin(keys, shown)
    else:
        arrays["graph.edges"] = graph.edges.astype(np.int32)


def _unpack_graph(arrays: Arrays, names: np.ndarray) -> TaskGraph:
    edges = arrays["edges"][arrays["graph.shown"]] if "graph.shown" in arrays else arrays["graph.edges"]
    return TaskGraph(edges, arrays["graph.weights"], names, arrays.get("graph.support"))


def _unpack(content: dict[str, Any], arrays: Arrays) -> tuple[dict[str, Any], dict[str, Any]]:
    names = unpack_labels(content["labels"], arrays)
    features = tuple(str(name) for name in content["features"])
    center, scale, noise = (float(value) for value in (*content["target"][:2], content["noise"]))
    intercept = bool(content["target"][2])
    if names.ndim != 1 or not (names[:-1] < names[1:]).all():
        raise ValueError("the task names are not sorted")
    if not (np.isfinite([center, scale, noise]).all() and scale > 0 and noise >= 0):
        raise ValueError("the noise or the scale of the target is not a number that it can be")
    n_columns = len(features) + arrays.get("curves.slopes", np.empty(0)).size
    check_arrays(arrays, _lengths(len(names), len(features), n_columns, intercept, len(content["levels"])))
    curves = unpack_curves(arrays, len(features))
    columns = features + curves.names(features)
    parameters = {k: decode(v) for k, v in content["parameters"].items() if k not in _OF_THE_SESSION}
    facts = decode(content["facts"])
    if not isinstance(facts, dict):
        raise ValueError("the facts are no table")
    graph = _unpack_graph(arrays, names)
    scaling = Scaling(arrays["center"], arrays["scale"], center, scale, intercept, curves)
    known, means = unpack_known(decode(content["known"]), arrays, names) if "known" in content else (None, None)
    given = {"noise": noise, "noise_ratios": arrays.get("noise_ratios"), **unpack_intervals(arrays)}
    if "standard_errors" in arrays:
        given["standard_errors"] = arrays["standard_errors"].astype(np.float64)
    state = {
        "task_names": names,
        "feature_names": features,
        "form": _form(facts),
        "scaling": scaling,
        "family": unpack_family(content, arrays, graph, means, np.flatnonzero(scaling.is_linear)),
        "known": known,
        "constant": arrays.get("constant", np.zeros(0, dtype=bool)).astype(bool),
        "graph": graph,
        "path": path_rows(facts["path_"], len(content["levels"])),
        "statistics": _unpack_statistics(content, arrays, names, columns),
        "curve_gain": None if facts.get("_curve_gain") is None else CurveGain(*facts["_curve_gain"]),
        "attached": tuple((label, covariance) for label, covariance in facts["_attached"]),
        "given": given,
    }
    if "outcome" in content:
        state["outcome"] = unpack_outcome(content["outcome"], arrays, state["family"])
        state["given"]["count"] = arrays["count"]
        state["outcome_rows"] = unpack_rows(arrays, len(names), state["form"].scored_from)
    loss = state["outcome"].loss if "outcome" in content else "squared"
    if (loss == "logistic") != (state["form"].classes is not None):
        raise ValueError("a loss and labels of classes do not go together")
    return parameters, state


def _lengths(n: int, d: int, c: int, intercept: bool, n_levels: int) -> dict[str, int]:
    """Lengths by the letters of the table in ``file_arrays``."""
    p, z = c + intercept, c + 2
    halves = {"half_p": p * (p + 1) // 2, "half_z": z * (z + 1) // 2}
    return {"n": n, "n+1": n + 1, "d": d, "c": c, "p": p, "s": d + intercept, "l": n_levels, "o": c + 1, **halves}


def _form(facts: dict[str, Any]) -> InputForm:
    given = {name: facts[f"_{name}"] for name in _FORM if f"_{name}" in facts}
    if "classes" in given:
        given["classes"] = tuple(given["classes"])
    return InputForm(**given)


def _unpack_statistics(
    content: dict[str, Any], arrays: Arrays, names: np.ndarray, columns: tuple[str, ...]
) -> TaskStatistics | None:
    if "cross" not in arrays:
        return None
    cross = symmetric(arrays["cross"], len(columns) + 2)
    return TaskStatistics(cross, arrays["origin"], names, columns, bool(content["has_folds"]))
