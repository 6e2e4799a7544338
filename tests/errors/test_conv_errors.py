"""What convolutions and pools say about arguments that do not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from semel import GraphError, Tensor

X = Tensor.zeros(1, 4, 8, 8)
W = Tensor.zeros(6, 4, 3, 3)

WRONG: list[tuple[str, Callable[[], Any], str]] = [
    (
        "channels",
        lambda: X.conv(Tensor.zeros(6, 3, 3, 3)),
        r"\[conv\] weight must have 4 / 1 input",
    ),
    ("rank", lambda: X.conv(Tensor.zeros(6, 4, 3)), r"\[conv\] x must be \[N, C, space"),
    ("too few axes", lambda: Tensor.zeros(4, 8).conv(Tensor.zeros(4, 8)), r"1 to 3 spatial axes"),
    ("conv1d", lambda: X.conv1d(W), r"\[conv1d\] needs 3 axes"),
    ("groups", lambda: X.conv(W, groups=0), r"\[conv\] groups must be >= 1, got 0"),
    ("outputs", lambda: X.conv(Tensor.zeros(7, 2, 3, 3), groups=2), r"7 outputs do not form 2"),
    ("bias", lambda: X.conv(W, Tensor.zeros(5)), r"\[conv\] bias must have shape \[6\], got f"),
    ("stride", lambda: X.conv(W, stride=0), r"\[conv\] stride must be one number >= 1"),
    ("strides", lambda: X.conv(W, stride=(1, 1, 1)), r"for each of 2 axes, got \(1, 1, 1\)"),
    ("padding", lambda: X.conv(W, padding=-1), r"\[conv\] padding must be one number >= 0"),
    ("padding's name", lambda: X.conv(W, padding="full"), r"padding must be numbers, 'valid'"),
    ("window", lambda: X.conv(Tensor.zeros(6, 4, 9, 3)), r"\[conv\] a window over 9 elements must"),
    ("dilated", lambda: X.conv(W, dilation=4), r"a window over 9 elements must fit"),
    ("bool", lambda: X.cast("bool").conv(W.cast("bool")), r"\[conv\] needs numbers"),
    ("transposed", lambda: X.conv_transpose(W), r"\[conv_transpose\] weight must have 4 input"),
    ("pool", lambda: X.max_pool(9), r"\[max_pool\] a window over 9 elements must fit"),
    ("pool's rank", lambda: Tensor.zeros(4, 8).avg_pool(2), r"\[avg_pool\] needs \(batch, chan"),
    ("norm", lambda: X.lp_pool(2, p=0), r"\[lp_pool\] p must be > 0, got 0"),
]


@pytest.mark.parametrize(("make", "message"), [row[1:] for row in WRONG], ids=[r[0] for r in WRONG])
def test_arguments_are_checked_at_the_door(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        make()
