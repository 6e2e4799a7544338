"""LSTM, GRU and RNN: as ONNX defines them, and as ONNX Runtime computes them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.plan.test_loops import codes_of

import semel
from semel import Tensor, Variable
from semel.errors import GraphError, IndexRangeError
from semel.ir.abi import Code
from semel.ir.graph import Graph
from semel.ops.evaluate import evaluate
from semel.plan import ExecutionPlan
from semel.tensor.recurrent import ACTIVATIONS

Array = np.ndarray[Any, Any]
Options = dict[str, Any]

GATES = {"lstm": 4, "gru": 3, "rnn": 1}
STATES = {"lstm": 2, "gru": 1, "rnn": 1}
FUNCTIONS = {"lstm": 3, "gru": 2, "rnn": 1}
DEFAULTS = {"lstm": ["Sigmoid", "Tanh", "Tanh"], "gru": ["Sigmoid", "Tanh"], "rnn": ["Tanh"]}

# ---------------------------------------------------------------- the definition, in float64


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


FORMULAS: dict[str, Callable[[Array, float, float], Array]] = {
    "Sigmoid": lambda x, a, b: _sigmoid(x),
    "Tanh": lambda x, a, b: np.tanh(x),
    "Relu": lambda x, a, b: np.maximum(x, 0),
    "Affine": lambda x, a, b: a * x + b,
    "LeakyRelu": lambda x, a, b: np.where(x >= 0, x, a * x),
    "ThresholdedRelu": lambda x, a, b: np.where(x >= a, x, 0),
    "ScaledTanh": lambda x, a, b: a * np.tanh(b * x),
    "HardSigmoid": lambda x, a, b: np.clip(a * x + b, 0, 1),
    "Elu": lambda x, a, b: np.where(x >= 0, x, a * np.expm1(np.minimum(x, 0))),
    "Softsign": lambda x, a, b: x / (1 + np.abs(x)),
    "Softplus": lambda x, a, b: np.logaddexp(0, x),
}


def _functions(kind: str, options: Options, d: int) -> list[Callable[[Array], Array]]:
    count = FUNCTIONS[kind]
    named: list[Any] = options.get("activations") or DEFAULTS[kind] * 2
    return [_function(item) for item in named[d * count : (d + 1) * count]]


def _function(item: Any) -> Callable[[Array], Array]:
    parts: list[Any] = [item] if isinstance(item, str) else list(item)
    name, numbers = parts[0], parts[1:]
    defaults: Sequence[Any] = ACTIVATIONS[name][1:]
    alpha, beta = (*numbers, *defaults[len(numbers) :])
    return lambda x: FORMULAS[name](x, alpha, beta)


def _cell(
    kind: str, x: Array, states: list[Array], data: dict[str, Array], d: int, options: Options
) -> list[Array]:
    """One step of one direction, line by line from the operator's page."""
    hidden = data["r"].shape[-1]
    clip = options.get("clip")
    f, *rest = _functions(kind, options, d)

    def bound(v: Array) -> Array:
        return v if clip is None else np.clip(v, -clip, clip)

    def part(name: str, k: int, offset: int = 0) -> Array:
        start = (offset + k) * hidden
        return data[name][d][start : start + hidden]

    gates = GATES[kind]
    h = states[0]

    def gate(k: int, state: Array) -> Array:
        return x @ part("w", k).T + state @ part("r", k).T + part("b", k) + part("b", k, gates)

    if kind == "rnn":
        return [f(bound(gate(0, h)))]
    if kind == "gru":
        z, r = f(bound(gate(0, h))), f(bound(gate(1, h)))
        if options.get("linear_before_reset"):
            inner = r * (h @ part("r", 2).T + part("b", 2, gates))
            n = rest[0](bound(x @ part("w", 2).T + inner + part("b", 2)))
        else:
            n = rest[0](bound(gate(2, r * h)))
        return [(1 - z) * n + z * h]
    c = states[1]
    i = f(bound(gate(0, h) + part("p", 0) * c))
    forget = 1 - i if options.get("input_forget") else f(bound(gate(2, h) + part("p", 2) * c))
    after = forget * c + i * rest[0](bound(gate(3, h)))
    o = f(bound(gate(1, h) + part("p", 1) * after))
    return [o * rest[1](after), after]


def reference(kind: str, data: dict[str, Array | None], options: Options) -> list[Array]:
    """Y and the final states, time first."""
    whole = {k: np.asarray(v, np.float64) for k, v in data.items() if v is not None}
    (steps, batch, _), hidden = whole["x"].shape, whole["r"].shape[-1]
    directions = whole["w"].shape[0]
    whole.setdefault("b", np.zeros((directions, 2 * GATES[kind] * hidden)))
    whole.setdefault("p", np.zeros((directions, 3 * hidden)))
    lens = np.full(batch, steps) if data.get("lens") is None else np.asarray(data["lens"])
    y = np.zeros((steps, directions, batch, hidden))
    ends = [np.zeros((directions, batch, hidden)) for _ in range(STATES[kind])]
    for d in range(directions):
        is_back = options.get("direction") == "reverse" or d == 1
        for row in range(batch):
            own = slice(row, row + 1)
            states = [
                whole[n][d, own] if n in whole else np.zeros((1, hidden))
                for n in ("h", "c")[: STATES[kind]]
            ]
            order = range(int(lens[row]))
            for t in reversed(order) if is_back else order:
                states = _cell(kind, whole["x"][t, own], states, whole, d, options)
                y[t, d, row] = states[0][0]
            for end, state in zip(ends, states, strict=True):
                end[d, row] = state[0]
    return [y, *ends]


# ---------------------------------------------------------------- data and options


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, dict[str, Array | None], Options]:
    """A kind of cell with random sizes, operands and options; all that ONNX has."""
    kind = draw(st.sampled_from(sorted(GATES)))
    direction = draw(st.sampled_from(["forward", "reverse", "bidirectional"]))
    directions = 2 if direction == "bidirectional" else 1
    steps, batch = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    size, hidden = draw(st.integers(1, 9)), draw(st.sampled_from([1, 3, 8, 17]))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))

    def make(*shape: int) -> Array:
        return (rng.standard_normal(shape) * 0.6).astype(np.float32)

    def maybe(array: Array) -> Array | None:
        return array if draw(st.booleans()) else None

    gates = GATES[kind]
    data: dict[str, Array | None] = {
        "x": make(steps, batch, size),
        "w": make(directions, gates * hidden, size),
        "r": make(directions, gates * hidden, hidden),
        "b": maybe(make(directions, 2 * gates * hidden)),
        "h": maybe(make(directions, batch, hidden)),
        "lens": maybe(rng.integers(1, steps + 1, batch).astype(np.int32)),
    }
    options: Options = {"direction": direction}
    if kind == "lstm":
        data |= {
            "c": maybe(make(directions, batch, hidden)),
            "p": maybe(make(directions, 3 * hidden)),
        }
        options["input_forget"] = draw(st.booleans())
    if kind == "gru":
        options["linear_before_reset"] = draw(st.booleans())
    if draw(st.booleans()):
        options["clip"] = draw(st.sampled_from([0.3, 1.5]))
    if draw(st.booleans()):
        names = st.sampled_from(sorted(ACTIVATIONS))
        count = FUNCTIONS[kind] * directions
        options["activations"] = [_with_numbers(draw, draw(names)) for _ in range(count)]
    return kind, data, options


#: Which activations have numbers, and how many.
NUMBERS = {"Affine": 2, "ScaledTanh": 2, "HardSigmoid": 2, "LeakyRelu": 1,
           "ThresholdedRelu": 1, "Elu": 1}  # fmt: skip


def _with_numbers(draw: st.DrawFn, name: str) -> Any:
    values = [draw(st.sampled_from([0.2, 0.5, 0.9])) for _ in range(NUMBERS.get(name, 0))]
    return (name, *values) if values else name


def apply(kind: str, x: Tensor, data: dict[str, Array | None], options: Options) -> list[Tensor]:
    extra: Options = {"initial_h": data.get("h"), "sequence_lens": data.get("lens")}
    if kind == "lstm":
        extra |= {"initial_c": data.get("c"), "peepholes": data.get("p")}
    return list(getattr(x, kind)(data["w"], data["r"], data["b"], **extra, **options))


def close(got: Sequence[Array], want: Sequence[Array], tolerance: float = 2e-5) -> None:
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


# ---------------------------------------------------------------- agreement


@settings(max_examples=30, deadline=None, derandomize=True, database=None)
@given(calls())
def test_cells_are_what_onnx_defines(
    call: tuple[str, dict[str, Array | None], Options],
) -> None:
    kind, data, options = call
    x = data["x"]
    assert x is not None
    outputs = apply(kind, Tensor.input("x", x.shape), data, options)
    with np.errstate(all="ignore"):
        wanted = reference(kind, data, options)
    # Activations without bounds may grow from step to step, and with them every rounding.
    assume(all((np.abs(array) < 100).all() for array in wanted))
    close(semel.prepare(outputs, threads=1)(x=x), wanted)
    close(evaluate(Graph(tuple(t.node for t in outputs)), {"x": x}), wanted)


def onnx_runtime(kind: str, data: dict[str, Array | None], options: Options) -> list[Array]:
    onnx = pytest.importorskip("onnx", reason="onnx builds the peer's model")
    ort = pytest.importorskip("onnxruntime", reason="onnxruntime is the peer")
    names = {"x": "x", "w": "w", "r": "r", "b": "b", "lens": "lens", "h": "h", "c": "c", "p": "p"}
    order = list(names)[: 8 if kind == "lstm" else 6]
    given = [n if data.get(n) is not None else "" for n in order]
    outputs = ["y", "y_h", "y_c"][: 1 + STATES[kind]]
    attrs: Options = {"direction": options["direction"], "hidden_size": data["r"].shape[-1]}  # type: ignore[union-attr]
    for name in ("input_forget", "linear_before_reset"):
        if name in options:
            attrs[name] = int(options[name])
    if "clip" in options:
        attrs["clip"] = options["clip"]
    if "activations" in options:
        found = [(i,) if isinstance(i, str) else i for i in options["activations"]]
        attrs["activations"] = [name for name, *_ in found]
        alphas = [n[0] for _, *n in found if n]
        betas = [n[1] for _, *n in found if len(n) > 1]
        attrs |= {"activation_alpha": alphas} if alphas else {}
        attrs |= {"activation_beta": betas} if betas else {}
    kinds = {n: 6 if n == "lens" else 1 for n in order}
    make = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(kind.upper(), given, outputs, **attrs)],
        "cell",
        [make(n, kinds[n], list(data[n].shape)) for n in given if n],  # type: ignore[union-attr]
        [make(n, 1, None) for n in outputs],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 14)])
    model.ir_version = 8
    setup = ort.SessionOptions()
    setup.intra_op_num_threads, setup.log_severity_level = 1, 4
    session = ort.InferenceSession(
        model.SerializeToString(), setup, providers=["CPUExecutionProvider"]
    )
    return list(session.run(None, {n: data[n] for n in given if n}))


# The peer gives NaN for some activations of an LSTM (Relu, Softplus, Elu), where the definition
# that the test above compares with gives numbers: so the usual ones, and always the same calls.
@settings(max_examples=30, deadline=None, derandomize=True, database=None)
@given(calls())
def test_cells_agree_with_onnx_runtime(
    call: tuple[str, dict[str, Array | None], Options],
) -> None:
    kind, data, options = call
    assume("activations" not in options)
    wanted = onnx_runtime(kind, data, options)
    x = data["x"]
    assert x is not None
    plan = semel.prepare(apply(kind, Tensor.input("x", x.shape), data, options), threads=1)
    close(plan(x=x), wanted, 5e-5)


# ---------------------------------------------------------------- sizes, layouts, threads


def operands(kind: str, size: int = 6, hidden: int = 20, directions: int = 1) -> Options:
    rng, gates = np.random.default_rng(5), GATES[kind]
    shapes = {
        "w": (directions, gates * hidden, size),
        "r": (directions, gates * hidden, hidden),
        "b": (directions, 2 * gates * hidden),
    }
    return {n: (rng.standard_normal(s) * 0.4).astype(np.float32) for n, s in shapes.items()}


def sequence(*shape: int) -> Array:
    return np.random.default_rng(9).standard_normal(shape).astype(np.float32)


def symbolic(kind: str, **options: Any) -> ExecutionPlan:
    t, n = Variable("t", 0, 50), Variable("n", 0, 12)
    data = operands(kind, directions=2)
    x = Tensor.input("x", (t, n, 6))
    return semel.prepare(apply(kind, x, data, {"direction": "bidirectional"}), **options)


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("threads", [1, 2])
def test_one_plan_serves_every_number_of_steps_and_rows(kind: str, threads: int) -> None:
    plan = symbolic(kind, threads=threads)
    data, options = operands(kind, directions=2), {"direction": "bidirectional"}
    for steps, rows in ((4, 3), (50, 12), (1, 1), (0, 3), (7, 0), (13, 5)):
        x = sequence(steps, rows, 6)
        close(plan(x=x), reference(kind, {**data, "x": x}, options))
    assert plan.compile_count == 1


@pytest.mark.parametrize("kind", GATES)
def test_threads_and_variables_change_no_bit(kind: str) -> None:
    x, data = sequence(21, 5, 6), operands(kind, directions=2)
    fixed = apply(kind, Tensor.input("x", x.shape), data, {"direction": "bidirectional"})
    wanted = [a.tobytes() for a in semel.prepare(fixed, threads=1)(x=x)]
    for threads in (1, 2):
        assert [a.tobytes() for a in symbolic(kind, threads=threads)(x=x)] == wanted


def test_large_cells_are_shared_and_give_the_same_bits() -> None:
    data, x = operands("lstm", 256, 256), sequence(12, 48, 256)
    outputs = apply("lstm", Tensor.input("x", x.shape), data, {})
    plans = [semel.prepare(outputs, threads=threads) for threads in (1, 2)]
    one, two = (plan(x=x) for plan in plans)
    assert plans[1].num_barriers >= 12
    assert [a.tobytes() for a in one] == [a.tobytes() for a in two]


@pytest.mark.parametrize("kind", GATES)
def test_the_batch_may_come_first(kind: str) -> None:
    data, x = operands(kind, directions=2), sequence(7, 4, 6)
    h, lens = sequence(2, 4, 20), np.array([7, 1, 3, 6])
    options = {"direction": "bidirectional"}
    y, *ends = reference(kind, {**data, "x": x, "h": h, "lens": lens}, options)
    turned = {**data, "h": h.swapaxes(0, 1), "lens": lens}
    batch_first = np.ascontiguousarray(x.swapaxes(0, 1))
    tensors = apply(
        kind, Tensor.input("x", batch_first.shape), turned, {**options, "batch_first": True}
    )
    found = semel.prepare(tensors, threads=1)(x=batch_first)
    close(found, [y.transpose(2, 0, 1, 3), *(e.swapaxes(0, 1) for e in ends)])


def test_rows_of_no_length_keep_their_state_and_give_zeros() -> None:
    data, x = operands("gru"), sequence(5, 3, 6)
    h, lens = sequence(1, 3, 20), np.array([0, 5, 2])
    outputs = apply("gru", Tensor.input("x", x.shape), {**data, "h": h, "lens": lens}, {})
    y, y_h = semel.prepare(outputs, threads=1)(x=x)
    assert not y[:, 0, 0].any() and not y[2:, 0, 2].any()
    np.testing.assert_array_equal(y_h[0, 0], h[0, 0])
    np.testing.assert_array_equal(y_h[0, 2], y[1, 0, 2])


def test_lengths_of_a_narrow_dtype_count_far_enough() -> None:
    data, x = operands("rnn"), sequence(300, 2, 6)
    lens = np.array([3, 127], np.int8)
    outputs = apply("rnn", Tensor.input("x", x.shape), {**data, "lens": lens}, {})
    found = semel.prepare(outputs, threads=1)(x=x)
    close(found, reference("rnn", {**data, "x": x, "lens": lens}, {}))


def test_lengths_weights_and_states_may_be_inputs() -> None:
    t = Variable("t", 1, 20)
    data, x = operands("lstm"), sequence(9, 3, 6)
    tensors = {n: Tensor.input(n, a.shape) for n, a in data.items()}
    c, lens = sequence(1, 3, 20), np.array([2, 9, 4], np.int64)
    outputs = Tensor.input("x", (t, 3, 6)).lstm(
        tensors["w"],
        tensors["r"],
        tensors["b"],
        initial_c=Tensor.input("c", c.shape),
        sequence_lens=Tensor.input("lens", lens.shape, "int64"),
    )
    plan = semel.prepare(list(outputs), threads=1)
    close(plan(x=x, c=c, lens=lens, **data), reference("lstm", {**data, "x": x, "c": c, "lens": lens}, {}))  # fmt: skip  # noqa: E501


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_other_floats_work(dtype: str) -> None:
    data = {n: a.astype(dtype) for n, a in operands("lstm").items()}
    x = sequence(6, 2, 6).astype(dtype)
    outputs = apply("lstm", Tensor.input("x", x.shape, dtype), data, {})
    found = semel.prepare(outputs, threads=1)(x=x)
    assert all(a.dtype == dtype for a in found)
    close(found, reference("lstm", {**data, "x": x}, {}), 1e-10 if dtype == "float64" else 2e-2)


def test_constants_are_computed_too() -> None:
    data, x = operands("rnn"), sequence(6, 2, 6)
    y, y_h = Tensor(x).rnn(**data)
    close([y.numpy(), y_h.numpy()], reference("rnn", {**data, "x": x}, {}))


# ---------------------------------------------------------------- how it runs


def test_a_step_is_a_matmul_and_a_kernel() -> None:
    data = operands("lstm", 32, 64)
    outputs = apply("lstm", Tensor.input("x", (Variable("t", 1, 100), 1, 32)), data, {})
    told = semel.prepare(outputs, threads=1).explain()
    assert [op.kind for op in told.ops if op.times] == ["loop", "kernel", "kernel"]
    # Every product of the input is one matmul before the loop.
    assert [op.name for op in told.ops if not op.times].count("lstm") == 1
    assert sum(any(" matmul " in node for node in op.nodes) for op in told.ops) == 2


def test_weights_of_the_loop_are_packed() -> None:
    data = operands("lstm", 32, 64)
    outputs = apply("lstm", Tensor.input("x", (5, 1, 32)), data, {})
    program = semel.prepare(outputs, threads=1).program
    shapes = [v.type.shape for v in program.values if v.place == "constant"]
    assert sum(len(shape) == 3 for shape in shapes) == 2


def test_ten_thousand_steps_are_one_native_call() -> None:
    data = operands("rnn", 4, 8)
    outputs = apply("rnn", Tensor.input("x", (Variable("t", 1, 10_000), 1, 4)), data, {})
    plan = semel.prepare(outputs, threads=1)
    x = sequence(10_000, 1, 4)
    plan(x=x)
    codes = codes_of(plan)
    start = time.monotonic()
    plan.execute()
    slices = (time.monotonic() - start) / 0.1
    assert codes[-1] == Code.OK and len(codes) <= 2 + slices  # at most once per 100 ms


def test_a_saved_lstm_runs_again(tmp_path: Path) -> None:
    plan, x = symbolic("lstm", threads=1), sequence(8, 3, 6)
    want = plan(x=x)
    plan.save(tmp_path / "lstm.plan")
    with semel.no_recompiles():
        loaded = semel.load_plan(tmp_path / "lstm.plan")
    for steps in (8, 3, 0, 8):
        found = loaded(x=x[:steps])
    assert [a.tobytes() for a in found] == [a.tobytes() for a in want]


def test_a_profile_of_an_lstm_has_a_call_per_step() -> None:
    plan, x = symbolic("lstm", threads=1), sequence(8, 3, 6)
    plan(x=x)
    report = plan.execute_profiled(limits=False)
    inside = [len(p.spans) for p in report if p.kind == "kernel" and len(p.spans) != 1]
    assert inside and set(inside) == {8}


# ---------------------------------------------------------------- refusals

X = Tensor.input("x", (5, 2, 6))
GOOD = operands("lstm")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"direction": "sideways"}, "direction must be one of"),
        ({"w": sequence(1, 80, 7)}, r"w must be float32\[1, 80, 6\]"),
        ({"w": sequence(2, 80, 6)}, r"w must be float32\[1, 80, 6\]"),
        ({"r": sequence(1, 60, 20)}, r"r must be float32\[1, 80, 20\]"),
        ({"r": sequence(80, 20)}, r"r must be \[directions, 4\*hidden, hidden\]"),
        ({"r": GOOD["r"].astype(np.float64)}, "r must be float32"),
        ({"b": sequence(1, 80)}, r"b must be float32\[1, 160\]"),
        ({"initial_h": sequence(1, 3, 20)}, r"initial_h must be float32\[1, 2, 20\]"),
        ({"initial_c": sequence(2, 2, 20)}, r"initial_c must be float32\[1, 2, 20\]"),
        ({"peepholes": sequence(1, 20)}, r"peepholes must be float32\[1, 60\]"),
        ({"sequence_lens": sequence(2)}, "sequence_lens must be integers"),
        ({"sequence_lens": np.array([1, 2, 3])}, "sequence_lens must be integers"),
        ({"activations": ["Tanh"]}, "activations must be 3 per direction"),
        ({"activations": ["Sigmoid", "Tanh", "Cosh"]}, "activations must be names out of"),
        ({"activations": [("Elu", 1, 2, 3), "Tanh", "Tanh"]}, "activations must be names out of"),
        ({"clip": 0.0}, "clip must be > 0"),
    ],
)
def test_what_does_not_fit_is_refused(changed: Options, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        X.lstm(**{**GOOD, **changed})


@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn"])
@pytest.mark.parametrize("lens", [[6, 1], [2, -1], [5, 2**40]])
def test_lengths_past_the_steps_are_refused(kind: str, lens: list[int]) -> None:
    """Where they are written if they are known, else when they are met."""
    data, place = operands(kind), rf"\[{kind}\] sequence length must lie in \[0, 6\), got"
    bad = next(n for n in lens if not 0 <= n <= 5)
    with pytest.raises(IndexRangeError, match=f"{place} {bad}"):
        apply(kind, X, {**data, "lens": np.array(lens)}, {})
    t = Variable("t", 1, 9)
    x, given = Tensor.input("x", (t, 2, 6)), Tensor.input("lens", (2,), "int64")
    plan = semel.prepare(apply(kind, x, data | {"lens": given}, {}), threads=1)
    with pytest.raises(IndexRangeError, match=f"{place} {bad}"):
        plan(x=sequence(5, 2, 6), lens=np.array(lens))
    found = plan(x=sequence(5, 2, 6), lens=np.array([5, 0]))
    close(found, reference(kind, {**data, "x": sequence(5, 2, 6), "lens": np.array([5, 0])}, {}))


@pytest.mark.parametrize("x", [Tensor.input("x", (5, 6)), Tensor.input("x", (5, 2, 6), "int64")])
def test_what_is_no_sequence_of_floats_is_refused(x: Tensor) -> None:
    with pytest.raises(GraphError, match="x must be floats"):
        x.gru(**operands("gru"))
