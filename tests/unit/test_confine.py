"""Kernels of strangers: what is proved, what is checked at run time, what is refused."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from semel.ir.expr import Dim, Fn, Index, Variable, ceildiv, evaluate, maximum, minimum
from semel.ir.prove import Budget, Knowledge
from semel.ir.types import FLOAT32, INT32, INT64, UINT8, UINT32
from semel.kernel import ir
from semel.kernel.bounds import Confined, confine_kernel
from semel.kernel.interpret import interpret
from semel.kernel.ir import Buffer, Kernel, Statement

TILE = Index("t", 8)
COLUMN = Index("i", 16)
N = Variable("n", 1, 64)
OUT = Buffer("out", FLOAT32, 64, "w")
IN = Buffer("in", FLOAT32, 64, "r")
ROWS = Buffer("rows", INT32, 8, "r")


def kernel(
    body: Sequence[Statement],
    buffers: Sequence[Buffer] = (OUT, IN, ROWS),
    scratch: Sequence[Buffer] = (),
    variables: Sequence[Variable] = (),
    tiles: Dim = 8,
) -> Kernel:
    return Kernel("k", tuple(buffers), tuple(scratch), tuple(variables), TILE, tiles, tuple(body))


def confined(*body: Statement, **parts: object) -> Confined:
    return confine_kernel(kernel(body, **parts))  # type: ignore[arg-type]


def copy(to: Dim, at: Dim = 0) -> Statement:
    return ir.Store(OUT, to, ir.load(IN, at))


def loop(
    stop: Dim, *body: Statement, start: Dim = 0, index: Index = COLUMN, lanes: int = 1
) -> ir.Loop:
    return ir.Loop(index, start, stop, tuple(body), lanes)


# ---------------------------------------------------------------- what is proved

INSIDE: dict[str, Statement] = {
    "affine": loop(8, copy(8 * TILE + COLUMN)),
    "remainder": loop(16, copy((4 * COLUMN) % 64)),
    "quotient and remainder": loop(
        16, copy(8 * Fn("floordiv", (COLUMN, 5)) + Fn("mod", (COLUMN, 5)), 3 * COLUMN)
    ),
    "up to the end": loop(minimum(16, 64 - 8 * TILE), copy(8 * TILE + COLUMN)),
    "backwards": loop(8, copy(63 - 8 * TILE - COLUMN)),
    "empty": loop(0, copy(1000)),
    "guarded": loop(
        16,
        ir.Store(
            OUT,
            8 * TILE + COLUMN,
            ir.load(IN, 0),
            ir.index(8 * TILE + COLUMN) < ir.const(INT64, 64),
        ),
    ),
    "padded": loop(
        8,
        ir.Store(
            OUT,
            8 * TILE + COLUMN,
            ir.load(
                IN,
                8 * TILE + COLUMN - 3,
                ir.index(8 * TILE + COLUMN) >= ir.const(INT64, 3),
                ir.const(FLOAT32, 0),
            ),
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("body", INSIDE.values(), ids=list(INSIDE))
def test_what_stays_inside_is_left_as_it_is(body: Statement) -> None:
    found = confined(body)
    assert (found.found, found.checked) == ((), ())
    assert found.kernel == kernel([body])


def test_symbolic_rows_are_proved() -> None:
    out = Buffer("out", FLOAT32, 12 * N, "w")
    j, row = Index("j", 12), Index("t", ceildiv(N, 4))
    rows = ir.Loop(COLUMN, 0, minimum(4, N - 4 * row), (
        ir.Loop(j, 0, 12, (ir.Store(out, 48 * row + 12 * COLUMN + j, ir.const(FLOAT32, 1)),)),
    ))  # fmt: skip
    made = Kernel("k", (out,), (), (N,), row, ceildiv(N, 4), (rows,))
    found = confine_kernel(made)
    assert (found.found, found.checked, found.kernel) == ((), (), made)


# ---------------------------------------------------------------- what is refused

OUTSIDE: dict[str, tuple[Statement, str]] = {
    "remainder": (
        loop(16, copy((4 * COLUMN + 7) % 200)),
        r"store to 'out': index .* inside \[0, 64\)",
    ),
    "one past": (loop(16, copy(8 * TILE + COLUMN)), r"inside \[0, 64\)"),
    "below": (loop(8, copy(8 * TILE + COLUMN - 1)), r"inside \[0, 64\)"),
    "a read": (
        loop(16, copy(0, 5 * COLUMN)),
        r"load from 'in': index 5\*i must be inside \[0, 64\)",
    ),
    "62 bits": (
        loop(8, copy(Fn("mod", ((1 << 60) * COLUMN + TILE, 64)))),
        r"1152921504606846976\*i \+ t must fit 62 bits",
    ),
}


@pytest.mark.parametrize(("body", "message"), OUTSIDE.values(), ids=list(OUTSIDE))
def test_what_leaves_its_buffer_is_refused(body: Statement, message: str) -> None:
    found = confined(body).found
    assert len(found) == 1
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(found[0])


def test_more_tiles_than_the_index_has_values_are_refused() -> None:
    found = confined(copy(TILE), tiles=9)
    assert found.found == ("tiles: 9 must be <= 8",)


def test_scratch_of_a_negative_size_is_refused() -> None:
    scratch = [Buffer("a", FLOAT32, N - 8, "s"), Buffer("b", FLOAT32, 4, "s")]
    found = confined(copy(0), scratch=scratch, variables=[N])
    assert found.found == ("scratch 'a': size n - 8 must be >= 0",)


def test_scratch_that_divides_by_what_may_be_0_is_refused() -> None:
    scratch = [Buffer("a", FLOAT32, Fn("floordiv", (8, N - 1)), "s")]
    found = confined(copy(0), scratch=scratch, variables=[N]).found
    assert "scratch 'a': (8 // (n - 1)) must divide by positive sizes" in found


LARGE: dict[str, tuple[Statement, str]] = {
    "lanes": (loop(16, copy(COLUMN), lanes=512), "at most 256 lanes, got 512"),
    "iterations": (
        ir.Loop(Index("i", 1 << 40), 0, 1 << 40, (copy(0),)),
        "loops must take at most .* iterations",
    ),
    "copies": (ir.Declare(ir.Local("a", FLOAT32, (64, 64)), ir.const(FLOAT32, 0)), "1024 copies"),
    "unrolled": (
        ir.Loop(Index("j", 1 << 20), 0, 1 << 20, (copy(0),), 1, unroll=True),
        "unrolled, it must have at most 262144 operations",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("body", "message"), LARGE.values(), ids=list(LARGE))
def test_what_is_too_much_is_refused(body: Statement, message: str) -> None:
    found = confine_kernel(kernel([body])).found
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(found[0])


def test_iterations_are_those_of_all_tiles() -> None:
    body = ir.Loop(Index("i", 1 << 20), 0, 1 << 20, (copy(0),))
    assert not any("iterations" in text for text in confine_kernel(kernel([body])).found)
    found = confine_kernel(kernel([body], tiles=1 << 20)).found
    assert any("loops must take at most" in text for text in found)


# ---------------------------------------------------------------- what is checked at run time


def run(made: Kernel, rows: Sequence[int]) -> np.ndarray:
    out = np.zeros(64, np.float32)
    arrays = [out, np.arange(64, dtype=np.float32), np.array(rows, np.int32)]
    interpret(made, arrays, {})
    return out


def test_an_index_from_memory_is_clamped() -> None:
    row = Index("r", 8)
    body: list[Statement] = [ir.Bind(row, ir.load(ROWS, TILE)), copy(8 * row + TILE, 8 * row)]
    found = confined(*body)
    assert found.found == ()
    assert found.checked == ("index r: a value from memory",)
    legal = [7, 0, 3, 3, 2, 1, 6, 5]
    np.testing.assert_array_equal(run(found.kernel, legal), run(kernel(body), legal))
    wild = [1 << 30, -5, 8, 7, -(1 << 31), 9, 0, 0]
    tame = [7, 0, 7, 7, 0, 7, 0, 0]
    np.testing.assert_array_equal(run(found.kernel, wild), run(kernel(body), tame))
    again = confine_kernel(found.kernel)
    assert (again.found, again.checked) == ((), ())


def test_an_index_that_is_checked_already_needs_no_clamp() -> None:
    row = Index("r", 8)
    value = ir.cast(ir.load(ROWS, TILE), INT64)
    inside = (value >= ir.const(INT64, 0)) & (value < ir.const(INT64, 8))
    bind = ir.Bind(row, ir.select(inside, value, ir.const(INT64, 0)))
    assert confined(bind, copy(8 * row)).checked == ()


def test_what_a_condition_says_of_memory_ends_with_a_store() -> None:
    """The value that was looked at and the one that is used may differ."""
    row, lines = Index("r", 8), Buffer("lines", INT32, 8, "s")
    value = ir.load(lines, 0)
    inside = (value >= ir.const(INT32, 0)) & (value < ir.const(INT32, 8))
    wild = ir.Store(lines, 0, ir.const(INT32, 100))
    body: list[Statement] = [
        ir.Store(lines, 0, ir.const(INT32, 1)),
        ir.If(inside, (wild, ir.Bind(row, value), copy(8 * row))),
    ]
    assert confined(*body, scratch=[lines]).checked == ("index r: a value from memory",)


def test_a_guard_that_does_not_say_enough_says_it_then() -> None:
    late = ir.index(TILE) >= ir.const(INT64, 2)
    body = loop(16, ir.Store(OUT, 8 * TILE + COLUMN, ir.load(IN, COLUMN), late))
    found = confined(body)
    assert (found.found, found.checked) == ((), ("store to 'out': guard of i + 8*t",))
    result = run(found.kernel, [0] * 8)
    assert not result[:16].any()
    np.testing.assert_array_equal(result[56:], np.arange(8))


def test_a_place_that_depends_on_a_variable_fails_the_run() -> None:
    found = confined(loop(16, copy(COLUMN % 5 + 64 - N)), variables=[N])
    assert found.found == ()
    check = found.kernel.checks[0]
    assert (check.op, check.what, check.size) == ("k", "index into 'out'", 64)


def test_loops_are_held_to_their_extent() -> None:
    row = Index("r", 16)
    body: list[Statement] = [
        ir.Bind(row, ir.load(ROWS, TILE)),
        loop(2 * row, copy(COLUMN), start=row - 3),
    ]
    found = confined(*body)
    assert found.found == ()
    (inner,) = (s for s in found.kernel.body if isinstance(s, ir.Loop))
    assert (inner.start, inner.stop) == (maximum(row - 3, 0), minimum(2 * row, 16))


def test_divisors_are_positive() -> None:
    body = loop(16, copy(Fn("floordiv", (COLUMN, N - 1))))
    found = confined(body, variables=[N])
    assert "divisor n - 1" in found.checked
    store = found.kernel.body[0].body[-1]  # type: ignore[union-attr]
    assert store.at == Fn("floordiv", (COLUMN, maximum(N - 1, 1)))  # type: ignore[union-attr]


def test_a_read_that_leaves_its_loop_is_not_protected_by_it() -> None:
    """Reads of what never changes are made before loops that they do not depend on."""
    n = Variable("n", 0, 8)
    inside = loop(n, ir.Store(OUT, COLUMN, ir.load(IN, 8 * TILE + n - 1)))
    assert confined(inside, variables=[n]).checked  # at n = 0 it would be at -1


@pytest.mark.parametrize(("words", "is_legal"), [(16, True), (32, False)])
def test_blocks_of_dots_lie_inside(words: int, is_legal: bool) -> None:
    into = Buffer("s", INT32, 256, "s")
    left, right = Buffer("l", UINT8, 16 * 64, "r"), Buffer("m", INT32, 16 * 16, "r")
    dots = ir.BlockDot(
        ir.Block(into, 0, 16), ir.Block(left, 0, 64), ir.Block(right, 0, 16), words, 16, 16, 16
    )
    found = confine_kernel(kernel([dots], [OUT, left, right], [into])).found
    assert (found == ()) == is_legal


def test_a_word_has_four_bytes() -> None:
    data, total = Buffer("d", UINT8, 64, "r"), ir.Local("l", INT32)
    for at, is_legal in ((4 * COLUMN, True), (4 * COLUMN + 1, False)):
        words = (ir.word(data, at), ir.bitcast(ir.load(ROWS, 0), UINT32))
        body = (ir.Declare(total, ir.const(INT32, 0)), loop(16, ir.Reduce((total,), "dot", words)))
        found = confined(*body, buffers=(OUT, data, ROWS)).found
        assert (found == ()) == is_legal


# ---------------------------------------------------------------- proofs


def known(*facts: Dim) -> Knowledge:
    return Knowledge(
        {COLUMN: ((0,), (15,)), TILE: ((0,), (7,))}, {TILE: 0, COLUMN: 1}, Budget(), facts
    )


M = Variable("m", 0, None)


@pytest.mark.parametrize(
    ("value", "facts"),
    [
        (N * M + M, ()),
        (15 * N - COLUMN * N, ()),
        (N - 8 * Fn("floordiv", (N, 8)), ()),
        (Fn("min", (N, M)), ()),
        (N - Fn("min", (N, M)), ()),
        (Fn("max", (N, M)) - N, ()),
        (COLUMN - Fn("mod", (COLUMN, N)), ()),
        (M - N, (M - 2 * N,)),
        (63 - 4 * COLUMN - Fn("mod", (4 * TILE, 3)), ()),
    ],
)
def test_proofs(value: Dim, facts: tuple[Dim, ...]) -> None:
    assert known(*facts).proves(value)


@pytest.mark.parametrize(
    ("value", "facts"),
    [
        (N - 2, ()),
        (14 - COLUMN, ()),
        (M - N, ()),
        (Fn("mod", (M, N)) - 1, ()),
        (N - M, (M - 2 * N,)),
    ],
)
def test_what_is_not_so_is_not_proved(value: Dim, facts: tuple[Dim, ...]) -> None:
    assert not known(*facts).proves(value)


def test_proofs_are_right() -> None:
    """What is proved of random expressions holds at all values."""
    chance = np.random.default_rng(0)
    small = Variable("v", 1, 3)
    a, b = Index("a", 4), Index("b", 3)
    atoms: list[Dim] = [small, a, b]
    ranges = {a: ((0,), (3,)), b: ((0,), (2,))}
    proved = 0
    for _ in range(400):
        value: Dim = int(chance.integers(-3, 6))
        for _ in range(3):
            x, y = (atoms[i] for i in chance.integers(0, 3, 2))
            kind = ("floordiv", "mod", "min", "max")[chance.integers(4)]
            term = (
                Fn(kind, (x + int(chance.integers(0, 3)), y + 1))
                if chance.random() < 0.6
                else x * y
            )
            value = value + int(chance.integers(-3, 4)) * term
        knows = Knowledge(ranges, {a: 0, b: 1}, Budget())
        if knows.proves(value):
            proved += 1
            for point in np.ndindex(3, 4, 3):
                at = dict(zip(atoms, (point[0] + 1, point[1], point[2]), strict=True))
                assert evaluate(value, at) >= 0, (value, at)
    assert proved > 40
