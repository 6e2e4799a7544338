"""What users of other runtimes' jit are bitten by, with ours: one test, one sentence each."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import semel
from semel import GraphError, Tensor

F32 = np.float32


def ones(*shape: int) -> np.ndarray[Any, Any]:
    return np.ones(shape, F32)


def test_a_later_call_does_not_overwrite_an_earlier_result() -> None:
    f = semel.jit(lambda x: x.sum())
    results = [f(ones(2) * i) for i in (1, 2, 3)]
    assert [r.item() for r in results] == [2, 4, 6]


def test_python_numbers_are_not_frozen() -> None:
    f = semel.jit(lambda x, k, c: x * k + c)
    assert [f(ones(1), k, c).item() for k, c in ((2, 0.5), (3, 1.5), (4, -1.0))] == [2.5, 4.5, 3.0]
    assert f.compile_count == 1


def test_a_branch_is_not_frozen() -> None:
    f = semel.jit(lambda x, k: x * 10 if k > 2 else x * 100)
    assert [f(ones(1), k).item() for k in (1, 3, 2, 5)] == [100, 10, 100, 10]


def test_a_pad_of_a_size_is_not_frozen() -> None:
    f = semel.jit(lambda x, n: x.pad([(0, n)]).sum() + n)
    assert [f(ones(2), n).item() for n in (1, 3, 2)] == [3, 5, 4]
    assert f.compile_count == 1


class Scale:
    def __init__(self, by: float) -> None:
        self.by = by

    @semel.jit
    def __call__(self, x: Tensor) -> Tensor:
        return x * self.by

    @semel.jit(static="k")
    def power(self, x: Tensor, k: int) -> Tensor:
        return x**k * self.by


def test_a_method_belongs_to_its_object() -> None:
    two, three = Scale(2), Scale(3)
    assert [two.power(ones(1), 2).item(), three.power(ones(1), 2).item()] == [2, 3]
    assert (two.power.compile_count, three.power.compile_count) == (1, 1)
    gone = weakref.ref(two)
    del two
    gc.collect()
    assert gone() is None


def test_attributes_and_globals_are_read_when_the_function_is_followed() -> None:
    """Intended, as in every jit: what changes is passed."""
    box = {"by": np.full(1, 2, F32)}
    f = semel.jit(lambda x: x * box["by"])
    assert f(ones(1)).item() == 2
    box["by"] = np.full(1, 3, F32)
    assert f(ones(1)).item() == 2
    assert f(ones(2, 1)).shape == (2, 1)  # another rank is another form, and sees it
    assert f(ones(2, 1)).tolist() == [[3], [3]]


def test_what_python_does_beside_tensors_happens_when_it_is_followed() -> None:
    calls: list[int] = []

    @semel.jit
    def f(x: Tensor) -> Tensor:
        calls.append(1)
        return x + 1

    f(ones(2))
    before = len(calls)
    f(ones(3))
    f(ones(2))
    assert len(calls) == before >= 1


def test_assignment_inside_changes_no_argument() -> None:
    @semel.jit
    def f(x: Tensor) -> Tensor:
        x[0] = 5.0
        x += 1
        return x

    array, tensor = ones(3), Tensor(ones(3))
    for _ in range(2):
        assert f(array).tolist() == f(tensor).tolist() == [6, 2, 2]
    assert array.tolist() == tensor.tolist() == [1, 1, 1]


def test_one_array_may_be_two_arguments() -> None:
    f = semel.jit(lambda x, y: x - 2 * y)
    a, b = ones(3), ones(3) * 5
    assert f(a, a).tolist() == [-1] * 3
    assert f(a, b).tolist() == [-9] * 3
    big = ones(100, 100)
    assert f(big, big)[0, 0].item() == -1
    assert f(big, big * 2)[0, 0].item() == -3


def test_nested_functions_may_be_called_again() -> None:
    inner = semel.jit(lambda x: x + 1)
    outer = semel.jit(lambda x: inner(x) * 2)
    assert [outer(ones(1) * i).item() for i in range(3)] == [2, 4, 6]
    assert inner(ones(1)).item() == 2


def test_views_at_other_offsets_are_read_where_they_are() -> None:
    f = semel.jit(lambda x: x * 1)
    base = np.arange(20000, dtype=F32)
    for start in (0, 1, 7):
        assert np.array_equal(f(base[start : start + 8]).numpy(), base[start : start + 8])
        assert np.array_equal(f(base[start : start + 9000]).numpy(), base[start : start + 9000])
    assert np.array_equal(f(base[::-1]).numpy(), base[::-1])


def test_lazy_arguments_are_computed() -> None:
    f = semel.jit(lambda x: x * 2)
    for i in range(3):
        assert f(Tensor([1.0]) + i).item() == 2 * (1 + i)
    assert f(semel.ones(1)).item() == 2


@pytest.mark.parametrize("ask", [Tensor.item, bool, float, Tensor.numpy, Tensor.tolist, np.asarray])
def test_a_traced_tensor_has_no_value(ask: Any) -> None:
    f = semel.jit(lambda x: x * 2 if ask(x.sum()) else x)
    with pytest.raises(
        GraphError, match=r"has no value while jit follows .* Choose by semel.where"
    ):
        f(ones(2))


def test_a_tensor_that_leaks_out_of_a_trace_has_no_value() -> None:
    leaked: list[Tensor] = []

    @semel.jit
    def f(x: Tensor) -> Tensor:
        leaked.append(x * 2)
        return x

    f(ones(2))
    with pytest.raises(GraphError, match="must not leave the body"):
        leaked[0].numpy()
    with pytest.raises(GraphError, match="must not leave"):
        leaked[0].prepare()


def test_random_numbers_are_drawn_at_every_call() -> None:
    f = semel.jit(lambda x: x + semel.rand(4))
    semel.manual_seed(3)
    first, second = f(ones(4)).numpy(), f(ones(4)).numpy()
    assert not np.array_equal(first, second)
    semel.manual_seed(3)
    assert np.array_equal(f(ones(4)).numpy(), first)
    semel.manual_seed(3)
    assert np.array_equal(np.float32(1) + semel.rand(4).numpy(), first)  # as without jit


def test_a_key_gives_the_same_numbers() -> None:
    f = semel.jit(lambda key: semel.rand(4, key=key))
    assert np.array_equal(f(semel.key(1)).numpy(), semel.rand(4, key=semel.key(1)).numpy())
    assert not np.array_equal(f(semel.key(1)).numpy(), f(semel.key(2)).numpy())


def test_positions_names_and_defaults_are_one_form() -> None:
    f = semel.jit(lambda x, y=2.0: x * y)
    found = [f(ones(1), 3.0), f(ones(1), y=3.0), f(y=3.0, x=ones(1)), f(ones(1))]
    assert [r.item() for r in found] == [3, 3, 3, 2]
    assert f.compile_count == 1


def test_true_and_one_are_not_the_same_argument() -> None:
    f = semel.jit(lambda x, k: x + 1 if k is True else x * k)
    assert f(ones(1) * 5, True).item() == 6
    assert f(ones(1) * 5, 1).item() == 5
    assert f(ones(1) * 5, 1.0).item() == 5


def test_minus_zero_and_nan_are_numbers_like_others() -> None:
    f = semel.jit(lambda x, a: x * a)
    assert np.signbit(f(ones(1), -0.0).item())
    assert not np.signbit(f(ones(1), 0.0).item())
    assert np.isnan(f(ones(1), float("nan")).item())
    assert f.compile_count == 1


def test_an_int_that_a_dtype_cannot_hold_is_refused_as_without_jit() -> None:
    f = semel.jit(lambda x, k: x + k)
    small = np.ones(2, np.int8)
    assert f(small, 100).tolist() == [101, 101]
    with pytest.raises(GraphError, match=r"an int8 must lie in \[-128, 127\], got 300"):
        f(small, 300)


def test_ints_beyond_31_bits_are_exact() -> None:
    f = semel.jit(lambda x, k: x + k)
    x = np.zeros(1, np.int64)
    assert [f(x, k).item() for k in (1, 2**40, -(2**62))] == [1, 2**40, -(2**62)]
