"""Random binds, feeds, runs and clones, against dictionaries of arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.session.entries import ENTRIES

from semel import CompiledGraph, Graph, IndexRangeError, Session

F = np.float32
INPUTS, OUTPUTS = ("a", "b", "c"), ("sum", "twice", "same", "a")
DEFAULT = {"c": np.full(2, 7, F)}
Arrays = dict[str, Any]


def _compile(rows: int | str) -> CompiledGraph:
    """Outputs that are one value, an input, or named like an input; a bad `i` fails."""
    g = Graph("mixed")
    is_fixed = isinstance(rows, int)
    a, b = g.input("a", (rows,)), g.input("b", (rows,))
    c = g.input("c", (2,), default=DEFAULT["c"])
    i = g.input("i", (1,), "int64")
    total = a * 0.5 + b + g.constant(np.arange(4, dtype=F)).take(i, 0)
    g.output("sum", total)
    g.output("twice", total)
    g.output("same", b)
    g.output("a", a - 1)
    g.output("rest", c.sum().reshape(1))
    return Session().compile(g, dims={} if is_fixed else {"n": (1, 4)})


def _model(values: Arrays, i: int) -> Arrays:
    total = values["a"] * F(0.5) + values["b"] + F(i)
    rest = np.array([values["c"].sum()], F)
    return {
        "sum": total,
        "twice": total,
        "same": values["b"],
        "a": values["a"] - 1,
        "rest": rest,
    }


class World:
    """One compiled graph, and what its handles and feeds should be."""

    def __init__(self, compiled: CompiledGraph, handles: Arrays, feeds: dict[str, str]) -> None:
        self.compiled, self.handles, self.feeds = compiled, dict(handles), dict(feeds)

    def bind(self, values: Arrays) -> None:
        self.compiled.bind_handles(values)
        self.handles |= values

    def feed(self, name: str, output: str) -> None:
        self.compiled.set_gpu_handle_feed(name, OUTPUTS.index(output))
        self.feeds[name] = output

    def unbind(self, name: str) -> None:
        self.compiled.unbind(name)
        del self.handles[name]
        self.feeds.pop(name, None)

    def run(self, how: str, given: Arrays, i: int, once: dict[str, str]) -> None:
        """`once` is a feed for this run; with a bad index, nothing happens."""
        inputs = {**given, "i": np.array([i])}
        wanted = _model({**DEFAULT, **self.handles, **given}, i)
        if i > 3:
            with pytest.raises(IndexRangeError, match=str(i)):
                self._run(how, inputs, once)
            return
        found = self._run(how, inputs, once)
        for name, array in found.items():
            np.testing.assert_array_equal(array, wanted[name], err_msg=name)
        self.handles |= {name: wanted[o] for name, o in {**self.feeds, **once}.items()}

    def _run(self, how: str, inputs: Arrays, once: dict[str, str]) -> Arrays:
        for name, output in once.items():
            at = OUTPUTS.index(output)
            return {output: self.compiled.run_feed_gpu_handle(inputs, name, at)}
        if how == "fetch":
            return dict(self.compiled.run(inputs, fetch=["twice"]).items())
        if how == "alias":
            out = {"sum": inputs["a"]} if "a" in inputs else {}
            return dict(self.compiled.run(inputs, out=out).items())
        return ENTRIES[how](self.compiled, inputs)

    def check(self) -> None:
        assert self.compiled.handles().keys() == self.handles.keys()
        for name, array in self.handles.items():
            np.testing.assert_array_equal(self.compiled.read_handle(name), array, err_msg=name)
            assert self.compiled.handles()[name].feed == self.feeds.get(name)


def _step(world: World, rng: np.random.Generator, rows: list[int]) -> World | None:
    """One random thing; another world if it was cloned."""
    what = rng.choice(["bind", "feed", "unbind", "clone", "run", "run", "run", "run"])
    bound = [name for name in ("a", "b") if name in world.handles]
    n = len(world.handles[bound[0]]) if bound else int(rng.choice(rows))
    made = {name: rng.integers(-8, 8, n).astype(F) for name in ("a", "b")}
    made["c"] = rng.integers(-8, 8, 2).astype(F)
    if what == "bind":
        size = int(rng.choice(rows))
        both = {name: rng.integers(-8, 8, size).astype(F) for name in ("a", "b")}
        world.bind(both if rng.random() < 0.5 else {"c": made["c"]})
    elif what == "feed" and bound:
        world.feed(str(rng.choice(bound)), str(rng.choice(OUTPUTS)))
    elif what == "unbind" and world.handles:
        world.unbind(str(rng.choice(sorted(world.handles))))
    elif what == "clone":
        return World(world.compiled.clone(), world.handles, world.feeds)
    elif what == "run":
        missing = [name for name in ("a", "b") if name not in world.handles]
        more = [name for name in INPUTS if rng.random() < 0.25]
        given = {name: made[name] for name in {*missing, *more}}
        how = str(rng.choice([*ENTRIES, "fetch", "alias"]))
        once = {str(rng.choice(bound)): "sum"} if bound and rng.random() < 0.2 else {}
        i = 9 if rng.random() < 0.2 else int(rng.integers(4))
        world.run(how, given, i, once)
    return None


@pytest.mark.parametrize("rows", [3, "n"])
@pytest.mark.parametrize("seed", range(6))
def test_handles_are_what_dictionaries_would_be(rows: int | str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    worlds = [World(_compile(rows), {}, {})]
    for _ in range(120):
        at = int(rng.integers(len(worlds)))
        made = _step(worlds[at], rng, [3] if rows == 3 else [1, 2, 4])
        if made is not None:
            worlds = [*worlds, made][-3:]
        for world in worlds:
            world.check()
