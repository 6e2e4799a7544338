"""Convolutions and pools in plain NumPy, by other means than ours: the truth for the table."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

Pairs = list[tuple[int, int]]


def each(value: Any, count: int) -> tuple[int, ...]:
    return (value,) * count if isinstance(value, int) else tuple(value)


def pairs(padding: Any, space: Any, kernel: Any, stride: Any, dilation: Any) -> Pairs:
    """Padding before and after each axis."""
    if isinstance(padding, str):
        result = []
        for size, k, s, d in zip(space, kernel, stride, dilation, strict=True):
            total = max((math.ceil(size / s) - 1) * s + (k - 1) * d + 1 - size, 0)
            less, more = total // 2, total - total // 2
            result.append((more, less) if padding == "same_lower" else (less, more))
        return result if padding != "valid" else [(0, 0)] * len(space)
    if not isinstance(padding, int) and not isinstance(padding[0], int):
        return [tuple(p) for p in padding]
    return [(p, p) for p in each(padding, len(space))]


def np_windows(x: np.ndarray, kernel: Any, stride: Any, dilation: Any) -> np.ndarray:
    """[N, C, places..., window...]."""
    count = len(kernel)
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    view = sliding_window_view(x, spans, tuple(range(2, 2 + count)))
    every = [slice(None, None, s) for s in (*stride, *dilation)]
    return view[(slice(None), slice(None), *every)]


def np_conv(
    x: np.ndarray,
    w: np.ndarray,
    b: np.ndarray | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> np.ndarray:
    kernel = w.shape[2:]
    count = len(kernel)
    stride, dilation = each(stride, count), each(dilation, count)
    pads = pairs(padding, x.shape[2:], kernel, stride, dilation)
    view = np_windows(np.pad(x, [(0, 0), (0, 0), *pads]), kernel, stride, dilation)
    parts = []
    for xs, ws in zip(np.split(view, groups, 1), np.split(w, groups, 0), strict=True):
        inner = tuple(range(2 + count, 2 + 2 * count))
        part = np.tensordot(xs, ws, ((1, *inner), (1, *range(2, 2 + count))))
        parts.append(np.moveaxis(part, -1, 1))
    result = np.concatenate(parts, 1)
    return result if b is None else result + b.reshape(-1, *(1,) * count)


def np_conv_transpose(
    x: np.ndarray,
    w: np.ndarray,
    b: np.ndarray | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> np.ndarray:
    """Every input element adds its kernel to the place where its window lies."""
    kernel, space = w.shape[2:], x.shape[2:]
    count = len(kernel)
    stride, dilation = each(stride, count), each(dilation, count)
    more, pads = each(output_padding, count), pairs(padding, space, kernel, stride, dilation)
    rows = list(zip(space, stride, kernel, dilation, more, strict=True))
    sizes = [(n - 1) * s + (k - 1) * d + 1 + m for n, s, k, d, m in rows]
    full = np.zeros((x.shape[0], w.shape[1] * groups, *sizes))
    for at in product(*(range(k) for k in kernel)):
        where = tuple(
            slice(i * d, i * d + (n - 1) * s + 1, s)
            for i, (n, s, _, d, _) in zip(at, rows, strict=True)
        )
        here: Any = (..., *at)
        parts = [
            np.moveaxis(np.tensordot(xs, ws, ((1,), (0,))), -1, 1)
            for xs, ws in zip(np.split(x, groups, 1), np.split(w[here], groups, 0), strict=True)
        ]
        full[(slice(None), slice(None), *where)] += np.concatenate(parts, 1)
    cut = tuple(slice(p, n - q) for (p, q), n in zip(pads, full.shape[2:], strict=True))
    result = full[(slice(None), slice(None), *cut)]
    return result if b is None else result + b.reshape(-1, *(1,) * count)


def np_pool(
    how: str,
    x: np.ndarray,
    kernel: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    p: float = 2.0,
) -> np.ndarray:
    """NaN stands for what does not count."""
    count = x.ndim - 2
    kernel = each(kernel, count)
    stride = kernel if stride is None else each(stride, count)
    dilation = each(dilation, count)
    pads = pairs(padding, x.shape[2:], kernel, stride, dilation)
    fill = 0.0 if how == "avg" and count_include_pad else math.nan
    padded = np.pad(x.astype(np.float64), [(0, 0), (0, 0), *pads], constant_values=fill)
    if ceil_mode:
        extra = []
        for size, (before, after), k, s, d in zip(
            x.shape[2:], pads, kernel, stride, dilation, strict=True
        ):
            span, total = (k - 1) * d + 1, before + size + after
            places = math.ceil((total - span) / s) + 1
            if (places - 1) * s >= size + before:
                places -= 1
            extra.append((0, max((places - 1) * s + span - total, 0)))
        padded = np.pad(padded, [(0, 0), (0, 0), *extra], constant_values=math.nan)
    view = np_windows(padded, kernel, stride, dilation)
    axes = tuple(range(2 + count, 2 + 2 * count))
    match how:
        case "max":
            return np.nanmax(view, axes)
        case "avg":
            return np.nanmean(view, axes)
        case _:
            return np.nansum(np.abs(view) ** p, axes) ** (1 / p)
