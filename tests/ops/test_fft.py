"""semel.fft against NumPy and torch: complex numbers are a last axis of two."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from tests.ops.together import Together

import semel
from semel import GraphError, Tensor, Variable, fft

RNG = np.random.default_rng(0)
#: Small, of small factors, primes by one product and by a convolution, a prime times a few.
LENGTHS = (1, 2, 5, 64, 65, 96, 257, 360, 509, 1000, 1042)


def numbers(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape) + 1j * RNG.standard_normal(shape)


def pairs(z: Any) -> np.ndarray:
    return np.stack([np.real(z), np.imag(z)], -1)


def test_every_length_is_numpys() -> None:
    cases = Together(1e-11)
    for n in LENGTHS:
        z = numbers(2, n)
        one_side = np.fft.rfft(z.real)
        cases.add(f"fft {n}", fft.fft(pairs(z)), pairs(np.fft.fft(z)))
        cases.add(f"ifft {n}", fft.ifft(pairs(z)), pairs(np.fft.ifft(z)))
        cases.add(f"rfft {n}", fft.rfft(z.real), pairs(one_side))
        cases.add(f"irfft {n}", fft.irfft(pairs(one_side), n), z.real)
    cases.check()


def test_long_transforms_lose_no_digits_in_float32() -> None:
    z = numbers(1, 3000).astype(np.complex64)
    want = np.fft.fft(z.astype(np.complex128))
    got = fft.fft(pairs(z)).numpy()
    assert got.dtype == np.float32
    assert np.abs(got - pairs(want)).max() < 1e-6 * np.abs(want).max()


def test_axes_lengths_and_norms_are_numpys() -> None:
    cases, z = Together(1e-11), numbers(3, 4, 70)
    ours = Tensor(pairs(z))
    for norm in (None, "backward", "ortho", "forward"):
        for n, axis in [(None, 0), (6, 1), (66, -1)]:
            for name in ("fft", "ifft", "rfft", "irfft"):
                is_real = name == "rfft"
                want = getattr(np.fft, name)(z.real if is_real else z, n, axis, norm)
                want = want if name == "irfft" else pairs(want)
                found = getattr(fft, name)(Tensor(z.real) if is_real else ours, n, axis, norm)
                cases.add(f"{name} {norm} {n} {axis}", found, want)
    for name in ("fft2", "ifft2", "fftn", "ifftn"):
        cases.add(name, getattr(fft, name)(ours), pairs(getattr(np.fft, name)(z)))
    cases.add("lengths", fft.fft2(ours, (5, 3), (0, 1)), pairs(np.fft.fft2(z, (5, 3), (0, 1))))
    cases.add("rfft2", fft.rfft2(z.real), pairs(np.fft.rfft2(z.real)))
    cases.add("irfft2", fft.irfft2(ours), np.fft.irfft2(z))
    cases.add("rfftn", fft.rfftn(z.real), pairs(np.fft.rfftn(z.real)))
    cases.add("rfftn, s", fft.rfftn(z.real, (5, 3)), pairs(np.fft.rfftn(z.real, (5, 3), (-2, -1))))
    cases.add("fftn, s", fft.fftn(ours, (5, 3)), pairs(np.fft.fftn(z, (5, 3), (-2, -1))))
    cases.add("irfftn", fft.irfftn(ours, norm="ortho"), np.fft.irfftn(z, norm="ortho"))
    cases.check()


def test_frequencies_and_shifts_are_numpys() -> None:
    cases, x = Together(1e-6), np.arange(20.0).reshape(4, 5)
    for n in (1, 8, 9):
        cases.add("fftfreq", fft.fftfreq(n, 0.5), np.fft.fftfreq(n, 0.5).astype(np.float32))
        cases.add("rfftfreq", fft.rfftfreq(n, 2), np.fft.rfftfreq(n, 2).astype(np.float32))
    for axes in (None, 0, (1,), (0, 1)):
        cases.add("shift", fft.fftshift(x, axes), np.fft.fftshift(x, axes))
        cases.add("back", fft.ifftshift(x, axes), np.fft.ifftshift(x, axes))
    cases.add("complex", fft.as_complex(x, 1.0), pairs(x + 1j))
    cases.check()


def test_a_length_may_be_symbolic() -> None:
    n = Variable("n", 1, 300)
    x = Tensor.input("x", (n,), "float64")
    spectrum = fft.rfft(x)
    plan = semel.prepare([spectrum, fft.irfft(spectrum, n), fft.fftfreq(n, dtype="float64")])
    for count in (1, 6, 101):
        values = RNG.standard_normal(count)
        found, back, places = plan(x=values)
        np.testing.assert_allclose(found, pairs(np.fft.rfft(values)), atol=1e-10)
        np.testing.assert_allclose(back, values, atol=1e-12)
        np.testing.assert_allclose(places, np.fft.fftfreq(count))


def test_frames_are_torchs() -> None:
    pytest.importorskip("torch")
    torch: Any = import_module("torch")
    cases, x = Together(2e-5), RNG.standard_normal((2, 200)).astype(np.float32)
    shade = np.hanning(20).astype(np.float32) + np.float32(0.1)
    ways: list[dict[str, Any]] = [
        {"n_fft": 32},
        {"n_fft": 32, "hop_length": 10, "win_length": 20, "window": shade},
        {"n_fft": 20, "hop_length": 5, "window": shade, "center": False, "normalized": True},
        {"n_fft": 16, "onesided": False, "pad_mode": "constant"},
    ]
    for way in ways:
        theirs = {k: torch.from_numpy(v) if k == "window" else v for k, v in way.items()}
        theirs.setdefault("window", torch.ones(way["n_fft"]))
        z = torch.stft(torch.from_numpy(x), return_complex=True, **theirs)
        cases.add(f"stft {way['n_fft']}", fft.stft(x, **way), torch.view_as_real(z))
        if way.get("onesided", True):
            back = {k: v for k, v in way.items() if k != "pad_mode"}
            want = torch.istft(z, **theirs)
            found = fft.istft(torch.view_as_real(z).numpy(), **back)
            cases.add(f"istft {way['n_fft']}", found, want)
    cases.check()


X, Z = Tensor.input("x", (8,)), Tensor.input("z", (8, 2))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fft.fft(X), r"\[fft\] needs complex numbers \[.., n, 2\].*semel.fft.as_complex"),
        (lambda: fft.fft(Z, norm="x"), r"\[fft\] norm must be backward, ortho or forward"),
        (lambda: fft.rfft(Tensor(1.0)), r"\[rfft\] needs at least 1 axis"),
        (lambda: fft.rfft(X, 0), r"\[rfft\] needs at least 1 number, got n=0"),
        (lambda: fft.ifft(Z, axis=1), r"\[ifft\] axis must lie in \[-1, 1\), got axis=1"),
        (lambda: fft.fftn(Z, (1, 2)), r"\[fftn\] needs one length for each axis, got \(1, 2\)"),
        (lambda: fft.stft(X, 16), r"\[stft\] a signal must have more than 8 numbers"),
        (lambda: fft.stft(X, 16, center=False), r"\[stft\] a frame of 16 must fit the signal"),
        (lambda: fft.stft(X, 0), r"\[stft\] n_fft must be > 0, got 0"),
        (lambda: fft.stft(X, 4, 0), r"\[stft\] hop_length must be > 0, got 0"),
        (lambda: fft.stft(X, 4, win_length=5), r"\[stft\] win_length must lie in \[1, 4\]"),
        (lambda: fft.stft(X, 4, pad_mode="wrap"), r"\[stft\] pad_mode must be reflect or const"),
        (lambda: fft.stft(Tensor(1.0), 4), r"\[stft\] needs a signal \[.., n\]"),
        (lambda: fft.istft(Z, 4), r"\[istft\] needs \[.., 3, frames, 2\] for n_fft=4"),
    ],
)
def test_mistakes_with_transforms(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        call()
