"""Layers of experts in ONNX models: found, captured, and their experts moved."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.onnx.test_microsoft import f, make, u8
from tests.session.moves import check_moves

import semel

onnx = pytest.importorskip("onnx")

E, W, INNER = 4, 128, 256
FEEDS = [{"x0": f(tokens, W), "x1": f(tokens, E)} for tokens in (1, 6, 3)]


def node(op: str, experts: list[Any], **attrs: Any) -> Any:
    given = [np.zeros((2, W), np.float32), np.zeros((2, E), np.float32)]
    model = make(op, [*given, *experts], 1, {"k": 2, **attrs}, len(experts))
    for value in model.graph.input:
        value.type.tensor_type.shape.dim[0].dim_param = "tokens"
    return model


def few_bits(bits: int, block: int = 0) -> list[Any]:
    each = 8 // bits
    return [
        u8(E, INNER, W // each),
        np.abs(f(E, INNER, *([W // block] if block else []), scale=0.1)),
        None,
        u8(E, W, INNER // each),
        np.abs(f(E, W, *([INNER // block] if block else []), scale=0.1)),
        None,
    ]


QUANTISED = {
    "4 bits": node("QMoE", few_bits(4), activation_type="silu", expert_weight_bits=4),
    "8 bits": node("QMoE", few_bits(8), activation_type="silu", expert_weight_bits=8),
    "4 bits in blocks": node(
        "QMoE", few_bits(4, 32), activation_type="silu", expert_weight_bits=4, block_size=32
    ),
}


@pytest.mark.parametrize("name", QUANTISED)
def test_quantised_experts_move(name: str) -> None:
    """Their words or bytes, and their scales."""
    dims = {"tokens": (1, 8)}
    check_moves(lambda asked: semel.load(QUANTISED[name], dims=dims, experts=asked), FEEDS, 4)
