"""What is no argument of a member is refused by an error of ours, whatever it is."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import semel
from semel import BucketedCompileCache, CompiledGraph, Graph, Session
from semel.plan.plan import ExecutionPlan
from semel.plan.states import PlanStates
from semel.session.pipeline import RunTicket

X, EYE = np.ones((2, 4), np.float32), np.eye(4, dtype=np.float32)
B = np.ones(4, np.float32)

#: What somebody may give by mistake, in the place of anything.
WRONG: tuple[Any, ...] = (
    *(None, True, 5, -1, 2.5, float("nan"), 1 << 80, "x", "", b"", "\0"),
    *([], (), {}, [5], {5: 1}, {"x": object()}, [object()], set(), object()),
)


def graph() -> Graph:
    g = Graph("g")
    x, b = g.input("x", ("n", 4)), g.input("b", (4,), default=B)
    log, last = g.state("log", (64, 4)), g.state("last", (4,))
    g.output("y", x @ g.param("w", EYE) + b)
    g.output("total", log.append(x).sum(0) + last)
    last.replace(b + 1)
    return g


@cache
def original() -> CompiledGraph:
    """What all others are clones of."""
    made = Session().compile(graph(), dims={"n": (1, 4)}, keep_params=True, threads=1)
    made.run(X)
    return made


def buckets() -> BucketedCompileCache:
    def build(upper: int) -> Graph:
        g = Graph("rows")
        g.output("y", g.input("x", ("n", 4)) @ g.param("w", EYE) + g.input("b", (4,)))
        return g

    return BucketedCompileCache(build, [range(1, 5)], dim="n", threads=1)


#: How to come by an object of each kind.
KINDS: dict[type, Callable[[], Any]] = {
    CompiledGraph: lambda: original().clone(),
    ExecutionPlan: lambda: original().plan.clone(threads=1),
    PlanStates: lambda: original().plan.clone().states,
    RunTicket: lambda: original().clone().commit_no_wait(X),
    BucketedCompileCache: buckets,
    Session: Session,
}


@cache
def right_arguments() -> dict[str, tuple[Any, ...]]:
    """What is right, for members that look at one argument after the other."""
    return {
        "bind_gpu_handle": ("b", B),
        "bind_handle": ("b", B),
        "bind_handles": ({"b": B},),
        "bind_input": ("b", B),
        "bind_output": ("total", B),
        "bucket": (2,),
        "compile": (graph(),),
        "copy_rows_from": (original().plan.states, 1),
        "copy_state_from": (original(), 1),
        "load_params": ({"w": EYE},),
        "read": ("log", 0),
        "read_gpu_handle": ("log", 0),
        "read_handle": ("log", 0),
        "reset": ("log",),
        "restore": (original().snapshot(),),
        "run_feed_gpu_handle": ({"x": X}, "b", 1),
        "run_padded": (2, {"x": X, "b": B}),
        "run_padded_mixed": (2, {"x": X}, {"b": B}),
        "run_pipelined": ([X],),
        "run_slots": ([X, B],),
        "run_typed": ({"x": (X.tobytes(), "float32")},),
        "save": ("some.plan",),
        "set_active_extent": ((2, 4),),
        "set_extent": ("n", 2),
        "set_gpu_handle_feed": ("b", 1),
        "set_param": ("w", EYE),
        "set_param_typed": ("w", EYE.tobytes(), "float32"),
        "set_params": ({"w": EYE},),
        "stream": ([X],),
        "truncate": (1, "cursor"),
        "write": ({"last": B},),
    }


ARRAYS = {"run", "run_raw", "__call__", "commit_no_wait"}  #: take arrays by position


def members() -> Iterator[tuple[type, str]]:
    """All that can be called with something, but what is for the package alone."""
    for kind in KINDS:
        for name in dir(kind):
            member = getattr(kind, name)
            if name != "__call__" and (name.startswith("_") or not inspect.isfunction(member)):
                continue
            if len(inspect.signature(member).parameters) > 1:
                text = " ".join((member.__doc__ or "").split())
                if "For the package's own use" not in text:
                    yield kind, name


def calls(kind: type, name: str) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """Arguments of which one is wrong, and then all."""
    parameters = list(inspect.signature(getattr(kind, name)).parameters.values())[1:]
    by_position = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in by_position if p.default is p.empty]
    has_arrays = kind is CompiledGraph and name in ARRAYS
    right = [X, B] if has_arrays else list(right_arguments().get(name, ["x"] * len(required)))
    for wrong in WRONG:
        for i in range(max(len(by_position), len(right))):
            args = [*right, *[None] * (i - len(right)), wrong][: max(len(right), i + 1)]
            args[i] = wrong
            yield args, {}
        for each in parameters:
            if each.kind == each.KEYWORD_ONLY:
                yield right, {each.name: wrong}
        yield [wrong] * len(required), {}


@pytest.mark.parametrize(
    ("kind", "name"), list(members()), ids=[f"{k.__name__}.{n}" for k, n in members()]
)
@pytest.mark.filterwarnings("ignore")
def test_only_errors_of_ours(
    kind: type, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for args, named in calls(kind, name):
        asked = KINDS[kind]()
        try:
            found = getattr(asked, name)(*args, **named)
            if hasattr(found, "__enter__"):
                with found:
                    pass
            elif inspect.isgenerator(found):
                list(found)
        except semel.SemelError:
            pass
        except BaseException as error:
            raise AssertionError(f"{name}(*{args!r:.200}, **{named!r}): {error!r}") from error


def test_sets_of_inputs_that_are_none() -> None:
    with pytest.raises(semel.InputError, match=r"must be given sets of inputs, got int"):
        original().run_pipelined(5)  # type: ignore[arg-type]
    with pytest.raises(semel.InputError, match=r"must be given sets of inputs, got NoneType"):
        original().stream(None)  # type: ignore[arg-type]
