"""What people who know NumPy or torch do with a tensor without thinking about it."""

from __future__ import annotations

import copy
import operator
import pickle
from typing import Any

import numpy as np
import pytest

import semel
from semel import GraphError, Tensor, UnsupportedError, Variable

A = np.arange(6, dtype=np.float32).reshape(2, 3)
N = Variable("n", 1, 8)
X = Tensor.input("x", (N, 3))


# ---------------------------------------------------------------- Python's own functions


def test_one_element_is_a_number() -> None:
    one = Tensor([[2.5]])
    assert (float(one), int(one), bool(one), complex(one), round(float(one), 1)) == (
        2.5, 2, True, 2.5 + 0j, 2.5,
    )  # fmt: skip
    assert type(one.item()) is float and type(Tensor([3]).item()) is int
    assert type(Tensor(True).item()) is bool
    assert divmod(Tensor(7), 2)[1].item() == 1 and abs(Tensor(-2)).item() == 2
    assert not Tensor(0.0) and Tensor(float("nan"))
    with pytest.raises(ValueError, match="NaN"):
        int(Tensor(float("nan")))


@pytest.mark.parametrize("convert", [float, int, complex])
def test_several_elements_are_none(convert: Any) -> None:
    with pytest.raises(GraphError, match=r"^\[item\] needs exactly one element, got f32\[2,3\]"):
        convert(Tensor(A))
    with pytest.raises(GraphError, match=r"the truth of a tensor .* Use \.any\(\) or \.all\(\)"):
        bool(Tensor(A))


def test_an_input_has_no_number() -> None:
    for use in (float, int, bool, complex, list, np.asarray):
        with pytest.raises((GraphError, TypeError), match=r"input|variable|fixed"):
            use(X.sum() if use is not list else X)


def test_only_whole_numbers_are_indices() -> None:
    assert list(range(Tensor(3))) == [0, 1, 2] and "abc"[Tensor([1])] == "b"
    assert operator.index(Tensor(True, "int8")) == 1
    for wrong in (Tensor(1.0), Tensor(True)):
        with pytest.raises(TypeError, match="only integer tensors can be an index"):
            operator.index(wrong)


def test_rows_are_iterated_and_counted() -> None:
    t = Tensor(A)
    assert len(t) == 2 and [row.shape for row in t] == [(3,), (3,)]
    first, second = t
    np.testing.assert_array_equal(np.stack([first, second]).numpy(), A)  # type: ignore[attr-defined]
    assert [v.item() for v in reversed(Tensor([1, 2]))] == [2, 1]
    assert dict(zip("ab", Tensor([1, 2]), strict=True))["b"].item() == 2
    with pytest.raises(TypeError, match=r"len\(\) of a 0-d tensor"):
        len(Tensor(1))
    with pytest.raises(TypeError, match="iteration over a 0-d tensor"):
        iter(Tensor(1))


def test_in_asks_for_an_element() -> None:
    t = Tensor(A)
    assert 3 in t and 3.0 in t and np.float32(5) in t
    assert 7 not in t and np.nan not in Tensor([np.nan])  # noqa: PLW0177


def test_equal_is_by_element_and_the_hash_by_object() -> None:
    t, same = Tensor(A), Tensor(A)
    equal: Any = t == same
    assert isinstance(equal, Tensor) and bool(equal.all())
    assert hash(t) == hash(t) and len({t, same}) == 2
    assert {t: 1}[t] == 1 and t in [t]  # the same object is found without a comparison
    nothing: Any = None
    answers: list[Any] = [t == nothing, t != nothing, t != "f4"]
    assert answers == [False, True, True]


def test_copies_are_other_handles_on_the_same_value() -> None:
    t = Tensor(A)
    for made in (copy.copy(t), copy.deepcopy(t), copy.deepcopy({"t": [t]})["t"][0]):
        made[0, 0] = 9
        assert t.numpy()[0, 0] == 0 and made.numpy()[0, 0] == 9
    assert copy.deepcopy(X).id == X.id


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_hold_values_and_dtypes(protocol: int) -> None:
    for dtype in ("float32", "bfloat16", "bool", "int8"):
        back = pickle.loads(pickle.dumps(Tensor(A).astype(dtype) + 0, protocol))
        assert back.dtype == (Tensor(A).astype(dtype) + 0).dtype
    assert pickle.loads(pickle.dumps(semel.float32, protocol)) == semel.float32
    with pytest.raises(GraphError, match=r"^\[pickle\] a value must not depend on inputs"):
        pickle.dumps(X)


def test_in_place_operators_rebind_the_name() -> None:
    t = other = Tensor(A)
    t += 1
    t *= 2
    assert other.numpy()[0, 0] == 0 and t.numpy()[0, 0] == 2


# ---------------------------------------------------------------- dtypes


def test_dtypes_are_compared_as_they_are_written() -> None:
    dtype = Tensor(A).dtype
    names: tuple[Any, ...] = (np.float32, "float32", "f4", "<f4", np.dtype("f4"), semel.float32)
    for same in (*names, A.dtype):
        assert dtype == same and same == dtype and not operator.ne(dtype, same)
    others: tuple[Any, ...] = (np.float64, "f8", "f32", ">f4", None, 32, np.dtype("i4"), "float16")
    for other in others:
        assert dtype != other and other != dtype
    assert dtype in (np.int8, np.float32) and dtype not in {"int8": 1}
    assert hash(dtype) == hash("float32")


def test_numpy_takes_dtypes_of_ours() -> None:
    for dtype in (semel.float32, semel.int8, semel.bool, semel.bfloat16):
        assert np.dtype(dtype) == dtype.numpy
        assert np.zeros(2, dtype).dtype == dtype
        assert A.astype(dtype).dtype == dtype
    assert (repr(semel.float32), str(semel.float32), f"{semel.int8}") == (
        "semel.float32", "float32", "int8",
    )  # fmt: skip


# ---------------------------------------------------------------- print


def test_print_shows_values_and_repr_computes_nothing() -> None:
    y = Tensor(A) * 2
    assert repr(y) == "<Tensor float32[2, 3] mul>"
    shown = "Tensor([[ 0.,  2.,  4.],\n        [ 6.,  8., 10.]], dtype=float32)"
    assert str(y) == f"{y}" == shown
    assert repr(y) == shown  # known by now
    assert str(Tensor(np.zeros((0, 3)))) == "Tensor([], shape=(0, 3), dtype=float64)"
    big = str(Tensor(np.zeros((500, 4), np.int8)) + 1)
    assert "..." in big and big.endswith("shape=(500, 4), dtype=int8)") and len(big) < 400


def test_print_says_what_a_tensor_waits_for() -> None:
    y = X.relu() + Tensor.param("p", [1.0, 2.0, 3.0])
    assert str(y) == "<Tensor float32[n, 3] add: waits for input 'x': f32[n,3], variable 'n'>"
    many = sum((Tensor.input(f"i{k}", (2,)) for k in range(9)), Tensor([0.0, 0.0]))
    assert str(many).endswith("input 'i5': f32[2] and 3 more>")


def test_repr_says_what_was_written() -> None:
    assert repr(X.sum(0)) == "<Tensor float32[3] sum>"
    assert repr(X.softmax(-1)) == "<Tensor float32[n, 3] softmax>"
    assert repr(X // 2) == "<Tensor float32[n, 3] floor_divide>"
    assert repr(semel.stack([X, X])) == "<Tensor float32[2, n, 3] stack>"


def test_print_says_where_there_is_no_value() -> None:
    said: list[str] = []

    @semel.jit
    def f(x: Tensor) -> Tensor:
        said.append(str(x * 2))
        return x

    f(A)
    assert said[0].endswith("mul: inside a function that jit follows, which has no values yet>")
    given = semel.jit(donate="s")(lambda s: s + 1)
    s = Tensor(A)
    given(s)
    assert "a donated tensor has no value any more" in str(s)


def test_print_never_raises() -> None:
    wrong = Tensor([1, 2]).take(Tensor([2]) + 3)
    assert str(wrong).startswith("<Tensor int64[1] take: IndexRangeError: [take] index must lie")
    seen: list[str] = []

    def body(step: Any, states: tuple[Tensor, ...]) -> Any:
        seen.append(f"{states[0]} {states[0]!r}")
        return [states[0] + 1], []

    semel.loop(3, [Tensor([1.0]) * 2], body)
    assert "inside a body, which has no values yet" in seen[0]


def test_format_is_of_the_number_or_of_each_element() -> None:
    assert f"{Tensor(2.5):.2f} {Tensor(7):03d} {Tensor(A).sum():>6.1f}" == "2.50 007   15.0"
    assert f"{Tensor([1.0, 2.25]):.1f}" == "[1.0, 2.2]"
    assert f"{Tensor([1.0, 2.5], 'bfloat16'):.3f}" == "[1.000, 2.500]"
    with pytest.raises(GraphError, match=r"^\[format\] a value must not depend on inputs"):
        f"{X:.2f}"


def test_notebooks_show_a_small_table() -> None:
    page = (Tensor(A) + 1)._repr_html_()
    assert "float32[2, 3]" in page and page.count("<td") == 6 and ">6.</td>" in page
    wide = Tensor(np.arange(900.0).reshape(30, 30))._repr_html_()
    assert wide.count("<tr>") == 11 and wide.count("&hellip;") == 21 and ">899.</td>" in wide
    assert "waits for input &#x27;x&#x27;" in X._repr_html_()
    assert "<pre>" in Tensor(np.zeros((2, 2, 2)))._repr_html_()
    assert "<code>3</code>" in Tensor(3)._repr_html_()
    assert Tensor([1, 2, 3])._repr_html_().count("<td") == 3


def test_sizes_that_are_symbolic_answer_like_numbers() -> None:
    n = Variable("n", 1, 8)
    x, v = Tensor.input("x", (n, 4)), Tensor.input("v", (n,))
    assert (x.size(0), x.size(-1), x.size(), v.size(0)) == (n, 4, (n, 4), n)
    assert (x.size, v.size, x.size // 4, hash(v.size)) == (4 * n, n, n, hash(n))
    assert pickle.loads(pickle.dumps(x.size)) == 4 * n
    assert x.reshape(x.size).shape == (4 * n,)
    np.testing.assert_array_equal(
        (v + 1).reshape(v.size, 1).prepare()(v=np.ones(2, np.float32)), [[2], [2]]
    )
    with pytest.raises(GraphError, match=r"\[size\] axis must lie in \[-2, 2\), got axis=2"):
        x.size(2)
    for size in (n, x.shape[0], v[v > 0].size):
        with pytest.raises(TypeError, match=r"is a size and cannot be called: x.shape\[0\] is"):
            size(0)  # type: ignore[operator]


def test_what_is_listed_is_for_users() -> None:
    for names in (dir(Tensor), dir(Tensor([1.0]))):
        assert {"softmax", "size", "__add__"} <= set(names)
        assert not [n for n in names if n.startswith("_") and not n.endswith("__")]


def test_the_package_of_tensors_is_no_function() -> None:
    with pytest.raises(UnsupportedError, match=r"\[tensor\] semel.tensor is a package.*asarray"):
        semel.tensor([1])  # type: ignore[operator]
