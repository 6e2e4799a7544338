"""Fourier transforms: what `semel.fft` is made of.

    n small      one product with the table of roots
    n = p * q    transforms of p and of q, and a turn of each number in between
    n prime      a convolution, by transforms of a power of two (Bluestein)
    n symbolic   one product, with a table that is arithmetic on indices

Complex numbers are a last axis of two, the real and the imaginary part: [.., n, 2].
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from semel.ir.expr import Dim, minimum
from semel.ir.types import FLOAT32, FLOAT64
from semel.tensor.handle import constant, dim_value
from semel.tensor.indexing import iota
from semel.tensor.movement import concat, stack

if TYPE_CHECKING:
    from semel.tensor.tensor import Tensor

#: Up to here one product is as fast as two shorter ones, and a prime as its convolution.
DIRECT, DIRECT_PRIME = 64, 512


# ------------------------------------------------------------ any length


def transformed(x: Tensor, size: Dim, inverse: bool, onesided: bool) -> Tensor:
    """Of [.., size, 1 or 2] the frequencies [.., size or half of it, 2]; inverse over the size."""
    dtype = x.dtype
    work = x.cast(FLOAT64 if dtype == FLOAT64 else FLOAT32)
    if not isinstance(size, int) or size <= DIRECT:
        return _by_product(work, size, inverse, onesided).cast(dtype)
    if work.shape[-1] == 1 and not inverse and size % 2 == 0:
        found = _of_real(work.squeeze(-1), size)
        if not onesided:
            behind = found.narrow(-2, 1, size // 2 - 1).flip(-2)
            found = concat([found, conjugate(behind)], found.ndim - 2)
        return found.cast(dtype)
    if work.shape[-1] == 1:
        work = concat([work, work.zeros_like()], work.ndim - 1)
    found = _transform(work, size, inverse)
    found = found * (1.0 / size) if inverse else found
    return (found.narrow(-2, 0, size // 2 + 1) if onesided else found).cast(dtype)


def real_signal(x: Tensor, size: Dim) -> Tensor:
    """The real signal [.., size] of which [.., half of it, 2] is the one side."""
    dtype, count = x.dtype, x.shape[-2]
    work = x.cast(FLOAT64 if dtype == FLOAT64 else FLOAT32)
    if isinstance(size, int) and size > DIRECT:
        # What has no counterpart is real, whatever is given: the first, and an even size's last.
        place = iota((size // 2 + 1,), 0)
        is_alone = place.eq(0) | (place * 2).eq(size)
        real, imaginary = work[..., 0], is_alone.where(0.0, work[..., 1])
        work = stack([real, imaginary], -1)
        behind = conjugate(work.narrow(-2, 1, size - size // 2 - 1).flip(-2))
        whole = concat([work, behind], work.ndim - 2)
        return (_transform(whole, size, True)[..., 0] * (1.0 / size)).cast(dtype)
    cos, sin = _roots(count, size, size)
    place = iota((count,), 0).unsqueeze(1)
    is_alone = place.eq(0) | (place * 2).eq(dim_value(size))
    factor = is_alone.where(1.0, 2.0) / dim_value(size, FLOAT64)
    table = stack([cos * factor, -sin * factor], 1).reshape(count * 2, size)
    return (work.flatten(-2, -1) @ table.cast(work.dtype)).cast(dtype)


def of_length(x: Tensor, size: Dim) -> Tensor:
    """The last axis but one cut, or filled up with zeros."""
    length = x.shape[-2]
    if length == size:
        return x
    kept = minimum(length, size)
    widths = [(0, 0)] * (x.ndim - 2) + [(0, size - kept), (0, 0)]
    return x.narrow(-2, 0, kept).pad(widths)


def conjugate(x: Tensor) -> Tensor:
    """[.., 2] with the imaginary part turned around."""
    return x * constant(np.array([1, -1], x.dtype.numpy))


def multiplied(x: Tensor, y: Tensor) -> Tensor:
    """Products of complex numbers."""
    a, b, c, d = x[..., 0], x[..., 1], y[..., 0], y[..., 1]
    return stack([a * c - b * d, a * d + b * c], -1)


def _by_product(x: Tensor, size: Dim, inverse: bool, onesided: bool) -> Tensor:
    count = size // 2 + 1 if onesided else size
    cos, sin = _roots(size, count, size)
    real = stack([cos, sin if inverse else -sin], 2)  # what 1 adds: [size, count, 2]
    if x.shape[-1] == 1:
        table = real
    else:  # what i adds, beside it: [size, 2, count, 2]
        imaginary = stack([sin if not inverse else -sin, cos], 2)
        table = stack([real, imaginary], 1)
    table = table / dim_value(size, FLOAT64) if inverse else table
    table = table.reshape(size * x.shape[-1], count * 2).cast(x.dtype)
    return (x.flatten(-2, -1) @ table).unflatten(-1, (count, 2))


def _roots(rows: Dim, columns: Dim, size: Dim) -> tuple[Tensor, Tensor]:
    """cos and sin of 2 pi i j / size, [rows, columns], with angles below a whole turn."""
    turns = iota((rows,), 0).unsqueeze(1) * iota((columns,), 0)
    count = dim_value(size)
    angle = (turns % count).cast(FLOAT64) * (2 * math.pi) / count.cast(FLOAT64)
    return angle.cos(), angle.sin()


# ------------------------------------------------------------ fixed lengths


def _transform(x: Tensor, n: int, inverse: bool) -> Tensor:
    """[.., n, 2] to its frequencies, or back without the division by n."""
    if n <= DIRECT:
        return _small(x, n, inverse)
    p = _factor(n)
    if p == 1:
        return _small(x, n, inverse) if n <= DIRECT_PRIME else _bluestein(x, n, inverse)
    q, lead = n // p, x.ndim - 2
    # Of number q * i + j: over i, a turn by j * k, over j; it becomes frequency k + p * l.
    columns = x.unflatten(-2, (p, q)).swapaxes(lead, lead + 1)
    found = multiplied(_transform(columns, p, inverse), _twiddles(x, p, q, inverse))
    found = _transform(found.swapaxes(lead, lead + 1), q, inverse)
    return found.swapaxes(lead, lead + 1).flatten(lead, lead + 1)


@lru_cache(maxsize=256)
def _factor(n: int) -> int:
    """The largest divisor up to DIRECT that is not above the root; else the least one above."""
    root = math.isqrt(n)
    for p in range(min(root, DIRECT), 1, -1):
        if n % p == 0:
            return p
    for p in range(DIRECT + 1, root + 1):
        if n % p == 0:
            return p
    return 1


def _small(x: Tensor, n: int, inverse: bool) -> Tensor:
    """One product with the table of roots, of both parts as one row."""
    z = _exact_roots(np.outer(np.arange(n), np.arange(n)), n, inverse)
    table = np.empty((n, 2, n, 2))
    table[:, 0, :, 0], table[:, 0, :, 1] = z.real, z.imag
    table[:, 1, :, 0], table[:, 1, :, 1] = -z.imag, z.real
    matrix = constant(table.reshape(2 * n, 2 * n).astype(x.dtype.numpy))
    return (x.flatten(-2, -1) @ matrix).unflatten(-1, (n, 2))


def _twiddles(x: Tensor, p: int, q: int, inverse: bool) -> Tensor:
    """[q, p, 2]: the turns between the two transforms."""
    turns = np.outer(np.arange(q), np.arange(p))
    return _as_pairs(_exact_roots(turns, p * q, inverse), x)


def _bluestein(x: Tensor, n: int, inverse: bool) -> Tensor:
    """j * k is (j^2 + k^2 - (j - k)^2) / 2: a convolution with a chirp."""
    size = 1 << (2 * n - 2).bit_length()
    index = np.arange(n, dtype=np.int64)
    chirp = _exact_roots(index * index, 2 * n, inverse)
    filter_ = np.zeros(size, np.complex128)
    filter_[:n] = chirp.conj()
    filter_[size - n + 1 :] = chirp[1:][::-1].conj()
    spectrum = np.fft.fft(filter_) / size
    own = _as_pairs(chirp, x)
    padded = of_length(multiplied(x, own), size)
    found = multiplied(_transform(padded, size, False), _as_pairs(spectrum, x))
    found = _transform(found, size, True).narrow(-2, 0, n)
    return multiplied(found, own)


def _of_real(x: Tensor, n: int) -> Tensor:
    """One side of the frequencies of real [.., n], n even: pairs as complex numbers, then apart."""
    half = n // 2
    z = _transform(x.unflatten(-1, (half, 2)), half, False)
    z = concat([z, z.narrow(-2, 0, 1)], z.ndim - 2)
    mirrored = conjugate(z.flip(-2))
    even, odd = (z + mirrored) * 0.5, (z - mirrored) * 0.5
    # The odd ones by -i, turned by their place.
    turns = _exact_roots(np.arange(half + 1), n, False) * -1j
    return even + multiplied(odd, _as_pairs(turns, x))


def _exact_roots(turns: Any, n: int, inverse: bool) -> Any:
    """exp(-2 pi i turns / n), of angles below a whole turn; the other way round for inverse."""
    angle = np.asarray(turns % n, np.float64) * (2 * np.pi / n)
    return np.exp((1j if inverse else -1j) * angle)


def _as_pairs(z: Any, x: Tensor) -> Tensor:
    """Complex numbers of the host as [.., 2], in the dtype of x."""
    return constant(np.ascontiguousarray(np.stack([z.real, z.imag], -1).astype(x.dtype.numpy)))
