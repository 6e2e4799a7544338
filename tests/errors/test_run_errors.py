"""Mistakes made with a plan: each has its type, says where, what must hold, what was found."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import semel
from semel import (
    GraphError,
    InputError,
    OutOfMemoryError,
    PlanError,
    SemelError,
    Tensor,
    UserError,
    Variable,
    VariableError,
)
from semel.plan.plan import ExecutionPlan

Array = np.ndarray[Any, Any]


def make() -> ExecutionPlan:
    n = Variable("n", 1, 8)
    x, y = Tensor.input("x", (n, 3)), Tensor.input("y", (3,), "int32")
    return (x + y).prepare()


def of(*shape: int, dtype: str = "float32") -> Array:
    return np.ones(shape, dtype)


GOOD = {"x": of(2, 3), "y": of(3, dtype="int32")}
CALLS: dict[str, tuple[dict[str, Any], type[SemelError], str]] = {
    "an input is missing": ({"x": of(2, 3)}, InputError, "y"),
    "an input has a strange name": ({**GOOD, "z": of(3)}, InputError, "z"),
    "no inputs at all": ({}, InputError, "x"),
    "another dtype": ({**GOOD, "y": of(3)}, InputError, "int32"),
    "a dtype of the other kind": ({**GOOD, "x": of(2, 3, dtype="int64")}, InputError, "float32"),
    "too few dims": ({**GOOD, "x": of(3)}, InputError, "x"),
    "too many dims": ({**GOOD, "x": of(1, 2, 3)}, InputError, "x"),
    "a fixed dim is different": ({**GOOD, "x": of(2, 4)}, InputError, "x"),
    "the other fixed dim": ({**GOOD, "y": of(4, dtype="int32")}, InputError, "y"),
    "above the maximum": ({**GOOD, "x": of(9, 3)}, InputError, r"n=9.*\[1, 8\]"),
    "below the minimum": ({**GOOD, "x": of(0, 3)}, InputError, r"n=0.*\[1, 8\]"),
    "an object that is no array": ({**GOOD, "x": object()}, InputError, "x"),
    "text": ({**GOOD, "x": "1, 2, 3"}, InputError, "x"),
    "None": ({**GOOD, "x": None}, InputError, "x"),
    "complex numbers": ({**GOOD, "x": np.ones((2, 3), np.complex64)}, InputError, "x"),
    "another byte order": ({**GOOD, "x": np.ones((2, 3), ">f4")}, InputError, ">f4"),
    "a ragged list": ({**GOOD, "x": [[1.0, 2.0], [1.0]]}, InputError, "x"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", CALLS)
def test_a_bad_call_is_refused_and_changes_nothing(mistake: str) -> None:
    inputs, kind, text = CALLS[mistake]
    plan = make()
    before = plan(**GOOD)
    with pytest.raises(kind, match=text) as caught:
        plan(**inputs)
    assert isinstance(caught.value, UserError)
    assert str(caught.value).startswith("[")
    np.testing.assert_array_equal(plan(**GOOD), before)


USES: dict[str, tuple[Callable[[Any], Any], type[SemelError], str]] = {
    "reading before the first run": (lambda p: p.output_buffer.numpy(), PlanError, "execute"),
    "running before any input": (lambda p: p.execute_with_vars(n=2), InputError, "x"),
    "a variable never bound": (lambda p: p.execute(), UserError, "n|x"),
    "an unknown variable": (lambda p: p.execute_with_vars(k=2), VariableError, "k"),
    "a variable out of range": (lambda p: p.execute_with_vars(n=99), VariableError, "99"),
    "a variable that is no integer": (lambda p: p.execute_with_vars(n=2.5), VariableError, "2.5"),
    "a variable that is text": (lambda p: p.execute_with_vars(n="2"), VariableError, "2"),
    "a huge variable": (lambda p: p.execute_with_vars(n=1 << 70), VariableError, "n"),
    "running after release": (lambda p: (p.release_all_buffers(), p.execute()), PlanError, "rel"),
}


@pytest.mark.parametrize("mistake", USES)
def test_a_bad_use_has_a_typed_error(mistake: str) -> None:
    use, kind, text = USES[mistake]
    with pytest.raises(kind, match=text):
        use(make())


def test_inputs_written_for_another_size_are_refused() -> None:
    plan = make()
    plan(**GOOD)
    with pytest.raises(InputError, match="x"):
        plan.execute_with_vars(n=5)


def test_a_guard_that_breaks_names_the_op_and_the_values() -> None:
    n, m = Variable("n", 1, 9), Variable("m", 1, 9)
    plan = (Tensor.input("x", (n,)) + Tensor.input("y", (m,))).prepare()
    assert plan(x=of(3), y=of(3)).tolist() == [2, 2, 2]
    sentence = (
        r"\[add\] dim 0 must be 1 or m to broadcast, got n in f32\[n\] \(.*\)\. Found m=4, n=3\."
    )
    with pytest.raises(VariableError, match=sentence):
        plan(x=of(3), y=of(4))
    assert plan(x=of(2), y=of(2)).tolist() == [2, 2]


#: What the user wrote and ran -> what the guard says, in the words of the op.
n8 = Variable("n", 1, 24)
BROKEN_GUARDS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "matmul": (lambda x: x @ x, r"inner dims must agree, got 4, the last of f32\[n,4\], "
               r"and n, the last but one of f32\[n,4\]: did you mean x @ y\.mT\?"),
    "slice": (lambda x: x.narrow(0, 6, 2), r"indices of axis 0 of f32\[n,4\] must lie in"),
    "reshape": (lambda x: x.reshape(n8 // 8, 32), "the number of elements must stay"),
    "expand": (lambda x: x.broadcast_to(7, 4), "dim 0 must be 1 or 7 to broadcast"),
    "add": (lambda x: x + np.ones((7, 4), np.float32), "dim 0 must be 1 or 7 to broadcast"),
    "pool": (lambda x: x.reshape(1, 1, n8, 4).max_pool((6, 1), 1), "a window of 6 must fit axis"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN_GUARDS)
def test_a_guard_speaks_of_the_dims_of_the_op_that_was_written(name: str) -> None:
    run, sentence = BROKEN_GUARDS[name]
    plan = run(Tensor.input("x", (n8, 4))).prepare()
    with pytest.raises(VariableError, match=sentence) as caught:
        plan(x=np.zeros((5, 4), np.float32))
    said = str(caught.value)
    assert "Found n=5." in said and "test_run_errors.py:" in said
    assert "must be 0" not in said


def test_a_reshape_that_stops_dividing_is_refused() -> None:
    n = Variable("n", 0, 40)
    plan = (Tensor.input("x", (n,)).reshape(n // 4, 4) * 2).prepare()
    assert plan(x=of(8)).shape == (2, 4)
    with pytest.raises(VariableError, match="reshape"):
        plan(x=of(9))


def test_memory_beyond_the_limit_is_refused_with_the_numbers() -> None:
    x = Tensor.input("x", (1 << 20,))
    with pytest.raises(OutOfMemoryError, match="bytes"):
        (x.sort() * 2 + x).prepare(memory_limit=1 << 16)


def test_a_tensor_too_large_for_any_machine_is_refused() -> None:
    x = Tensor.input("x", (1 << 40, 1 << 10))
    with pytest.raises(SemelError, match="9,007,199,254,741,120 bytes"):
        (x + 1).prepare()


def test_a_dimension_product_past_64_bits_is_refused() -> None:
    with pytest.raises(SemelError, match="9,671,406,556,917,033,397,649,536 bytes"):
        (Tensor.input("x", (1 << 40, 1 << 40)) + 1).prepare()


@pytest.mark.parametrize("outputs", [[], [1.0], ["x"], [np.ones(3)], {"a": None}, 5, None, "x"])
def test_outputs_must_be_tensors(outputs: Any) -> None:
    with pytest.raises(SemelError, match=r"^\[(graph|prepare)\]"):
        semel.prepare(outputs)


BAD_OPTIONS: list[tuple[str, Any, str]] = [
    ("threads", 0, r"threads must be an int in \[1, 1024\], got 0"),
    ("threads", -1, "threads must be an int in"),
    ("threads", 1.5, r"threads must be an int in \[1, 1024\], got 1\.5"),
    ("threads", "2", "threads must be an int in"),
    ("threads", True, "threads must be an int in"),
    ("threads", 5000, "threads must be an int in"),
    ("memory_limit", "1G", "memory_limit must be a number of bytes, an int in .*, got '1G'"),
    ("memory_limit", 1e9, "memory_limit must be a number of bytes, an int"),
    ("memory_limit", -1, "memory_limit must be a number of bytes, an int"),
    ("fusion", "no", "fusion must be True, False or None, got 'no'"),
    ("fusion", 1, "fusion must be True, False or None, got 1"),
    ("tune", "yes", "tune must be True, False or None, got 'yes'"),
    ("tune", {"n": 2.5}, r"tune\['n'\] must be an int, got 2\.5"),
    ("tune", {3: 2}, "tune must map names to ints"),
    ("bindings", 5, "variables must be a mapping or pairs of name and value, got 5"),
    ("keep", 5, "keep must be Tensors, got int"),
    ("keep", {5: Tensor([1.0])}, "names of keep must be non-empty strings, got 5"),
]


@pytest.mark.parametrize(("name", "value", "message"), BAD_OPTIONS)
def test_an_option_that_makes_no_sense_is_named(name: str, value: Any, message: str) -> None:
    y = Tensor.input("x", (3,)) + 1
    for prepare in (y.prepare, partial(semel.prepare, [y])):
        with pytest.raises(UserError, match=message):
            prepare(**{name: value})


@pytest.mark.parametrize("path", [None, 5, b"a.plan", "a\0b"])
def test_a_path_must_be_one(path: Any) -> None:
    for use in (semel.load_plan, make().save):
        with pytest.raises(PlanError, match="path must be a str or a path, got"):
            use(path)


@pytest.mark.parametrize("threads", [0, 1.5, "2"])
def test_threads_are_checked_by_clones_and_files_too(threads: Any, tmp_path: Path) -> None:
    plan = make()
    plan.save(tmp_path / "a.plan")
    with pytest.raises(PlanError, match=r"\[clone\] threads must be an int in"):
        plan.clone(threads=threads)
    with pytest.raises(PlanError, match=r"\[load_plan\] threads must be an int in"):
        semel.load_plan(tmp_path / "a.plan", threads=threads)
    with pytest.raises(PlanError, match=r"\[load_plan\] memory_limit must be a number of bytes"):
        semel.load_plan(tmp_path / "a.plan", memory_limit=str(threads))  # type: ignore[arg-type]


def test_numbers_of_numpy_are_options() -> None:
    options: dict[str, Any] = {"threads": np.int64(1), "memory_limit": np.int64(1 << 20)}
    plan = (Tensor.input("x", (3,)) + 1).prepare(**options)
    assert plan.threads == 1 and type(plan.threads) is int


@pytest.mark.parametrize("name", [5, "", None, ("a",)])
def test_names_of_outputs_are_strings(name: Any) -> None:
    with pytest.raises(GraphError, match="names of outputs must be non-empty strings, got"):
        semel.prepare({name: Tensor.input("x", (3,)) + 1})


def test_two_inputs_of_one_name_are_refused() -> None:
    both = Tensor.input("x", (3,)) + Tensor.input("x", (1,))
    with pytest.raises(SemelError, match="x"):
        both.prepare()


def test_two_variables_of_one_name_are_refused() -> None:
    a = Tensor.input("a", (Variable("n", 1, 5),))
    b = Tensor.input("b", (Variable("n", 1, 7),))
    with pytest.raises(SemelError, match="n"):
        semel.prepare([a + 1, b + 1])


def test_errors_survive_a_process_border() -> None:
    plan = make()
    with pytest.raises(VariableError, match=r"must lie in \[1, 8\], got 99") as caught:
        plan.execute_with_vars(n=99)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert type(copy) is VariableError and str(copy) == str(caught.value)
