"""Tables of any library, tensors and arrays, as arrays."""

from __future__ import annotations

import importlib.util
from typing import Any

import narwhals.stable.v1 as nw
import numpy as np

from ggmtl.errors import InputError

# Tables are made by the first of these that is installed, where the user's own library cannot be used.
_LIBRARIES = ("pandas", "polars", "pyarrow", "modin", "cudf")


def as_frame(values: Any, name: str, **options: Any) -> Any:
    """A table of any library as a narwhals frame; other values are returned unchanged. Repeated columns are refused."""
    try:
        return nw.from_native(values, eager_only=True, pass_through=True, **options)
    except ValueError as error:
        columns = list(getattr(values, "column_names", getattr(values, "columns", ())))
        repeated = [column for column in columns if columns.count(column) > 1]
        if not repeated:
            raise
        raise InputError(
            f"{name} has {columns.count(repeated[0])} columns {plain(repeated[0])!r}; names must differ. Rename or "
            "drop all but one."
        ) from error


def series_to_numpy(values: Any, name: str) -> np.ndarray:
    """A column or table of any library as an array."""
    native = as_frame(values, name, allow_series=True)
    return native.to_numpy() if isinstance(native, (nw.Series, nw.DataFrame)) else np.asarray(values)


def from_tensor(values: Any) -> Any:
    """A torch tensor, on whatever device, as an array; anything else as it is."""
    if not (type(values).__module__.split(".")[0] == "torch" and hasattr(values, "detach")):
        return values
    here = values.detach().cpu()
    # NumPy has no counterpart of torch's shorter kinds of floats.
    return (here.double() if here.is_floating_point() else here).numpy()


def plain(label: Any) -> Any:
    """A label without the name of its NumPy type."""
    return label.item() if isinstance(label, np.generic) else label


def is_missing(label: Any) -> bool:
    """Whether a value is a missing value."""
    try:
        return label is None or bool(label != label)
    except TypeError:  # comparing pandas' NA with itself gives NA, which is not a truth value
        return True


def frame_library(values: Any) -> str | None:
    """The library of a data frame, None for anything else."""
    frame = as_frame(values, "X")
    return frame.implementation.value if isinstance(frame, nw.DataFrame) else None


def as_table(columns: dict[str, np.ndarray], library: str | None) -> Any:
    """A table of the library, else of pandas, polars or pyarrow, whichever is installed, else the dict itself."""
    usable = (k for k in (library, *_LIBRARIES) if k in _LIBRARIES and importlib.util.find_spec(k) is not None)
    kind: Any = next(usable, None)
    return columns if kind is None else nw.from_dict(columns, backend=kind).to_native()
