"""Experts whose matrices are made of several weights as they are read: all of them move."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.session.moves import check_memory, check_moves

from semel import (
    CompiledGraph,
    ExpertResidency,
    Graph,
    Session,
    Tensor,
    UnsupportedError,
    load,
)

Array = np.ndarray[Any, Any]
EXPERTS, WIDE, INNER, K = 8, 48, 80, 2
DIMS = {"tokens": (1, 16)}
#: Matrices up, of experts.
Up = Callable[[Graph], Tensor]


def normal(*shape: int) -> Array:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32) / 4


def scales(*shape: int) -> Array:
    return np.abs(normal(*shape)) / 50


def bytes_of(*shape: int) -> Array:
    return np.random.default_rng(3).integers(0, 256, shape, dtype=np.uint8)


DOWN = normal(EXPERTS, INNER, WIDE)
BYTES = bytes_of(EXPERTS, WIDE, INNER)
XS = [{"x": normal(tokens, WIDE)} for tokens in (1, 5, 16, 1)]


def compiled(up: Up, asked: ExpertResidency | None = None) -> CompiledGraph:
    g = Graph("model")
    x = g.input("x", ("tokens", WIDE))
    made = g.moe(x, up(g), g.param("down", DOWN), logits=x @ normal(WIDE, EXPERTS), k=K)
    g.output("y", x + made)
    return Session().compile(g, dims=DIMS, experts=asked)


def int8_of_columns(g: Graph) -> Tensor:
    return g.param("up", BYTES.view(np.int8)).cast("f32") * g.param("s", scales(EXPERTS, 1, INNER))


def int8_of_experts(g: Graph) -> Tensor:
    return g.param("up", BYTES.view(np.int8)).cast("f32") * g.param("s", scales(EXPERTS, 1, 1))


def uint8_of_rows(g: Graph) -> Tensor:
    wide = g.param("up", BYTES).cast("f32") - g.param("z", bytes_of(EXPERTS, WIDE, 1)).cast("f32")
    return wide * g.param("s", scales(EXPERTS, WIDE, 1))


def uint4_by_hand(g: Graph) -> Tensor:
    wide = g.param("up", BYTES & 15).cast("u4").cast("f32") - 8.0
    return wide * g.param("s", scales(EXPERTS, 1, INNER))


def halves(g: Graph) -> Tensor:
    return g.param("up", normal(EXPERTS, WIDE, INNER).astype(np.float16)).cast("f32")


def transposed(g: Graph) -> Tensor:
    up = g.param("up", BYTES.view(np.int8).transpose(0, 2, 1).copy()).mT
    return up.cast("f32") * g.param("s", scales(EXPERTS, 1, INNER))


def in_another_order(g: Graph) -> Tensor:
    return g.param("up", BYTES.view(np.int8).copy()).cast("f32").flip(0) * 0.01


def int8_of_all(g: Graph) -> Tensor:
    """It is stored for each expert, as whoever packs it has it."""
    return g.param("up", BYTES.view(np.int8)).cast("f32") * g.param("s", scales(1, 1, 1))


@pytest.mark.parametrize(
    ("up", "stacks"),
    [
        (int8_of_columns, 3),
        (int8_of_experts, 3),
        (uint8_of_rows, 4),
        (uint4_by_hand, 3),
        (halves, 2),
        (transposed, 3),
        (in_another_order, 2),
        (int8_of_all, 3),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_all_that_an_expert_is_made_of_moves(up: Up, stacks: int) -> None:
    check_moves(lambda asked: compiled(up, asked), XS, stacks)


def codes(g: Graph) -> Tensor:
    return g.param("book", normal(256)).take(g.param("up", BYTES.astype(np.int64)), 0)


def of_the_data(g: Graph) -> Tensor:
    return g.param("up", normal(EXPERTS, WIDE, INNER)) * g.input("s", (EXPERTS, 1, INNER))


def read_elsewhere(g: Graph) -> Tensor:
    own = g.param("s", scales(EXPERTS, 1, INNER))
    g.output("scales", own * g.inputs["x"].sum())
    return g.param("up", BYTES.view(np.int8)).cast("f32") * own


@pytest.mark.parametrize("up", [codes, of_the_data, read_elsewhere])
def test_no_half_of_a_layer_moves(up: Up) -> None:
    """Its matrices down could."""
    compiled(up)
    with pytest.raises(UnsupportedError, match="must have experts in stacks of its own"):
        compiled(up, ExpertResidency(budget=1))


@pytest.mark.parametrize(
    ("up", "data"),
    [
        (int8_of_columns, BYTES.view(np.int8)),
        (uint4_by_hand, BYTES & 15),
        (halves, normal(EXPERTS, WIDE, INNER).astype(np.float16)),
    ],
)
def test_files_and_new_params_go_with_them(up: Up, data: Array, tmp_path: Path) -> None:
    plain, c = compiled(up), compiled(up, ExpertResidency(budget=2, policy="lru"))
    c.save(tmp_path / "model.plan")
    ways: list[dict[str, Any]] = [{}, {"trust": False}, {"recompile": True}]
    for options in ways:
        again = load(tmp_path / "model.plan", **options)
        for feed in XS[:2]:
            assert again.run(feed)["y"].tobytes() == plain.run(feed)["y"].tobytes()
            check_memory(again)
    clone = c.clone()
    before = [plain.run(feed)["y"].tobytes() for feed in XS]
    for each in (plain, c):
        each.set_param("up", np.roll(data, 1, axis=1))
    for feed, y in zip(XS, before, strict=True):
        assert c.run(feed)["y"].tobytes() == plain.run(feed)["y"].tobytes() != y
        assert clone.run(feed)["y"].tobytes() == y
        check_memory(c)
        check_memory(clone)
