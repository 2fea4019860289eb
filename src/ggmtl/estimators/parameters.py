"""The parameters of an estimator: which values and combinations are allowed, and the settings that they give."""

from __future__ import annotations

import os
import re
from typing import Any

import numpy as np

from ggmtl.bilevel.algorithm import EDGE_SOLVERS
from ggmtl.bilevel.hypergradient import MODES
from ggmtl.bilevel.inner import PENALTIES
from ggmtl.bilevel.level import NEGLIGIBLE_RIDGE, Settings
from ggmtl.bilevel.problem import Sparsity
from ggmtl.errors import ParameterError, check_choice
from ggmtl.graph.candidates import as_candidates

CRITERIA = ("auto", "validation", "evidence")
EFFECTS = ("linear", "smooth", "auto")
NOISES = ("auto", "common", "per_task")
# Penalties for which graphs can be learned by evidence.
_BY_EVIDENCE = ("squared_l2", "l1")


def settings_of(model: Any, width: int, is_linear: np.ndarray | None = None) -> Settings:
    """The settings of a fit.

    There are `width` coefficients per task; `is_linear` marks those that are not of curves.
    """
    slopes = np.ones(width, dtype=bool)
    if model.fit_intercept:
        slopes[-1] = False
    entropy = 0.0 if model.edge_entropy == "auto" else _number("edge_entropy", model.edge_entropy)
    return Settings(
        penalty=model.penalty,
        candidates=as_candidates(model.candidates),
        coupling=_coupling(model, width),
        hub=bool(model.hub),
        slopes=slopes,
        sparsity=Sparsity(_number("edge_l2", model.edge_l2), _number("edge_l1", model.edge_l1), entropy),
        edge_solver=model.edge_solver,
        hypergradient=model.hypergradient,
        ridge=_number("ridge", model.ridge),
        max_iter=_steps(model.max_iter),
        tol=_number("tol", model.tol),
        noise=model.noise,
        bends=np.zeros(0, dtype=bool) if is_linear is None or is_linear.all() else ~is_linear,
        lines=model.effects == "auto" and is_linear is not None and not is_linear.all(),
        blend=bool(model.blend),
        step=None if model.step is None else _number("step", model.step),
        sizes=model.sizes,
    )


def _coupling(model: Any, width: int) -> np.ndarray | None:
    if isinstance(model.coupling, str):
        check_choice("coupling", model.coupling, ("auto",))
        return None
    try:
        values = np.asarray(model.coupling, dtype=np.float64)
    except (TypeError, ValueError):
        raise ParameterError(f"coupling must be 'auto' or numbers. Got {model.coupling!r} instead.") from None
    if values.shape not in ((), (width,)):
        raise ParameterError(
            f"coupling must be 'auto', a number, or an array with one entry per feature"
            f"{' and the intercept last' if model.fit_intercept else ''}, shape ({width},). Got shape {values.shape}."
        )
    if not np.isfinite(values).all() or (values < 0).any():
        raise ParameterError("coupling must be finite and not negative.")
    return np.broadcast_to(values, (width,)).copy()


def criterion_used(model: Any) -> str:
    """The criterion, with ``"auto"`` resolved."""
    if model.criterion != "auto":
        return model.criterion
    plain = (
        model.penalty in _BY_EVIDENCE
        and model.hub
        and isinstance(model.coupling, str)
        and model.edge_entropy == "auto"
        and model.edge_l1 == model.edge_l2 == 0
        and model.edge_solver == "quasi_newton"
        and _is_negligible(model.ridge)
    )
    return "evidence" if plain else "validation"


def check_parameters(model: Any) -> None:
    """Refuse invalid values and incompatible parameters, with the reason."""
    check_choice("penalty", model.penalty, PENALTIES)
    check_choice("criterion", model.criterion, CRITERIA)
    check_choice("noise", model.noise, NOISES)
    check_choice("effects", model.effects, EFFECTS)
    if model.effects != "linear":
        _check_curves(model)
    check_choice("edge_solver", model.edge_solver, EDGE_SOLVERS)
    check_choice("hypergradient", model.hypergradient, MODES)
    for name in ("hub", "blend"):
        if not isinstance(getattr(model, name), (bool, np.bool_)):
            raise ParameterError(f"{name} must be True or False. Got {getattr(model, name)!r} instead.")
    if model.step is not None and (_number("step", model.step) == 0 or model.edge_solver != "projected_gradient"):
        raise ParameterError(
            'step is the length of the steps of edge_solver="projected_gradient": a positive number, or None to choose '
            f"it at every step. Got step={model.step!r} with edge_solver={model.edge_solver!r} instead."
        )
    if model.n_jobs is not None and not (isinstance(model.n_jobs, (int, np.integer)) and model.n_jobs != 0):
        raise ParameterError(f"n_jobs must be None or a whole number other than zero. Got {model.n_jobs!r} instead.")
    if isinstance(model.edge_entropy, str):
        check_choice("edge_entropy", model.edge_entropy, ("auto",))
    check_device_name(model)
    if model.checkpoint is not None and not isinstance(model.checkpoint, (str, os.PathLike)):
        raise ParameterError(f"checkpoint must be None or the name of a file. Got {model.checkpoint!r} instead.")
    _check_combinations(model)


def _check_combinations(model: Any) -> None:
    """Refuse incompatible parameters."""
    squared = model.penalty == "squared_l2"
    if model.hypergradient == "frozen" and squared:
        raise ParameterError('hypergradient="frozen" is for penalty="l2" and "l1"; the squared penalty has one form.')
    if model.hypergradient == "frozen" and criterion_used(model) == "evidence":
        raise ParameterError('hypergradient="frozen" is for criterion="validation", which has to be given here.')
    if model.criterion == "evidence":
        if model.penalty not in _BY_EVIDENCE or not model.hub:
            raise ParameterError(
                'criterion="evidence" needs penalty="squared_l2" or "l1" and hub=True: only there is a marginal '
                'likelihood that is finite for every graph. Use criterion="validation".'
            )
        if not isinstance(model.coupling, str) or model.edge_entropy != "auto" or model.edge_l1 or model.edge_l2:
            raise ParameterError(
                'criterion="evidence" learns every strength and chooses the sparsity itself: leave coupling and '
                'edge_entropy at "auto" and edge_l1, edge_l2 at 0, or use criterion="validation".'
            )
        if not _is_negligible(model.ridge):
            raise ParameterError(
                f'criterion="evidence" learns the shrinkage itself: a ridge of at most {NEGLIGIBLE_RIDGE:g} '
                f'is allowed. Got ridge={model.ridge!r} instead. Use criterion="validation" for a ridge of your own.'
            )
    if model.edge_solver == "closed_form" and not (
        squared
        and model.edge_l1 > 0
        and model.edge_l2 == 0
        and model.edge_entropy == 0
        and model.criterion != "evidence"
    ):
        raise ParameterError(
            'edge_solver="closed_form" is the paper\'s theorem for penalty="squared_l2", criterion="validation", '
            f"edge_l1 > 0, edge_l2 = 0, edge_entropy = 0. Got penalty={model.penalty!r}, edge_l1={model.edge_l1!r}, "
            f"edge_l2={model.edge_l2!r}, edge_entropy={model.edge_entropy!r} instead."
        )
    if not isinstance(model.coupling, str) and np.ndim(model.coupling) == 1 and not squared:
        raise ParameterError('One coupling per feature needs penalty="squared_l2". Give a single number instead.')


def _check_curves(model: Any) -> None:
    """Refuse parameters that are incompatible with curves."""
    effects = f"effects={model.effects!r}"
    if model.effects == "auto" and criterion_used(model) == "validation" and model.edge_entropy != "auto":
        raise ParameterError(
            f"{effects} weighs levels of lines and of curves, but edge_entropy={model.edge_entropy!r} with "
            'criterion="validation" leaves one level. Use effects="smooth", or edge_entropy="auto".'
        )
    if not model.fit_intercept:
        raise ParameterError(
            f"{effects} needs fit_intercept=True: a curve is the difference from a straight line with an intercept."
        )
    if isinstance(model.device, str) and model.device != "cpu":
        raise ParameterError(f'{effects} is fitted on the CPU only. Use device="cpu". Got {model.device!r} instead.')
    if not isinstance(model.coupling, str) and np.ndim(model.coupling) == 1:
        raise ParameterError(f"{effects} needs one coupling for all columns, or 'auto'. Got one per feature instead.")


def check_device_name(model: Any) -> None:
    """Refuse invalid names, and criteria that are not available on a GPU; not whether the device exists."""
    if not isinstance(model.device, str) or not re.fullmatch(r"cpu|cuda(:\d+)?", model.device):
        raise ParameterError(f'device must be "cpu", "cuda" or "cuda:0", "cuda:1", …. Got {model.device!r} instead.')
    if model.device != "cpu" and model.noise == "per_task":
        raise ParameterError(
            f'device={model.device!r} needs noise="common": the noise of every task is estimated on the CPU only. '
            'Use device="cpu".'
        )
    if model.device != "cpu" and criterion_used(model) != "evidence":
        raise ParameterError(
            f'device={model.device!r} needs criterion="evidence", with the usual penalty, hub, coupling and sparsity: '
            f"criterion={criterion_used(model)!r}, which these parameters lead to, is computed on the CPU only. "
            'Use device="cpu".'
        )


def _steps(value: Any) -> int:
    if _number("max_iter", value) < 1:
        raise ParameterError(f"max_iter must be at least 1. Got {value!r} instead.")
    return int(value)


def _is_negligible(ridge: Any) -> bool:
    """Whether a ridge only determines directions that no row determines; with evidence, the hub's prior shrinks."""
    return _number("ridge", ridge) <= NEGLIGIBLE_RIDGE


def _number(name: str, value: Any) -> float:
    plain = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if not plain or not np.isfinite(value) or value < 0:
        raise ParameterError(f"{name} must be a finite number, not negative. Got {value!r} instead.")
    return float(value)
