"""Images against torch: sizes, grids, patches, pools."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.ops.together import Together

import semel
from semel import GraphError, Tensor, Variable

torch: Any = pytest.importorskip("torch")
F: Any = torch.nn.functional
T = torch.from_numpy

RNG = np.random.default_rng(0)
X3, X4, X5 = (
    RNG.standard_normal(shape).astype(np.float32)
    for shape in [(2, 3, 7), (2, 3, 7, 5), (1, 2, 4, 5, 3)]
)
OF_RANK = {3: X3, 4: X4, 5: X5}


@pytest.mark.parametrize(
    ("mode", "rank"),
    [
        ("nearest", 4),
        ("nearest-exact", 5),
        ("linear", 3),
        ("bilinear", 4),
        ("bicubic", 4),
        ("trilinear", 5),
        ("area", 4),
    ],
)
def test_interpolate_is_torchs(mode: str, rank: int) -> None:
    x, cases = OF_RANK[rank], Together()
    ways: list[dict[str, Any]] = [
        {"size": (9, 4, 6)[: rank - 2]},
        {"size": 1},
        {"scale_factor": 2.0},
        {"scale_factor": 0.6},
        {"scale_factor": 1.7, "recompute_scale_factor": True},
    ]
    corners = (None, True) if mode.endswith(("linear", "cubic")) else (None,)
    for way in ways:
        for aligned in corners:
            found = Tensor(x).interpolate(mode=mode, align_corners=aligned, **way)
            want = F.interpolate(T(x), mode=mode, align_corners=aligned, **way)
            cases.add(f"{way} {aligned}", found, want)
    cases.check()


def test_antialiasing_is_torchs() -> None:
    cases = Together()
    for mode in ("bilinear", "bicubic"):
        for size in [(3, 4), (14, 2)]:
            found = Tensor(X4).interpolate(size, mode=mode, antialias=True)
            cases.add(
                f"{mode} {size}", found, F.interpolate(T(X4), size, mode=mode, antialias=True)
            )
    want = F.interpolate(T(X4), (3, 5), mode="bilinear", antialias=True)
    cases.add("one axis", Tensor(X4).resize(3, axis=2), want)
    last = np.moveaxis(X4, 1, 3)
    want = F.interpolate(T(X4), (3, 9), mode="bicubic").permute(0, 2, 3, 1)
    smooth = Tensor(last).resize((3, 9), (1, 2), mode="cubic", antialias=False)
    cases.add("channels last", smooth, want)
    cases.check()


def test_pixels_of_bytes_stay_bytes() -> None:
    x = RNG.integers(0, 256, (1, 1, 4, 4)).astype(np.uint8)
    got = Tensor(x).interpolate((7, 7), mode="bilinear")
    want = F.interpolate(T(x), (7, 7), mode="bilinear").numpy()
    assert got.dtype.name == "uint8"
    assert np.abs(got.numpy().astype(int) - want).max() <= 1


def test_sizes_of_images_may_be_symbolic() -> None:
    h, to = Variable("h", 2, 20), Variable("to", 1, 20)
    x = Tensor.input("x", (1, 3, h, 5))
    made = [
        x.interpolate((to, 4), mode="bilinear"),
        x.interpolate(scale_factor=1.5, mode="nearest"),
        x.adaptive_avg_pool((3, 2)),
        x.adaptive_max_pool((to, 5)),
        x.unfold(2, padding=1),
        Tensor.input("size", (to,)),
    ]
    plan = semel.prepare(made)
    for rows, size in [(7, 3), (2, 11)]:
        image = RNG.standard_normal((1, 3, rows, 5)).astype(np.float32)
        got = plan(x=image, size=np.zeros(size, np.float32))[:-1]
        i = T(image)
        wanted = [
            F.interpolate(i, (size, 4), mode="bilinear"),
            F.interpolate(i, scale_factor=1.5),
            F.adaptive_avg_pool2d(i, (3, 2)),
            F.adaptive_max_pool2d(i, (size, 5)),
            F.unfold(i, 2, padding=1),
        ]
        for have, want in zip(got, wanted, strict=True):
            np.testing.assert_allclose(have, want.numpy(), rtol=1e-5, atol=1e-5)
    assert plan.compile_count == 1


def test_grids_are_torchs() -> None:
    cases = Together()
    grid = RNG.uniform(-1.6, 1.6, (2, 4, 6, 2)).astype(np.float32)
    for mode in ("bilinear", "nearest", "bicubic"):
        for padding in ("zeros", "border", "reflection"):
            for aligned in (False, True):
                found = Tensor(X4).grid_sample(grid, mode, padding, aligned)
                want = F.grid_sample(T(X4), T(grid), mode, padding, aligned)
                cases.add(f"{mode} {padding} {aligned}", found, want)
    grid = RNG.uniform(-1.6, 1.6, (1, 2, 3, 4, 3)).astype(np.float32)
    want = F.grid_sample(T(X5), T(grid), align_corners=False)
    cases.add("volume", Tensor(X5).grid_sample(grid), want)
    theta = RNG.standard_normal((2, 2, 3)).astype(np.float32)
    for aligned in (False, True):
        want = F.affine_grid(T(theta), (2, 3, 4, 3), aligned)
        cases.add(f"map {aligned}", Tensor(theta).affine_grid((2, 3, 4, 3), aligned), want)
    theta = RNG.standard_normal((2, 3, 4)).astype(np.float32)
    want = F.affine_grid(T(theta), (2, 3, 4, 2, 3), False)
    cases.add("map of volumes", Tensor(theta).affine_grid((2, 3, 4, 2, 3)), want)
    cases.check()


def test_patches_and_channels_are_torchs() -> None:
    cases = Together()
    x = RNG.standard_normal((2, 12, 4, 6)).astype(np.float32)
    cases.add("shuffle", Tensor(x).pixel_shuffle(2), F.pixel_shuffle(T(x), 2))
    cases.add("unshuffle", Tensor(x).pixel_unshuffle(2), F.pixel_unshuffle(T(x), 2))
    cases.add("channels", Tensor(x).channel_shuffle(3), F.channel_shuffle(T(x), 3))
    ways: list[tuple[Any, dict[str, Any]]] = [
        (2, {}),
        ((2, 3), {"padding": 1, "stride": (2, 1), "dilation": (1, 2)}),
    ]
    for kernel, way in ways:
        columns = F.unfold(T(X4), kernel, **way)
        cases.add(f"unfold {way}", Tensor(X4).unfold(kernel, **way), columns)
        want = F.fold(columns, (7, 5), kernel, **way)
        cases.add(f"fold {way}", Tensor(columns.numpy()).fold((7, 5), kernel, **way), want)
    cases.check()


def test_pools_and_transposes_have_torchs_arguments() -> None:
    cases = Together()
    for size in (1, 3, (2, 5), (7, 5), (9, 4)):
        cases.add(
            f"mean {size}", Tensor(X4).adaptive_avg_pool(size), F.adaptive_avg_pool2d(T(X4), size)
        )
        cases.add(
            f"max {size}", Tensor(X4).adaptive_max_pool(size), F.adaptive_max_pool2d(T(X4), size)
        )
    x, y = Tensor(X3), Tensor(X4)
    cases.add("max1", x.max_pool1d(3, 2, 1), F.max_pool1d(T(X3), 3, 2, 1))
    cases.add("max2", y.max_pool2d(3, 2, 1, 1, True), F.max_pool2d(T(X4), 3, 2, 1, 1, True))
    cases.add(
        "mean1", x.avg_pool1d(3, 2, 1, True, False), F.avg_pool1d(T(X3), 3, 2, 1, True, False)
    )
    given = ((3, 2), 2, 1, False, True, 5)
    cases.add("mean2", y.avg_pool2d(*given), F.avg_pool2d(T(X4), *given))
    for rank, image in OF_RANK.items():
        weight = RNG.standard_normal((image.shape[1], 2, *(2, 3, 2)[: rank - 2])).astype(np.float32)
        name = f"conv_transpose{rank - 2}d"
        found = getattr(semel, name)(Tensor(image), weight, None, 2, 1, 1)
        cases.add(name, found, getattr(F, name)(T(image), T(weight), None, 2, 1, 1))
    big = RNG.standard_normal((2, 6, 3, 4)).astype(np.float32)
    for size in (3, 4):
        want = F.local_response_norm(T(big), size, 1e-2, 0.7, 1.5)
        cases.add(f"response {size}", Tensor(big).local_response_norm(size, 1e-2, 0.7, 1.5), want)
    cases.check()


IMAGE, PLANE = Tensor.input("x", (2, 3, 7, 5)), Tensor.input("y", (2, 3))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: PLANE.interpolate(3), r"\[interpolate\] needs \(batch, channels, 1 to 3 of space"),
        (lambda: IMAGE.interpolate(3, mode="cubic"), "mode must be one of nearest, .*got 'cubic'"),
        (IMAGE.interpolate, "needs either size or scale_factor"),
        (lambda: IMAGE.interpolate(3, align_corners=True), "align_corners goes with the linear"),
        (lambda: IMAGE.interpolate(3, mode="nearest", antialias=True), "antialias goes with bil"),
        (lambda: IMAGE.interpolate(3, mode="linear"), r"mode 'linear' needs 1 axes of space"),
        (lambda: IMAGE.interpolate((3, 4, 5)), r"needs 2 sizes, got \[3, 4, 5\]"),
        (lambda: IMAGE.interpolate(scale_factor=-1), "scale_factor must be 2 numbers > 0"),
        (lambda: IMAGE.resize(3, mode="area"), r"\[resize\] mode must be nearest, linear or cubic"),
        (lambda: IMAGE.resize((3, 4), 1), r"\[resize\] needs one size for each axis"),
        (lambda: IMAGE.grid_sample(PLANE), r"\[grid_sample\] needs x \[N, C, space...\] and grid"),
        (lambda: IMAGE.grid_sample(np.zeros((2, 1, 1, 2)), "cubic"), "mode must be one of bilin"),
        (
            lambda: IMAGE.grid_sample(np.zeros((2, 1, 1, 2)), "nearest", "wrap"),
            "padding_mode must be one of zeros, border, reflection, got 'wrap'",
        ),
        (
            lambda: Tensor(X5).grid_sample(np.zeros((1, 1, 1, 1, 3)), "bicubic"),
            r"bicubic needs x \[N, C, H, W\]",
        ),
        (lambda: PLANE.affine_grid((2, 3, 4, 4)), r"\[affine_grid\] needs a size"),
        (lambda: IMAGE.pixel_shuffle(2), "the number of channels must be a multiple of 4"),
        (lambda: IMAGE.pixel_unshuffle(2), "the number of rows must be a multiple of 2"),
        (lambda: PLANE.pixel_shuffle(1), r"needs \(..., channels, height, width\)"),
        (lambda: IMAGE.pixel_shuffle(0), "upscale must be > 0, got 0"),
        (lambda: IMAGE.channel_shuffle(2), "the number of channels must be a multiple of 2"),
        (lambda: PLANE.channel_shuffle(3), r"\[channel_shuffle\] needs \(batch, channels, space"),
        (lambda: PLANE.unfold(2), r"\[unfold\] needs \(batch, channels, space"),
        (lambda: IMAGE.unfold(9), r"\[unfold\] a window over 9 elements must fit"),
        (lambda: PLANE.fold(4, 2), r"\[fold\] needs \(batch, channels \* patch, places\)"),
        (lambda: Tensor(X3).fold((4, 4), (2, 2)), "channels must be a multiple of 4"),
        (lambda: Tensor(X3).fold((4,), (3,)), r"\[fold\] a size of \(4,\) has 2 places"),
        (lambda: IMAGE.adaptive_max_pool((1, 2, 3)), "output must be > 0 for each of 2 axes"),
        (lambda: Tensor([1.0]).local_response_norm(3), r"needs \(batch, channels, ...\)"),
        (lambda: IMAGE.local_response_norm(0), r"\[local_response_norm\] size must be > 0"),
        (lambda: IMAGE.max_pool1d(2), r"\[max_pool1d\] needs 3 axes"),
    ],
)
def test_mistakes_with_images(call: Callable[[], Tensor], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        call()
