"""Tensors as people see them: `print(t)`, `f"{t:.2f}"`, and a cell of a notebook.

    Tensor  --text | html-->  its values, or its type and what it waits for

`print` and notebooks show values, because that is what is looked for there: the value is computed,
once, and kept. `repr` never computes: debuggers, logs and failing tests ask for it at any moment,
of tensors of any size, and must not start a compiler by that. Neither ever raises.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from semel.ir import questions
from semel.ir.graph import Graph, is_tracing
from semel.tensor.body import check_closed
from semel.tensor.handle import Array, given_value
from semel.tensor.realize import item, value_of, waits_for
from semel.written import OPS

if TYPE_CHECKING:
    from semel.tensor.tensor import Tensor

#: `repr` shows values of at most so many elements.
SHOWN_ELEMENTS = 64
#: A table shows so many rows and columns at each end.
EDGE = 5
_MOST_NAMES = 6
_STYLE = "text-align:right;padding:0 .5em"


def short(x: Tensor) -> str:
    """Type and op; the value too if it is known and small. Never computes."""
    storage = x._value or given_value(x)
    if storage is None or storage.array.size > SHOWN_ELEMENTS:
        return f"<Tensor {_type(x)} {_made_by(x)}>"
    return _values(x, storage.array)


def text(x: Tensor) -> str:
    """The value, computed if it is not known; else the type, the op and why there is no value."""
    array, why = _try_value(x)
    return f"<Tensor {_type(x)} {_made_by(x)}: {why}>" if array is None else _values(x, array)


def formatted(x: Tensor, spec: str) -> str:
    """`format(x, spec)`: of the number of a 0-d tensor, else of every element."""
    if not spec:
        return text(x)
    if x.ndim == 0:
        return format(item(x), spec)
    array = value_of(x, "format")
    kind = x.dtype.compute.numpy
    show: Callable[[Any], str] = lambda number: format(kind.type(number).item(), spec)  # noqa: E731
    return np.array2string(array, separator=", ", formatter={"all": show})


def html(x: Tensor) -> str:
    """What a notebook shows: a small table of the values under a line with the type."""
    array, why = _try_value(x)
    head = f"<code>{escape(_type(x))}</code> {escape(_made_by(x))}"
    if array is None:
        return f"<div>{head}<br><small>{escape(why)}</small></div>"
    if array.ndim == 0:
        return f"<div>{head}<br><code>{escape(str(array))}</code></div>"
    if array.ndim > 2 or array.size == 0:
        shown = np.array2string(array, separator=", ")
        return f"<div>{head}<pre>{escape(shown)}</pre></div>"
    return f"<div>{head}{_table(np.atleast_2d(array))}</div>"


def _table(array: Array) -> str:
    rows, columns = (_shown(size) for size in array.shape)
    numbers = array[np.ix_([i for i in rows if i >= 0], [j for j in columns if j >= 0])]
    cells = iter(_cells(numbers))

    def cell(i: int, j: int) -> str:
        return f'<td style="{_STYLE}">{"&hellip;" if i < 0 or j < 0 else escape(next(cells))}</td>'

    lines = (f"<tr>{''.join(cell(i, j) for j in columns)}</tr>" for i in rows)
    return f"<table>{''.join(lines)}</table>"


def _shown(size: int) -> list[int]:
    """Which indices of an axis are shown; -1 stands for those left out."""
    if size <= 2 * EDGE + 1:
        return list(range(size))
    return [*range(EDGE), -1, *range(size - EDGE, size)]


def _cells(array: Array) -> list[str]:
    """The elements as text, all in the form that suits them together."""
    flat = array.reshape(-1)
    joined = np.array2string(flat, separator="\n", max_line_width=1 << 30, threshold=flat.size + 1)
    return [line.strip() for line in joined[1:-1].split("\n")]


def _values(x: Tensor, array: Array) -> str:
    shown = np.array2string(array, separator=", ", prefix="Tensor(")
    is_cut = array.size > np.get_printoptions()["threshold"]
    shape = f", shape={array.shape}" if is_cut or array.size == 0 else ""
    return f"Tensor({shown}{shape}, dtype={x.dtype})"


def _made_by(x: Tensor) -> str:
    """What the user called, or the op that an operator is, by the name of its function."""
    name = x.node.op.name
    return x.node.made_by or OPS.get(name, name)


def _type(x: Tensor) -> str:
    return f"{x.dtype}[{', '.join(str(d) for d in x.shape)}]"


def _try_value(x: Tensor) -> tuple[Array | None, str]:
    """The value, or why there is none."""
    try:
        if x._value is None:
            if is_tracing():
                return None, "inside a body, which has no values yet"
            if questions.answers() is not None:
                return None, "inside a function that jit follows, which has no values yet"
            check_closed(Graph((x._node,)), "print")
            if missing := waits_for(x):
                more = len(missing) - _MOST_NAMES
                names = ", ".join(missing[:_MOST_NAMES])
                return None, f"waits for {names}" + (f" and {more} more" if more > 0 else "")
        return value_of(x, "print"), ""
    except Exception as error:  # whatever it is: print never raises
        return None, f"{type(error).__name__}: {error}"
