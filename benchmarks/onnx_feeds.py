"""Feeds for models that nobody has described: made up until ONNX Runtime takes them.

    what a session says of its inputs  --feeds-->  up to three feeds of other sizes

A dim without a number has a size by its place: a batch first, pixels where a tensor has four axes,
else a length; equal names are equal sizes, and names that are sums are sums of them. Which sizes a
model takes is found out by asking ONNX Runtime. Numbers suit what names tell: masks are ones, rates
are 16,000, lengths are those that the other inputs have.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np

_MOST = 3
#: Sound is so many times as long as other sequences.
_SAMPLES = 250
_TYPES: Mapping[str, Any] = {
    "float": np.float32,
    "double": np.float64,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "bool": np.bool_,
    "string": np.str_,
    **{f"{sign}int{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}


@dataclass(frozen=True, slots=True)
class Sizes:
    """What dims without a number are in one feed."""

    batch: int
    pixels: tuple[int, int]
    length: int


_TRIED = (
    Sizes(1, (320, 320), 32),
    Sizes(2, (256, 352), 48),
    Sizes(1, (192, 256), 7),
    Sizes(1, (48, 320), 1536),
    Sizes(2, (48, 192), 1024),
    Sizes(1, (640, 640), 16000),
    Sizes(2, (512, 640), 24000),
    Sizes(1, (224, 224), 576),
    Sizes(3, (224, 224), 576),
    Sizes(2, (224, 224), 160),
    Sizes(1, (112, 112), 1),
    Sizes(3, (112, 112), 5),
    Sizes(1, (64, 96), 80),
    Sizes(1, (1024, 1024), 1000),
    Sizes(4, (128, 128), 3),
)


def find_feeds(
    inputs: list[Any], run: Callable[[dict[str, Any]], Any]
) -> Iterator[tuple[dict[str, Any], list[Any]]]:
    """Feeds that `run` takes, of other sizes where dims are open, and what it gives for each."""
    rng, seen, taken = np.random.default_rng(5), set(), 0
    for sizes in _TRIED:
        feed = _feed(inputs, sizes, rng)
        form = tuple(np.shape(array) for array in feed.values())
        if form in seen:
            continue
        seen.add(form)
        with contextlib.suppress(Exception):  # a size that this model does not take
            found = run(feed)
            taken += 1
            yield feed, found
        if taken == _MOST:
            return


def _feed(inputs: list[Any], sizes: Sizes, rng: np.random.Generator) -> dict[str, Any]:
    named: dict[str, int] = {}
    sound = {
        each.name for each in inputs if re.search("wave|audio|sound|signal", each.name.lower())
    }
    shapes = {each.name: _shape(each.shape, sizes, named, each.name in sound) for each in inputs}
    if sound:
        sizes = replace(sizes, length=sizes.length * _SAMPLES)
    return {each.name: _array(each, shapes[each.name], sizes, rng) for each in inputs}


def _shape(dims: list[Any], sizes: Sizes, named: dict[str, int], is_sound: bool) -> tuple[int, ...]:
    found: list[int] = []
    for axis, dim in enumerate(dims):
        if isinstance(dim, int) and dim >= 0:
            found.append(dim)
            continue
        is_inner = axis == 1 and len(dims) == 3 and isinstance(dims[0], int)  # a state, layer first
        size = sizes.batch if is_inner else _size(axis, len(dims), sizes)
        if axis and is_sound:
            size *= _SAMPLES
        name = str(dim) if isinstance(dim, str) else ""
        terms = [term.strip() for term in name.split("+")]
        if len(terms) > 1:
            numbers = [int(t) if t.isdigit() else named.setdefault(t, size) for t in terms]
            found.append(sum(numbers))
        elif axis == 0 and re.search(r"batch|^N$", name):
            found.append(named.setdefault(name, sizes.batch))
        else:
            found.append(named.setdefault(name, size) if name else size)
    return tuple(found)


def _size(axis: int, rank: int, sizes: Sizes) -> int:
    if axis == 0 and rank > 1:
        return sizes.batch
    if rank == 4:
        return 3 if axis == 1 else sizes.pixels[axis - 2]
    return sizes.length if rank != 3 or axis < 2 else 80


def _array(given: Any, shape: tuple[int, ...], sizes: Sizes, rng: np.random.Generator) -> Any:
    kind, name = given.type.removeprefix("tensor(").removesuffix(")"), given.name.lower()
    dtype = np.dtype(_TYPES[kind])
    if dtype.kind == "U":
        words = np.array(["one", "two", "a longer piece of text", ""])
        return words[rng.integers(0, len(words), shape)].astype(object)
    if dtype.kind == "b":
        return np.ones(shape, dtype)
    if re.search(r"(^|_)sr$|rate", name):
        return np.full(shape, 16000, dtype)
    if "mask" in name or "scale_factor" in name:
        return np.ones(shape, dtype)
    if re.search(r"shape|size", name):
        return np.full(shape, sizes.pixels[0], dtype)
    if dtype.kind in "iu":
        if "len" in name:
            return np.full(shape, sizes.length, dtype)
        if dtype.itemsize == 1:
            return rng.integers(0, 127, shape).astype(dtype)
        return rng.integers(0, 2 if "type" in name else 50, shape).astype(dtype)
    return (rng.standard_normal(shape) * 0.3).astype(dtype)
