"""What is known of conditions is not asked again."""

from __future__ import annotations

from semel.ir.expr import Index, Variable
from semel.ir.types import FLOAT32
from semel.kernel import ir
from semel.kernel.conditions import Conditions, assume, follows_from
from semel.kernel.ir import Buffer, Statement, Value

ROW, N = Index("i", 100), Variable("n", 1, 100)
SOURCE, RESULT = Buffer("a", FLOAT32, 100, "r"), Buffer("b", FLOAT32, 100, "w")
ZERO = ir.const(FLOAT32, 0)
BELOW, ABOVE = ir.index(ROW) < ir.index(N), ir.index(ROW) >= ir.index(3)


def store(value: Value) -> tuple[Statement, ...]:
    return (ir.Store(RESULT, ROW, value),)


def test_a_condition_that_holds_is_gone() -> None:
    guarded = ir.select(BELOW, ir.load(SOURCE, ROW, BELOW, ZERO), ZERO)
    facts = Conditions().facts(BELOW)
    assert assume(store(guarded), follows_from(facts)) == store(ir.load(SOURCE, ROW))


def test_what_else_is_asked_stays() -> None:
    both = BELOW & ABOVE
    value = ir.select(both, ir.load(SOURCE, ROW, both, ZERO), ZERO)
    left = ir.select(ABOVE, ir.load(SOURCE, ROW, ABOVE, ZERO), ZERO)
    assert assume(store(value), follows_from(Conditions().facts(BELOW))) == store(left)
    assert assume(store(value), follows_from(Conditions().facts(both))) == store(
        ir.load(SOURCE, ROW)
    )
    assert assume(store(value), follows_from(())) == store(value)


def test_a_weaker_or_opposite_condition_stays() -> None:
    """Facts are taken by their word: nothing is concluded from them."""
    for other in (ir.index(ROW) >= ir.index(N), ir.index(ROW) < ir.index(N + 1)):
        value = ir.load(SOURCE, ROW, other, ZERO)
        assert assume(store(value), follows_from(Conditions().facts(BELOW))) == store(value)


def test_an_equality_takes_both_of_its_facts() -> None:
    equal = ir.index(ROW).eq(ir.index(N))
    value = ir.load(SOURCE, ROW, equal, ZERO)
    facts = Conditions().facts(equal)
    assert len(facts) == 2
    assert assume(store(value), follows_from(facts)) == store(ir.load(SOURCE, ROW))
    assert assume(store(value), follows_from(facts[:1])) == store(value)
