"""Names that people reach for who know NumPy or PyTorch: here, or an error that says what is."""

from __future__ import annotations

import numpy as np
import pytest
from tests.ops.against_numpy import check

import semel
from semel import Tensor
from semel.tensor.hints import INSTEAD

T = Tensor(np.arange(6, dtype=np.float32).reshape(2, 3))

#: Functions: `np.f` or `torch.f` is `semel.f`.
FUNCTIONS = """
    around bitwise_count block_diag cartesian_prod combinations frac frexp hardshrink hardsigmoid
    isreal logcumsumexp modf softshrink tanhshrink unwrap vander adaptive_avg_pool2d
    abs absolute acos acosh add addmm all allclose amax amin any append arange arccos arccosh arcsin
    arcsinh arctan arctan2 arctanh argmax argmin argpartition argsort argwhere array_equal
    array_split asarray asin asinh astype atan atan2 atanh atleast_1d atleast_2d average baddbmm
    bincount bitwise_and bitwise_not bitwise_or bitwise_xor bmm broadcast_arrays broadcast_tensors
    broadcast_to bucketize cat cbrt ceil choose chunk clamp clip clone column_stack compress concat
    concatenate copy copysign corrcoef cos cosh count_nonzero cov cross cummax cummin cumprod cumsum
    cumulative_sum deg2rad delete diag diagflat diagonal diff digamma digitize div divide dot dstack
    einsum empty empty_like equal erf erfc erfinv exp exp2 expand_dims expm1 extract eye fix
    flatnonzero flatten flip fliplr flipud floor floor_divide fmax fmin fmod full full_like gather
    gcd geomspace gradient greater greater_equal heaviside histogram hsplit hstack hypot identity
    index_add index_select inner insert interp invert isclose isfinite isin isinf isnan isneginf
    isposinf kron lcm left_shift lerp less less_equal lgamma linspace log log10 log1p log2 logaddexp
    logaddexp2 logical_and logical_not logical_or logical_xor logit logspace logsumexp masked_fill
    masked_select matmul max maximum mean median meshgrid min minimum mm mod moveaxis movedim mul
    multiply nan_to_num nanargmax nancumsum nanmax nanmean nanmedian nanmin nanpercentile nanprod
    nanquantile nanstd nansum nanvar narrow negative nextafter nonzero norm not_equal one_hot ones
    ones_like outer pad partition percentile permute permute_dims positive pow power prod ptp
    put_along_axis quantile rad2deg rand randint randn ravel ravel_multi_index reciprocal relu
    remainder repeat repeat_interleave reshape right_shift roll rot90 round rsqrt scatter
    scatter_add searchsorted select sigmoid sign signbit sin sinc sinh softmax sort split sqrt
    square squeeze stack std sub subtract sum swapaxes take take_along_axis take_along_dim tan tanh
    tensordot tile topk trace transpose trapezoid tril tril_indices triu triu_indices true_divide
    trunc unbind unflatten unique unravel_index unsqueeze var vdot vsplit vstack where zeros
    zeros_like
"""
#: What is asked of a tensor: `x.f`.
METHODS = """
    T abs add all amax any argmax argmin argsort astype bfloat16 bool byte clamp clip clone
    contiguous copy cpu cumprod cumsum detach diagonal dim dot double dtype exp expand expand_as
    flatten flip float gather half index_add index_put index_select int isnan item lerp log long mT
    masked_fill masked_select matmul max mean median min mm movedim mul nan_to_num narrow ndim ne
    neg nonzero norm numel numpy permute pow prod quantile ravel relu repeat repeat_interleave
    reshape reshape_as round scatter scatter_add searchsorted shape short sigmoid sign size softmax
    sort split sqrt square squeeze std sub sum swapaxes t take tanh tile to tolist topk transpose
    tril triu type_as unbind unflatten unique unsqueeze var view view_as where
"""
#: Words that mean nothing here, or go by another name, of the module and of tensors.
ELSEWHERE = """
    array from_numpy no_grad compile save vectorize apply_along_axis piecewise trapz in1d
    convolve kthvalue var_mean histogram2d float int long shape ndim size diag_embed ger mode
"""
ELSEWHERE_OF_TENSORS = """
    rollaxis renorm
    backward grad requires_grad cuda is_cuda strides stride is_contiguous data_ptr new_zeros
    itemsize element_size nbytes tobytes data fill put compress H is_floating_point apply_
    share_memory_
"""


def test_there_are_enough_of_them() -> None:
    assert len(FUNCTIONS.split()) > 200
    for names in (FUNCTIONS, METHODS, ELSEWHERE, ELSEWHERE_OF_TENSORS):
        assert len(set(names.split())) == len(names.split())


@pytest.mark.parametrize("name", FUNCTIONS.split())
def test_a_function_is_there(name: str) -> None:
    assert name in semel.__all__
    assert callable(getattr(semel, name))


def test_methods_are_there() -> None:
    assert [name for name in METHODS.split() if not hasattr(T, name)] == []


@pytest.mark.parametrize("name", ELSEWHERE.split())
def test_a_word_of_others_is_explained(name: str) -> None:
    assert not hasattr(semel, name)
    with pytest.raises(
        AttributeError, match=f"'semel' has no attribute '{name}': .*{_first(name)}"
    ):
        getattr(semel, name)


@pytest.mark.parametrize("name", ELSEWHERE_OF_TENSORS.split())
def test_a_word_of_other_tensors_is_explained(name: str) -> None:
    assert getattr(T, name, 7) == 7
    with pytest.raises(
        AttributeError, match=f"'Tensor' has no attribute '{name}': .*{_first(name)}"
    ):
        getattr(T, name)


def _first(name: str) -> str:
    return INSTEAD[name].split()[0]


def test_names_that_are_nearly_ours_are_shown() -> None:
    with pytest.raises(
        AttributeError, match=r"'semel' has no attribute 'sofmax'\. Did you mean 'so"
    ):
        getattr(semel, "sofmax")  # noqa: B009  (a checker would see it)
    with pytest.raises(AttributeError, match=r"no attribute 'argmaxx'\. Did you mean 'argmax'"):
        getattr(T, "argmaxx")  # noqa: B009
    with pytest.raises(
        AttributeError, match=r"'add_': tensors are not changed in place; write x = "
    ):
        getattr(T, "add_")  # noqa: B009
    for name in ("_secret", "__array_struct__", "qqqqqqq"):
        with pytest.raises(AttributeError, match=f"has no attribute '{name}'$"):
            getattr(T, name)


def test_what_is_explained_is_not_there() -> None:
    """An explanation of a name that is there would never be read."""
    assert [n for n in INSTEAD if hasattr(semel, n) and hasattr(T, n)] == []


def test_products_with_what_is_added() -> None:
    x, a, b = np.ones((2, 2)), np.arange(6.0).reshape(2, 3), np.arange(6.0).reshape(3, 2)
    check(semel.addmm(x, a, b), x + a @ b)
    check(Tensor(x).addmm(a, b, beta=2, alpha=0.5), 2 * x + 0.5 * (a @ b))
    check(semel.baddbmm(x[None], a[None], b[None]), (x + a @ b)[None])
    check(semel.addcmul(x, x, x * 3, value=2), x + 6)
    check(semel.addcdiv(x, x, x * 2), x * 1.5)
    check(semel.ldexp([1.0, 3.0], [2, -1]), [4, 1.5])
    check(semel.float_power([2], 3), [8.0])
    check(semel.bucketize([1.0, 2.0, 9.0], [1.0, 2.0], right=True), [1, 2, 2])
