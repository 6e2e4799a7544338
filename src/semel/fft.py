"""Fourier transforms: `semel.fft.rfft(x)`, under NumPy's names.

    fft ifft fft2 ifft2 fftn ifftn         complex to complex
    rfft irfft rfft2 irfft2 rfftn irfftn   real to one side of the frequencies, and back
    stft istft                             frames of a signal
    fftfreq rfftfreq fftshift ifftshift as_complex

There is no complex dtype: a complex number is two floats along a last axis, the real and the
imaginary part, as torch.view_as_real has them. `axis` counts the axes of the numbers, without that
last one: -1 is the last axis of a signal [.., n], real or [.., n, 2]. Any length is transformed in
n log n steps; one that is symbolic by one product of n * n.

>>> import semel
>>> semel.fft.rfft([1.0, 0.0, 0.0, 0.0]).tolist()
[[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from semel.errors import GraphError
from semel.ir.expr import Dim
from semel.ir.types import FLOAT32, FLOAT64, as_dtype, as_shape
from semel.tensor.creation import arange
from semel.tensor.fourier import of_length, real_signal, transformed
from semel.tensor.handle import (
    DTypeLike,
    TensorLike,
    dim_value,
    lift,
    normalize_axes,
    normalize_axis,
    whole_number,
)
from semel.tensor.hints import of_module
from semel.tensor.indexing import certain_rows, iota
from semel.tensor.movement import of_shape, stack
from semel.tensor.window import slid

if TYPE_CHECKING:
    from semel.tensor.tensor import Tensor

__all__ = [
    "as_complex",
    "fft",
    "fft2",
    "fftfreq",
    "fftn",
    "fftshift",
    "ifft",
    "ifft2",
    "ifftn",
    "ifftshift",
    "irfft",
    "irfft2",
    "irfftn",
    "istft",
    "rfft",
    "rfft2",
    "rfftfreq",
    "rfftn",
    "stft",
]


# ------------------------------------------------------------ one axis


def as_complex(real: TensorLike, imag: TensorLike = 0) -> Tensor:
    """Two tensors as one of complex numbers, [.., 2]; they broadcast."""
    parts = _float(lift(real)), _float(lift(imag))
    a, b = parts[0] + parts[1].zeros_like(), parts[1] + parts[0].zeros_like()
    return stack([a, b.cast(a.dtype)], -1)


def fft(x: TensorLike, n: Dim | None = None, axis: int = -1, norm: str | None = None) -> Tensor:
    """The frequencies of complex numbers [.., n, 2] along an axis.

    `n` cuts, or fills up with zeros. `norm` is "backward" (the inverse is divided by n), "ortho"
    (both by its root) or "forward".
    """
    return _along(_complex(x, "fft"), n, axis, norm, False, "fft")


def ifft(x: TensorLike, n: Dim | None = None, axis: int = -1, norm: str | None = None) -> Tensor:
    """The inverse of `fft`."""
    return _along(_complex(x, "ifft"), n, axis, norm, True, "ifft")


def rfft(x: TensorLike, n: Dim | None = None, axis: int = -1, norm: str | None = None) -> Tensor:
    """The n // 2 + 1 frequencies [.., 2] of real numbers; the others are their conjugates."""
    given = _float(lift(x))
    if given.ndim == 0:
        raise GraphError("rfft", f"needs at least 1 axis, got {given.type}.")
    i = normalize_axis(axis, given.ndim, "rfft")
    moved = given.unsqueeze(-1).moveaxis(i, -2)
    size = _size(n, moved.shape[-2], "rfft")
    found = transformed(of_length(moved, size), size, False, True)
    return _scaled(found, size, norm, False, "rfft").moveaxis(-2, i)


def irfft(x: TensorLike, n: Dim | None = None, axis: int = -1, norm: str | None = None) -> Tensor:
    """The n real numbers that have the frequencies [.., n // 2 + 1, 2]; n is even if not said."""
    given = _complex(x, "irfft")
    i = normalize_axis(axis, given.ndim - 1, "irfft")
    moved = given.moveaxis(i, -2)
    size = _size(n, (moved.shape[-2] - 1) * 2, "irfft")
    found = real_signal(of_length(moved, size // 2 + 1), size)
    return _scaled(found, size, norm, True, "irfft").moveaxis(-1, i)


def _along(
    x: Tensor, n: Dim | None, axis: int, norm: str | None, inverse: bool, where: str
) -> Tensor:
    i = normalize_axis(axis, x.ndim - 1, where)
    moved = x.moveaxis(i, -2)
    size = _size(n, moved.shape[-2], where)
    found = transformed(of_length(moved, size), size, inverse, False)
    return _scaled(found, size, norm, inverse, where).moveaxis(-2, i)


def _scaled(x: Tensor, size: Dim, norm: str | None, inverse: bool, where: str) -> Tensor:
    """What is divided by n on the way back only, divided as `norm` says."""
    if norm not in (None, "backward", "ortho", "forward"):
        raise GraphError(where, f"norm must be backward, ortho or forward, got {norm!r}.")
    if norm in (None, "backward"):
        return x
    count = dim_value(size, FLOAT64).cast(x.dtype)
    if norm == "ortho":
        return x * count.sqrt() if inverse else x / count.sqrt()
    return x * count if inverse else x / count


# ------------------------------------------------------------ several axes


def fft2(
    x: TensorLike,
    s: Sequence[Dim] | None = None,
    axes: Sequence[int] = (-2, -1),
    norm: str | None = None,
) -> Tensor:
    """`fft` along two axes; `s` has their lengths."""
    return _several(_complex(x, "fft2"), s, axes, norm, False, "fft2")


def ifft2(
    x: TensorLike,
    s: Sequence[Dim] | None = None,
    axes: Sequence[int] = (-2, -1),
    norm: str | None = None,
) -> Tensor:
    """The inverse of `fft2`."""
    return _several(_complex(x, "ifft2"), s, axes, norm, True, "ifft2")


def fftn(
    x: TensorLike,
    s: Sequence[Dim] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> Tensor:
    """`fft` along several axes: all, if they are not named."""
    return _several(_complex(x, "fftn"), s, axes, norm, False, "fftn")


def ifftn(
    x: TensorLike,
    s: Sequence[Dim] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> Tensor:
    """The inverse of `fftn`."""
    return _several(_complex(x, "ifftn"), s, axes, norm, True, "ifftn")


def rfft2(
    x: TensorLike,
    s: Sequence[Dim] | None = None,
    axes: Sequence[int] = (-2, -1),
    norm: str | None = None,
) -> Tensor:
    """`rfft` along the last of the axes, and `fft` along the others."""
    return _real_several(x, s, axes, norm, "rfft2")


def irfft2(
    x: TensorLike,
    s: Sequence[Dim] | None = None,
    axes: Sequence[int] = (-2, -1),
    norm: str | None = None,
) -> Tensor:
    """The inverse of `rfft2`."""
    return _real_inverse(x, s, axes, norm, "irfft2")


def rfftn(
    x: TensorLike,
    s: Sequence[Dim] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> Tensor:
    """`rfft` along the last of several axes, and `fft` along the others: all, if none is named."""
    return _real_several(x, s, axes, norm, "rfftn")


def irfftn(
    x: TensorLike,
    s: Sequence[Dim] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> Tensor:
    """The inverse of `rfftn`."""
    return _real_inverse(x, s, axes, norm, "irfftn")


def _real_several(
    x: TensorLike,
    s: Sequence[Dim] | None,
    axes: Sequence[int] | None,
    norm: str | None,
    where: str,
) -> Tensor:
    given = lift(x)
    places = _some_places(axes, s, given.ndim, where)
    sizes = _sizes(s, places, [given.shape[i] for i in places], where)
    found = rfft(given, sizes[-1], places[-1], norm)
    return _several(found, sizes[:-1], places[:-1], norm, False, where)


def _real_inverse(
    x: TensorLike,
    s: Sequence[Dim] | None,
    axes: Sequence[int] | None,
    norm: str | None,
    where: str,
) -> Tensor:
    given = _complex(x, where)
    places = _some_places(axes, s, given.ndim - 1, where)
    lengths = [given.shape[i] for i in places]
    sizes = _sizes(s, places, [*lengths[:-1], (lengths[-1] - 1) * 2], where)
    found = _several(given, sizes[:-1], places[:-1], norm, True, where)
    return irfft(found, sizes[-1], places[-1], norm)


def _places(
    axes: Sequence[int] | None, s: Sequence[Dim] | None, ndim: int, where: str
) -> tuple[int, ...]:
    """The axes; if they are not named the last ones that have lengths, or all."""
    if axes is None:
        axes = range(0 if s is None else max(ndim - len(s), 0), ndim)
    return normalize_axes(tuple(axes), ndim, where)


def _some_places(
    axes: Sequence[int] | None, s: Sequence[Dim] | None, ndim: int, where: str
) -> tuple[int, ...]:
    """The same, of which there must be a last one."""
    places = _places(axes, s, ndim, where)
    if not places:
        raise GraphError(where, "needs at least 1 axis, got none.")
    return places


def _several(
    x: Tensor,
    s: Sequence[Dim] | None,
    axes: Sequence[int] | None,
    norm: str | None,
    inverse: bool,
    where: str,
) -> Tensor:
    places = _places(axes, s, x.ndim - 1, where)
    for i, size in zip(places, _sizes(s, places, [x.shape[i] for i in places], where), strict=True):
        x = _along(x, size, i, norm, inverse, where)
    return x


def _sizes(
    s: Sequence[Dim] | None, places: Sequence[int], lengths: Sequence[Dim], where: str
) -> Sequence[Dim]:
    if s is not None and len(s) != len(places):
        raise GraphError(where, f"needs one length for each axis, got {tuple(s)} for {places}.")
    return lengths if s is None else s


# ------------------------------------------------------------ frequencies


def fftfreq(
    n: Dim, d: float = 1.0, dtype: DTypeLike | None = None, *, device: Any = None
) -> Tensor:
    """The frequencies that `fft` of n numbers has: 0, 1, ..., -2, -1 over n * d."""
    (size,) = as_shape((n,), "fftfreq")
    place = arange(size, device=device)
    half = (size + 1) // 2
    signed = (place < dim_value(half)).where(place, place - dim_value(size))
    return _over(signed, size, d, dtype)


def rfftfreq(
    n: Dim, d: float = 1.0, dtype: DTypeLike | None = None, *, device: Any = None
) -> Tensor:
    """The frequencies that `rfft` of n numbers has: 0, 1, ..., n // 2 over n * d."""
    (size,) = as_shape((n,), "rfftfreq")
    return _over(arange(size // 2 + 1, device=device), size, d, dtype)


def _over(x: Tensor, size: Dim, d: float, dtype: DTypeLike | None) -> Tensor:
    found = x.cast(FLOAT64) / (dim_value(size, FLOAT64) * d)
    return found.cast(FLOAT32 if dtype is None else as_dtype(dtype, "fftfreq"))


def fftshift(x: TensorLike, axes: int | Sequence[int] | None = None) -> Tensor:
    """Frequency 0 in the middle; of complex numbers name the axes, counted from the front."""
    x = lift(x)
    places = normalize_axes(axes, x.ndim, "fftshift")
    return x.roll([x.shape[i] // 2 for i in places], places)


def ifftshift(x: TensorLike, axes: int | Sequence[int] | None = None) -> Tensor:
    """The inverse of `fftshift`."""
    x = lift(x)
    places = normalize_axes(axes, x.ndim, "ifftshift")
    return x.roll([(x.shape[i] + 1) // 2 for i in places], places)


# ------------------------------------------------------------ frames


def stft(
    x: TensorLike,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: TensorLike | None = None,
    *,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool = True,
) -> Tensor:
    """The frequencies of frames of a real signal [.., n], as [.., frequencies, frames, 2].

    torch.stft: frames of n_fft numbers, `hop_length` apart (a quarter of n_fft), under the window.
    With `center`, frame t is around number t * hop_length, and the signal goes on at its ends
    reflected, or with pad_mode="constant" as zeros.
    """
    where = "stft"
    given = _float(lift(x))
    if given.ndim < 1:
        raise GraphError(where, f"needs a signal [.., n], got {given.type}.")
    hop = _hop(n_fft, hop_length, where)
    shade = _window(window, win_length, n_fft, given, where)
    if center:
        given = _grown(given, n_fft // 2, pad_mode)
    length = given.shape[-1]
    if isinstance(length, int) and length < n_fft:
        raise GraphError(where, f"a frame of {n_fft} must fit the signal, got {length} numbers.")
    frames = slid(given, given.ndim - 1, n_fft, hop)
    frames = frames if shade is None else frames * shade
    found = transformed(frames.unsqueeze(-1), n_fft, False, onesided)
    found = found * (n_fft**-0.5) if normalized else found
    return found.swapaxes(-2, -3)


def istft(
    x: TensorLike,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: TensorLike | None = None,
    *,
    center: bool = True,
    normalized: bool = False,
    length: Dim | None = None,
) -> Tensor:
    """The signal of which `stft` made one-sided frames: windows that overlap are weighed out."""
    where = "istft"
    given = _complex(x, where)
    if given.ndim < 3 or given.shape[-3] != n_fft // 2 + 1:
        raise GraphError(
            where, f"needs [.., {n_fft // 2 + 1}, frames, 2] for n_fft={n_fft}, got {given.type}."
        )
    hop = _hop(n_fft, hop_length, where)
    frames = real_signal(given.swapaxes(-2, -3), n_fft)
    frames = frames * (n_fft**0.5) if normalized else frames
    shade = _window(window, win_length, n_fft, frames, where)
    shade = (iota((n_fft,), 0) * 0 + 1).cast(frames.dtype) if shade is None else shade
    lead, count = frames.shape[:-2], frames.shape[-2]
    total = (count - 1) * hop + n_fft

    def added(x: Tensor) -> Tensor:
        columns = x.reshape(-1, count, n_fft).swapaxes(1, 2)
        return columns.fold((total,), (n_fft,), stride=(hop,))

    weights = added(shade.square().reshape(-1, 1, n_fft).broadcast_to(1, count, n_fft))
    signal = (added(frames * shade) / weights.maximum(1e-11)).reshape((*lead, total))
    start = n_fft // 2 if center else 0
    size = total - 2 * start if length is None else length
    signal = signal.narrow(-1, start, total - start)
    return of_length(signal.unsqueeze(-1), size).squeeze(-1)


def _hop(n_fft: int, hop_length: int | None, where: str) -> int:
    if whole_number(n_fft, "n_fft", where) < 1:
        raise GraphError(where, f"n_fft must be > 0, got {n_fft}.")
    hop = n_fft // 4 if hop_length is None else whole_number(hop_length, "hop_length", where)
    if hop < 1:
        raise GraphError(where, f"hop_length must be > 0, got {hop}.")
    return hop


def _window(
    window: TensorLike | None, win_length: int | None, n_fft: int, like: Tensor, where: str
) -> Tensor | None:
    """The window in the middle of n_fft numbers."""
    size = n_fft if win_length is None else whole_number(win_length, "win_length", where)
    if not 0 < size <= n_fft:
        raise GraphError(where, f"win_length must lie in [1, {n_fft}], got {size}.")
    if window is None and size == n_fft:
        return None
    shade = iota((size,), 0) * 0 + 1 if window is None else lift(window)
    shade = of_shape(shade, (size,), where, "window").cast(like.dtype)
    before = (n_fft - size) // 2
    return shade.pad((before, n_fft - size - before)) if size < n_fft else shade


def _grown(x: Tensor, by: int, mode: str) -> Tensor:
    length = x.shape[-1]
    if mode == "constant":
        return x.pad([(0, 0)] * (x.ndim - 1) + [(by, by)])
    if mode != "reflect":
        raise GraphError("stft", f"pad_mode must be reflect or constant, got {mode!r}.")
    if isinstance(length, int) and length <= by:
        raise GraphError("stft", f"a signal must have more than {by} numbers to be reflected.")
    place = (iota((length + 2 * by,), 0) - by).abs()
    last = dim_value(length - 1)
    return certain_rows(x, last - (place - last).abs(), x.ndim - 1)


# ------------------------------------------------------------ arguments


def _float(x: Tensor) -> Tensor:
    return x if x.dtype.is_float else x.cast(FLOAT32)


def _complex(x: TensorLike, where: str) -> Tensor:
    given = lift(x)
    if given.ndim < 2 or given.shape[-1] != 2:
        raise GraphError(
            where,
            f"needs complex numbers [.., n, 2], real and imaginary part, got {given.type}.",
            hint="Take rfft of real numbers, or make complex ones by semel.fft.as_complex(x).",
        )
    return _float(given)


def _size(n: Any, length: Dim, where: str) -> Dim:
    (size,) = as_shape((length if n is None else n,), where)
    if isinstance(size, int) and size < 1:
        raise GraphError(where, f"needs at least 1 number, got n={size}.")
    return size


if not TYPE_CHECKING:
    __getattr__, __dir__ = of_module(__name__, __all__)
