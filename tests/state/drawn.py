"""Random graphs with states: what they are made of, and how their runs are drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from semel import Graph, Tensor
from semel.graph.state import State

ROOM, WIDTH, MOST = 12, 4, 5  #: rows of states, columns, rows of one run


def draw_graph(draw: Any) -> Graph:
    """Values are [t, WIDTH] or [ROOM, WIDTH]; states are replaced, appended to or cut into."""
    g = Graph("drawn")
    x = g.input("x", ("t", WIDTH), "float32")
    states = [g.state(f"s{k}", (ROOM, WIDTH), init=_first(draw)) for k in range(draw(_few))]
    rows: list[Tensor] = [x]
    wholes: list[Tensor] = list(states)
    for state in states:
        for _ in range(draw(st.integers(0, 2))):
            wholes.append(_mixed(draw, wholes))
            rows.append(_mixed(draw, rows) + _seen(draw, wholes))
        _update(draw, state, rows, wholes)
    for k in range(draw(st.integers(1, 2))):
        value = _mixed(draw, draw(st.sampled_from([rows, wholes])))
        g.output(f"y{k}", value)
    g.output("all", sum((s.sum() for s in wholes), x.sum()))
    return g


_few = st.integers(1, 3)


def _first(draw: Any) -> Any:
    return None if draw(st.booleans()) else np.full((ROOM, WIDTH), 0.25, np.float32)


def _mixed(draw: Any, values: list[Tensor]) -> Tensor:
    """Two values of one shape, together, in other orders, or normed: all stays small."""
    a, b = draw(st.sampled_from(values)), draw(st.sampled_from(values))
    match draw(st.integers(0, 5)):
        case 0:
            return a * 0.5 + b * 0.25
        case 1:
            return a.relu() - b * 0.5
        case 2:
            return (a @ _weight()) * 0.125 + b * 0.5
        case 3:
            return a - a.mean(1, keepdims=True) + b * 0.25
        case 4:
            return a.flip(1) * 0.5 + b * 0.5
        case _:
            return a.softmax(-1) + b * 0.5


def _weight() -> Tensor:
    return Tensor(np.linspace(-1, 1, WIDTH * WIDTH, dtype=np.float32).reshape(WIDTH, WIDTH))


def _seen(draw: Any, wholes: list[Tensor]) -> Tensor:
    """A row made of a whole value."""
    value = draw(st.sampled_from(wholes))
    if draw(st.booleans()):
        return value.mean(0, keepdims=True)
    at = draw(st.integers(0, ROOM - 1))
    return value[at : at + 1] * 0.5


def _update(draw: Any, state: State, rows: list[Tensor], wholes: list[Tensor]) -> None:
    match draw(st.integers(0, 4)):
        case 0:
            wholes.append(state.replace(_mixed(draw, wholes)))
        case 1:
            valid = state.append(_mixed(draw, rows))
            rows.append(valid[valid.shape[0] - rows[0].shape[0] :] * 0.5)
        case 2:
            wholes.append(state.append(rows[0]).sum(0, keepdims=True) * 0.125 + state)
        case 3:
            at, count = draw(st.integers(0, ROOM - 3)), draw(st.integers(1, 3))
            new = draw(st.sampled_from(wholes))[1 : 1 + count]
            wholes.append(state.update(new * 0.5 + 0.125, (at, 0)))
        case _:
            pass
