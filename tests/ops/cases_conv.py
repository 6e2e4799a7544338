"""Rows for convolutions and pools."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from tests.ops.case import Case, Spec
from tests.ops.windows_reference import np_conv, np_conv_transpose, np_pool

# (name, x, weight, options): a name for what the row is about
CONVOLUTIONS: list[tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ("pointwise", (2, 8, 5, 7), (40, 8, 1, 1), {}),
    ("pointwise_strided", (2, 8, 6, 7), (5, 8, 1, 1), {"stride": 2}),
    ("pointwise_padded", (1, 3, 4, 4), (5, 3, 1, 1), {"padding": 1}),
    ("image", (1, 3, 13, 13), (16, 3, 7, 7), {"stride": 2, "padding": 3}),
    ("same_size", (1, 16, 9, 6), (33, 16, 3, 3), {"padding": 1}),
    ("everything", (2, 6, 11, 9), (4, 3, 3, 2),
     {"stride": (2, 1), "padding": ((1, 0), (2, 1)), "dilation": (1, 2), "groups": 2}),
    ("dilated", (1, 4, 9, 9), (6, 4, 3, 3), {"dilation": 2, "padding": 2}),
    ("same", (1, 3, 8, 9), (4, 3, 4, 3), {"padding": "same", "stride": (1, 2)}),
    ("same_lower", (1, 3, 8, 9), (4, 3, 4, 2), {"padding": "same_lower", "stride": 2}),
    ("valid", (1, 3, 5, 5), (4, 3, 5, 5), {"padding": "valid"}),
    ("groups", (2, 8, 6, 5), (12, 2, 3, 3), {"groups": 4, "padding": 1}),
    ("depthwise", (2, 37, 7, 6), (37, 1, 3, 3), {"groups": 37, "padding": 1}),
    ("depthwise_strided", (1, 16, 9, 9), (16, 1, 5, 5), {"groups": 16, "stride": 2}),
    ("depthwise_many", (1, 4, 6, 6), (12, 1, 3, 3), {"groups": 4, "padding": 1}),
    ("wide", (1, 70, 3, 50), (70, 70, 3, 3), {"padding": 1}),
    ("empty_batch", (0, 3, 5, 5), (4, 3, 3, 3), {}),
    ("line", (2, 5, 20), (7, 5, 5), {"padding": "same"}),
    ("line_groups", (2, 6, 20), (6, 2, 5), {"groups": 3, "stride": 3}),
    ("line_depthwise", (1, 8, 12), (8, 1, 4), {"groups": 8, "padding": ((3, 0),)}),
    ("volume", (1, 3, 5, 6, 7), (4, 3, 3, 2, 3), {"padding": 1, "stride": (1, 2, 1)}),
    ("volume_groups", (1, 4, 4, 5, 4), (6, 2, 2, 3, 2), {"groups": 2}),
    ("volume_depthwise", (1, 4, 4, 5, 4), (4, 1, 2, 3, 2), {"groups": 4}),
]  # fmt: skip

TRANSPOSED: list[tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ("side_by_side", (2, 5, 4, 3), (5, 6, 2, 2), {"stride": 2}),
    ("side_by_side_uneven", (1, 5, 4, 3), (5, 33, 3, 2), {"stride": (3, 2)}),
    ("overlapping", (1, 4, 5, 4), (4, 6, 3, 3),
     {"stride": 2, "padding": 1, "output_padding": 1}),
    ("groups_dilated", (2, 4, 5, 4), (4, 3, 4, 3),
     {"stride": (3, 2), "groups": 2, "dilation": (1, 2)}),
    ("cut", (1, 4, 9), (4, 6, 3), {"padding": 2}),
    ("cut_one_side", (1, 4, 9), (4, 6, 3), {"padding": ((2, 0),), "stride": 2}),
    ("volume", (1, 4, 3, 4, 2), (4, 3, 2, 3, 2), {"stride": 2, "padding": 1}),
    ("depthwise", (1, 6, 5, 5), (6, 1, 4, 4), {"stride": 2, "padding": 1, "groups": 6}),
]  # fmt: skip

POOLS: list[tuple[str, tuple[int, ...], dict[str, Any]]] = [
    ("plain", (2, 5, 8, 6), {"kernel": 2}),
    ("overlapping", (1, 37, 9, 11), {"kernel": 3, "stride": 2, "padding": 1}),
    ("ceil", (1, 5, 9, 11), {"kernel": 3, "stride": 2, "padding": 1, "ceil_mode": True}),
    ("ceil_uneven", (2, 3, 9, 11), {"kernel": (2, 3), "stride": (3, 2), "ceil_mode": True}),
    ("ceil_leaves_out", (1, 2, 7, 7), {"kernel": 1, "stride": 3, "ceil_mode": True}),
    ("ceil_padded", (1, 2, 6, 7), {"kernel": 3, "stride": 4, "padding": 1, "ceil_mode": True}),
    ("dilated", (1, 3, 9, 9), {"kernel": 2, "stride": 1, "dilation": 3}),
    ("same", (1, 3, 8, 9), {"kernel": 3, "stride": 2, "padding": "same"}),
    ("line", (2, 3, 17), {"kernel": 4, "stride": 3, "padding": ((2, 1),)}),
    ("volume", (1, 3, 5, 6, 7), {"kernel": (2, 3, 2), "stride": 2}),
]


def conv_rows() -> Iterator[Case]:
    for name, x, w, options in CONVOLUTIONS:
        inputs = (Spec(x), Spec(w), Spec((w[0],)))
        yield Case(
            f"conv_{name}",
            lambda x, w, b, o=options: x.conv(w, b, **o),
            lambda x, w, b, o=options: np_conv(x, w, b, **o),
            inputs,
            rtol=1e-5,
            atol=1e-4,  # sums of up to 630 products below 9
        )
    for name, x, w, options in TRANSPOSED:
        inputs = (Spec(x), Spec(w), Spec((w[1] * options.get("groups", 1),)))
        yield Case(
            f"conv_transpose_{name}",
            lambda x, w, b, o=options: x.conv_transpose(w, b, **o),
            lambda x, w, b, o=options: np_conv_transpose(x, w, b, **o),
            inputs,
            rtol=1e-5,
            atol=1e-4,
        )


def dtype_rows() -> Iterator[Case]:
    for dtype, tolerance in (("float64", 1e-12), ("float16", 5e-3), ("bfloat16", 5e-2)):
        for groups in (1, 4):
            yield Case(
                f"conv_{dtype}_{groups}",
                lambda x, w, g=groups: x.conv(w, padding=1, groups=g),
                lambda x, w, g=groups: np_conv(x, w, padding=1, groups=g),
                (Spec((1, 4, 5, 5), dtype, -1, 1), Spec((8, 4 // groups, 3, 3), dtype, -1, 1)),
                rtol=tolerance,
                atol=tolerance,
            )
    for groups in (1, 2, 4):
        yield Case(
            f"conv_int32_{groups}",
            lambda x, w, g=groups: x.conv(w, padding=1, groups=g),
            lambda x, w, g=groups: np_conv(x, w, padding=1, groups=g),
            (Spec((1, 4, 5, 5), "int32"), Spec((8, 4 // groups, 3, 3), "int32")),
        )
    yield Case(
        "max_pool_int8",
        lambda x: x.max_pool(3, 1, 1),
        lambda x: np_pool("max", x, 3, 1, 1).astype(np.int8),
        (Spec((1, 3, 5, 6), "int8", -100, -50),),
    )
    yield Case(
        "avg_pool_float16",
        lambda x: x.avg_pool(2),
        lambda x: np_pool("avg", x, 2),
        (Spec((1, 3, 6, 6), "float16"),),
        atol=1e-3,  # one rounding of a float16 near 1
    )


def pool_rows() -> Iterator[Case]:
    for name, shape, options in POOLS:
        yield Case(
            f"max_pool_{name}",
            lambda x, o=options: x.max_pool(**o),
            lambda x, o=options: np_pool("max", x, **o),
            (Spec(shape),),
        )
        for include in (True, False):
            yield Case(
                f"avg_pool_{name}_{include}",
                lambda x, o=options, i=include: x.avg_pool(**o, count_include_pad=i),
                lambda x, o=options, i=include: np_pool("avg", x, **o, count_include_pad=i),
                (Spec(shape),),
                atol=1e-6,
            )
        for p in (1.0, 2.0, 3.0):
            yield Case(
                f"lp_pool_{name}_{p}",
                lambda x, o=options, p=p: x.lp_pool(p=p, **o),
                lambda x, o=options, p=p: np_pool("lp", x, **o, p=p),
                (Spec(shape),),
                rtol=1e-5,
                atol=1e-5,
            )
    space = Spec((2, 3, 4, 6))
    yield Case(
        "global_max_pool",
        lambda x: x.global_max_pool(),
        lambda x: x.max((2, 3), keepdims=True),
        (space,),
    )
    yield Case(
        "global_avg_pool",
        lambda x: x.global_avg_pool(),
        lambda x: x.mean((2, 3), keepdims=True),
        (space,),
        atol=1e-6,
    )
    yield Case(
        "global_lp_pool",
        lambda x: x.global_lp_pool(3),
        lambda x: (np.abs(x) ** 3).sum((2, 3), keepdims=True) ** (1 / 3),
        (space,),
        rtol=1e-5,
    )
    yield Case(
        "adaptive_avg_pool",
        lambda x: x.adaptive_avg_pool((2, 3)),
        lambda x: x.reshape(2, 3, 2, 2, 3, 2).mean((3, 5)),
        (space,),
        atol=1e-6,
    )
    yield Case(
        "avg_pool_divisor",
        lambda x: x.avg_pool(2, divisor=3),
        lambda x: np_pool("avg", x, 2) * 4 / 3,
        (space,),
        atol=1e-6,
    )


CONV: list[Case] = [*conv_rows(), *dtype_rows(), *pool_rows()]
