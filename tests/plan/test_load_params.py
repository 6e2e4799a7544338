"""Params from mappings, files and bytes: all or nothing, and everything that is wrong is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import semel
from semel import ExecutionPlan, Graph, InputError, ParamError, Session, Tensor
from semel.frontends.safetensors import save_safetensors
from semel.runtime.interop import is_mapped
from semel.session.compiled import CompiledGraph

ROWS, COLUMNS = 192, 128
X = np.arange(3 * ROWS, dtype=np.float32).reshape(3, ROWS) / 7


def draw(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "w": rng.standard_normal((ROWS, COLUMNS), dtype=np.float32),
        "b": rng.standard_normal(COLUMNS, dtype=np.float32),
    }


def graph() -> Graph:
    g = Graph("linear")
    x = g.input("x", ("n", ROWS))
    w = g.param("w", shape=(ROWS, COLUMNS), dtype="float32")
    b = g.param("b", shape=(COLUMNS,), dtype="float32")
    g.output("y", x @ w + b)
    return g


def plan() -> ExecutionPlan:
    return graph().prepare(dims={"n": (1, 8)})


def compiled(**options: Any) -> CompiledGraph:
    return Session("cpu").compile(graph(), dims={"n": (1, 8)}, **options)


def expected(arrays: dict[str, Any]) -> Any:
    return X @ arrays["w"] + arrays["b"]


@pytest.mark.parametrize("make", [plan, compiled])
def test_params_come_from_a_mapping_or_a_file(make: Any, tmp_path: Path) -> None:
    first, second = draw(1), draw(2)
    save_safetensors(tmp_path / "w.safetensors", second)
    made = make()
    assert made.missing_params() == ("w", "b")
    made.load_params(first)
    assert made.missing_params() == ()
    np.testing.assert_allclose(_only(made(x=X)), expected(first), rtol=1e-4, atol=1e-3)
    made.load_params(str(tmp_path / "w.safetensors"))
    np.testing.assert_allclose(_only(made(x=X)), expected(second), rtol=1e-4, atol=1e-3)
    assert [made.params[name].version for name in ("w", "b")] == [2, 2]


def _only(found: Any) -> Any:
    return found["y"] if hasattr(found, "keys") else found


def test_a_file_that_is_read_as_it_is_stored_is_mapped(tmp_path: Path) -> None:
    w = Tensor.param("w", np.zeros((64, 512), np.float32))
    made = (Tensor.input("x", (64, 512)) * w).prepare()
    array = np.full((64, 512), 3, np.float32)
    save_safetensors(tmp_path / "w.safetensors", {"w": array})
    made.load_params(tmp_path / "w.safetensors")
    (param,) = made.program.params
    assert param.raw is not None and is_mapped(param.raw.array)
    assert made(x=array).tolist() == (array * array).tolist()


def test_all_that_is_wrong_is_said_and_nothing_changes() -> None:
    made, arrays = plan(), draw(1)
    made.load_params(arrays)
    before = made(x=X).tolist()
    given = {"w": arrays["w"][:5], "c": arrays["b"], "d": arrays["b"]}
    message = (
        r"missing: b; unexpected: c, d; \[param 'w'\] shape must be \(192, 128\), got \(5, 128\)"
    )
    with pytest.raises(ParamError, match=message) as caught:
        made.load_params(given)
    error: Any = caught.value
    assert (error.missing, error.unexpected) == (["b"], ["c", "d"])
    assert list(error.wrong) == ["w"]
    with pytest.raises(ParamError, match="dtype must be float32, got float64"):
        made.load_params({**arrays, "w": arrays["w"].astype(np.float64) + 1})
    assert made(x=X).tolist() == before
    assert [entry.version for entry in made.params.values()] == [1, 1]


def test_what_is_not_strict_takes_what_is_there() -> None:
    made, first, second = plan(), draw(1), draw(2)
    made.load_params(first)
    made.load_params({"b": second["b"], "other": X}, strict=False)
    assert [made.params[name].version for name in ("w", "b")] == [1, 2]
    mixed = {"w": first["w"], "b": second["b"]}
    np.testing.assert_allclose(made(x=X), expected(mixed), rtol=1e-4, atol=1e-3)
    with pytest.raises(ParamError, match=r"param 'b'.*shape"):
        made.load_params({"b": X}, strict=False)


def test_other_dtypes_are_cast_if_that_is_asked_for() -> None:
    arrays = {name: array.astype(np.float16) for name, array in draw(1).items()}
    made = plan()
    with pytest.raises(ParamError, match="dtype must be float32, got float16"):
        made.load_params(arrays)
    made.load_params(arrays, casting="same_kind")
    relaxed = compiled(casting="same_kind")
    relaxed.load_params(arrays)
    assert relaxed.run(x=X)["y"].tolist() == made(x=X).tolist()
    with pytest.raises(ParamError, match="castable to float32"):
        wrong = {name: array.astype(complex) for name, array in arrays.items()}
        made.load_params(wrong, casting="same_kind")
    with pytest.raises(InputError, match="casting must be 'exact' or 'same_kind', got 'any'"):
        made.load_params(arrays, casting="any")


def test_long_lists_of_names_are_cut_in_the_message_alone() -> None:
    with pytest.raises(ParamError, match=r"x11, 8 more\.") as caught:
        plan().load_params(draw(1) | {f"x{i}": X for i in range(20)})
    assert len(getattr(caught.value, "unexpected")) == 20  # noqa: B009


@pytest.mark.parametrize("source", ["gone.safetensors", 3, None, ["w"], {1: X}])
def test_what_is_no_source_is_refused(source: Any) -> None:
    with pytest.raises(semel.UserError, match="load_params"):
        plan().load_params(source)


# ---------------------------------------------------------------- bytes


def test_a_param_is_set_from_bytes() -> None:
    made, arrays = compiled(), draw(3)
    made.set_param_typed("w", arrays["w"].tobytes(), "float32")
    made.set_param_typed("b", memoryview(arrays["b"]), np.float32)
    other = plan()
    other.load_params(arrays)
    assert made.run(x=X)["y"].tolist() == other(x=X).tolist()
    assert made.params["b"].version == 1


def test_bytes_of_another_dtype_are_cast_under_the_rule() -> None:
    half = np.array([1, 2, 3, 4], np.float16)
    w = Tensor.param("b", np.zeros(4, np.float32))
    made = (Tensor.input("x", (4,)) + w).prepare()
    with pytest.raises(InputError, match=r"param 'b'.*dtype must be float32, got float16"):
        made.set_param_typed("b", half.tobytes(), "float16")
    made.set_param_typed("b", half.tobytes(), "float16", casting="same_kind")
    assert made(x=np.array([10, 20, 30, 40], np.float32)).tolist() == [11, 22, 33, 44]


@pytest.mark.parametrize("dtype", ["bfloat16", "float64", "int8", "uint64", "bool"])
def test_bytes_of_every_dtype_arrive_as_they_are(dtype: str) -> None:
    kind = Tensor.input("t", (4,), dtype).dtype
    data = bytes([0, 1] * (2 * kind.size_bytes))
    w = Tensor.param("p", np.zeros(4, kind.numpy), dtype)
    made = semel.prepare({"y": w.reshape((2, 2))})
    made.set_param_typed("p", data, dtype)
    made.execute()
    assert made.output_buffers[0].numpy().tobytes() == data


@pytest.mark.parametrize(
    ("data", "dtype", "message"),
    [
        (b"123", "float32", r"must have 16 bytes as float32\[4\], got 3"),
        (bytes(17), "float32", r"must have 16 bytes as float32\[4\], got 17"),
        ("text", "float32", "contiguous bytes"),
        (np.zeros((4, 2), np.float32)[:, 0], "float32", "contiguous bytes"),
        (bytes(16), "float31", "dtype must be one of"),
    ],
)
def test_bytes_that_do_not_fit_are_refused(data: Any, dtype: str, message: str) -> None:
    made = (Tensor.input("x", (4,)) + Tensor.param("b", np.zeros(4, np.float32))).prepare()
    with pytest.raises(semel.UserError, match=message):
        made.set_param_typed("b", data, dtype)
    assert made.params["b"].version == 0


def test_bytes_at_an_odd_address_are_copied() -> None:
    made = (Tensor.input("x", (4,)) + Tensor.param("b", np.zeros(4, np.float32))).prepare()
    odd = memoryview(b"\0" + np.arange(4, dtype=np.float32).tobytes())[1:]
    made.set_param_typed("b", odd, "float32")
    assert made(x=np.ones(4, np.float32)).tolist() == [1, 2, 3, 4]


def test_a_param_that_is_none_is_named() -> None:
    with pytest.raises(InputError, match="has no param 'v'; known: w, b"):
        plan().set_param_typed("v", b"", "float32")
