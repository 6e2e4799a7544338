"""Every pass by text before and text after, and by the numbers it must not change."""

from __future__ import annotations

import textwrap
from functools import partial

import numpy as np
import pytest

import semel.ops  # noqa: F401  (registers the ops)
from semel.errors import InternalError
from semel.ir.graph import Graph
from semel.ir.text import format_graph, parse_graph
from semel.ops.evaluate import evaluate
from semel.passes import Pass, default_passes, run_passes
from semel.passes.decompose import merge_reduced_axes, split_large_reductions
from semel.passes.fold import fold_constants
from semel.passes.simplify import simplify


def check(each: Pass, before: str, after: str) -> None:
    """`each` turns one text into the other; storages are compared by number and content."""
    graph = run_passes(parse_graph(before), [each], verify=True)
    assert format_graph(graph) == format_graph(parse_graph(after))


F32 = '%0 = input "x" : f32[4]\n'
I32 = '%0 = input "x" : i32[4]\n'
B1 = '%0 = input "x" : b1[4]\n'


def number(value: str, dtype: str = "f32") -> str:
    """The line of a repeated number, as %3 of shape [4]."""
    return f"%3 = scalar {value} : {dtype}[4]\n"


# ---------------------------------------------------------------- simplify

# (what, before, after): the last line before is the output
SIMPLER: list[tuple[str, str, str]] = [
    ("mul by 1", F32 + number("1.0") + "%4 = mul %0 %3 : f32[4]", F32),
    ("what has no elements",
     '%0 = input "x" : f32[0,4]\n%1 = argsort %0 {axis=1} : i64[0,4]\n'
     "%2 = take_along %0 %1 {axis=1} : f32[0,4]",
     "%0 = scalar 0.0 : f32[0,4]"),
    ("number that is looked at",
     "%0 = scalar 2.0 : f32[]\n%1 = reshape %0 {shape=(1, 1)} : f32[1,1]\n"
     "%2 = expand %1 {shape=(3, 4)} : f32[3,4]\n%3 = permute %2 {axes=(1, 0)} : f32[4,3]",
     "%0 = scalar 2.0 : f32[4,3]"),
    ("sink expand beside a number",
     '%0 = input "x" : f32[4,1]\n%1 = expand %0 {shape=(4, 8)} : f32[4,8]\n'
     "%2 = scalar 2.0 : f32[4,8]\n%3 = mul %1 %2 : f32[4,8]",
     '%0 = input "x" : f32[4,1]\n%2 = scalar 2.0 : f32[4,1]\n%3 = mul %0 %2 : f32[4,1]\n'
     "%4 = expand %3 {shape=(4, 8)} : f32[4,8]"),
    ("mul of 1", F32 + number("1.0") + "%4 = mul %3 %0 : f32[4]", F32),
    ("add -0.0", F32 + number("-0.0") + "%4 = add %0 %3 : f32[4]", F32),
    ("sub 0.0", F32 + number("0.0") + "%4 = sub %0 %3 : f32[4]", F32),
    ("div by 1", F32 + number("1.0") + "%4 = div %0 %3 : f32[4]", F32),
    ("div by 8", F32 + number("8.0") + "%4 = div %0 %3 : f32[4]",
     F32 + number("0.125") + "%4 = mul %0 %3 : f32[4]"),
    ("pow 1", F32 + number("1.0") + "%4 = pow %0 %3 : f32[4]", F32),
    ("pow 2", F32 + number("2.0") + "%4 = pow %0 %3 : f32[4]", F32 + "%1 = mul %0 %0 : f32[4]"),
    ("pow 0", F32 + number("0.0") + "%4 = pow %0 %3 : f32[4]", number("1.0")),
    ("neg neg", F32 + "%1 = neg %0 : f32[4]\n%2 = neg %1 : f32[4]", F32),
    ("abs neg", F32 + "%1 = neg %0 : f32[4]\n%2 = abs %1 : f32[4]", F32 + "%1 = abs %0 : f32[4]"),
    ("abs abs", F32 + "%1 = abs %0 : f32[4]\n%2 = abs %1 : f32[4]", F32 + "%1 = abs %0 : f32[4]"),
    ("floor rint", F32 + "%1 = rint %0 : f32[4]\n%2 = floor %1 : f32[4]",
     F32 + "%1 = rint %0 : f32[4]"),
    ("max self", F32 + "%1 = max %0 %0 : f32[4]", F32),
    ("int add 0", I32 + number("0", "i32") + "%4 = add %3 %0 : i32[4]", I32),
    ("int mul 0", I32 + number("0", "i32") + "%4 = mul %0 %3 : i32[4]", number("0", "i32")),
    ("int sub self", I32 + "%1 = sub %0 %0 : i32[4]", number("0", "i32")),
    ("int xor self", I32 + "%1 = xor %0 %0 : i32[4]", number("0", "i32")),
    ("int idiv 8", I32 + number("8", "i32") + "%4 = idiv %0 %3 : i32[4]",
     I32 + number("3", "i32") + "%4 = shr %0 %3 : i32[4]"),
    ("int imod 8", I32 + number("8", "i32") + "%4 = imod %0 %3 : i32[4]",
     I32 + number("7", "i32") + "%4 = and %0 %3 : i32[4]"),
    ("int and -1", I32 + number("-1", "i32") + "%4 = and %0 %3 : i32[4]", I32),
    ("shl 0", I32 + number("0", "i32") + "%4 = shl %0 %3 : i32[4]", I32),
    ("bool and true", B1 + number("True", "b1") + "%4 = and %0 %3 : b1[4]", B1),
    ("bool or true", B1 + number("True", "b1") + "%4 = or %0 %3 : b1[4]", number("True", "b1")),
    ("not not", B1 + "%1 = not %0 : b1[4]\n%2 = not %1 : b1[4]", B1),
    ("where true", F32 + number("True", "b1") + "%4 = neg %0 : f32[4]\n"
     "%5 = where %3 %0 %4 : f32[4]", F32),
    ("where not", B1 + '%1 = input "y" : f32[4]\n%2 = neg %1 : f32[4]\n%3 = not %0 : b1[4]\n'
     "%4 = where %3 %1 %2 : f32[4]",
     B1 + '%1 = input "y" : f32[4]\n%2 = neg %1 : f32[4]\n%3 = where %0 %2 %1 : f32[4]'),
    ("where same", B1 + '%1 = input "y" : f32[4]\n%2 = where %0 %1 %1 : f32[4]',
     '%0 = input "y" : f32[4]'),
    ("cast same", F32 + "%1 = cast %0 {dtype=f32} : f32[4]", F32),
    ("cast widen", F32 + "%1 = cast %0 {dtype=f64} : f64[4]\n%2 = cast %1 {dtype=f16} : f16[4]",
     F32 + "%1 = cast %0 {dtype=f16} : f16[4]"),
    ("cast back", I32 + "%1 = cast %0 {dtype=f64} : f64[4]\n%2 = cast %1 {dtype=i32} : i32[4]",
     I32),
    ("cast wraps", I32 + "%1 = cast %0 {dtype=i16} : i16[4]\n%2 = cast %1 {dtype=u8} : u8[4]",
     I32 + "%1 = cast %0 {dtype=u8} : u8[4]"),
    ("bitcast twice", F32 + "%1 = bitcast %0 {dtype=i32} : i32[4]\n"
     "%2 = bitcast %1 {dtype=f32} : f32[4]", F32),
    ("reshape twice", F32 + "%1 = reshape %0 {shape=(2, 2)} : f32[2,2]\n"
     "%2 = reshape %1 {shape=(4, 1)} : f32[4,1]",
     F32 + "%1 = reshape %0 {shape=(4, 1)} : f32[4,1]"),
    ("reshape back", F32 + "%1 = reshape %0 {shape=(2, 2)} : f32[2,2]\n"
     "%2 = reshape %1 {shape=(4,)} : f32[4]", F32),
    ("permute twice", '%0 = input "x" : f32[2,3,4]\n%1 = permute %0 {axes=(1, 2, 0)} : f32[3,4,2]\n'
     "%2 = permute %1 {axes=(1, 0, 2)} : f32[4,3,2]",
     '%0 = input "x" : f32[2,3,4]\n%1 = permute %0 {axes=(2, 1, 0)} : f32[4,3,2]'),
    ("permute back", '%0 = input "x" : f32[2,3]\n%1 = permute %0 {axes=(1, 0)} : f32[3,2]\n'
     "%2 = permute %1 {axes=(1, 0)} : f32[2,3]", '%0 = input "x" : f32[2,3]'),
    ("permute ones", '%0 = input "x" : f32[1,3]\n%1 = permute %0 {axes=(1, 0)} : f32[3,1]',
     '%0 = input "x" : f32[1,3]\n%1 = reshape %0 {shape=(3, 1)} : f32[3,1]'),
    ("expand twice", '%0 = input "x" : f32[1,1]\n%1 = expand %0 {shape=(2, 1)} : f32[2,1]\n'
     "%2 = expand %1 {shape=(2, 3)} : f32[2,3]",
     '%0 = input "x" : f32[1,1]\n%1 = expand %0 {shape=(2, 3)} : f32[2,3]'),
    ("slice all", F32 + "%1 = slice %0 {starts=(0,), sizes=(4,), steps=(1,)} : f32[4]", F32),
    ("slice twice", '%0 = input "x" : f32[20]\n'
     "%1 = slice %0 {starts=(18,), sizes=(6,), steps=(-3,)} : f32[6]\n"
     "%2 = slice %1 {starts=(1,), sizes=(3,), steps=(2,)} : f32[3]",
     '%0 = input "x" : f32[20]\n%1 = slice %0 {starts=(15,), sizes=(3,), steps=(-6,)} : f32[3]'),
    ("pad nothing", F32 + "%1 = scalar 0.0 : f32[]\n"
     "%2 = pad %0 %1 {before=(0,), after=(0,)} : f32[4]",
     F32),
    ("concat empty", F32 + '%1 = input "y" : f32[0]\n%2 = concat %1 %0 {axis=0} : f32[4]', F32),
    ("sink expand", '%0 = input "x" : f32[4,1]\n%1 = expand %0 {shape=(4, 8)} : f32[4,8]\n'
     "%2 = exp %1 : f32[4,8]",
     '%0 = input "x" : f32[4,1]\n%1 = exp %0 : f32[4,1]\n%2 = expand %1 {shape=(4, 8)} : f32[4,8]'),
    ("sink two expands", '%0 = input "x" : f32[4,1,1]\n'
     "%1 = expand %0 {shape=(4, 3, 8)} : f32[4,3,8]\n"
     '%2 = input "y" : f32[1,3,1]\n%3 = expand %2 {shape=(4, 3, 8)} : f32[4,3,8]\n'
     "%4 = add %1 %3 : f32[4,3,8]",
     '%0 = input "x" : f32[4,1,1]\n%1 = expand %0 {shape=(4, 3, 1)} : f32[4,3,1]\n'
     '%2 = input "y" : f32[1,3,1]\n%3 = expand %2 {shape=(4, 3, 1)} : f32[4,3,1]\n'
     "%4 = add %1 %3 : f32[4,3,1]\n%5 = expand %4 {shape=(4, 3, 8)} : f32[4,3,8]"),
    ("max over one", '%0 = input "x" : f32[4,1]\n%1 = reduce_max %0 {axes=(1,)} : f32[4,1]',
     '%0 = input "x" : f32[4,1]'),
]  # fmt: skip


def with_output(lines: str) -> str:
    last = lines.strip().splitlines()[-1].split()[0]
    return f"{lines.strip()}\noutput {last}\n"


@pytest.mark.parametrize(("before", "after"), [r[1:] for r in SIMPLER], ids=[r[0] for r in SIMPLER])
def test_simplify_finds_the_equal_graph(before: str, after: str) -> None:
    check(simplify, with_output(before), with_output(after))


# What looks equal and is not, bit for bit.
KEPT: list[tuple[str, str]] = [
    ("add 0.0 turns -0.0 to 0.0", F32 + number("0.0") + "%4 = add %0 %3 : f32[4]"),
    ("0.0 - x is not neg x", F32 + number("0.0") + "%4 = sub %3 %0 : f32[4]"),
    ("mul by 0.0 keeps NaN", F32 + number("0.0") + "%4 = mul %0 %3 : f32[4]"),
    ("x - x may be NaN", F32 + "%1 = sub %0 %0 : f32[4]"),
    ("x == x may be false", F32 + "%1 = eq %0 %0 : b1[4]"),
    ("a third is not exact", F32 + number("3.0") + "%4 = div %0 %3 : f32[4]"),
    ("sqrt is not pow", F32 + number("0.5") + "%4 = pow %0 %3 : f32[4]"),
    ("1 / x is not x", F32 + number("1.0") + "%4 = div %3 %0 : f32[4]"),
    ("idiv of floats rounds", F32 + number("1.0") + "%4 = idiv %0 %3 : f32[4]"),
    ("a sum starts at 0.0", F32 + "%1 = reshape %0 {shape=(4, 1)} : f32[4,1]\n"
     "%2 = reduce_sum %1 {axes=(1,)} : f32[4,1]"),
    ("narrowing rounds", F32 + "%1 = cast %0 {dtype=f16} : f16[4]\n"
     "%2 = cast %1 {dtype=f32} : f32[4]"),
    ("floats saturate", I32 + "%1 = cast %0 {dtype=f64} : f64[4]\n%2 = cast %1 {dtype=i8} : i8[4]"),
    ("bool clamps", I32 + "%1 = cast %0 {dtype=b1} : b1[4]\n%2 = cast %1 {dtype=i32} : i32[4]"),
    ("idiv by 0 is 0", I32 + number("0", "i32") + "%4 = idiv %0 %3 : i32[4]"),
    ("shift by x", I32 + number("0", "i32") + "%4 = shl %3 %0 : i32[4]"),
]  # fmt: skip


@pytest.mark.parametrize("text", [r[1] for r in KEPT], ids=[r[0] for r in KEPT])
def test_simplify_keeps_what_differs_in_a_bit(text: str) -> None:
    check(simplify, with_output(text), with_output(text))


def test_simplify_keeps_dims_that_agree_by_a_guard_only() -> None:
    text = """
        variable m in [1, 9]
        variable n in [1, 9]
        %1 = scalar 1.0 : f32[1]
        %2 = expand %1 {shape=(n,)} : f32[n]
        %3 = input "y" : f32[m]
        %4 = mul %2 %3 : f32[n]
        output %4
    """
    check(simplify, text, text)


# ---------------------------------------------------------------- fold


def test_op_on_a_constant_folds() -> None:
    check(
        fold_constants,
        "%0 = constant @0 : f32[2] = [1.0, 4.0]\n%1 = sqrt %0 : f32[2]\noutput %1",
        "%0 = constant @0 : f32[2] = [1.0, 2.0]\noutput %0",
    )


def test_op_on_moved_constants_folds_and_movement_stays() -> None:
    head = (
        "%0 = constant @0 : i32[1,2] = [1, 2]\n"
        "%1 = expand %0 {shape=(2, 2)} : i32[2,2]\n"
        "%2 = permute %1 {axes=(1, 0)} : i32[2,2]\n"
    )
    check(fold_constants, head + "output %2", head + "output %2")
    check(
        fold_constants,
        head + "%3 = sub %2 %1 : i32[2,2]\noutput %3",
        "%0 = constant @0 : i32[2,2] = [0, -1, 1, 0]\noutput %0",
    )


def test_uniform_operands_fold_at_symbolic_shapes() -> None:
    def repeated(value: str) -> str:
        return f"""
            variable n in [1, 9]
            %0 = scalar {value} : f32[]
            %1 = reshape %0 {{shape=(1, 1)}} : f32[1,1]
            %2 = expand %1 {{shape=(n, 4)}} : f32[n,4]
        """

    check(
        fold_constants,
        repeated("3.0") + "\n%3 = mul %2 %2 : f32[n,4]\noutput %3",
        repeated("9.0") + "\noutput %2",
    )


def test_constant_of_one_element_becomes_a_scalar() -> None:
    check(
        fold_constants,
        "%0 = constant @0 : f32[1] = [2.5]\noutput %0",
        "%0 = scalar 2.5 : f32[1]\noutput %0",
    )


def test_constant_of_one_repeated_number_becomes_a_scalar() -> None:
    check(
        fold_constants,
        "%0 = constant @0 : i32[3] = [7, 7, 7]\noutput %0",
        "%0 = scalar 7 : i32[3]\noutput %0",
    )
    for kept in ("f32[2] = [0.0, -0.0]", "i8[2] = [1, 2]"):
        text = f"%0 = constant @0 : {kept}\noutput %0"
        check(fold_constants, text, text)


NOT_FOLDED = [
    "%0 = iota {shape=(4,), axis=0, dtype=i32} : i32[4]\n%1 = neg %0 : i32[4]\noutput %1",
    "%0 = constant @0 : i32[2] = [1, 5]\n"
    '%1 = check_index %0 {size=4, where="take"} : i64[2]\noutput %1',
    "%0 = constant @0 : u32[2] = [1, 5]\n"
    "%1 = random_bits %0 {shape=(20000,)} : u32[20000]\noutput %1",
    f"%0 = constant @0 : f32[150] = {[float(i) for i in range(150)]}\n"
    "%1 = reshape %0 {shape=(150, 1)} : f32[150,1]\n"
    "%2 = reshape %0 {shape=(1, 150)} : f32[1,150]\n"
    "%3 = matmul %1 %2 : f32[150,150]\noutput %3",
]


@pytest.mark.parametrize("text", NOT_FOLDED, ids=["iota", "bad index", "bits", "grows"])
def test_what_must_not_fold_stays(text: str) -> None:
    check(fold_constants, text, text)


def test_what_params_determine_is_stored() -> None:
    """Their data is not looked at: the recipe is kept, and what it reads is made on the way."""
    graph = parse_graph(
        '%0 = param "w" @0 : f32[2] = [1.0, 4.0]\n%1 = sqrt %0 : f32[2]\n'
        "%2 = constant @1 : f32[2] = [1.0, 2.0]\n%3 = mul %1 %2 : f32[2]\noutput %3"
    )
    (leaf,) = fold_constants(graph).nodes
    assert leaf.op.name == "stored"
    names = [node.op.name for node in leaf.attrs.value.nodes]
    assert names == ["param", "sqrt", "constant", "mul"]
    np.testing.assert_array_equal(evaluate(Graph((leaf,)), {})[0], [1, 4])


def test_small_random_bits_and_good_indices_fold() -> None:
    key = "%0 = constant @0 : u32[2] = [0, 0]\n"
    bits = run_passes(
        parse_graph(key + "%1 = random_bits %0 {shape=(2,)} : u32[2]\noutput %1"), [fold_constants]
    )
    assert bits.outputs[0].attrs.storage.array[0] == 0x6627E8D5
    check(
        fold_constants,
        "%0 = constant @0 : i32[2] = [1, -1]\n"
        '%1 = check_index %0 {size=4, where="take"} : i64[2]\noutput %1',
        "%0 = constant @0 : i64[2] = [1, 3]\noutput %0",
    )


# ---------------------------------------------------------------- decompose


def test_adjacent_reduced_axes_become_one() -> None:
    check(
        merge_reduced_axes,
        """
        variable n in [1, 9]
        %0 = input "x" : f32[n,4,6,3]
        %1 = reduce_max %0 {axes=(1, 2), propagate_nan=False} : f32[n,1,1,3]
        output %1
        """,
        """
        variable n in [1, 9]
        %0 = input "x" : f32[n,4,6,3]
        %1 = reshape %0 {shape=(n, 24, 3)} : f32[n,24,3]
        %2 = reduce_max %1 {axes=(1,), propagate_nan=False} : f32[n,1,3]
        %3 = reshape %2 {shape=(n, 1, 1, 3)} : f32[n,1,1,3]
        output %3
        """,
    )


def test_axes_apart_stay_apart() -> None:
    text = """
        %0 = input "x" : f32[2,3,4]
        %1 = reduce_sum %0 {axes=(0, 2)} : f32[1,3,1]
        output %1
    """
    check(merge_reduced_axes, text, text)


def test_long_sum_is_cut_into_runs() -> None:
    check(
        split_large_reductions,
        """
        %0 = input "x" : f32[1000000]
        %1 = reduce_sum %0 {axes=(0,)} : f32[1]
        output %1
        """,
        """
        %0 = input "x" : f32[1000000]
        %1 = reshape %0 {shape=(1, 1000000)} : f32[1,1000000]
        %2 = reduce_partial %1 {axis=1, chunk=16384, combine="sum"} : f32[1,62]
        %3 = reduce_sum %2 {axes=(1,)} : f32[1,1]
        %4 = reshape %3 {shape=(1,)} : f32[1]
        output %4
        """,
    )


def test_kept_axes_stay_where_they_are_and_half_types_round_once() -> None:
    check(
        split_large_reductions,
        """
        variable n in [1, inf]
        %0 = input "x" : bf16[n,4]
        %1 = reduce_sum %0 {axes=(0,)} : bf16[1,4]
        output %1
        """,
        """
        variable n in [1, inf]
        %0 = input "x" : bf16[n,4]
        %1 = reshape %0 {shape=(1, n, 4)} : bf16[1,n,4]
        %2 = cast %1 {dtype=f32} : f32[1,n,4]
       %3 = reduce_partial %2 {axis=1, chunk=16384, combine="sum"} : f32[1,((n + 16383)//(16384)),4]
        %4 = reduce_sum %3 {axes=(1,)} : f32[1,1,4]
        %5 = cast %4 {dtype=bf16} : bf16[1,1,4]
        %6 = reshape %5 {shape=(1, 4)} : bf16[1,4]
        output %6
        """,
    )


def test_of_several_axes_the_innermost_is_cut() -> None:
    check(
        split_large_reductions,
        """
        %0 = input "x" : f32[5,3,20000]
        %1 = reduce_sum %0 {axes=(0, 2)} : f32[1,3,1]
        output %1
        """,
        """
        %0 = input "x" : f32[5,3,20000]
        %1 = reduce_partial %0 {axis=2, chunk=16384, combine="sum"} : f32[5,3,2]
        %2 = reduce_sum %1 {axes=(0, 2)} : f32[1,3,1]
        output %2
        """,
    )


WHOLE = [
    '%0 = input "x" : f32[16384]\n%1 = reduce_sum %0 {axes=(0,)} : f32[1]\noutput %1',
    '%0 = input "x" : f32[8,100000]\n%1 = reduce_sum %0 {axes=(1,)} : f32[8,1]\noutput %1',
    '%0 = input "x" : f32[100000]\n%1 = reduce_argmax %0 {axes=(0,)} : i64[1]\noutput %1',
]


@pytest.mark.parametrize("text", WHOLE, ids=["short", "many results", "argmax"])
def test_other_reductions_stay_whole(text: str) -> None:
    check(split_large_reductions, text, text)


def test_split_twice_is_split_once() -> None:
    graph = parse_graph(
        'variable n in [1, inf]\n%0 = input "x" : f32[n]\n'
        "%1 = reduce_sum %0 {axes=(0,)} : f32[1]\noutput %1"
    )
    once = split_large_reductions(graph)
    assert split_large_reductions(once) == once


@pytest.mark.parametrize("combine", ["sum", "prod", "max", "min"])
def test_split_reduction_gives_the_same_numbers(combine: str) -> None:
    graph = parse_graph(
        f'%0 = input "x" : i64[2,70000,3]\n'
        f"%1 = reduce_{combine} %0 {{axes=(1, 2)}} : i64[2,1,1]\noutput %1"
    )
    x = np.random.default_rng(3).integers(-9, 10, (2, 70000, 3))
    after = run_passes(graph, verify=True)
    assert any(n.op.name == "reduce_partial" for n in after.nodes)
    np.testing.assert_array_equal(evaluate(graph, {"x": x})[0], evaluate(after, {"x": x})[0])


# ---------------------------------------------------------------- all together


def test_unused_and_repeated_work_never_enters_a_graph() -> None:
    graph = parse_graph(
        textwrap.dedent("""
        %0 = input "x" : f32[4]
        %1 = exp %0 : f32[4]
        %2 = neg %0 : f32[4]
        %3 = neg %0 : f32[4]
        %4 = add %2 %3 : f32[4]
        output %4
        """)
    )
    assert [n.op.name for n in graph.nodes] == ["input", "neg", "add"]


def test_a_pass_that_breaks_the_graph_is_named() -> None:
    graph = parse_graph(with_output(F32 + "%1 = neg %0 : f32[4]"))

    def forget_half(given: Graph) -> Graph:
        text = "{starts=(0,), sizes=(2,), steps=(1,)} : f32[2]"
        return parse_graph(with_output(F32 + f"%1 = slice %0 {text}"))

    def forget(given: Graph, target: str) -> Graph:
        return forget_half(given)

    with pytest.raises(InternalError, match=r"forget_half.*was f32.4. and became f32.2."):
        run_passes(graph, [forget_half], verify=True)
    with pytest.raises(InternalError, match=r"\[forget\] .*was f32.4. and became f32.2."):
        run_passes(graph, [partial(forget, target="x86-64-v3")], verify=True)


SPECIAL = [0.0, -0.0, 1.0, -1.5, 2.0, np.inf, -np.inf, np.nan, 1e-40, 3e38]
UNARY_OPS = ["neg", "abs", "floor", "rint", "sqrt", "sign"]
BINARY_OPS = ["add", "sub", "mul", "div", "max", "min", "pow"]


def _random_graph(rng: np.random.Generator, dtype: str) -> Graph:
    """A few ops over one input and special numbers, with movement between them."""
    lines = [f'%0 = input "x" : {dtype}[2,5]']
    tensors = [0]

    def emit(text: str, shape: str = "[2,5]") -> int:
        lines.append(f"%{len(lines)} = {text} : {dtype}{shape}")
        return len(lines) - 1

    for _ in range(12):
        a, b = rng.choice(tensors, 2)
        match int(rng.integers(5)):
            case 0:
                value = float(rng.choice(SPECIAL[:5]))
                scalar = emit(f"scalar {value!r}", "[]")
                one = emit(f"reshape %{scalar} {{shape=(1, 1)}}", "[1,1]")
                tensors.append(emit(f"expand %{one} {{shape=(2, 5)}}"))
            case 1:
                tensors.append(emit(f"{rng.choice(UNARY_OPS)} %{a}"))
            case 2:
                turned = emit(f"permute %{a} {{axes=(1, 0)}}", "[5,2]")
                tensors.append(emit(f"reshape %{turned} {{shape=(2, 5)}}"))
            case _:
                tensors.append(emit(f"{rng.choice(BINARY_OPS)} %{a} %{b}"))
    return parse_graph("\n".join(lines) + f'\noutput %{tensors[-1]}\noutput %{tensors[-2]} "z"')


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16"])
@pytest.mark.parametrize("seed", range(40))
def test_passes_change_no_bit(seed: int, dtype: str) -> None:
    graph = _random_graph(np.random.default_rng(seed), dtype)
    with np.errstate(over="ignore"):
        data = np.array(SPECIAL).astype(graph.outputs[0].type.dtype.numpy).reshape(2, 5)
    after = run_passes(graph, verify=True)
    expected, actual = (evaluate(g, {n.attrs.name: data for n in g.inputs}) for g in (graph, after))
    for a, b in zip(expected, actual, strict=True):
        np.testing.assert_array_equal(a, b)
        real = ~np.isnan(a)
        np.testing.assert_array_equal(np.signbit(a[real]), np.signbit(b[real]))


def test_default_passes_reach_a_fixed_point() -> None:
    for seed in range(20):
        graph = _random_graph(np.random.default_rng(seed), "f32")
        once = run_passes(graph)
        assert format_graph(run_passes(once)) == format_graph(once)
    assert simplify in default_passes()
