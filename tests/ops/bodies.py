"""Random control flow on small tensors: loops, loops with a condition and branches, nested."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

import semel
from semel import Tensor, Variable

SIZE = 3
MAX_DEPTH = 2


class Control:
    """Draws tensors of one shape, and data for their inputs; numbers stay small and exact.

    With `late`, some sizes on the way are found out by a run.
    """

    def __init__(self, data: st.DataObject, late: bool = False) -> None:
        self.data, self.late = data, late
        self.trip = Variable("t", 0, 8)
        self.x = Tensor.input("x", (self.trip, SIZE))
        self.w = Tensor.input("w", (SIZE,))
        self.p = Tensor.input("p", (2,), "bool")

    def arrays(self) -> dict[str, Any]:
        seed = self.data.draw(st.integers(0, 99), "seed")
        rng = np.random.default_rng(seed)
        self.size = self.data.draw(st.integers(0, 4), "t")
        return {
            "x": rng.integers(-4, 5, (self.size, SIZE)).astype(np.float32),
            "w": rng.integers(-4, 5, SIZE).astype(np.float32),
            "p": rng.integers(0, 2, 2).astype(bool),
        }

    def values(self) -> dict[str, int]:
        return {"t": self.size}

    def outputs(self) -> list[Tensor]:
        known = [self.w, Tensor(np.array([1, -2, 3], np.float32))]
        # Whatever is drawn, all inputs are used.
        inputs = [self.x.sum(0), self.w * 2, self.p.any()]
        return [self.tensor(0, known, []), *inputs, self.tensor(0, known, [])]

    # ------------------------------------------------------------ choices

    def pick(self, values: Any) -> Any:
        return self.data.draw(st.sampled_from(values))

    def tensor(self, depth: int, known: list[Tensor], steps: list[Any]) -> Tensor:
        """A few ops on what is known, some of them with bodies."""
        known = list(known)
        for _ in range(self.data.draw(st.integers(1, 2))):
            kinds = ["plain", "plain"] + ["loop", "while", "cond"] * (depth < MAX_DEPTH)
            known.append(getattr(self, self.pick(kinds))(depth, known, steps))
        return _tamed(known[-1])

    def plain(self, depth: int, known: list[Tensor], steps: list[Any]) -> Tensor:
        a, b = self.pick(known), self.pick(known)
        choices: list[Any] = [
            lambda: a + b,
            lambda: a - b * 2,
            lambda: a.maximum(b),
            lambda: semel.where(a > b, a, 1.0),
            lambda: a.flip(0),
            lambda: a.cumsum(0),
            lambda: a.sum() + b,
            lambda: a,
        ]
        if self.late:
            choices += [
                lambda: a[a > b].sum() + b,
                lambda: a.masked_select(b < a).sum() + semel.ones(b[b > 0].shape).sum() - a,
            ]
        if steps:
            step = self.pick(steps)
            choices += [lambda: a + step, lambda: a[step % SIZE] + b, lambda: a * (step + 1)]
        return _tamed(self.pick(choices)())

    def loop(self, depth: int, known: list[Tensor], steps: list[Any]) -> Tensor:
        trips: list[Any] = [0, 1, 2, 3, self.trip, *steps]
        trip = self.pick(trips)
        is_row = trip is self.trip

        def body(step: Any, states: Any) -> Any:
            inner = [*known, *states] + ([self.x[step]] if is_row else [])
            after = [self.tensor(depth + 1, inner, [*steps, step]) for _ in states]
            return after, []

        count = self.data.draw(st.integers(1, 2))
        finals, _ = Tensor.loop(trip, [self.pick(known) for _ in range(count)], body)
        return finals[-1]

    def while_(self, depth: int, known: list[Tensor], steps: list[Any]) -> Tensor:
        def body(states: Any) -> Any:
            h, i = states
            return self.tensor(depth + 1, [*known, h], steps), i + 1

        limit = self.pick([0, 1, 2, 5])
        most = self.pick([0, 1, 3, self.trip, *steps])
        first = self.pick(known)
        return semel.while_loop(
            lambda s: (s[1] < limit) & (s[0].sum() < 9), body, (first, Tensor(0)), max_trips=most
        )[0]

    def cond(self, depth: int, known: list[Tensor], steps: list[Any]) -> Tensor:
        a, b = self.pick(known), self.pick(known)
        predicate = self.pick([self.p[0], self.p[1], a[0] > b[1], a.sum() < 0])
        result: Tensor = semel.cond(
            predicate,
            lambda: self.tensor(depth + 1, known, steps),
            lambda: self.tensor(depth + 1, known, steps),
        )
        return result


setattr(Control, "while", Control.while_)


def _tamed(t: Tensor) -> Tensor:
    """Whole numbers that stay small, so that every order of additions gives the same bits."""
    return t.fmod(16.0)
