"""A compile lets Python's collector come rarely, and leaves its setting as it was."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

import semel
from semel.compiler import pipeline
from semel.runtime.collector import RARE, fewer_collections


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def test_the_setting_is_what_it_was() -> None:
    gc.set_threshold(700, 11, 12)
    with fewer_collections():
        assert gc.get_threshold() == (RARE, 11, 12)
        with fewer_collections():
            assert gc.get_threshold() == (RARE, 11, 12)
        assert gc.get_threshold() == (RARE, 11, 12)
    assert gc.get_threshold() == (700, 11, 12)
    with pytest.raises(KeyError, match="mine"), fewer_collections():
        raise KeyError("mine")
    assert gc.get_threshold() == (700, 11, 12)


@pytest.mark.parametrize("first", [0, RARE, 10 * RARE])
def test_who_collects_as_rarely_or_never_is_left_alone(first: int) -> None:
    gc.set_threshold(first, 10, 10)
    with fewer_collections():
        assert gc.get_threshold() == (first, 10, 10)
    assert gc.get_threshold() == (first, 10, 10)


def test_what_somebody_sets_meanwhile_stays() -> None:
    gc.set_threshold(700, 10, 10)
    with fewer_collections():
        gc.set_threshold(900, 10, 10)
    assert gc.get_threshold() == (900, 10, 10)


def test_a_compile_gives_the_setting_back() -> None:
    gc.set_threshold(700, 10, 10)
    x = semel.Tensor.input("x", (3, 5))
    plan = (x * 3.25 + 1.5).tanh().prepare()
    assert gc.get_threshold() == (700, 10, 10)
    assert plan.compile_count == 1


def test_it_comes_rarely_while_a_program_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.set_threshold(700, 10, 10)
    seen: list[int] = []

    def look(*_: object) -> None:
        seen.append(gc.get_threshold()[0])

    monkeypatch.setattr(pipeline, "find_program", look)
    (semel.Tensor.input("x", (3, 5)) * 4.5).prepare()
    assert seen == [RARE] and gc.get_threshold() == (700, 10, 10)
