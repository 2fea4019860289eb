"""The checkpoint of a fit: what makes two fits the same, and the journal that belongs to it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from ggmtl.bilevel.level import GraphFit
from ggmtl.bilevel.optimizers import Optimum
from ggmtl.design.scaling import Scaling
from ggmtl.errors import ParameterError
from ggmtl.estimators.model_file.container import read_file, write_file
from ggmtl.estimators.model_file.values import encode
from ggmtl.graph.candidates import CandidateEdges
from ggmtl.runtime.journal import Journal, open_journal, sketch
from ggmtl.statistics.least_squares import LeastSquares

# Parameters that do not change what is learned, or that the statistics already reflect.
_IRRELEVANT = ("task", "unseen", "checkpoint", "n_jobs", "verbose")


def journal_of(model: Any, folds: Sequence[LeastSquares], scaling: Scaling, scored_from: int) -> Journal:
    """The journal of a fit: in memory, or in the file that the parameter `checkpoint` names."""
    if model.checkpoint is None:
        return Journal()
    kinds = (GraphFit, Optimum, CandidateEdges)
    return open_journal(model.checkpoint, fingerprint(model, folds, scaling, scored_from), kinds, read_file, write_file)


def fingerprint(model: Any, folds: Sequence[LeastSquares], scaling: Scaling, scored_from: int) -> dict[str, Any]:
    """All that a fit depends on, under the names that a message may use; `folds` are its losses in scaled units."""
    relevant = {name: value for name, value in model.get_params(deep=False).items() if name not in _IRRELEVANT}
    return {
        "version of ggmtl": _version(),
        **{name: _plain(name, value) for name, value in relevant.items()},
        "tasks": _digest(model.tasks_.tolist()),
        "features": _digest(model.feature_names_),
        "folds": [len(folds), int(scored_from)],
        "means": np.append(scaling.center / scaling.scale, scaling.target_center),
        "rows": np.array([sketch(part) for fold in folds for part in (fold.gram, fold.moment, fold.target_square)]),
    }


def _plain(name: str, value: Any) -> Any:
    if hasattr(value, "split") and not isinstance(value, str):
        # The folds that a splitter dealt are in the statistics.
        return type(value).__name__
    try:
        return encode(value, name)
    except ParameterError:
        return repr(value)


def _digest(names: Any) -> str:
    return hashlib.sha256("\x00".join(map(str, names)).encode("utf-8", "surrogatepass")).hexdigest()


def _version() -> str:
    try:
        return version("ggmtl")
    except PackageNotFoundError:
        return "unknown"
