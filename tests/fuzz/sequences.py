"""Random stateful graphs, random sequences of operations on them, and what NumPy says to each.

    seed  -->  a graph with states, its plain model, and a sequence: run, fork, truncate, ...

The model keeps states as plain arrays and computes each run anew. Numbers are small integers, so
that float32 is exact and every comparison is one of equality.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from tests.session.entries import ENTRIES

from semel import CompiledGraph, Graph, InputError, Session, StateError

F = np.float32
Array = np.ndarray[Any, Any]
MOST = 12  # forks alive at a time
ROWS, WIDTH = 5, 3


@dataclass(frozen=True)
class Shape:
    """What a random graph has: states that grow along an axis, one that adds up, one that lags."""

    growing: tuple[int, ...]  # the axis of each
    has_total: bool
    has_last: bool
    reads_old: bool
    capacity: int
    has_handle: bool
    has_extent: bool

    @staticmethod
    def draw(rng: random.Random) -> Shape:
        growing = tuple(rng.choice((0, 1)) for _ in range(rng.randrange(3)))
        return Shape(
            growing,
            rng.random() < 0.7 or not growing,
            rng.random() < 0.5,
            rng.random() < 0.5,
            rng.choice((6, 17, 40)),
            rng.random() < 0.4,
            rng.random() < 0.4,
        )


def build(shape: Shape) -> Graph:
    """The graph: x[n, 3] goes in; sums of what is kept come out."""
    g = Graph("random")
    x = g.input("x", ("n", WIDTH))
    w = g.param("w", np.eye(WIDTH, dtype=F))
    y = x @ w
    if shape.has_handle:
        bias = g.input("bias", (WIDTH,), default=np.ones(WIDTH, F))
        y = y + bias
        g.output("next_bias", bias + 1)
    for i, axis in enumerate(shape.growing):
        dims = (shape.capacity, WIDTH) if axis == 0 else (WIDTH, shape.capacity)
        state = g.state(f"k{i}", dims)
        valid = state.append(y if axis == 0 else y.T, axis=axis)
        g.output(f"sum{i}", valid.sum(axis))
    if shape.has_total:
        total = g.state("total", (WIDTH,), init=np.arange(WIDTH, dtype=F))
        after = total + y.sum(0)
        g.output("total", after, feeds=total)
        if shape.reads_old:
            g.output("before", total * 2)
    if shape.has_last:
        last = g.state("last", (2, WIDTH))
        g.output("lag", last[0] - last[1])
        last.replace(last.flip(0) + y.max(0))
    g.output("y", y)
    return g


@dataclass
class Model:
    """The same in NumPy: what is kept, and what a run gives."""

    shape: Shape
    w: Array = field(default_factory=lambda: np.eye(WIDTH, dtype=F))
    kept: Array = field(default_factory=lambda: np.zeros((0, WIDTH), F))
    total: Array = field(default_factory=lambda: np.arange(WIDTH, dtype=F))
    last: Array = field(default_factory=lambda: np.zeros((2, WIDTH), F))
    bias: Array | None = None
    is_fed: bool = False
    #: With an extent: how many rows are read, and what output `y` holds.
    rows: int = ROWS
    frame: Array = field(default_factory=lambda: np.zeros((ROWS, WIDTH), F))

    def copy(self) -> Model:
        return replace(self)

    def run(self, x: Array, bias: Array | None) -> dict[str, Array] | None:
        """The outputs; None if there is no room for the rows."""
        x = x[: self.rows] if self.shape.has_extent else x
        y = x @ self.w
        out: dict[str, Array] = {}
        if self.shape.growing and len(self.kept) + len(x) > self.shape.capacity:
            return None
        if self.shape.has_handle:
            used = next(b for b in (bias, self.bias, np.ones(WIDTH, F)) if b is not None)
            y = y + used
            out["next_bias"] = used + 1
            if self.is_fed:
                self.bias = used + 1
        if self.shape.growing:
            self.kept = np.concatenate([self.kept, y])
        for i in range(len(self.shape.growing)):
            out[f"sum{i}"] = self.kept.sum(0)
        if self.shape.has_total:
            out["before"] = self.total * 2
            self.total = self.total + y.sum(0)
            out["total"] = self.total
        if self.shape.has_last:
            out["lag"] = self.last[0] - self.last[1]
            self.last = self.last[::-1] + y.max(0)
        self.frame = np.concatenate([y, self.frame[len(y) :]])
        out["y"] = self.frame if self.shape.has_extent else y
        return out

    def states(self) -> dict[str, Array]:
        found = {
            f"k{i}": self.kept if axis == 0 else self.kept.T
            for i, axis in enumerate(self.shape.growing)
        }
        if self.shape.has_total:
            found["total"] = self.total
        if self.shape.has_last:
            found["last"] = self.last
        return found


class Sequence:
    """One graph, its forks, and their models; each step does one thing and compares."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.shape = Shape.draw(self.rng)
        compiled = Session().compile(
            build(self.shape),
            dims={"n": (1, ROWS)},
            threads=self.rng.choice((1, 2)),
            extent="n" if self.shape.has_extent else None,
        )
        self.pairs: list[tuple[CompiledGraph, Model]] = [(compiled, Model(self.shape))]
        self.snapshots: list[tuple[Any, Model]] = []
        self.done: list[str] = []

    def step(self) -> None:
        name = self.rng.choice(
            ["run"] * 8
            + ["fork", "truncate", "snapshot", "restore", "set_param", "reset", "copy", "drop"]
            + ["refuse", "commit", "handle", "write", "fetch", "extent", "extent"]
        )
        self.done.append(name)
        compiled, model = self.rng.choice(self.pairs)
        getattr(self, name)(compiled, model)
        self.compare(compiled, model)

    def compare(self, compiled: CompiledGraph, model: Model) -> None:
        for name, wanted in model.states().items():
            np.testing.assert_array_equal(compiled.read_handle(name), wanted, err_msg=self.story)

    @property
    def story(self) -> str:
        return f"{self.shape}\n{' '.join(self.done)}"

    def x(self) -> Array:
        numbers = [self.rng.randrange(-3, 4) for _ in range(self.rng.randint(1, ROWS) * WIDTH)]
        return np.array(numbers, F).reshape(-1, WIDTH)

    def inputs(self, model: Model) -> dict[str, Array]:
        given = {"x": self.x()}
        if self.shape.has_extent:
            behind = np.full((ROWS, WIDTH), np.nan, F)  # nobody reads it
            behind[: model.rows] = np.resize(given["x"], (model.rows, WIDTH))
            given["x"] = behind
        if self.shape.has_handle and self.rng.random() < 0.3:
            given["bias"] = self.x()[0]
        return given

    # ------------------------------------------------------------ what can be done

    def run(self, compiled: CompiledGraph, model: Model) -> None:
        given = self.inputs(model)
        entry = self.rng.choice([e for n, e in ENTRIES.items() if n != "into"])
        wanted = model.copy().run(given["x"], given.get("bias"))
        if wanted is None:
            try:
                entry(compiled, given)
            except StateError:
                return
            raise AssertionError(f"no room, and it ran\n{self.story}")
        model.run(given["x"], given.get("bias"))
        self.check(entry(compiled, given), wanted)

    def check(self, found: Any, wanted: dict[str, Array]) -> None:
        for name in found:
            np.testing.assert_array_equal(found[name], wanted[name], err_msg=f"{name} {self.story}")

    def fetch(self, compiled: CompiledGraph, model: Model) -> None:
        given = self.inputs(model)
        wanted = model.copy().run(given["x"], given.get("bias"))
        if wanted is not None:
            model.run(given["x"], given.get("bias"))
            names = self.rng.sample(list(compiled.outputs)[:-1], self.rng.randint(0, 1))
            if self.shape.has_extent or not names:  # else what `y` holds then is open
                names.append("y")
            self.check(dict(compiled.run(given, fetch=names).items()), wanted)

    def commit(self, compiled: CompiledGraph, model: Model) -> None:
        pending = []
        for _ in range(self.rng.randint(1, 6)):
            given = self.inputs(model)
            wanted = model.copy().run(given["x"], given.get("bias"))
            if wanted is not None:
                model.run(given["x"], given.get("bias"))
                pending.append((compiled.commit_no_wait(given), wanted))
                given["x"][:] = 99
        self.rng.shuffle(pending)
        for ticket, wanted in pending:
            self.check(dict(ticket.result().items()), wanted)

    def extent(self, compiled: CompiledGraph, model: Model) -> None:
        if self.shape.has_extent:
            model.rows = self.rng.randint(1, ROWS)
            compiled.set_active_extent((model.rows, ROWS))

    def refuse(self, compiled: CompiledGraph, model: Model) -> None:
        try:
            compiled.run(x=np.ones((2, WIDTH + 1), F))
        except InputError:
            return
        raise AssertionError(f"took a wrong shape\n{self.story}")

    def fork(self, compiled: CompiledGraph, model: Model) -> None:
        if len(self.pairs) < MOST:
            self.pairs.append((compiled.fork(), model.copy()))

    def drop(self, compiled: CompiledGraph, model: Model) -> None:
        if len(self.pairs) > 1:
            self.pairs = [(c, m) for c, m in self.pairs if c is not compiled]

    def truncate(self, compiled: CompiledGraph, model: Model) -> None:
        if self.shape.growing:
            rows = self.rng.randint(0, len(model.kept))
            compiled.truncate(rows)
            model.kept = model.kept[:rows]

    def snapshot(self, compiled: CompiledGraph, model: Model) -> None:
        self.snapshots.append((compiled.snapshot(), model.copy()))

    def restore(self, compiled: CompiledGraph, model: Model) -> None:
        if self.snapshots:
            snapshot, old = self.rng.choice(self.snapshots)
            compiled.restore(snapshot)
            model.kept, model.total, model.last = old.kept, old.total, old.last

    def reset(self, compiled: CompiledGraph, model: Model) -> None:
        compiled.reset()
        fresh = Model(self.shape)
        model.kept, model.total, model.last = fresh.kept, fresh.total, fresh.last

    def set_param(self, compiled: CompiledGraph, model: Model) -> None:
        numbers = [self.rng.randrange(-2, 3) for _ in range(WIDTH * WIDTH)]
        model.w = np.array(numbers, F).reshape(WIDTH, WIDTH)
        compiled.set_param("w", model.w)

    def copy(self, compiled: CompiledGraph, model: Model) -> None:
        other, theirs = self.rng.choice(self.pairs)
        if other is not compiled:
            compiled.copy_state_from(other)
            model.kept, model.total, model.last = theirs.kept, theirs.total, theirs.last

    def write(self, compiled: CompiledGraph, model: Model) -> None:
        if self.shape.has_total:
            model.total = self.x()[0]
            compiled.bind_handle("total", model.total)

    def handle(self, compiled: CompiledGraph, model: Model) -> None:
        if not self.shape.has_handle:
            return
        what = self.rng.choice(("bind", "feed", "unbind"))
        if what == "bind":
            model.bias = self.x()[0]
            compiled.bind_handle("bias", model.bias)
        elif model.bias is not None and what == "feed":
            compiled.set_gpu_handle_feed("bias", compiled.outputs["next_bias"].index)
            model.is_fed = True
        elif model.bias is not None:
            compiled.unbind("bias")
            model.bias, model.is_fed = None, False
        if model.bias is not None:
            np.testing.assert_array_equal(compiled.read_handle("bias"), model.bias)
