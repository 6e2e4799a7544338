"""The size algebra: simplified expressions mean what was written, and bounds bound.

Random trees over variables and indices are built twice: by the algebra, and as plain Python
integers at some values of the atoms. Python's own `//` and `%` are the truth, with divisors of
either sign; values where a divisor is 0 have no meaning and are left out.
"""

from __future__ import annotations

import operator
import pickle
from collections.abc import Callable
from random import Random
from typing import Any, TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from semel.errors import GraphError
from semel.ir.encode import DimReader, DimWriter
from semel.ir.expr import (
    Dim,
    Expr,
    Fn,
    Index,
    Variable,
    atoms,
    bounds,
    ceildiv,
    divisors,
    evaluate,
    floordiv,
    is_nonnegative,
    is_positive,
    linear_coefficient,
    maximum,
    minimum,
    mod,
    product,
    renamed,
    substitute,
    sum_dims,
    symbolic_max,
    symbolic_min,
    terms,
)
from semel.ir.text import format_dim, parse_graph

Tree: TypeAlias = Any  # an int, an atom, or (operation, tree, tree)
Values: TypeAlias = dict[Any, int]

N, M, K = Variable("n", 1, 12), Variable("m", 0, 7), Variable("k", 2)
R, J, T, B = Index("r", 6), Index("j", N), Index("t", N * M - K), Index("b", 2)
LEAVES: tuple[Variable | Index, ...] = (N, M, K, R, J, T, B)

OPERATIONS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[int, int], int]]] = {
    "+": (operator.add, operator.add),
    "-": (operator.sub, operator.sub),
    "*": (operator.mul, operator.mul),
    "//": (floordiv, operator.floordiv),
    "%": (mod, operator.mod),
    "min": (minimum, min),
    "max": (maximum, max),
}

quick = settings(
    max_examples=200,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
seeds = given(st.integers(0, 2**32).map(Random))


def random_tree(rng: Random, size: int) -> Tree:
    """A tree of up to `size` operations; products with an index are frequent."""
    if size == 0 or rng.random() < 0.1:
        return rng.choice((*LEAVES, *LEAVES, rng.randint(-9, 9)))
    left = rng.randrange(size)
    operation = rng.choice(("+", "-", "-", "*", "*", "//", "%", "min", "max"))
    return operation, random_tree(rng, left), random_tree(rng, size - 1 - left)


def build(tree: Tree) -> Dim:
    """The tree by the algebra; GraphError if it divides by the constant 0."""
    if not isinstance(tree, tuple):
        return tree
    return OPERATIONS[tree[0]][0](build(tree[1]), build(tree[2]))


def plain(tree: Tree, values: Values) -> int:
    """The tree by Python; ZeroDivisionError where it has no value."""
    if not isinstance(tree, tuple):
        return tree if isinstance(tree, int) else values[tree]
    return OPERATIONS[tree[0]][1](plain(tree[1], values), plain(tree[2], values))


def random_values(rng: Random) -> Values | None:
    """A value in range for every atom; None if an index has none."""
    values: Values = {}
    for leaf in LEAVES:
        if isinstance(leaf, Variable):
            high = 40 if leaf.max is None else leaf.max
            values[leaf] = rng.choice((leaf.min, high, rng.randint(leaf.min, high)))
        else:
            extent = evaluate(leaf.extent, values)
            if extent <= 0:
                return None
            values[leaf] = rng.choice((0, extent - 1, rng.randrange(extent)))
    return values


def meanings(rng: Random, tree: Tree) -> list[tuple[Values, int]]:
    """Some values of the atoms, and what the tree is there."""
    found = []
    for values in (random_values(rng) for _ in range(12)):
        try:
            if values is not None:
                found.append((values, plain(tree, values)))
        except ZeroDivisionError:
            continue
    return found


def made(rng: Random) -> tuple[Tree, Dim]:
    """A random tree that can be built, and the expression."""
    while True:
        tree = random_tree(rng, rng.randint(1, 7))
        try:
            return tree, build(tree)
        except GraphError:
            continue


# ---------------------------------------------------------------- values


@quick
@seeds
def test_simplification_keeps_the_value(rng: Random) -> None:
    tree, expression = made(rng)
    for values, want in meanings(rng, tree):
        assert evaluate(expression, values) == want, (tree, expression, values)


@quick
@seeds
def test_bounds_bound(rng: Random) -> None:
    tree, expression = made(rng)
    low, high = bounds(expression)
    least, most = symbolic_min(expression), symbolic_max(expression)
    for values, value in meanings(rng, tree):
        where = (tree, str(expression), values)
        assert low is None or low <= value, where
        assert high is None or value <= high, where
        assert not is_nonnegative(expression) or value >= 0, where
        assert not is_positive(expression) or value >= 1, where
        assert evaluate(least, values) <= value <= evaluate(most, values), where


@quick
@seeds
def test_bounds_of_products_bound(rng: Random) -> None:
    """An index times a factor of either sign: its extent is where the product ends, or 0."""
    tree, _ = made(rng)
    whole = (
        "*",
        rng.choice((R, J, T, B)),
        ("-", ("//", tree, rng.randint(2, 5)), rng.randint(-9, 9)),
    )
    expression = build(whole)
    for values, value in meanings(rng, whole):
        where = (whole, str(expression), values)
        assert evaluate(symbolic_min(expression), values) <= value, where
        assert value <= evaluate(symbolic_max(expression), values), where


@quick
@seeds
def test_substitution_keeps_the_value(rng: Random) -> None:
    tree, expression = made(rng)
    (_, other), atom = made(rng), rng.choice((N, M, K))
    for values, want in meanings(rng, tree):
        fixed = substitute(expression, {a: values[a] for a in atoms(expression)})
        assert fixed == want, (tree, expression, values)
        # What stands for an atom must lie in its range: it is that atom's value, in a disguise.
        try:
            disguise = other + (values[atom] - evaluate(other, values))
        except GraphError:
            continue
        replaced = substitute(expression, {atom: disguise})
        assert evaluate(replaced, values) == want, (tree, expression, atom, disguise, values)


@quick
@seeds
def test_an_index_is_linear_where_the_coefficient_says_so(rng: Random) -> None:
    tree, expression = made(rng)
    index = rng.choice((R, J))
    coefficient = linear_coefficient(expression, index)
    if coefficient is None:
        return
    assert index not in atoms(coefficient)
    rest = substitute(expression, {index: 0})
    for values, want in meanings(rng, tree):
        found = evaluate(rest, values) + evaluate(coefficient, values) * values[index]
        assert found == want, (tree, expression, values)


# ---------------------------------------------------------------- one form


@quick
@seeds
def test_sums_and_products_have_one_form(rng: Random) -> None:
    parts = [made(rng)[1] for _ in range(3)]
    shuffled = rng.sample(parts, 3)
    for combine in (sum_dims, product):
        a, b = combine(parts), combine(shuffled)
        assert a == b and hash(a) == hash(b) and str(a) == str(b)
    assert (parts[0] + parts[1]) - parts[1] == parts[0]
    left = parts[0] * (parts[1] + parts[2])
    assert left == parts[0] * parts[1] + parts[0] * parts[2]


@quick
@seeds
def test_an_expression_is_never_a_number_and_its_terms_are_sorted(rng: Random) -> None:
    _, expression = made(rng)
    if not isinstance(expression, Expr):
        return
    assert all(coefficient for _, coefficient in expression.terms)
    monomials = [monomial for monomial, _ in expression.terms]
    assert any(monomials) and len(set(monomials)) == len(monomials)
    assert len(expression.terms) > 1 or expression.terms[0][1] != 1 or len(monomials[0]) > 1
    assert [len(m) for m in monomials] == sorted((len(m) for m in monomials), reverse=True)
    for monomial in monomials:
        keys = [atom._key() for atom in monomial]
        assert keys == sorted(keys)


@quick
@seeds
def test_what_is_written_is_read_back_equal(rng: Random) -> None:
    _, expression = made(rng)
    assert pickle.loads(pickle.dumps(expression)) == expression
    write = DimWriter()
    reference = write(expression)
    assert DimReader(write.entries)(reference) == expression
    # Indices have no text of their own: graphs name variables only.
    try:
        outside = substitute(expression, {R: N, J: M, T: K, B: M})
    except GraphError as error:
        assert "by zero" in str(error)  # r - n divides here and there
        return
    lines = [f"variable {v.name} in [{v.min}, {v.max or 'inf'}]" for v in (N, M, K)]
    text = "\n".join([*lines, f'%0 = input "x" : f32[{format_dim(outside)}]', "output %0"])
    try:
        graph = parse_graph(text)
    except GraphError as error:
        assert "must be >= 0" in str(error)  # a dim that is always negative
        return
    assert graph.outputs[0].type.shape == (outside,), text


# ---------------------------------------------------------------- particular sums


@pytest.mark.parametrize(
    ("a", "b", "quotient", "remainder"),
    [
        (N * K * R, N * 3, floordiv(K * R, 3), N * mod(K * R, 3)),
        (N * K, N * (M + 1), floordiv(K, M + 1), N * mod(K, M + 1)),
        (4 * R, 6, floordiv(2 * R, 3), 2 * mod(2 * R, 3)),
        (N * R + N * J, N * 4, floordiv(R + J, 4), N * mod(R + J, 4)),
        (N * R + N * 4 * J, N * 4, J + floordiv(R, 4), N * mod(R, 4)),
    ],
)
def test_a_common_factor_that_is_positive_is_cancelled(
    a: Dim, b: Dim, quotient: Dim, remainder: Dim
) -> None:
    assert floordiv(a, b) == quotient
    assert mod(a, b) == remainder


def test_a_common_factor_that_may_be_zero_is_cancelled_and_a_negative_one_stays() -> None:
    assert floordiv(M * R, M * 3) == floordiv(R, 3)  # nothing is divided by 0 times 3
    negative = Variable("v", -3, 3)
    assert floordiv(negative * R, negative * 3) == Fn("floordiv", (negative * R, negative * 3))


@pytest.mark.parametrize(
    ("a", "b", "quotient"),
    [
        (64 * N - 384, N - 6, 64),
        (N * N - K * K, N + K, N - K),
        (R * (N + 1), 2 * N + 2, floordiv(R, 2)),
        (K * (N + M) * 3, N * K + M * K, 3),
        ((N + 1) * (N + 2) * (M + 1), N * M + N + M + 1, N + 2),
    ],
)
def test_sums_divide_sums(a: Dim, b: Dim, quotient: Dim) -> None:
    assert floordiv(a, b) == quotient


def test_what_sums_do_not_divide_stays() -> None:
    assert floordiv(N * N + 1, N + 1) == Fn("floordiv", (N * N + 1, N + 1))


LINE, ROW, PLACE = Index("line", 64), Index("row", 56), Index("place", 56)
TALL, WIDE = Variable("tall", 1), Variable("wide", 1)
H, W = Index("h", TALL), Index("w", WIDE)


@pytest.mark.parametrize(
    ("a", "b", "quotient"),
    [
        (3136 * LINE + 56 * ROW + PLACE, 25088, floordiv(LINE, 8)),
        (3136 * LINE + 56 * ROW + PLACE, 112, 28 * LINE + floordiv(ROW, 2)),
        (56 * ROW + 8 * R + 7, 112, floordiv(ROW, 2)),
        (TALL * WIDE * LINE + WIDE * H + W, 8 * TALL * WIDE, floordiv(LINE, 8)),
    ],
)
def test_what_carries_nothing_is_left_out_of_a_division(a: Dim, b: Dim, quotient: Dim) -> None:
    assert floordiv(a, b) == quotient
    assert floordiv(a, b) * b + mod(a, b) == a


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (28 * LINE + PLACE, 56),
        (56 * ROW + PLACE + 1, 112),
        (R + 9, 9 * N - 9 * K),  # of a negative divisor the quotient is rounded the other way
    ],
)
def test_what_may_carry_stays(a: Dim, b: Dim) -> None:
    assert floordiv(a, b) == Fn("floordiv", (a, b))
    assert floordiv(a, b) * b + mod(a, b) == a


def test_minima_and_maxima_that_hold_each_other_fold() -> None:
    assert minimum(maximum(N, M), M) == M
    assert maximum(minimum(N, M), M) == M
    assert maximum(maximum(N, M), M) == maximum(N, M)
    assert minimum(M, minimum(N, M)) == minimum(N, M)
    assert maximum(minimum(N, 5), 0) == minimum(N, 5)


def test_quotients_of_quotients_join_for_positive_divisors_only() -> None:
    assert floordiv(floordiv(K, 2), 3) == floordiv(K, 6)
    for k in range(2, 20):
        assert evaluate(floordiv(floordiv(K, 2), -3), {K: k}) == k // 2 // -3


def test_the_bounds_of_a_product_with_a_negative_factor() -> None:
    below = floordiv(K - 9, 4)  # at least -2, at most anything
    capped = minimum(below, 3)
    assert bounds(capped) == (-2, 3)
    assert bounds(capped * N) == (-24, 36)
    assert bounds(capped * capped) == (-6, 9)
    assert bounds(-capped * N) == (-36, 24)
    # Without negative factors one end is known where the other is not.
    assert bounds(K * N) == (2, None)
    assert bounds(K * M) == (0, None)
    assert bounds(K * below) == (None, None)


def test_the_bounds_of_remainders_and_quotients() -> None:
    assert bounds(mod(K, 5)) == (0, 4)
    assert bounds(mod(K, -5)) == (-4, 0)
    assert bounds(floordiv(K, N)) == (0, None)
    assert bounds(floordiv(R - 3, N)) == (-3, 2)
    assert bounds(floordiv(-1 - R, K)) == (-3, -1)
    assert bounds(floordiv(-1 * K, N)) == (None, -1)


def test_an_index_times_what_may_be_negative_has_symbolic_bounds() -> None:
    shift = minimum(N - 4, K - 5)  # from -3 up
    assert evaluate(symbolic_max(R * shift), {N: 1, K: 2}) == 0
    assert evaluate(symbolic_min(R * shift), {N: 1, K: 2}) == 5 * -3
    assert evaluate(symbolic_max(R * shift), {N: 9, K: 8}) == 5 * 3
    assert evaluate(symbolic_min(R * shift), {N: 9, K: 8}) == 0
    assert not is_nonnegative(R * shift)


def test_ceildiv_rounds_up() -> None:
    for k in (2, 7, 8, 9):
        assert evaluate(ceildiv(K, 8), {K: k}) == -(-k // 8)


def test_division_by_zero_is_refused() -> None:
    with pytest.raises(GraphError, match="division of 3 by zero"):
        floordiv(3, 0)
    with pytest.raises(GraphError, match="remainder of 3 by zero"):
        mod(3, 0)
    with pytest.raises(GraphError, match="division of n by zero"):
        floordiv(N, 0)
    with pytest.raises(GraphError, match="remainder of n by zero"):
        mod(N, 0)
    with pytest.raises(GraphError, match="division of 9 by zero"):
        evaluate(floordiv(K + 2, M), {K: 7, M: 0})


def test_what_a_reshape_took_apart_is_put_together() -> None:
    assert floordiv(K, 14) * 14 + mod(K, 14) == K
    assert floordiv(4 * R, 6) * 6 + mod(4 * R, 6) == 4 * R
    assert [str(m[0]) for m, _ in terms(K + N)] == ["k", "n"]


def test_a_negative_divisor_gives_its_sign_to_the_dividend() -> None:
    n = Variable("n", -20, 20)
    for divisor in (-1, -2, -7):
        quotient, remainder = floordiv(3 * n + 1, divisor), mod(3 * n + 1, divisor)
        for value in range(-20, 21):
            found = evaluate(quotient, {"n": value}), evaluate(remainder, {"n": value})
            assert found == divmod(3 * value + 1, divisor)
        for dim, (low, high) in ((quotient, bounds(quotient)), (remainder, bounds(remainder))):
            values = [evaluate(dim, {"n": value}) for value in range(-20, 21)]
            assert low is not None and high is not None
            assert low <= min(values) and max(values) <= high


def test_divisors_are_found_inside_out() -> None:
    n, d = Variable("n", 3, 20), Variable("d", -4, 5)
    assert floordiv(n * d, d) == n
    found = divisors(maximum(floordiv(n, d + 7) + mod(n, 3), floordiv(d, mod(n, d))))
    assert set(found) == {d, mod(n, d), d + 7, 3}
    assert found.index(d) < found.index(mod(n, d))


@pytest.mark.parametrize("factor", [1, 3, Variable("a", 1, 9), 2 * Variable("z", 1, 9)], ids=str)
def test_quotient_and_rest_join_whatever_they_are_multiplied_with(factor: Dim) -> None:
    x = Index("x", 64)
    assert factor * (x % 4) + factor * (x // 4) * 4 == factor * x
    assert factor * (x // 4) * 4 + factor * (x % 4) + 5 == factor * x + 5


@pytest.mark.parametrize("factor", [1, 24, Variable("a", 1, 9)], ids=str)
def test_quotient_and_rest_join_where_the_divisor_is_a_sum(factor: Dim) -> None:
    """Sizes behind a stride are sums: a reshape there and back is nothing."""
    n = Variable("n", 1)
    width = (n - 1) // 2 + 1
    flat = Index("x", 32 * width)
    assert factor * (flat // width) * width + factor * (flat % width) == factor * flat
    depth = Index("y", 24 * 32 * width)
    row, column, channel = (depth // 24) // width, (depth // 24) % width, depth % 24
    assert 24 * (width * row + column) + channel == depth


def test_names_change_the_order_and_nothing_else() -> None:
    """Renaming is a substitution that simplifies nothing, functions included."""
    n, m = Variable("n", 1, 40), Variable("m", 2, 9)
    i, j = Index("row", 8 * n), Index("column", 12)
    names: dict[Any, Any] = {n: Variable("v1", 1, 40), m: Variable("v0", 2, 9)}
    names |= {i: Index("i1", 8 * names[n]), j: Index("i0", 12)}
    for value in (
        i,
        3 * i * m + j * n - 7,
        (12 * i + j) // (8 * n) + (12 * i + j) % (8 * n) * m,
        minimum(24 * i + 24, 64 * n * m) - j * ((i + 5) // 3),
        maximum(j - i, (j * n) // 7) + n * m,
    ):
        known: dict[Any, Any] = {}
        for _ in range(2):  # the second time, functions are known
            assert renamed(value, names, known) == substitute(value, names), value
            assert str(renamed(value, names, known)) == str(substitute(value, names))
    assert renamed(5, names, {}) == 5
