"""Mistakes of people who know NumPy or PyTorch, and what they are told.

One table, one row per mistake: what is written, the error's kind, and words that its message has.
For all of them: the message leads with the call that was written, or with the input, plan or file
that it is about, and names nothing that only this package knows.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import semel
from semel import (
    GraphError,
    InputError,
    PlanError,
    RecompileError,
    SemelError,
    StaleError,
    StateError,
    Tensor,
    VariableError,
)

F32 = np.float32
X = Tensor(np.arange(6, dtype=F32).reshape(2, 3))
V = Tensor(np.arange(3, dtype=F32))
I = Tensor(np.arange(3))  # noqa: E741
IMAGE = Tensor(np.zeros((1, 3, 8, 8), F32))
N = semel.Variable("n", 1, 8)
M = semel.Variable("m", 1, 8)

#: What only this package knows: names of its ops and records, its files, addresses.
INTERNAL = re.compile(
    r"broadcast_to|\bexpand\b(?!\])|reduce_\w+|\bstretch\b|\bimod\b|\bidiv\b|\bagree:|\biota\b"
    r"|node \d|%\d+|semel/|/src/|0x[0-9a-f]{4,}|NoneType|_node|trace \d|\bapply\b"
)


class Mistake(NamedTuple):
    """`call` is the name that leads the message."""

    make: Callable[[], Any]
    call: str
    kind: type[Exception]
    says: str


def m(call: str, make: Callable[[], Any], says: str, kind: type[Exception] = GraphError) -> Any:
    return Mistake(make, call, kind, says)


def assigned(index: Any, value: Any) -> Tensor:
    t = Tensor(np.zeros((2, 3), F32))
    t[index] = value
    return t


def added_plan() -> Any:
    return (Tensor.input("x", (N,)) + Tensor.input("y", (N,))).prepare()


def counter() -> Any:
    g = semel.Graph("counter")
    delta, total = g.input("delta", (4,)), g.state("total", (4,))
    g.output("sum", total + delta, feeds=total)
    return semel.Session("cpu").compile(g)


def cached() -> Any:
    g = semel.Graph("attend")
    q, cache = g.input("q", ("t", 4)), g.state("keys", (16, 4))
    g.output("y", cache.append(q) * 1)
    return semel.Session("cpu").compile(g, dims={"t": (1, 8)})


def with_param() -> Any:
    return (Tensor.input("x", (3,)) * Tensor.param("w", V.numpy())).prepare()


def ran(plan: Any) -> Any:
    plan(x=np.ones(3, F32), y=np.ones(3, F32))
    return plan


def triangle(**options: bool) -> Tensor:
    return semel.linalg.solve_triangular(np.eye(3, dtype=F32), V, **options)


def at_run(result: Tensor, **inputs: Any) -> Any:
    return result.prepare()(**inputs)


MISTAKES: list[Mistake] = [
    # shapes
    m("add", lambda: X + Tensor(np.zeros((2, 2), F32)), r"broadcast.*\[2,3\].*\[2,2\]"),
    m("floor_divide", lambda: I // Tensor([1, 2]), r"broadcast.*\[3\].*\[2\]"),
    m("remainder", lambda: I % Tensor([1, 2]), r"broadcast.*\[3\].*\[2\]"),
    m("matmul", lambda: X @ X, r"inner dims.*3 and 2.*Did you mean x @ y.mT"),
    m("matmul", lambda: X @ Tensor(1.0), "at least 1 axis"),
    m("where", lambda: semel.where(X > 0, X, Tensor([1.0, 2.0])), r"broadcast.*\[2,3\].*\[2\]"),
    m("reshape", lambda: X.reshape(4, 2), r"6.*\(?4, ?2"),
    m("concat", lambda: semel.concat([X, V]), "rank|axes"),
    m("concat", lambda: semel.concat([X, Tensor(np.zeros((2, 4), F32))]), "3.*4"),
    m("stack", lambda: semel.stack([X, V]), r"f32\[2,3\].*f32\[3\]|\[2,3\].*\[3\]"),
    m("setitem", lambda: assigned(0, np.zeros(2, F32)), r"\[3\].*\[2\]|\[2\].*\[3\]"),
    m("setitem", lambda: assigned((slice(None), 1), np.zeros(5, F32)), r"\[5\]"),
    m("layer_norm", lambda: X.layer_norm(weight=np.ones(2, F32)), r"weight.*3.*2|weight.*2.*3"),
    m("rms_norm", lambda: X.rms_norm(weight=np.ones(2, F32)), r"weight.*3.*2|weight.*2.*3"),
    m("conv2d", lambda: IMAGE.conv2d(np.zeros((4, 2, 3, 3), F32)), "channels"),
    m("einsum", lambda: semel.einsum("ij,jk->ik", X, X), "'?j'?"),
    m("expand", lambda: X.expand(5, 3), r"2.*5"),
    m("squeeze", lambda: X.squeeze(0), "size 1"),
    m("permute", lambda: X.permute(0, 0), "distinct"),
    m("split", lambda: semel.split(X, 2, axis=1), "3|equal"),
    m(
        "scaled_dot_product_attention",
        lambda: X.scaled_dot_product_attention(X, Tensor(np.zeros((5, 3), F32))),
        "2.*5|5.*2",
    ),
    m("cross_entropy", lambda: X.cross_entropy([0, 1, 2]), "2|3"),
    m("linear", lambda: X.linear(np.zeros((4, 5), F32)), "3 and 5|3.*5"),
    m("tile", lambda: X.tile(-1), "-1"),
    m("where", lambda: X.where(X > 0, 0.0), r"semel\.where\(mask, x, other\)"),
    m("pow", lambda: I**-1, r"i64\[3\] \*\* -1.*x\.float\(\) \*\* -1"),
    m("pow", lambda: semel.pow(2, I) ** np.int64(-2), r"\*\* -2"),
    # axes and indices
    m("sum", lambda: X.sum(2), r"\[-2, 2\), got axis=2"),
    m("mean", lambda: semel.mean(X, axis=-3), r"\[-2, 2\), got axis=-3"),
    m("softmax", lambda: X.softmax(5), "axis=5"),
    m("argmax", lambda: X.argmax(axis=2), "axis=2"),
    m("sort", lambda: X.sort(3), "axis=3"),
    m("cumsum", lambda: X.cumsum(2), "axis=2"),
    m("sum", lambda: X.sum("rows"), "axis must be an int, got 'rows'"),  # type: ignore[arg-type]
    m("getitem", lambda: X[5], r"index.*5|5"),
    m("getitem", lambda: X[0, 1, 2], "2 axes|3 indices|too many"),
    m("getitem", lambda: X["a"], "'a'"),
    m("getitem", lambda: X[1.5], "1.5"),
    m("take", lambda: X.take([0.5], 0), "integer"),
    m("topk", lambda: V.topk(5), "5"),
    m("max", lambda: Tensor(np.zeros((0, 3), F32)).max(0), "0|empty"),
    # dtypes
    m("bitwise_and", lambda: X & X, "integer"),
    m("bitwise_left_shift", lambda: X << 1, "integer"),
    m("bitwise_not", lambda: ~X, "integer"),
    m("astype", lambda: X.astype("flaot32"), "dtype must be one of.*'flaot32'"),
    m("Tensor", lambda: Tensor([1, 2], dtype="complex64"), "complex64"),
    m("rand", lambda: semel.rand(3, dtype="int32"), "float"),
    m("to", lambda: X.to(np.float32), r"takes a device.*x\.astype\(dtype\)"),
    m("bitwise_count", lambda: semel.bitwise_count(X), r"integers, got f32\[2,3\]"),
    # arguments that other libraries have
    m("pad", lambda: X.pad(1, mode="mean"), "one of constant, edge, .*'mean'"),
    m("pad", lambda: X.pad(1, constant_values=(1, 2)), "one number"),
    m("pad", lambda: Tensor(np.zeros((0, 2), F32)).pad(1, mode="edge"), "nothing to repeat.*0"),
    m("var", lambda: X.var(unbiased=True, correction=1), "give one, not both"),
    m("div", lambda: X.div(2, rounding_mode="ceil"), "floor, trunc or None, got 'ceil'"),
    m("max", lambda: X.max(where=X > 0), "initial="),
    m("sum", lambda: X.sum(where=X), r"where must be bool, got f32\[2,3\]"),
    m("mean", lambda: X.mean(where=Tensor([True, False])), r"\[2\].*\[2,3\]"),
    m("take", lambda: X.take([0], mode="nearest"), "raise, wrap or clip, got 'nearest'"),
    m("argsort", lambda: X.argsort(kind="bubble"), "'bubble'"),
    m("where", lambda: semel.where(X > 0, X), "both"),  # type: ignore[call-overload]
    m("one_hot", lambda: I.one_hot(), r"number of classes.*one_hot\(num_classes\)"),  # noqa: PLW0108
    m("layer_norm", lambda: X.layer_norm((4,), V, V), r"last dims of f32\[2,3\], got \[4\]"),
    m("layer_norm", lambda: X.layer_norm((3,), V, V, 1e-5, 0), "1 more"),
    m("cov", lambda: semel.cov(X, fweights=[1, 2]), r"weights must have shape \[3\]"),
    m("interp", lambda: semel.interp(V, V, V, period=0), "period must not be 0"),
    m("solve_triangular", lambda: triangle(lower=True, upper=True), "got both"),
    m("block_diag", lambda: semel.block_diag(IMAGE), r"matrices, got \['f32\[1,3,8,8\]'\]"),
    m("combinations", lambda: semel.combinations(X), r"one axis, got f32\[2,3\]"),
    m("vander", lambda: semel.vander(X), r"one axis, got f32\[2,3\]"),
    # values that are none
    m("Tensor", lambda: Tensor("text"), "numbers"),
    m("Tensor", lambda: Tensor(None), "numbers|None"),
    m("Tensor", lambda: Tensor([[1, 2], [3]]), "nested lists of one shape"),
    m("Tensor", lambda: Tensor({"a": 1}), "numbers|dict"),
    m("add", lambda: X + None, "None"),  # type: ignore[operator]
    m("mul", lambda: X * "2", "numbers, got .*2"),
    m("matmul", lambda: X @ [[1, 2], [3]], "nested lists of one shape"),
    m("concat", lambda: semel.concat(X, X), "axis must be an int"),  # type: ignore[arg-type]
    m("zeros", lambda: semel.zeros("3"), "dims must be ints or Variables, got '3'"),  # type: ignore[arg-type]
    m("full", lambda: semel.full((2, -1), 0), ">= 0"),
    m("item", lambda: X.item(), "one element"),  # noqa: PLW0108
    m("bool", lambda: bool(X), "one element.*any"),
    m("Variable", lambda: semel.Variable("n", 5, 2), "min <= max"),
    m("input", lambda: Tensor.input("", (2,)), "non-empty"),
    m("numpy", lambda: Tensor.input("x", (2,)).numpy(), "input 'x'.*[Pp]repare"),
    m("prepare", lambda: semel.prepare([1, 2]), "Tensors, got int"),  # type: ignore[list-item]
    # plans
    m("plan", lambda: added_plan()(x=np.ones(3, F32)), "'?y'?", InputError),
    m(
        "plan",
        lambda: added_plan()(x=np.ones(3, F32), yy=np.ones(3, F32)),
        "unknown yy. Did you mean 'y'",
        InputError,
    ),
    m(
        "input 'y' axis 0",
        lambda: added_plan()(x=np.ones(3, F32), y=np.ones(4, F32)),
        "n=4, but input 'x' axis 0 gives n=3",
        InputError,
    ),
    m(
        "input 'x' axis 0",
        lambda: added_plan()(x=np.ones(9, F32), y=np.ones(9, F32)),
        r"n=9, which must lie in \[1, 8\]",
        InputError,
    ),
    m(
        "input 'x'",
        lambda: added_plan()(x=np.ones(3), y=np.ones(3, F32)),
        "float32.*float64",
        InputError,
    ),
    m(
        "input 'x'",
        lambda: added_plan()(x=np.ones((3, 1), F32), y=np.ones(3, F32)),
        "shape|rank|axes",
        InputError,
    ),
    m("input 'x'", lambda: added_plan()(x=None, y=np.ones(3, F32)), "None", InputError),
    m(
        "buffer",
        lambda: added_plan().buffer("xx"),
        r"an output, output0, x, y, got 'xx'",
        PlanError,
    ),
    m("plan", lambda: added_plan()(V, V), r"plan\(x=\.\.\., y=\.\.\.\)", InputError),
    m("plan", lambda: added_plan().execute_with_vars(k=3), "'k'.*n", VariableError),
    m(
        "plan",
        lambda: added_plan().execute_with_vars(3),
        "variables must be a mapping.*3",
        VariableError,
    ),
    m("output", lambda: added_plan().output_buffer.numpy(), "execute|run", StaleError),  # noqa: PLW0108
    m(
        "plan",
        lambda: with_param().set_param("v", np.ones(3, F32)),
        "no param 'v'; known: w",
        InputError,
    ),
    m("set_param", lambda: with_param().set_param([], np.ones(3, F32)), "name must be", PlanError),
    m(
        "param 'w'",
        lambda: with_param().set_param("w", np.ones(4, F32)),
        r"\(3,\), got \(4,\)",
        InputError,
    ),
    m("plan", lambda: added_plan().bind_input("z", np.ones(3, F32)), "'z'.*x", InputError),
    m("load_plan", lambda: semel.load_plan("/nowhere/file.plan"), "file.plan", SemelError),
    m("/nowhere/model.onnx", lambda: semel.load("/nowhere/model.onnx"), "readable", SemelError),
    m("prepare", lambda: X.sum().prepare(device="gpu"), "gpu", SemelError),
    m("prepare", lambda: X.sum().prepare(threads=0), "threads", SemelError),
    # sizes of a run
    m(
        "add",
        lambda: at_run(
            Tensor.input("x", (N,)) + Tensor.input("y", (M,)), x=np.ones(2, F32), y=np.ones(3, F32)
        ),
        "2.*3|3.*2",
        VariableError,
    ),
    m(
        "reshape",
        lambda: at_run(Tensor.input("x", (N,)).reshape(-1, 4), x=np.ones(6, F32)),
        "6",
        VariableError,
    ),
    m(
        "matmul",
        lambda: at_run(
            Tensor.input("x", (2, N)) @ Tensor.input("y", (M, 2)),
            x=np.ones((2, 2), F32),
            y=np.ones((3, 2), F32),
        ),
        "2.*3|3.*2",
        VariableError,
    ),
    # graphs, sessions, states
    m("run", lambda: counter().run({"delat": np.ones(4, F32)}), "delat.*delta", InputError),
    m("input 'delta'", lambda: counter().run([1, 2]), r"f32\[4\].*got \(2,\)", InputError),
    m("handle", lambda: counter().read_handle("totl"), "state .total.*got 'totl'", SemelError),
    m("truncate", lambda: cached().states.truncate(0, []), r"\[\]|name", SemelError),
    m("truncate", lambda: cached().states.truncate(5), "0.*5|5.*0|5", StateError),
    m("output", lambda: semel.Graph("g").output(3, X), "name", GraphError),  # type: ignore[arg-type]
    m("compile", lambda: semel.Session("cpu").compile(X), "Graph.*Tensor", SemelError),  # type: ignore[arg-type]
    m("Session", lambda: semel.Session("gpu"), "gpu", SemelError),
    # functions
    m(
        "<lambda>",
        lambda: semel.jit(max_forms=0)(lambda x: x)(V),
        "max_forms=0: it was never called",
        RecompileError,
    ),
    m("jit", lambda: semel.jit(3), "function", GraphError),  # type: ignore[call-overload]
    m("bool", lambda: semel.jit(lambda x: x if x.sum() > 0 else -x)(V), "semel.where", GraphError),
    m(
        "while_loop",
        lambda: semel.while_loop(lambda v: v.sum() > 0, lambda v: v[0], V, max_trips=3),
        "shape|f32",
        GraphError,
    ),
    m("rand", lambda: semel.rand(3, key=5), "key must be", GraphError),
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.call)
def test_a_mistake_is_told_in_the_words_of_the_caller(mistake: Mistake) -> None:
    with pytest.raises(mistake.kind, match=mistake.says) as caught:
        mistake.make()
    text = str(caught.value)
    assert text.startswith(f"[{mistake.call}] "), text
    said = re.sub(r" \(\S+:\d+\)", "", text)  # the caller's own line may be named
    leaked = INTERNAL.search(said)
    assert leaked is None, text


def test_there_are_many() -> None:
    assert len(MISTAKES) >= 90


def test_the_name_that_was_written_is_the_one_that_is_told() -> None:
    for written, call in (
        ("amax", lambda: X.amax(7)),
        ("cat", lambda: semel.cat([])),
        ("var", lambda: X.var(4)),
        (
            "softmax",
            lambda: X.softmax(
                9,
            ),
        ),
    ):
        with pytest.raises(GraphError, match=rf"^\[{written}\]"):
            call()
    names: dict[str, Any] = {}
    exec("def unseen(x): return x.amax(7)", names)  # no source: the function's own name
    with pytest.raises(GraphError, match=r"^\[max\]"):
        names["unseen"](X)
