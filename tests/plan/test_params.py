"""Params of compiled plans: replaced by name, with all that was made from them."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import semel
from semel import Tensor
from semel.errors import (
    BusyError,
    GraphError,
    IndexRangeError,
    InputError,
    PlanError,
    ReleasedError,
)
from semel.frontends.safetensors import load_safetensors, save_safetensors
from semel.plan.engine import Engine
from semel.plan.plan import ExecutionPlan
from semel.plan.weights import weight_store

Array = np.ndarray[Any, Any]


def draw(seed: int, *shape: int, dtype: str = "float32") -> Array:
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, endpoint=True).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


X = draw(0, 5, 70)


def linear(w: Array, b: Array, **options: Any) -> ExecutionPlan:
    x = Tensor.input("x", X.shape)
    return (x @ Tensor.param("w", w).T + Tensor.param("b", b)).relu().prepare(**options)


def bits(array: Array) -> bytes:
    return np.ascontiguousarray(array).tobytes()


# ---------------------------------------------------------------- what depends on a param


def _matmul(p: dict[str, Tensor]) -> Tensor:
    return Tensor.input("x", (5, 70)) @ p["w"]


def _turned(p: dict[str, Tensor]) -> Tensor:
    return Tensor.input("x", (5, 70)) @ p["w"].T


def _conv(p: dict[str, Tensor]) -> Tensor:
    return Tensor.input("x", (1, 6, 8, 8)).conv(p["w"], padding=1)


def _grouped(p: dict[str, Tensor]) -> Tensor:
    return Tensor.input("x", (1, 6, 8, 8)).conv(p["w"], padding=1, groups=2)


def _depthwise(p: dict[str, Tensor]) -> Tensor:
    return Tensor.input("x", (1, 6, 8, 8)).conv(p["w"], padding=1, groups=6)


def _normed(p: dict[str, Tensor]) -> Tensor:
    y = Tensor.input("x", (1, 6, 8, 8)).conv(p["w"], padding=1)
    return y.batch_norm(p["mean"], p["variance"].exp(), p["scale"], p["shift"])


def _bytes(p: dict[str, Tensor]) -> Tensor:
    return Tensor.input("q", (9, 70), "uint8").matmul_integer(p["q"], 3)


def _widened(p: dict[str, Tensor]) -> Tensor:
    wide = (p["q"].cast("float32") - 3.0) * p["scale"]
    return Tensor.input("x", (5, 70)) @ wide


def _cast(p: dict[str, Tensor]) -> Tensor:
    return Tensor.input("x", (5, 70)) @ p["w"].cast("float32")


def _scaled(p: dict[str, Tensor]) -> Tensor:
    return Tensor.input("x", (5, 70)) @ (p["w"] * p["scale"])


def _looped(p: dict[str, Tensor]) -> Tensor:
    return Tensor.input("x", (3, 2, 7)).gru(p["w"], p["r"], p["b"])[0]


def _embedded(p: dict[str, Tensor]) -> Tensor:
    return Tensor.input("i", (4,), "int64").embedding(p["w"]) * p["scale"]


def _joined(p: dict[str, Tensor]) -> Tensor:
    x = Tensor.input("x", (5, 70))
    return x @ Tensor.concat([p["a"], p["b"]], 0).T + Tensor.concat([p["c"], p["d"]], 0)


Case = tuple[Any, dict[str, Any]]
CASES: dict[str, Case] = {
    "matmul": (_matmul, {"w": (70, 50)}),
    "one column more than a panel": (_matmul, {"w": (70, 33)}),
    "turned": (_turned, {"w": (50, 70)}),
    "narrow": (_turned, {"w": (3, 70)}),
    "convolution": (_conv, {"w": (40, 6, 3, 3)}),
    "groups": (_grouped, {"w": (80, 3, 3, 3)}),
    "depthwise": (_depthwise, {"w": (6, 1, 3, 3)}),
    "batch norm": (
        _normed,
        {"w": (40, 6, 3, 3), "mean": (40,), "variance": (40,), "scale": (40,), "shift": (40,)},
    ),
    "bytes": (_bytes, {"q": ("int8", 70, 45)}),
    "widened bytes": (_widened, {"q": ("int8", 70, 45), "scale": (45,)}),
    "cast": (_cast, {"w": ("float16", 70, 50)}),
    "scaled": (_scaled, {"w": (70, 50), "scale": (50,)}),
    "joined": (_joined, {"a": (40, 70), "b": (24, 70), "c": (40,), "d": (24,)}),
    "loop": (_looped, {"w": (1, 24, 7), "r": (1, 24, 8), "b": (1, 48)}),
    "embedding": (_embedded, {"w": (11, 8), "scale": (8,)}),
}
INPUTS: dict[str, Array] = {
    "x": draw(1, 5, 70),
    "q": draw(2, 9, 70, dtype="uint8"),
    "i": np.array([3, 0, 10, 3]),
}


def arrays(case: Case, seed: int) -> dict[str, Array]:
    made: dict[str, Array] = {}
    for k, (name, shape) in enumerate(case[1].items()):
        dtype, sizes = (shape[0], shape[1:]) if isinstance(shape[0], str) else ("float32", shape)
        made[name] = draw(seed + k, *sizes, dtype=dtype)
    return made


def build(case: Case, data: dict[str, Array], **options: Any) -> ExecutionPlan:
    return case[0]({n: Tensor.param(n, a) for n, a in data.items()}).prepare(**options)


def run(plan: ExecutionPlan) -> Array:
    given: dict[str, Array] = {}
    for io in plan.program.inputs:
        known = INPUTS[io.name]
        shape = tuple(int(d) for d in io.type.shape)  # type: ignore[arg-type]
        given[io.name] = known if known.shape == shape else draw(3, *shape)
    result: Array = plan(**given)
    return result


@pytest.mark.parametrize("name", CASES)
def test_a_replaced_param_is_that_of_a_fresh_compile(name: str) -> None:
    case = CASES[name]
    plan, fresh = build(case, arrays(case, 10)), build(case, arrays(case, 20))
    before = bits(run(plan))
    plan.set_params(arrays(case, 20))
    assert bits(run(plan)) == bits(run(fresh)) != before


@pytest.mark.parametrize("name", CASES)
def test_params_give_the_numbers_of_constants(name: str) -> None:
    case = CASES[name]
    data = arrays(case, 10)
    constants = case[0]({n: Tensor(a) for n, a in data.items()}).prepare()
    np.testing.assert_allclose(run(build(case, data)), run(constants), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("trust", [True, False])
def test_a_loaded_plan_takes_other_params(name: str, trust: bool, tmp_path: Path) -> None:
    case = CASES[name]
    plan, fresh = build(case, arrays(case, 10)), build(case, arrays(case, 20))
    plan.save(tmp_path / "a.plan")
    loaded = semel.load_plan(tmp_path / "a.plan", trust=trust)
    assert bits(run(loaded)) == bits(run(plan))
    loaded.set_params(arrays(case, 20))
    assert bits(run(loaded)) == bits(run(fresh))


def test_a_param_of_a_matmul_is_packed_like_a_constant() -> None:
    w = draw(1, 70, 64)
    packed = (Tensor.input("x", X.shape) @ Tensor.param("w", w)).prepare()
    (kernel,) = packed.kernels
    (as_constant,) = (Tensor.input("x", X.shape) @ Tensor(w)).prepare().kernels
    assert kernel is as_constant
    assert "param" in {v.place for v in packed.program.values}


# ---------------------------------------------------------------- what a caller sees


def test_it_takes_effect_at_the_next_execute() -> None:
    w, b = draw(1, 50, 70), draw(2, 50)
    plan = linear(w, b)
    plan.bind_input("x", X)
    plan.execute()
    before = plan.output_buffer.peek((5, 50)).copy()
    plan.set_param("b", b + 1)
    assert bits(plan.output_buffer.peek((5, 50))) == bits(before)
    plan.execute()
    assert bits(plan.output_buffer.peek((5, 50))) == bits(linear(w, b + 1)(x=X))


def test_names_types_and_versions_are_listed() -> None:
    plan = linear(draw(1, 50, 70), draw(2, 50))
    assert {n: (str(p.type), p.version) for n, p in plan.params.items()} == {
        "w": ("f32[50,70]", 0),
        "b": ("f32[50]", 0),
    }
    plan.set_param("b", draw(3, 50))
    plan.set_param("b", draw(4, 50))
    assert [p.version for p in plan.params.values()] == [0, 2]


def test_the_array_is_copied() -> None:
    w, b = draw(1, 50, 70), draw(2, 50)
    plan, other = linear(w, b), draw(3, 50)
    plan.set_param("b", other)
    wanted = plan(x=X)
    other[:] = 0
    assert bits(plan(x=X)) == bits(wanted)


@pytest.mark.parametrize(
    ("name", "array", "match"),
    [
        ("v", draw(1, 50, 70), r"has no param 'v'; known: w, b"),
        ("w", draw(1, 70, 50), r"\[param 'w'\] shape must be \(50, 70\), got \(70, 50\)"),
        ("w", draw(1, 50, 70).astype(np.float64), r"\[param 'w'\] dtype must be float32, got fl"),
        ("w", None, r"\[param 'w'\] needs numbers that fit float32: got None"),
        ("b", np.ma.masked_array(draw(1, 50), draw(1, 50) > 0), r"\[param 'b'\] .*mask"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_changes(
    name: str, array: Any, match: str
) -> None:
    plan = linear(draw(1, 50, 70), draw(2, 50))
    before = bits(plan(x=X))
    with pytest.raises(InputError, match=match):
        plan.set_params({"b": draw(3, 50), name: array})
    assert bits(plan(x=X)) == before
    assert [p.version for p in plan.params.values()] == [0, 0]


def test_a_name_is_a_string() -> None:
    plan = linear(draw(1, 50, 70), draw(2, 50))
    with pytest.raises(PlanError, match=r"\[set_param\] name must be a str, got \[\]"):
        plan.set_param([], draw(3, 50))  # type: ignore[arg-type]


def test_a_clone_has_params_of_its_own() -> None:
    w, b, other = draw(1, 50, 70), draw(2, 50), draw(3, 50, 70)
    plan = linear(w, b)
    clone = plan.clone()
    assert clone.buffers[-1].memory is plan.buffers[-1].memory
    clone.set_param("w", other)
    assert bits(plan(x=X)) == bits(linear(w, b)(x=X))
    assert bits(clone(x=X)) == bits(linear(other, b)(x=X))
    assert bits(clone.clone()(x=X)) == bits(clone(x=X))
    plan.set_param("b", b + 1)
    assert bits(clone(x=X)) == bits(linear(other, b)(x=X))


def test_params_stay_when_memory_grows() -> None:
    n = semel.Variable("n", 1, None)
    w, other = draw(1, 70, 50), draw(2, 70, 50)
    plan = (Tensor.input("x", (n, 70)) @ Tensor.param("w", w)).prepare()
    plan.set_param("w", other)
    wide = draw(3, 300, 70)
    np.testing.assert_allclose(plan(x=wide), wide @ other, rtol=1e-4, atol=1e-4)


def test_two_params_of_one_name_are_refused() -> None:
    x = Tensor.input("x", (3,))
    y = x * Tensor.param("w", draw(1, 3)) + Tensor.param("w", draw(2, 3))
    with pytest.raises(GraphError, match=r"two params are named 'w': f32\[3\] and f32\[3\]"):
        y.prepare()


def test_a_param_that_nothing_reads_is_one() -> None:
    w = Tensor.param("w", draw(1, 3))
    plan = (Tensor.input("x", (3,)) + w * 0).prepare()
    plan.set_param("w", draw(2, 3))
    assert plan.params["w"].version == 1


def test_a_released_plan_refuses() -> None:
    plan = linear(draw(1, 50, 70), draw(2, 50))
    plan.release_all_buffers()
    with pytest.raises(ReleasedError, match="released"):
        plan.set_param("b", draw(3, 50))


def test_a_plan_inside_its_own_run_refuses() -> None:
    plan = linear(draw(1, 50, 70), draw(2, 50))
    plan.engine.hold.is_held = True
    with pytest.raises(BusyError, match="inside"):
        plan.set_param("b", draw(3, 50))
    plan.engine.hold.is_held = False


# ---------------------------------------------------------------- who holds what


def scaled(w: Array, scale: Array, **options: Any) -> ExecutionPlan:
    x = Tensor.input("x", X.shape)
    return (x @ (Tensor.param("w", w) * Tensor.param("scale", scale))).prepare(**options)


def test_one_of_several_sources_needs_the_others() -> None:
    w, scale = draw(1, 70, 50), draw(2, 50)
    plan = scaled(w, scale)
    with pytest.raises(InputError, match=r"'w'\] must be set together with 'scale'") as caught:
        plan.set_param("w", w)
    assert caught.value.__dict__["together"] == ["w", "scale"]
    plan.set_params({"w": w + 1, "scale": scale})
    assert bits(plan(x=X)) == bits(scaled(w + 1, scale)(x=X))


def test_kept_params_can_be_set_one_by_one(tmp_path: Path) -> None:
    w, scale = draw(1, 70, 50), draw(2, 50)
    plan = scaled(w, scale, keep_params=True)
    plan.set_param("w", w + 1)
    assert bits(plan(x=X)) == bits(scaled(w + 1, scale)(x=X))
    plan.save(tmp_path / "a.plan")
    loaded = semel.load_plan(tmp_path / "a.plan")
    loaded.set_param("scale", scale + 1)
    assert bits(loaded(x=X)) == bits(scaled(w + 1, scale + 1)(x=X))


def test_params_of_a_mapped_file_can_be_set_one_by_one(tmp_path: Path) -> None:
    w, scale = draw(1, 700, 50), draw(2, 50)
    save_safetensors(tmp_path / "a.safetensors", {"w": w})
    mapped = load_safetensors(tmp_path / "a.safetensors")["w"]
    x = Tensor.input("x", (5, 700))
    plan = (x @ (Tensor.param("w", mapped) * Tensor.param("scale", scale))).prepare()
    del mapped
    plan.set_param("scale", scale + 1)
    given = draw(3, 5, 700)
    np.testing.assert_allclose(plan(x=given), given @ (w * (scale + 1)), rtol=1e-3, atol=1e-3)
    with pytest.raises(InputError, match=r"'w'\] must be set together with 'scale'"):
        plan.set_param("w", w)


def test_weights_are_held_once() -> None:
    w, b = draw(1, 512, 1024), draw(2, 512)
    tensor = Tensor.param("w", w)
    raw = weakref.ref(tensor.node.attrs.storage)
    x = Tensor.input("x", (5, 1024))
    plan = (x @ tensor.T + Tensor.param("b", b)).prepare()
    del tensor, x
    gc.collect()
    assert raw() is None, "only the packed formula is read"
    memory = plan.memory
    assert memory.derived_bytes == w.nbytes and memory.params_bytes == b.nbytes
    assert memory.weights_bytes == w.nbytes + b.nbytes
    kept = (Tensor.input("x", (5, 1024)) @ Tensor.param("w", w).T).prepare(keep_params=True)
    assert kept.memory.params_bytes == kept.memory.derived_bytes == w.nbytes


def test_what_was_replaced_goes() -> None:
    plan = linear(draw(1, 2048, 70), draw(2, 2048))
    (packed,) = (plan.program.values[r.value].weight for r in plan.program.recipes if r.formula)
    gone = weakref.ref(packed)
    del packed
    plan.set_param("w", draw(3, 2048, 70))
    gc.collect()
    assert gone() is None


def test_weights_that_are_set_together_are_made_in_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = {"a": (40, 70), "b": (40, 40), "c": (30, 40), "d": (40,)}

    def prepare(seed: int) -> tuple[ExecutionPlan, dict[str, Array]]:
        given = {name: draw(seed + i, *shape) for i, (name, shape) in enumerate(shapes.items())}
        p = {name: Tensor.param(name, array) for name, array in given.items()}
        x = Tensor.input("x", (5, 70))
        return ((x @ p["a"].T + p["d"]) @ p["b"] @ p["c"].T).prepare(), given

    plan, _ = prepare(1)
    others = [prepare(seed) for seed in (10, 20)]
    runs: list[Engine] = []
    run = Engine.run

    def counted(engine: Engine, *enter: Any) -> None:
        runs.append(engine)
        run(engine, *enter)

    for other, given in others:
        with monkeypatch.context() as patch:
            patch.setattr(Engine, "run", counted)
            plan.set_params({name: array.copy() for name, array in given.items()})
        assert bits(plan(x=X)) == bits(other(x=X))
    assert len(runs) == 2 and runs[0] is runs[1]  # which is at rest in between


def test_what_made_a_weight_holds_nothing_of_it() -> None:
    plan = linear(draw(1, 50, 70), draw(2, 50))
    source = draw(3, 50, 70)
    seen = weakref.ref(source)
    plan.set_param("w", source)
    del source
    gc.collect()
    assert seen() is None
    (recipe,) = (r for r in plan.program.recipes if r.formula is not None)
    made = weakref.ref(plan.program.values[recipe.value].weight)
    plan.set_params({"w": draw(4, 50, 70), "b": draw(5, 50)})
    gc.collect()
    assert made() is None


def test_programs_that_read_the_same_data_in_one_form_share_it() -> None:
    w = Tensor.param("w", draw(1, 70, 64))
    one = (Tensor.input("x", (5, 70)) @ w).prepare()
    other = (Tensor.input("x", (9, 70)) @ w).relu().prepare()
    found = [p.program.values[p.program.recipes[0].value].weight for p in (one, other)]
    assert found[0] is found[1] is not None
    constant = Tensor(draw(1, 70, 64))
    plans = [(Tensor.input("x", (n, 70)) @ constant).prepare() for n in (5, 9)]
    weights = [v.weight for p in plans for v in p.program.values if v.weight is not None]
    assert weights[0] is weights[1]
    one.set_param("w", draw(2, 70, 64))
    assert one.program.values[one.program.recipes[0].value].weight is not found[0]


def test_the_store_holds_nothing_by_itself() -> None:
    gc.collect()
    before = len(weight_store)
    plan = linear(draw(1, 2048, 70), draw(2, 2048))
    assert len(weight_store) > before
    del plan
    gc.collect()
    assert len(weight_store) == before


# ---------------------------------------------------------------- formulas


def test_matrices_of_all_sizes_are_packed_by_one_kernel() -> None:
    y = Tensor.input("x", (3, 64))
    for k, (depth, columns) in enumerate([(64, 128), (128, 256), (256, 512), (512, 320)]):
        y = (y @ Tensor.param(f"w{k}", draw(k, columns, depth)).T).relu()
    program = y.prepare().program
    assert len(program.recipes) == 4 and len(program.formulas) == 1
    assert len(program.all_kernels) - len(program.kernels) == 1


# ---------------------------------------------------------------- tied embeddings


def language_model(table: Tensor, ids: Tensor) -> Tensor:
    """A table that is looked up at the bottom and multiplied with at the top."""
    x = ids.embedding(table)
    return (x + x.gelu()) @ table.T


@pytest.mark.parametrize("kind", ["param", "constant"])
def test_a_tied_embedding_is_held_once(kind: str) -> None:
    data, ids = draw(1, 3141, 48), np.array([0, 5, 3140, 5, 1017])
    table = Tensor.param("table", data) if kind == "param" else Tensor(data)
    given = Tensor.input("ids", (5,), "int64")
    plan = language_model(table, given).prepare(keep={"rows": given.embedding(table)})
    assert data.nbytes <= plan.memory.weights_bytes <= 1.02 * data.nbytes
    assert bits(plan(ids=ids)) == bits(language_model_apart(data).prepare()(ids=ids))
    assert bits(plan.kept["rows"].peek((5, 48))) == bits(data[ids])
    if kind == "param":
        other = data[::-1].copy()
        plan.set_param("table", other)
        assert bits(plan(ids=ids)) == bits(language_model_apart(other).prepare()(ids=ids))


def language_model_apart(data: Array) -> Tensor:
    """The same, with a table of its own for looking up."""
    x = Tensor.input("ids", (5,), "int64").embedding(Tensor(data.copy()))
    return (x + x.gelu()) @ Tensor(data.copy()).T


def test_an_index_past_a_tied_table_is_refused() -> None:
    table, given = Tensor.param("table", draw(1, 100, 48)), Tensor.input("ids", (5,), "int64")
    plan = language_model(table, given).prepare()
    with pytest.raises(IndexRangeError, match="100"):
        plan(ids=np.array([0, 1, 2, 3, 100]))


@pytest.mark.parametrize("given", [None, 3, [("w", X)], {3: X}])
def test_params_are_given_by_name(given: object) -> None:
    plan = linear(draw(1, 50, 70), draw(2, 50))
    with pytest.raises(InputError, match="a mapping from names to arrays"):
        plan.set_params(given)  # type: ignore[arg-type]


def test_a_param_takes_numbers_as_an_input_does() -> None:
    plan = (Tensor.input("x", (3,)) + Tensor.param("w", draw(1, 3))).prepare()
    plan.set_param("w", [1, 2.5, 3])
    assert plan(x=[1, 1, 1]).tolist() == [2, 3.5, 4]
