"""Checks of the arrays and numbers that a program gives to a replay table."""

import math
import numbers
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mindspore_rl.errors import ReplayError
from mindspore_rl.replay.spec import TableSpec

_NONE = np.empty((0, 0))


def as_array(name: str, value: Any, dtype: str) -> np.ndarray:
    """Views an array of any library in the CPU's memory as a NumPy array, without a copy.

    Args:
        name: of the values, for errors.
        value: an array of NumPy, PyTorch or JAX, or any with `__array__` or `__dlpack__`; or Python
            numbers.
        dtype: of the result for Python numbers that it can hold.

    Raises:
        ReplayError: it cannot be viewed.
    """
    if isinstance(value, np.ndarray):
        return value
    try:
        if hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
            return np.from_dlpack(value)
        array = np.asarray(value)
        narrower = array.dtype.kind == "c" and np.dtype(dtype).kind != "c"
        if not isinstance(value, Sequence | numbers.Number) or narrower:
            return array
        cast = array.astype(dtype)  # Python numbers became int64 or float64
        return cast if cast.dtype.kind in "fc" or np.array_equal(cast, array) else array
    except (TypeError, ValueError, RuntimeError, BufferError, OverflowError) as error:
        kind = f"{type(value).__module__}.{type(value).__name__}"
        raise ReplayError(
            f"{name} is a {kind} that NumPy cannot view ({str(error).partition(chr(10))[0]}); "
            f"expected {dtype} in the CPU's memory and without gradients, such as "
            "tensor.detach().cpu()"
        ) from error


def shown(values: Any) -> str:
    """Writes numbers in one line, of many only the first and the last ones."""
    if not isinstance(values, np.ndarray):
        return repr(values)
    return " ".join(np.array2string(values, threshold=16, separator=", ").split())


def check_kind(what: str, value: object, kind: type) -> None:
    """Raises: ReplayError: an argument is of another class than `kind`."""
    if not isinstance(value, kind):
        found = type(value).__name__
        raise ReplayError(f"{what} is of the type {found}, expected {kind.__name__}")


def path_of(path: Any) -> Path:
    """Returns the path of a table's file. Raises: ReplayError: it is no path."""
    try:
        if "\0" not in str(found := Path(path)):
            return found
    except TypeError:
        pass
    raise ReplayError(f"the path of a replay table is {path!r}, expected text without \\0")


def check_names(spec: TableSpec, columns: Mapping[str, Any]) -> None:
    """Raises: ReplayError: the columns are not those of a table."""
    check_kind("the mapping of columns", columns, Mapping)
    names = [column.name for column in spec.columns]
    if set(columns) != set(names):
        given = sorted(map(str, columns))
        raise ReplayError(f"columns are {given}, expected {sorted(names)}")


def check_columns(
    spec: TableSpec, columns: Mapping[str, Any], leading: tuple[int, ...]
) -> list[np.ndarray]:
    """Returns the columns in order, contiguous `[*leading, *shape]`. Raises: ReplayError."""
    check_names(spec, columns)
    arrays = []
    for column in spec.columns:
        array = as_array(f"column {column.name}", columns[column.name], column.dtype)
        shape = (*leading, *column.shape)
        if array.shape != shape or array.dtype != column.dtype:
            raise ReplayError(
                f"column {column.name} is {array.dtype} {array.shape}, expected {column.dtype} "
                f"{shape}"
            )
        arrays.append(np.ascontiguousarray(array))
    return arrays


def check_buffers(spec: TableSpec, out: Mapping[str, np.ndarray], rows: int) -> list[np.ndarray]:
    """Returns the output arrays in the table's order, after checking them. Raises: ReplayError."""
    check_kind("the mapping of arrays to copy to", out, Mapping)
    arrays = [out.get(column.name, _NONE) for column in spec.columns]
    for column, array in zip(spec.columns, arrays, strict=True):
        if not isinstance(array, np.ndarray):
            raise ReplayError(
                f"column {column.name} is to be copied to a {type(array).__name__}, expected a "
                "NumPy array: tensor.numpy() and torch.from_numpy(array) share memory"
            )
    steps = (arrays[0].shape[1:2] or ("T",)) if spec.length > 1 else ()
    for column, array in zip(spec.columns, arrays, strict=True):
        right = array.shape[1:] == (*steps, *column.shape) and array.dtype == column.dtype
        right &= array.flags.c_contiguous and array.flags.writeable
        if not right or len(array) < rows:
            raise ReplayError(
                f"column {column.name} is to be copied to {array.dtype} {array.shape}, expected "
                f"{column.dtype} {(rows, *steps, *column.shape)}, contiguous and to be written; "
                "see Table.buffers"
            )
    return arrays


def check_priorities(
    spec: TableSpec, values: Any, count: int, exponent: float, any_table: bool = False
) -> np.ndarray:
    """Returns priorities as float64 `[count]`.

    Raises:
        ReplayError: they are not finite, or negative, or not one of each record; or the exponent
            is so; or the table has no weights, unless it may be any.
    """
    array = as_array("priorities", values, "float64")
    if array.shape != (count,) or array.dtype.kind not in "biuf":
        raise ReplayError(
            f"priorities are {array.dtype} {array.shape}, expected numbers ({count},), one of each "
            "record"
        )
    found = np.ascontiguousarray(array, np.float64)
    if not (found >= 0).all() or not np.isfinite(found).all():
        raise ReplayError(f"priorities are {shown(found)}, expected finite numbers from 0 on")
    check_exponent(exponent)
    if not spec.weighted and not any_table:
        raise ReplayError(
            "a table that is not weighted gets priorities; make it with weighted=True"
        )
    return found


def check_exponent(value: Any) -> None:
    """Raises: ReplayError: the exponent of priorities or weights is no finite number from 0 on."""
    if not isinstance(value, numbers.Real) or not 0 <= float(value) < math.inf:
        raise ReplayError(f"an exponent is {value!r}, expected a finite number from 0 on")


def whole_numbers(name: str, values: Any) -> np.ndarray:
    """Returns numbers of lanes or records, `[N] int64`. Raises: ReplayError."""
    array = as_array(name, values, "int64")
    if array.ndim != 1 or array.dtype.kind not in "iuf" or (array != np.rint(array)).any():
        raise ReplayError(f"{name} are {shown(values)}, expected a list of whole numbers")
    return np.ascontiguousarray(array, np.int64)
