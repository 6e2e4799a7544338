"""The error function, and gelu built on its own fit.

    erf(x) = x * p(x*x) near 0,  1 - 2**p(|x|) beyond      float32
    gelu(x) = x * Phi(x) = x/2 + x * (z * P(z*z) / Q(z*z)),  z = x clamped

gelu is the hot one (17 instructions): it fits Phi(x) - 1/2 itself, with the error that
matters for x * Phi(x), instead of going through erf. Its clamp is a point where the
rational is exactly 1/2 in float32 arithmetic, so that the tails are exact: 0 and x.
"""

from __future__ import annotations

import math

from semel.ir.types import FLOAT32, FLOAT64
from semel.kernel.ir import Value, const, fma, op, select
from semel.kernel.math.common import (
    absolute,
    at_most,
    clamp,
    horner,
    sign_bits,
    with_sign_bits,
)
from semel.kernel.math.exponential import coarse_exp2, exp

#: float32: erf(x) = x * p(x*x) on |x| < _ERF_BORDER, log2(erfc(a)) = p(a) on a >= _ERF_BORDER.
_ERF_NEAR_32 = (1.1283791065216064, -0.3761252462863922, 0.11282140761613846,
                -0.02677890844643116, 0.005011962726712227, -0.0006090358947403729)  # fmt: skip
_LOG2_ERFC = (-0.000256123865256086, -1.6269984245300293, -0.9190834164619446,
              -0.150093674659729, 0.03213876858353615, -0.004408231936395168,
              0.00028446424403227866)  # fmt: skip
_ERF_BORDER = 0.9
#: float32: Phi(x) - 1/2 = x * P(x*x) / Q(x*x); at the clamp it is exactly 1/2.
_PHI_P = (0.398942232131958, 0.03268254175782204, 0.004617044702172279, 0.00015828877803869545,
          6.419292731152382e-06, 2.4625363082009244e-08)  # fmt: skip
_PHI_Q = (1.0, 0.24858909845352173, 0.028005633503198624, 0.00182511901948601,
          7.096699846442789e-05, 1.2566760005938704e-06)  # fmt: skip
_PHI_CLAMP = 5.209991455078125
#: float64: erf(x) = x * p(x*x) on |x| <= 1.
_ERF_NEAR = (1.1283791670955126, -0.37612638903183515, 0.11283791670944099,
             -0.026866170643099225, 0.005223977606027322, -0.0008548325925291614,
             0.00012055293465116918, -1.4924710294350919e-05, 1.6447108303391617e-06,
             -1.620614574201179e-07, 1.371029290838828e-08, -7.778250958703724e-10)  # fmt: skip
#: float64: exp(a*a) * erfc(a) on 1 <= a <= 6.
_ERFC_SCALED = (0.2553956763105056, -0.42718584741395177, 0.2416581942427782,
                -0.0789785810165755, 0.0037328923310937503, 0.006997461546945387,
                -0.0008471381170464659, -0.000981952874255135, 4.3423625154445986e-05,
                0.00017347171491174704, 2.851458535874313e-05, -1.391921652942713e-05,
                -6.713607860330205e-06, -8.805787459693134e-05, -0.00011367993794967861,
                0.00020020864091491847, 0.00034466841227299446)  # fmt: skip


def erf(x: Value) -> Value:
    """The error function."""
    return _erf_float32(x) if x.dtype == FLOAT32 else _erf_float64(x)


def _erf_float32(x: Value) -> Value:
    a = absolute(x)
    near = x * horner(x * x, _ERF_NEAR_32)
    far = const(FLOAT32, 1.0) - coarse_exp2(horner(at_most(a, 3.95), _LOG2_ERFC))
    return select(a >= _ERF_BORDER, with_sign_bits(far, sign_bits(x)), near)


def _erf_float64(x: Value) -> Value:
    a = at_most(absolute(x), 6.0)
    near = x * horner(x * x, _ERF_NEAR)
    u = (a - 2.0) / (a + 2.0)
    far = const(FLOAT64, 1.0) - exp(op("neg", a * a)) * horner(u, _ERFC_SCALED)
    return select(a < 1.0, near, with_sign_bits(far, sign_bits(x)))


def gelu(x: Value) -> Value:
    """x * Phi(x), Phi the distribution function of the normal distribution."""
    half = x * 0.5
    if x.dtype == FLOAT64:
        return fma(half, erf(x * math.sqrt(0.5)), half)
    z = clamp(x, -_PHI_CLAMP, _PHI_CLAMP)
    s = z * z
    return fma(x, z * horner(s, _PHI_P) / horner(s, _PHI_Q), half)
