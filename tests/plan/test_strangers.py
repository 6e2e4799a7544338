"""`load_plan(trust=False)`: files that were forged, bombs, and files that were not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.plan.forge import Change, forged

import semel
from semel import Tensor, Variable
from semel.compiler.artefacts import loaded_kernels
from semel.compiler.programs import forget_programs
from semel.errors import GraphError, IndexRangeError, PlanError, PlanFileError, VariableError
from semel.ir.encode import DimReader
from semel.kernel.encode import decode_kernel
from semel.plan.file.read import _check_value
from semel.plan.program import PlanVariable


def saved(tmp_path: Path, outputs: Any) -> bytes:
    path = tmp_path / "a.plan"
    semel.prepare(outputs, threads=1).save(path)
    return path.read_bytes()


@pytest.fixture
def fixed(tmp_path: Path) -> bytes:
    """y = 2*x of 64 floats."""
    return saved(tmp_path, {"y": Tensor.input("x", (64,), "float32") * 2})


@pytest.fixture
def symbolic(tmp_path: Path) -> bytes:
    """y = x.sum(1) of [n, 8]."""
    return saved(tmp_path, {"y": Tensor.input("x", (Variable("n", 1, 16), 8), "float32").sum(1)})


def load(data: bytes, tmp_path: Path, **options: Any) -> semel.ExecutionPlan:
    path = tmp_path / "forged.plan"
    path.write_bytes(data)
    return semel.load_plan(path, trust=False, **options)


def walk(node: Any) -> Any:
    """Every list of a form, outer ones first."""
    if isinstance(node, dict):
        node = list(node.values())
    if isinstance(node, list):
        yield node
        for inner in node:
            yield from walk(inner)


def stores(form: Any) -> list[list[Any]]:
    return [s for s in walk(form["body"]) if s[:1] == ["store"]]


def loops(form: Any) -> list[list[Any]]:
    return [s for s in walk(form["body"]) if s[:1] == ["loop"]]


def new_dim(form: Any, *entry: Any) -> list[int]:
    form["dims"].append(list(entry))
    return [len(form["dims"]) - 1]


# ---------------------------------------------------------------- what is legal


def test_what_nobody_forged_runs(fixed: bytes, tmp_path: Path) -> None:
    x = np.arange(64, dtype=np.float32)
    np.testing.assert_array_equal(load(forged(fixed), tmp_path)(x=x), 2 * x)


def test_indices_from_memory_and_masks_run(tmp_path: Path) -> None:
    n = Variable("n", 1, None)
    x, i = Tensor.input("x", (n, 5), "float32"), Tensor.input("i", (n,), "int64")
    out = semel.softmax(x.sort(axis=1), axis=1)[i] + semel.pad(x, ((0, 0), (1, 0)))[:, :5]
    path = tmp_path / "a.plan"
    trusted = semel.prepare({"y": out}, threads=1)
    trusted.save(path)
    plan = semel.load_plan(path, trust=False)
    for rows in (3, 200):
        data = np.random.default_rng(rows).normal(size=(rows, 5)).astype(np.float32)
        order = np.arange(rows)[::-1].copy()
        np.testing.assert_array_equal(plan(x=data, i=order), trusted(x=data, i=order))


def test_a_variable_without_maximum_has_one_here(tmp_path: Path) -> None:
    n = Variable("n", 1, None)
    plan = load(saved(tmp_path, {"y": Tensor.input("x", (n,), "int8") + 1}), tmp_path)
    with pytest.raises(VariableError, match="'n' has no maximum and must stay below 16777216"):
        plan.execute_with_vars(n=1 << 25)


# ---------------------------------------------------------------- kernels


def store_past_the_end(form: Any) -> None:
    for store in stores(form):
        store[2] = new_dim(form, "sum", [1, store[2]], [1 << 20])


def store_by_remainder(form: Any) -> None:
    for store in stores(form):
        wide = new_dim(form, "sum", [4, store[2]])
        store[2] = new_dim(form, "mod", wide, 200)


def loop_too_far(form: Any) -> None:
    for loop in loops(form):
        loop[3] = 1 << 30


def odd_lanes(form: Any) -> None:
    for loop in loops(form):
        loop[4] = 3


def code_in_a_name(form: Any) -> None:
    for dim in form["dims"]:
        if dim[0] == "index":
            dim[1] = "x = add i64 0, 0\n call void @abort()\n %y"


def larger_buffers(form: Any) -> None:
    for memory in form["memory"]:
        memory[2] = 1 << 20


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (store_past_the_end, r"must stay inside its buffers: .*store to|must be well formed"),
        (store_by_remainder, r"store to '.*': index .* must be inside \[0, 64\)"),
        (loop_too_far, r"past its extent|must be inside"),
        (odd_lanes, "lanes must be a power of 2, got 3"),
        (code_in_a_name, "a name must be a short identifier"),
    ],
)
def test_a_forged_kernel_is_refused(
    fixed: bytes, tmp_path: Path, change: Change, message: str
) -> None:
    with pytest.raises(PlanFileError, match=message):
        load(forged(fixed, kernel=change), tmp_path)


def test_buffers_smaller_than_the_kernel_says_are_refused(fixed: bytes, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"must hold 1048576 x float32 of"):
        load(forged(fixed, kernel=larger_buffers), tmp_path)


def test_a_forged_symbolic_kernel_fails_its_run(symbolic: bytes, tmp_path: Path) -> None:
    def spread(form: Any) -> None:
        for store in stores(form):
            store[2] = new_dim(form, "sum", [2, store[2]])

    plan = load(forged(symbolic, kernel=spread), tmp_path)  # of one row it would be right
    with pytest.raises(IndexRangeError, match=r"index into '.*' must lie in \[0, 8\), got"):
        plan(x=np.ones((8, 8), np.float32))


def test_a_symbolic_kernel_that_fails_at_every_size_is_refused(
    symbolic: bytes, tmp_path: Path
) -> None:
    def shift(form: Any) -> None:
        for store in stores(form):
            store[2] = new_dim(form, "sum", [1, store[2]], [12])

    with pytest.raises(PlanFileError, match=r"store to '.*': index .* is outside \[0, n\)"):
        load(forged(symbolic, kernel=shift), tmp_path)


# ---------------------------------------------------------------- the plan around them


def wider_variable(record: Any) -> None:
    number = len(record["dims"])
    record["dims"].append(["variable", "n", 1, 4000])
    for row in record["program"]["rows"]:
        row["variables"] = [[number]]
    record["program"]["variables"] = [[[number], None, None, None]]


def test_a_variable_outside_the_kernels_range_is_refused(symbolic: bytes, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"'n' must lie in the kernel's \[1, 16\], got \[1, 4000\]"):
        load(forged(symbolic, wider_variable), tmp_path)


def test_a_kernel_of_fixed_sizes_may_not_get_another_range(tmp_path: Path) -> None:
    """The sizes say nothing of `n`, so only the range of the variable can refuse it."""
    n = Variable("n", 1, 16)
    x = Tensor.input("x", (16,), "float32")
    data = saved(tmp_path, {"y": x + semel.arange(16).cast("float32") * n})

    def widen(record: Any) -> None:
        for dim in record["dims"]:
            if dim[:2] == ["variable", "n"]:
                dim[3] = 1 << 40

    with pytest.raises(PlanError, match=r"'n' must lie in the kernel's \[1, 16\], got"):
        load(forged(data, widen), tmp_path)


def test_a_buffer_used_outside_its_lifetime_is_refused(tmp_path: Path) -> None:
    x = Tensor.input("x", (64, 64), "float32")
    data = saved(tmp_path, {"y": (x @ x).sort(axis=0) @ x})

    def early(record: Any) -> None:
        for value in record["program"]["values"]:
            if value["place"] == "arena":
                value["life"] = [0, 0]

    with pytest.raises(PlanError, match="which must live then, and lives from op 0 to 0"):
        load(forged(data, early), tmp_path)


def test_buffers_must_grow_with_their_kernels(tmp_path: Path) -> None:
    """At the first capacity of 64, [n] of 64*8 and [8, n] look alike; at 100 they do not."""
    n = Variable("n", 1, None)
    data = saved(tmp_path, {"y": Tensor.input("x", (8, n), "float32") * 2})

    def freeze(record: Any) -> None:
        for value in record["program"]["values"]:
            value["type"] = [value["type"][0], 8, 64]

    with pytest.raises(PlanError, match="must always hold 8\\*n elements"):
        load(forged(data, freeze), tmp_path)


def triangular(tmp_path: Path) -> bytes:
    """For i < 4, for j < i: h + x[j]; the kernel inside takes j in [0, 3]."""
    x = Tensor.input("x", (4,), "float32")

    def body(i: Any, h: Any) -> Any:
        (inner,), _ = Tensor.loop(4, [h[0]], lambda j, g: ([g[0] + x[j]], []))
        return [inner], []

    (total,), _ = Tensor.loop(4, [Tensor(0.0)], body)
    return saved(tmp_path, {"y": total})


def inner_loop(record: Any) -> tuple[Any, Any]:
    """The two loops of a program, the outer one first."""
    (outer,) = (row for row in record["program"]["rows"] if row["kind"] == "loop")
    (inner,) = (row for row in outer["body"] if row["kind"] == "loop")
    return outer, inner


@pytest.mark.parametrize(("trip", "top"), [(4000, 3), (None, 1)])
def test_what_a_trip_says_of_a_counter_is_not_believed(
    trip: int | None, top: int, tmp_path: Path
) -> None:
    """The inner loop runs as often as the outer counter says, which is said to be small."""

    def change(record: Any) -> None:
        outer, inner = inner_loop(record)
        dims = record["dims"]
        dims.append(["variable", outer["counter"], 0, top])
        dims.append(["sum", [-(1 << 60), [len(dims) - 1]], [3]])  # at most 3, and wraps to more
        inner["trip"] = [len(dims) - (1 if trip is None else 2)]
        outer["trip"] = 100 if trip is None else trip

    with pytest.raises(PlanError, match=r"must lie in the kernel's \[0, 3\]|must stay within"):
        load(forged(triangular(tmp_path), change), tmp_path)


def test_a_copy_has_one_size_however_far_it_grows(tmp_path: Path) -> None:
    n, m = Variable("n", 1), Variable("m", 1)
    x, y = Tensor.input("x", (n,), "float32"), Tensor.input("y", (m,), "float32")
    data = saved(tmp_path, {"a": x + 1, "b": y + 1})

    def change(record: Any) -> None:
        program = record["program"]
        a, b = (output[1] for output in program["outputs"])
        program["rows"].append({"kind": "copy", "id": 99, "buffers": [a, b]})

    with pytest.raises(PlanError, match=r"op 99.*copied must have one size .*4\*n and 4\*m"):
        load(forged(data, change), tmp_path)


@pytest.mark.parametrize("trust", [False, True])
def test_nothing_is_copied_to_a_constant(trust: bool, tmp_path: Path) -> None:
    x = Tensor.input("x", (64,), "float32")
    data = saved(tmp_path, {"y": x + Tensor(np.arange(64, dtype=np.float32))})

    def change(record: Any) -> None:
        program = record["program"]
        constant = [value["place"] for value in program["values"]].index("constant")
        row = {"kind": "copy", "id": 99, "buffers": [constant, program["inputs"][0][1]]}
        body = {"kind": "loop", "id": 98, "counter": "c", "trip": 2, "test": [], "body": [row]}
        program["rows"].append(body)

    path = tmp_path / "forged.plan"
    path.write_bytes(forged(data, change))
    with pytest.raises(PlanError, match=r"op 99 .copy.* is written, it must be no constant"):
        semel.load_plan(path, trust=trust)


def test_rows_of_any_kind_keep_to_lifetimes(tmp_path: Path) -> None:
    x = Tensor.input("x", (64, 64), "float32")
    data = saved(tmp_path, {"y": (x @ x).sort(axis=0) @ x})

    def change(record: Any) -> None:
        values = record["program"]["values"]
        arena = next(i for i, value in enumerate(values) if value["place"] == "arena")
        values[arena]["life"] = [0, 2]
        row = {"kind": "copy", "id": 99, "buffers": [arena, record["program"]["inputs"][0][1]]}
        record["program"]["rows"].append(row)

    with pytest.raises(PlanError, match="which must live then, and lives from op 0 to 2"):
        load(forged(data, change), tmp_path)


# ---------------------------------------------------------------- bombs


def tower(kind: str, height: int) -> list[Any]:
    dims: list[Any] = [["variable", "n", 1, 9], ["variable", "m", 1, 9]]
    for _ in range(height):
        last = len(dims) - 1
        dims.append([kind, [last], [last]])
    return dims


def powers(height: int) -> list[Any]:
    squares = (["sum", [1, [2 + i], [2 + i]]] for i in range(height))
    first = ["sum", [1, [0]], [1, [1]], [1]]
    return [["variable", "n", 1, 9], ["variable", "m", 1, 9], first, *squares]


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        (tower("min", 40), "at most 16384 atoms and terms"),
        (tower("floordiv", 40), "at most 16384 atoms and terms"),
        ([["variable", "n", 1, 9], *(["mod", [i], 7] for i in range(100))], "at most 64 functions"),
        (powers(12), "a factor must be an atom, got"),
        ([["variable", "n", 1, 9], ["sum", [1, *[[0]] * 17]]], "at most 16 factors in a term"),
        ([["variable", "n", 1, 9], ["sum", [1 << 70, [0]]]], "a number must fit 63 bits"),
        ([["variable", "n", 1, 1 << 80]], "a number must fit 63 bits"),
    ],
)
def test_a_bomb_is_refused_before_it_grows(dims: list[Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        DimReader(dims)


def test_a_product_of_sums_is_limited() -> None:
    names = [Variable(f"v{i}", 1, 2) for i in range(200)]
    total = sum(names[1:], names[0] * 1)
    with pytest.raises(GraphError, match="a product must have at most 16384 terms, got 200 x 200"):
        _ = total * total


def test_proofs_take_a_limited_number_of_steps(fixed: bytes, tmp_path: Path) -> None:
    """Sums of remainders of sums: nothing is known of them, and the search ends."""

    def tangle(form: Any) -> None:
        for store in stores(form):
            at = store[2]
            for divisor in range(3, 30):
                part = new_dim(form, "mod", at, divisor)
                at = new_dim(form, "sum", [7, at], [-5, part], [1])
            store[2] = at

    with pytest.raises(PlanFileError, match="must"):  # without a limit, in days
        load(forged(fixed, kernel=tangle), tmp_path)


@pytest.mark.parametrize("depth", [500, 100_000])
def test_deep_nesting_is_refused(depth: int) -> None:
    text = '["if",0,[' * depth + "]]" * depth
    with pytest.raises(GraphError, match="a kernel must have its known form"):
        decode_kernel(f'{{"body":[{text}],"dims":[],"memory":[],"locals":[]}}'.encode())


# ---------------------------------------------------------------- constants


def test_a_constant_must_have_slack_after_it(tmp_path: Path) -> None:
    """A kernel may read a line past the last element: it must be there."""
    weights = np.arange(1008, dtype=np.float32)  # with the line after it, exactly a page
    data = saved(tmp_path, {"y": Tensor.input("x", (1008,), "float32") * Tensor(weights)})
    plan = load(data, tmp_path)
    np.testing.assert_array_equal(plan(x=np.ones(1008, np.float32)), weights)

    def move(record: Any) -> None:
        (value,) = (v for v in record["program"]["values"] if v["offset"] is not None)
        value["offset"] = 64

    with pytest.raises(PlanFileError, match="a constant must have 64 bytes after it, at 64"):
        load(forged(data, move), tmp_path)


def test_what_a_file_says_of_its_kernels_reaches_no_plan_of_ours(tmp_path: Path) -> None:
    def outputs() -> dict[str, Tensor]:
        return {"y": (Tensor.input("x", (61,), "float32") * 7).exp() - 3}

    def boast(form: Any) -> None:
        form |= {"name": "boast", "flops": 10**15, "bytes": 1}

    data = forged(saved(tmp_path, outputs()), kernel=boast)
    forget_programs()
    loaded_kernels.forget()
    strange = load(data, tmp_path)
    assert [k.name for k in strange.kernels] == ["boast"]
    (ours,) = semel.prepare(outputs(), threads=1).kernels
    assert (ours.name, ours.signature.bytes) == ("mul_exp_sub", 61 * 8)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("args", "is written, it must be no constant"),
        ("inputs", "'?x'?.* is constant"),
        ("outputs", "'?y'?.* is constant"),
    ],
)
def test_constants_are_nobodys_to_write(field: str, message: str, tmp_path: Path) -> None:
    x = Tensor.input("x", (64,), "float32")
    data = saved(tmp_path, {"y": x + Tensor(np.arange(64, dtype=np.float32))})

    def change(header: Any) -> None:
        program = header["program"]
        places = [value["place"] for value in program["values"]]
        constant, output = places.index("constant"), program["outputs"][0][1]
        if field == "args":
            (row,) = program["rows"]
            swap = {constant: output, output: constant}
            row["buffers"] = [swap.get(arg, arg) for arg in row["buffers"]]
        else:
            program[field][0][1] = constant

    for trust in (False, True):
        path = tmp_path / "forged.plan"
        path.write_bytes(forged(data, change))
        with pytest.raises(PlanError, match=message):
            semel.load_plan(path, trust=trust)


def test_values_of_variables_fit_a_word() -> None:
    known = PlanVariable(Variable("n", -(1 << 63)), None)
    assert _check_value(known, (1 << 62) - 1) == (1 << 62) - 1
    for value in (1 << 62, -(1 << 62)):
        with pytest.raises(GraphError, match="n must be within bounds"):
            _check_value(known, value)
