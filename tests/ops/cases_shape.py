"""Rows for movement, indexing, assignment, joining and creation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from tests.ops.case import Case, Spec

import semel
from semel import Tensor

A = Spec((3, 4))
B = Spec((2, 3, 5))
V = Spec((17,))
I32 = Spec((2, 3, 5), "int32", -99, 99)

# One function serves tensors and arrays alike where the names agree.
SAME: list[tuple[str, Callable[[Any], Any], Spec]] = [
    ("reshape", lambda x: x.reshape(4, 3), A),
    ("reshape_infer", lambda x: x.reshape(5, -1), B),
    ("reshape_0d", lambda x: x.reshape(()), Spec((1,))),
    ("reshape_empty", lambda x: x.reshape(4, 0), Spec((0, 4))),
    ("flatten", lambda x: x.flatten(), B),
    ("squeeze", lambda x: x.squeeze(), Spec((1, 3, 1))),
    ("squeeze_axis", lambda x: x.squeeze(-1), Spec((1, 3, 1))),
    ("transpose", lambda x: x.transpose(), B),
    ("transpose_axes", lambda x: x.transpose(2, 0, 1), B),
    ("swapaxes", lambda x: x.swapaxes(0, -1), B),
    ("T", lambda x: x.T, B),
    ("mT", lambda x: x.mT, B),
    ("permute_reshape", lambda x: x.transpose(1, 0, 2).reshape(3, 10), B),
    ("reshape_permute", lambda x: x.reshape(5, 6).T.reshape(2, 15), B),
    ("index_int", lambda x: x[1], A),
    ("index_negative", lambda x: x[-1, -2], A),
    ("slice", lambda x: x[1:3, :2], A),
    ("slice_step", lambda x: x[::2, 1::2], Spec((7, 9))),
    ("slice_negative_step", lambda x: x[::-1, ::-2], Spec((7, 9))),
    ("slice_bounds_negative_step", lambda x: x[5:1:-2], Spec((7, 9))),
    ("slice_clamped", lambda x: x[-100:100], A),
    ("slice_empty", lambda x: x[3:1], A),
    ("slice_past_end", lambda x: x[10:], A),
    ("newaxis", lambda x: x[:, None, :, None], A),
    ("ellipsis", lambda x: x[..., 0], B),
    ("ellipsis_middle", lambda x: x[0, ..., 1:3], B),
    ("slice_of_slice", lambda x: x[1:][:, ::-1][..., 1:4], B),
    ("slice_of_permute", lambda x: x.T[1:4], B),
    ("index_list", lambda x: x[[2, 0, 2]], A),
    ("index_array_2d", lambda x: x[np.array([[0, 1], [2, -1]])], A),
    ("index_two_arrays", lambda x: x[[0, 1], [2, 3]], A),
    ("index_outer_arrays", lambda x: x[np.array([[0], [2]]), np.array([1, 3])], A),
    ("index_middle_array", lambda x: x[:, [2, 0]], B),
    ("index_separated", lambda x: x[[0, 1], :, [1, 2]], B),
    ("index_adjacent_after_slice", lambda x: x[:, [0, 2], [1, 4]], B),
    ("index_int_and_array", lambda x: x[0, :, [1, 2]], B),
    ("index_array_and_int", lambda x: x[:, [0, 1], 2], B),
    ("index_array_and_slice", lambda x: x[[1, 0], 1:, ::2], B),
    ("index_array_newaxis", lambda x: x[[0, 1], None, [1, 2]], A),
    ("index_mask", lambda x: x[np.array([True, False, True])], A),
    ("index_mask_2d", lambda x: x[np.arange(12).reshape(3, 4) % 3 == 0], A),
    ("index_mask_second", lambda x: x[:, np.array([True, False, True, True])], A),
    ("index_empty_list", lambda x: x[[]], A),
    ("take", lambda x: x.take(np.array([[0, 2], [1, -1]]), 1), B),
    ("take_flat", lambda x: x.take([0, 5, 11]), A),
    ("repeat", lambda x: x.repeat(3, 1), A),
    ("repeat_flat", lambda x: x.repeat(2), A),
    ("diagonal", lambda x: x.diagonal(), Spec((4, 4))),
    ("diagonal_offset", lambda x: x.diagonal(1), A),
    ("diagonal_below", lambda x: x.diagonal(-1, 0, 2), B),
    ("trace", lambda x: x.trace(), Spec((4, 4))),
    ("int_slice", lambda x: x[:, ::-1], I32),
    ("int_index", lambda x: x[:, [2, 0], 1:], I32),
    ("bool_index", lambda x: x[[1, 0]], Spec((2, 5), "bool")),
    ("half_slice", lambda x: x[1:, ::2], Spec((4, 5), "bfloat16")),
]  # fmt: skip

# name, on the tensor, on the array, input
PAIRS: list[tuple[str, Callable[[Any], Any], Callable[[Any], Any], Spec]] = [
    ("view", lambda x: x.view(2, 6), lambda x: x.reshape(2, 6), A),
    ("flatten_range", lambda x: x.flatten(1), lambda x: x.reshape(2, 15), B),
    ("unsqueeze", lambda x: x.unsqueeze((0, -1)), lambda x: np.expand_dims(x, (0, -1)), A),
    ("unflatten", lambda x: x.unflatten(1, (2, -1)), lambda x: x.reshape(3, 2, 2), A),
    ("moveaxis", lambda x: x.moveaxis((0, 1), (-1, 0)),
     lambda x: np.moveaxis(x, (0, 1), (-1, 0)), B),
    ("permute", lambda x: x.permute(2, 1, 0), lambda x: x.transpose(2, 1, 0), B),
    ("broadcast_to", lambda x: x.broadcast_to(5, 3, 4), lambda x: np.broadcast_to(x, (5, 3, 4)), A),
    ("expand", lambda x: x.expand(-1, 6), lambda x: np.broadcast_to(x, (3, 6)), Spec((3, 1))),
    ("pad", lambda x: x.pad(1), lambda x: np.pad(x, 1), A),
    ("pad_pairs", lambda x: x.pad(((0, 2), (1, 0)), 7),
     lambda x: np.pad(x, ((0, 2), (1, 0)), constant_values=7), A),
    ("pad_inf", lambda x: x.pad((1, 2), -np.inf),
     lambda x: np.pad(x, (1, 2), constant_values=-np.inf), V),
    ("pad_slice", lambda x: x.pad(2)[1:-1, ::2], lambda x: np.pad(x, 2)[1:-1, ::2], A),
    ("pad_then_sum", lambda x: x.pad(1, 1).sum(0),
     lambda x: np.pad(x, 1, constant_values=1).sum(0), A),
    ("flip", lambda x: x.flip(), np.flip, B),
    ("flip_axis", lambda x: x.flip(1), lambda x: np.flip(x, 1), B),
    ("roll", lambda x: x.roll(2), lambda x: np.roll(x, 2), A),
    ("roll_axes", lambda x: x.roll((1, -2), (0, 1)), lambda x: np.roll(x, (1, -2), (0, 1)), A),
    ("tile", lambda x: x.tile(2, 3), lambda x: np.tile(x, (2, 3)), A),
    ("tile_more", lambda x: x.tile(2, 1, 2), lambda x: np.tile(x, (2, 1, 2)), A),
    ("split", lambda x: x.split(axis=1, split_size=2)[2], lambda x: x[:, 4:], Spec((3, 5))),
    ("split_sizes", lambda x: x.split(axis=1, split_size=[1, 3])[1], lambda x: x[:, 1:], A),
    ("chunk", lambda x: x.chunk(3, 0)[2], lambda x: x[6:], Spec((7, 2))),
    ("unbind", lambda x: x.unbind(1)[2], lambda x: x[:, 2], A),
    ("stack", lambda x: Tensor.stack([x, x * 2], 1), lambda x: np.stack([x, x * 2], 1), A),
    ("concat_self", lambda x: Tensor.concat([x, x[:1], x], 0),
     lambda x: np.concatenate([x, x[:1], x]), A),
    ("concat_sum", lambda x: Tensor.concat([x, -x], 1).sum(1), lambda x: 0 * x.sum(1), A),
    ("meshgrid", lambda x: semel.meshgrid(x, [1.0, 2.0])[0],
     lambda x: np.meshgrid(x, [1.0, 2.0])[0], V),
    ("diag_matrix", lambda x: x.diag(1), lambda x: np.diag(x, 1), V),
    ("diag_of", lambda x: x.diag(), np.diag, Spec((4, 4))),
    ("tril", lambda x: x.tril(), np.tril, Spec((2, 4, 5))),
    ("triu", lambda x: x.triu(1), lambda x: np.triu(x, 1), Spec((4, 5))),
    ("index_select", lambda x: x.index_select(1, np.array([3, 0])), lambda x: x[:, [3, 0]], A),
    ("one_hot", lambda x: x.one_hot(5), lambda x: np.eye(5, dtype=np.int64)[x],
     Spec((3, 4), "int32", 0, 4)),
    ("embedding", lambda x: Tensor(x, "int64").embedding(np.eye(5, dtype=np.float64)),
     lambda x: np.eye(5)[x], Spec((3, 4), "int32", 0, 4)),
    ("int_index_tensor", lambda x: x[Tensor([1, 0])], lambda x: x[[1, 0]], A),
    ("index_0d_tensor", lambda x: x[Tensor(1)], lambda x: x[1], A),
    ("iterate", lambda x: sum(row * (i + 1) for i, row in enumerate(x)),
     lambda x: sum(row * (i + 1) for i, row in enumerate(x)), A),
    ("narrow", lambda x: x.narrow(1, 1, 2), lambda x: x[:, 1:3], A),
    ("zeros_like", lambda x: x.zeros_like() + x, lambda x: x, A),
    ("full_like", lambda x: x.full_like(2) * x, lambda x: 2 * x, A),
]  # fmt: skip


def assigned(key: Any, value: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """The same assignment on a tensor and on an array."""

    def on_tensor(x: Tensor) -> Tensor:
        y = Tensor(x)
        y[key] = value
        return y

    def on_array(x: np.ndarray) -> np.ndarray:
        y = x.copy()
        y[key] = value
        return y

    return on_tensor, on_array


ROW = np.arange(4, dtype=np.float32)
ASSIGNMENTS: list[tuple[str, Any, Any, Spec]] = [
    ("int", 1, 5.0, A),
    ("element", (1, -1), 5.0, A),
    ("slice", slice(1, None), 0.0, A),
    ("row", (slice(None), slice(1, 3)), np.array([8.0, 9.0], np.float32), A),
    ("step", (slice(None), slice(0, None, 2)), 7.0, Spec((3, 7))),
    ("negative_step", slice(None, None, -2), np.arange(9, dtype=np.float32), V),
    ("negative_step_bounds", slice(12, 3, -3), np.arange(3, dtype=np.float32), V),
    ("everything", slice(None), 1.0, A),
    ("ellipsis", (..., 0), 3.0, B),
    ("empty", slice(2, 1), 3.0, A),
    ("array", ([2, 0],), ROW, A),
    ("array_twice", ([1, 1],), np.stack([ROW, ROW * 2]), A),
    ("two_arrays", ([0, 2], [1, 3]), np.array([5.0, 6.0], np.float32), A),
    ("slice_and_array", (slice(1, None), [3, 0]), 4.0, A),
    ("separated_arrays", ([0, 1], slice(None), [1, 2]), 4.0, B),
    ("middle_array", (slice(None), [2, 0], slice(1, 4)), np.float32(4), B),
    ("mask", np.array([True, False, True]), 2.0, A),
    ("leading_ones", slice(0, 2), np.ones((1, 1, 4), np.float32), A),
    ("int_dtype", (0, slice(None)), 3, Spec((3, 4), "int16", -9, 9)),
]


def shape_cases() -> Iterator[Case]:
    for name, fn, spec in SAME:
        yield Case(name, fn, fn, (spec,), atol=1e-6)
    for name, run, reference, spec in PAIRS:
        result = {"embedding": "float64", "one_hot": "int64"}.get(name)
        yield Case(name, run, reference, (spec,), result, atol=3e-6)
    for name, key, value, spec in ASSIGNMENTS:
        run, reference = assigned(key, value)
        yield Case(f"assign_{name}", run, reference, (spec,))


def joined_cases() -> Iterator[Case]:
    two = (Spec((3, 2)), Spec((3, 5)))
    yield Case(
        "concat", lambda x, y: Tensor.concat([x, y], 1), lambda x, y: np.concatenate([x, y], 1), two
    )
    yield Case(
        "concat_promotes",
        lambda x, y: Tensor.concat([x, y]),
        lambda x, y: np.concatenate([x, y]),
        (Spec((3,), "int32"), Spec((2,))),
    )
    yield Case(
        "concat_empty",
        lambda x, y: Tensor.concat([x, y]),
        lambda x, y: np.concatenate([x, y]),
        (Spec((0,)), Spec((2,))),
    )
    yield Case(
        "concat_exp",
        lambda x, y: Tensor.concat([x.exp(), y], 1)[:, 1:4] * 2,
        lambda x, y: np.concatenate([np.exp(x), y], 1)[:, 1:4] * 2,
        two,
    )
    index = Spec((3, 4), "int64", -3, 2)
    yield Case(
        "gather", lambda x, i: x.gather(0, i), lambda x, i: np.take_along_axis(x, i, 0), (A, index)
    )
    yield Case(
        "gather_smaller",
        lambda x, i: x.gather(1, i),
        lambda x, i: np.take_along_axis(x[:2], i, 1),
        (A, Spec((2, 6), "int32", 0, 3)),
    )
    yield Case(
        "take_along_axis",
        lambda x, i: x.take_along_axis(i, 1),
        lambda x, i: np.take_along_axis(x, i, 1),
        (A, Spec((3, 2), "int64", -4, 3)),
    )
    yield Case(
        "take_along_broadcast",
        lambda x, i: x.take_along_axis(i, 1),
        lambda x, i: np.take_along_axis(x, i, 1),
        (A, Spec((1, 2), "int64", 0, 3)),
    )
    yield Case(
        "index_by_input", lambda x, i: x[i], lambda x, i: x[i], (A, Spec((5,), "int32", -3, 2))
    )
    yield Case(
        "index_by_two_inputs",
        lambda x, i, j: x[i, j] * 2,
        lambda x, i, j: x[i, j] * 2,
        (A, Spec((5,), "int64", 0, 2), Spec((2, 1), "uint8", 0, 3)),
    )
    yield Case(
        "scatter",
        lambda x, s: x.scatter(0, np.array([[2, 0, 1, 2]]), s),
        np_scatter,
        (A, Spec((1, 4))),
    )
    yield Case(
        "scatter_add",
        lambda x, i, s: x.scatter_add(1, i, s),
        np_scatter_add,
        (A, Spec((3, 6), "int64", 0, 3), Spec((3, 6))),
        atol=1e-6,
    )
    yield Case(
        "scatter_max",
        lambda x, i, s: x.scatter(1, i, s, "amax"),
        np_scatter_max,
        (A, Spec((2, 3), "int64", 0, 3), Spec((2, 4))),
    )
    yield Case(
        "index_add",
        lambda x, i, s: x.index_add(0, i, s),
        np_index_add,
        (A, Spec((5,), "int64", 0, 2), Spec((5, 4))),
        atol=1e-6,
    )
    yield Case(
        "index_put_accumulate",
        lambda x, i, s: x.index_put((i,), s, accumulate=True),
        np_index_add,
        (A, Spec((5,), "int64", 0, 2), Spec((5, 4))),
        atol=1e-6,
    )
    yield Case("assign_by_mask", assign_by_mask, lambda x: np.where(x > 0, 9, x), (A,))
    yield Case(
        "assign_update",
        assign_update,
        lambda x: x + np.eye(3, 4, dtype=x.dtype)[:, :1] * 0 + 1,
        (A,),
    )


def np_scatter(x: np.ndarray, s: np.ndarray) -> np.ndarray:
    y = x.copy()
    np.put_along_axis(y, np.array([[2, 0, 1, 2]]), s, 0)
    return y


def np_scatter_add(x: np.ndarray, i: np.ndarray, s: np.ndarray) -> np.ndarray:
    y = x.copy()
    np.add.at(y, (np.arange(3)[:, None], i), s)
    return y


def np_scatter_max(x: np.ndarray, i: np.ndarray, s: np.ndarray) -> np.ndarray:
    y = x.copy()
    np.maximum.at(y, (np.arange(2)[:, None], i), s[:, :3])
    return y


def np_index_add(x: np.ndarray, i: np.ndarray, s: np.ndarray) -> np.ndarray:
    y = x.copy()
    np.add.at(y, i, s)
    return y


def assign_by_mask(x: Tensor) -> Tensor:
    y = Tensor(x)
    y[x > 0] = 9
    return y


def assign_update(x: Tensor) -> Tensor:
    y = Tensor(x)
    y[:, 1:] += 1
    y[:, 0] += 1
    return y


# name, tensor, array: no inputs at all
CREATIONS: list[tuple[str, Callable[[], Tensor], Callable[[], Any]]] = [
    ("zeros", lambda: semel.zeros(2, 3), lambda: np.zeros((2, 3), np.float32)),
    ("ones", lambda: semel.ones((4,), dtype="int8"), lambda: np.ones(4, np.int8)),
    ("full", lambda: semel.full((2, 2), 1.5), lambda: np.full((2, 2), 1.5, np.float32)),
    ("full_0d", lambda: semel.full((), 3), lambda: np.array(3)),
    ("arange", lambda: semel.arange(7), lambda: np.arange(7)),
    ("arange_step", lambda: semel.arange(10, 1, -3), lambda: np.arange(10, 1, -3)),
    ("arange_empty", lambda: semel.arange(3, 3), lambda: np.arange(3, 3)),
    ("arange_float", lambda: semel.arange(0.0, 1.0, 0.25),
     lambda: np.arange(0, 1, 0.25).astype(np.float32)),
    ("arange_dtype", lambda: semel.arange(5, dtype="float32"),
     lambda: np.arange(5, dtype=np.float32)),
    ("linspace", lambda: semel.linspace(-1, 1, 7), lambda: np.linspace(-1, 1, 7, dtype=np.float32)),
    ("linspace_one", lambda: semel.linspace(2, 3, 1),
     lambda: np.linspace(2, 3, 1, dtype=np.float32)),
    ("eye", lambda: semel.eye(3, 4, 1), lambda: np.eye(3, 4, 1, np.float32)),
    ("tri", lambda: semel.tri(3, 4, -1), lambda: np.tri(3, 4, -1, np.float32)),
    ("meshgrid_ij", lambda: semel.meshgrid([1, 2], [3, 4, 5], indexing="ij")[1],
     lambda: np.meshgrid([1, 2], [3, 4, 5], indexing="ij")[1]),
    ("where_constants", lambda: semel.where([True, False], 1.0, 2.0),
     lambda: np.array([1, 2], np.float32)),
]  # fmt: skip


def creation_cases() -> Iterator[Case]:
    for name, run, reference in CREATIONS:
        yield Case(name, run, reference, (), rtol=1e-6, atol=1e-6)


SHAPE = [*shape_cases(), *joined_cases(), *creation_cases()]
