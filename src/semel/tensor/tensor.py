"""The lazy tensor: what users write programs with.

    Tensor(data) | Tensor.input(...) | Tensor.param(...)  --methods-->  Tensor  --prepare-->  plan

A tensor is a handle on a graph node; the methods are the functions of this package, by family.
It never changes a node: assignment (`t[i] = v`) puts another node behind the tensor, and every
tensor made from the old one keeps its value. Data is copied when a tensor is made and sealed
from then on, so that no array of the caller's can change a result behind anybody's back. Only
what lies in bytes or in a file mapped for reading is used where it lies: weights of a
safetensors file are not held twice.

One idea: the table of what a tensor can do; the work is done in the modules beside it.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from semel.errors import GraphError
from semel.ir.expr import LateVariable, Symbolic, variables
from semel.ir.graph import Node, Storage
from semel.ir.listed import Listed, public_names
from semel.ir.types import DType, Shape, TensorType, as_dtype, as_shape
from semel.ops.attrs import InputAttrs, ParamAttrs
from semel.runtime.interop import CPU
from semel.tensor import (
    activations,
    arrange,
    assign,
    attention,
    casts,
    contract,
    control,
    convolution,
    creation,
    differences,
    distance,
    draws,
    elementwise,
    grid,
    habits,
    handle,
    hints,
    indexing,
    late,
    loss,
    movement,
    namespace,
    nn,
    numpy_calls,
    order,
    padding,
    patches,
    pieces,
    place,
    pooling,
    products,
    quantise,
    random,
    recurrent,
    reduce,
    resample,
    rope,
    search,
    show,
    special,
    standard,
    statistics,
    unary,
)
from semel.tensor import (
    realize as values,
)
from semel.tensor.elementwise import binary
from semel.tensor.handle import Dims, DTypeLike, TensorLike, apply, as_array, constant
from semel.tensor.realize import value_of


class Tensor(metaclass=Listed):
    """A tensor that is computed when it is asked for.

    >>> a = Tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> (a @ a).sum(0).numpy()
    array([22., 32.], dtype=float32)

    `data` is anything NumPy or DLPack reads. Python floats give float32, integers int64;
    arrays keep their dtype unless `dtype` says otherwise.

    The class is the table of what a tensor can do. Each method is a function of one of the
    modules beside this one, where the tensor is the first argument: `x.softmax(1)` is
    `nn.softmax(x, 1)`, and `semel.softmax` is that function, too. Functions that take no
    tensor first are static methods.

    One idea: the table of what a tensor can do; the longer ones are made from functions
    elsewhere.
    """

    __slots__ = ("__weakref__", "_node", "_value")
    #: What a scalar asks for that has no dtype of its own: see tensor/number.py.
    _weak_kind: ClassVar[str] = ""
    _node: Node
    _value: Storage | None  #: the sealed result, once it is known

    # ------------------------------------------------------------ how it is made

    def __init__(self, data: Any, dtype: DTypeLike | None = None) -> None:
        wanted = None if dtype is None else as_dtype(dtype, "Tensor")
        if isinstance(data, Tensor):
            made = data if wanted is None else data.cast(wanted)
        else:
            made = constant(as_array(data, wanted))
        self._node, self._value = made._node, made._value

    @staticmethod
    def input(
        name: str, shape: Dims, dtype: DTypeLike = "float32", *, device: Any = None
    ) -> Tensor:
        """A tensor that the caller passes at every run, by name.

        It lies on the `device`, and what is computed from it is computed there; without one, on
        the plan's own.
        """
        _check_name(name, "input")
        kind = TensorType(as_shape(shape, "input"), as_dtype(dtype, "input"))
        _check_known(name, kind)
        where = "" if device is None else place.take_device("input", device)
        return apply("input", attrs=InputAttrs(name, kind, device=where))

    @staticmethod
    def param(
        name: str, data: Any, dtype: DTypeLike | None = None, *, device: Any = None
    ) -> Tensor:
        """Data that may be replaced later, by name: it is copied now, and never folded.

        It lies on each device where somebody reads it, or on the `device` alone.
        """
        _check_name(name, "param")
        array = as_array(data, None if dtype is None else as_dtype(dtype, "param"))
        kind = TensorType(array.shape, as_dtype(array.dtype, "param"))
        made = apply("param", attrs=ParamAttrs(name, Storage(array), kind))
        return made if device is None else place.to(made, device)

    # ------------------------------------------------------------ what it is

    @property
    def node(self) -> Node:
        """The graph node behind this tensor."""
        return self._node

    @property
    def id(self) -> builtins.int:
        """The node's number, by which `plan.buffer(tensor)` finds its buffer."""
        return self._node.id

    @property
    def type(self) -> TensorType:
        """Shape and dtype together."""
        return self._node.type

    @property
    def shape(self) -> Shape:
        """The size of every axis: numbers, or expressions of variables."""
        return self._node.type.shape

    @property
    def dtype(self) -> DType:
        """What an element is."""
        return self._node.type.dtype

    @property
    def device(self) -> str:
        """Where it is computed: "cpu", or where it was put with `to`."""
        return place.device_of(self)

    @property
    def ndim(self) -> builtins.int:
        """The number of axes."""
        return len(self._node.type.shape)

    @property
    def size(self) -> habits.Size | Symbolic:
        """The number of elements, symbolic if the shape is; `x.size(0)` is the size of an axis."""
        kind = self._node.type
        return habits.Size.of(kind.num_elements, kind.shape)

    __repr__ = show.short
    __str__ = show.text
    __format__ = show.formatted
    _repr_html_ = show.html

    def __dir__(self) -> list[str]:
        return public_names(self)

    if not TYPE_CHECKING:  # a checker must not believe that every name exists

        def __getattr__(self, name: str) -> NoReturn:
            if hasattr(type(self), name):  # a property that refuses says why
                object.__getattribute__(self, name)
            found = f"{type(self).__name__!r} has no attribute {name!r}"
            raise AttributeError(found + hints.advice(name, lambda: dir(type(self))), name=name)

    # ------------------------------------------------------------ copies

    def __copy__(self) -> Tensor:
        return handle.wrap(self._node)

    def __deepcopy__(self, memo: Any) -> Tensor:
        return handle.wrap(self._node)

    def __reduce__(self) -> tuple[Any, ...]:
        # A pickle holds the value: graphs are rebuilt by the program that made them.
        return Tensor, (value_of(self, "pickle"),)

    # ------------------------------------------------------------ operators

    def __add__(self, other: TensorLike) -> Tensor:
        return binary(self, "add", other)

    def __radd__(self, other: TensorLike) -> Tensor:
        return binary(self, "add", other, swap=True)

    def __sub__(self, other: TensorLike) -> Tensor:
        return binary(self, "sub", other)

    def __rsub__(self, other: TensorLike) -> Tensor:
        return binary(self, "sub", other, swap=True)

    def __mul__(self, other: TensorLike) -> Tensor:
        return binary(self, "mul", other)

    def __rmul__(self, other: TensorLike) -> Tensor:
        return binary(self, "mul", other, swap=True)

    def __truediv__(self, other: TensorLike) -> Tensor:
        return binary(self, "div", other)

    def __rtruediv__(self, other: TensorLike) -> Tensor:
        return binary(self, "div", other, swap=True)

    def __floordiv__(self, other: TensorLike) -> Tensor:
        return binary(self, "idiv", other)

    def __rfloordiv__(self, other: TensorLike) -> Tensor:
        return binary(self, "idiv", other, swap=True)

    def __mod__(self, other: TensorLike) -> Tensor:
        return binary(self, "imod", other)

    def __rmod__(self, other: TensorLike) -> Tensor:
        return binary(self, "imod", other, swap=True)

    def __divmod__(self, other: TensorLike) -> tuple[Tensor, Tensor]:
        return self // other, self % other

    def __rdivmod__(self, other: TensorLike) -> tuple[Tensor, Tensor]:
        return binary(self, "idiv", other, swap=True), binary(self, "imod", other, swap=True)

    def __pow__(self, other: TensorLike) -> Tensor:
        return elementwise.raised(self, other)

    def __rpow__(self, other: TensorLike) -> Tensor:
        return elementwise.raised(other, self)

    def __matmul__(self, other: TensorLike) -> Tensor:
        return contract.matmul(self, other)

    def __rmatmul__(self, other: TensorLike) -> Tensor:
        return contract.matmul(other, self)

    def __and__(self, other: TensorLike) -> Tensor:
        return binary(self, "and", other)

    def __rand__(self, other: TensorLike) -> Tensor:
        return binary(self, "and", other, swap=True)

    def __or__(self, other: TensorLike) -> Tensor:
        return binary(self, "or", other)

    def __ror__(self, other: TensorLike) -> Tensor:
        return binary(self, "or", other, swap=True)

    def __xor__(self, other: TensorLike) -> Tensor:
        return binary(self, "xor", other)

    def __rxor__(self, other: TensorLike) -> Tensor:
        return binary(self, "xor", other, swap=True)

    def __lshift__(self, other: TensorLike) -> Tensor:
        return binary(self, "shl", other)

    def __rlshift__(self, other: TensorLike) -> Tensor:
        return binary(self, "shl", other, swap=True)

    def __rshift__(self, other: TensorLike) -> Tensor:
        return binary(self, "shr", other)

    def __rrshift__(self, other: TensorLike) -> Tensor:
        return binary(self, "shr", other, swap=True)

    def __eq__(self, other: object) -> Tensor:  # type: ignore[override]
        if other is None or isinstance(other, str):
            return NotImplemented  # no element: to Python, another object
        return binary(self, "eq", other)  # type: ignore[arg-type]

    def __ne__(self, other: object) -> Tensor:  # type: ignore[override]
        if other is None or isinstance(other, str):
            return NotImplemented
        return binary(self, "ne", other)  # type: ignore[arg-type]

    def __lt__(self, other: TensorLike) -> Tensor:
        return binary(self, "lt", other)

    def __le__(self, other: TensorLike) -> Tensor:
        return binary(self, "le", other)

    def __gt__(self, other: TensorLike) -> Tensor:
        return binary(self, "gt", other)

    def __ge__(self, other: TensorLike) -> Tensor:
        return binary(self, "ge", other)

    # Comparison is by element, so a tensor hashes by identity.
    __hash__ = object.__hash__

    def __pos__(self) -> Tensor:
        return self

    __neg__ = unary.neg
    __abs__ = unary.abs
    __round__ = unary.round
    __invert__ = unary.bitwise_not

    # ------------------------------------------------------------ indices and rows

    __getitem__ = indexing.getitem
    __setitem__ = assign.setitem
    __len__ = values.length

    def __iter__(self) -> Iterator[Tensor]:
        if self.ndim == 0:
            raise TypeError("iteration over a 0-d tensor")
        return iter(self.unbind(0))

    def __contains__(self, value: Any) -> builtins.bool:
        return bool(self.eq(value).any())

    # ------------------------------------------------------------ plans and values

    prepare = values.prepare
    realize = values.realize
    numpy = values.numpy
    item = values.item
    tolist = values.tolist
    __bool__ = values.truth

    def __int__(self) -> builtins.int:
        return int(self.item())

    def __float__(self) -> builtins.float:
        return float(self.item())

    def __complex__(self) -> builtins.complex:
        return complex(self.item())

    def __index__(self) -> builtins.int:
        if not self.dtype.is_integer:
            raise TypeError(f"only integer tensors can be an index, got {self.type}")
        return int(self.item())

    # ------------------------------------------------------------ arrays of other libraries

    from_dlpack = staticmethod(values.from_dlpack)
    __dlpack__ = values.to_dlpack
    __array__ = values.to_array
    # NumPy's operators and functions step back, so that `array + tensor` is lazy too.
    __array_ufunc__ = numpy_calls.array_ufunc
    __array_function__ = numpy_calls.array_function
    __array_interface__ = property(values.array_interface)
    if sys.version_info >= (3, 12):
        __buffer__ = values.to_buffer

    def __dlpack_device__(self) -> tuple[builtins.int, builtins.int]:
        return CPU

    __array_namespace__ = namespace.namespace_of

    # ------------------------------------------------------------ dtypes (casts.py)

    cast = casts.cast
    astype = casts.astype
    to = place.to
    to_device = place.to_device
    bitcast = handle.bitcast

    # ------------------------------------------------------------ shape and place (movement.py)

    reshape = movement.reshape
    view = movement.reshape
    flatten = movement.flatten
    ravel = movement.ravel
    unflatten = movement.unflatten
    squeeze = movement.squeeze
    unsqueeze = movement.unsqueeze
    expand_dims = movement.expand_dims

    permute = movement.permute
    permute_dims = movement.permute_dims
    unstack = standard.unstack
    transpose = movement.transpose
    swapaxes = movement.swapaxes
    swapdims = movement.swapdims
    moveaxis = movement.moveaxis
    movedim = movement.movedim

    @property
    def T(self) -> Tensor:  # noqa: N802  (NumPy's name)
        """All axes reversed."""
        return movement.transpose(self)

    @property
    def mT(self) -> Tensor:  # noqa: N802  (NumPy's name)
        """The last two axes swapped."""
        return movement.matrix_transpose(self)

    broadcast_to = movement.broadcast_to
    expand = movement.expand
    narrow = movement.narrow
    flip = movement.flip
    roll = movement.roll
    split = pieces.split
    chunk = pieces.chunk
    unbind = pieces.unbind
    array_split = pieces.array_split
    tensor_split = pieces.tensor_split
    hsplit = pieces.hsplit
    vsplit = pieces.vsplit
    dsplit = pieces.dsplit
    atleast_1d = pieces.atleast_1d
    atleast_2d = pieces.atleast_2d
    atleast_3d = pieces.atleast_3d
    pad = padding.pad
    repeat = movement.repeat
    repeat_interleave = movement.repeat_interleave
    tile = movement.tile
    concat = staticmethod(movement.concat)
    cat = staticmethod(movement.cat)
    concatenate = staticmethod(movement.concatenate)
    stack = staticmethod(movement.stack)
    matrix_transpose = movement.matrix_transpose

    # ------------------------------------------------------------ one element (unary.py)

    neg = unary.neg
    negative = unary.negative
    abs = unary.abs
    absolute = unary.absolute
    sign = unary.sign
    square = unary.square
    reciprocal = unary.reciprocal
    sqrt = unary.sqrt
    rsqrt = unary.rsqrt
    exp = unary.exp
    exp2 = unary.exp2
    expm1 = unary.expm1
    log = unary.log
    log2 = unary.log2
    log10 = unary.log10
    log1p = unary.log1p
    sin = unary.sin
    cos = unary.cos
    tan = unary.tan
    asin = unary.asin
    arcsin = unary.arcsin
    acos = unary.acos
    arccos = unary.arccos
    atan = unary.atan
    arctan = unary.arctan
    sinh = unary.sinh
    cosh = unary.cosh
    tanh = unary.tanh
    asinh = unary.asinh
    arcsinh = unary.arcsinh
    acosh = unary.acosh
    arccosh = unary.arccosh
    atanh = unary.atanh
    arctanh = unary.arctanh
    erf = unary.erf
    sigmoid = unary.sigmoid
    expit = unary.expit
    floor = unary.floor
    ceil = unary.ceil
    trunc = unary.trunc
    fix = unary.fix
    round = unary.round
    rint = unary.rint
    around = unary.around
    isnan = unary.isnan
    isinf = unary.isinf
    isfinite = unary.isfinite
    real = standard.real
    imag = standard.imag
    conj = standard.conj
    isreal = standard.isreal
    logical_not = unary.logical_not
    bitwise_not = unary.bitwise_not
    bitwise_invert = unary.bitwise_invert
    invert = unary.invert
    positive = unary.positive

    # ------------------------------------------------------------ two or more (elementwise.py)

    eq = elementwise.eq
    equal = elementwise.equal
    ne = elementwise.ne
    not_equal = elementwise.not_equal
    add = elementwise.add
    sub = elementwise.sub
    subtract = elementwise.subtract
    mul = elementwise.mul
    multiply = elementwise.multiply
    div = elementwise.div
    divide = elementwise.divide
    true_divide = elementwise.true_divide
    floor_divide = elementwise.floor_divide
    remainder = elementwise.remainder
    mod = elementwise.mod
    fmod = elementwise.fmod
    pow = elementwise.pow
    power = elementwise.power
    maximum = elementwise.maximum
    minimum = elementwise.minimum
    atan2 = elementwise.atan2
    arctan2 = elementwise.arctan2
    copysign = elementwise.copysign
    logical_and = elementwise.logical_and
    logical_or = elementwise.logical_or
    logical_xor = elementwise.logical_xor
    isclose = elementwise.isclose
    where = late.where
    masked_fill = elementwise.masked_fill
    clip = elementwise.clip
    clamp = elementwise.clamp
    lerp = elementwise.lerp
    lt = elementwise.lt
    less = elementwise.less
    le = elementwise.le
    less_equal = elementwise.less_equal
    gt = elementwise.gt
    greater = elementwise.greater
    ge = elementwise.ge
    greater_equal = elementwise.greater_equal
    bitwise_and = elementwise.bitwise_and
    bitwise_or = elementwise.bitwise_or
    bitwise_xor = elementwise.bitwise_xor
    left_shift = elementwise.left_shift
    bitwise_left_shift = elementwise.bitwise_left_shift
    right_shift = elementwise.right_shift
    bitwise_right_shift = elementwise.bitwise_right_shift

    # ------------------------------------------------------------ activations.py

    relu = activations.relu
    relu6 = activations.relu6
    leaky_relu = activations.leaky_relu
    elu = activations.elu
    selu = activations.selu
    gelu = activations.gelu
    quick_gelu = activations.quick_gelu
    silu = activations.silu
    swish = activations.swish
    softplus = activations.softplus
    mish = activations.mish
    hard_sigmoid = activations.hard_sigmoid
    hardswish = activations.hardswish
    hardtanh = activations.hardtanh
    softsign = activations.softsign
    logsigmoid = activations.logsigmoid
    softcap = activations.softcap
    prelu = activations.prelu
    celu = activations.celu
    threshold = activations.threshold
    softshrink = activations.softshrink
    hardshrink = activations.hardshrink
    tanhshrink = activations.tanhshrink
    hardsigmoid = activations.hardsigmoid

    # ------------------------------------------------------------ many become one (reduce.py)

    sum = reduce.sum
    prod = reduce.prod
    max = reduce.max
    amax = reduce.amax
    min = reduce.min
    amin = reduce.amin
    any = reduce.any
    all = reduce.all
    count_nonzero = reduce.count_nonzero
    argmax = reduce.argmax
    argmin = reduce.argmin
    mean = reduce.mean
    var = reduce.var
    std = reduce.std
    logsumexp = reduce.logsumexp
    norm = reduce.norm

    # ------------------------------------------------------------ matrices (contract.py)

    matmul = contract.matmul
    mm = contract.mm
    bmm = contract.bmm
    mv = contract.mv
    dot = contract.dot
    outer = contract.outer
    vecdot = standard.vecdot
    linear = contract.linear
    einsum = staticmethod(contract.einsum)
    diagonal = contract.diagonal
    trace = contract.trace

    # ------------------------------------------------------------ by index (indexing.py, assign.py)

    take = indexing.take
    take_along_axis = indexing.take_along_axis
    take_along_dim = indexing.take_along_dim
    gather = indexing.gather
    index_select = indexing.index_select
    embedding = indexing.embedding
    one_hot = indexing.one_hot
    tril = indexing.tril
    triu = indexing.triu
    diag = indexing.diag
    index_put = assign.index_put
    index_add = assign.index_add
    index_copy = assign.index_copy
    index_fill = assign.index_fill
    masked_scatter = assign.masked_scatter
    scatter = assign.scatter
    scatter_add = assign.scatter_add
    scatter_reduce = assign.scatter_reduce

    # ------------------------------------------------------------ in order (order.py)

    cumsum = order.cumsum
    cumulative_sum = standard.cumulative_sum
    cumulative_prod = standard.cumulative_prod
    cumprod = order.cumprod
    cummax = order.cummax
    cummin = order.cummin
    sort = order.sort
    argsort = order.argsort
    topk = order.topk
    partition = order.partition
    argpartition = order.argpartition

    # ------------------------------------------------------------ as many as a run finds (late.py)

    nonzero = late.nonzero
    argwhere = late.argwhere
    masked_select = late.masked_select
    unique = late.unique
    unique_all = standard.unique_all
    unique_counts = standard.unique_counts
    unique_inverse = standard.unique_inverse
    unique_values = standard.unique_values

    # ------------------------------------------------------------ neural networks

    softmax = nn.softmax
    softmin = nn.softmin
    log_softmax = nn.log_softmax
    layer_norm = nn.layer_norm
    rms_norm = nn.rms_norm
    group_norm = nn.group_norm
    instance_norm = nn.instance_norm
    batch_norm = nn.batch_norm
    local_response_norm = nn.local_response_norm
    normalize = nn.normalize
    glu = nn.glu
    grouped_matmul = nn.grouped_matmul
    embedding_bag = nn.embedding_bag
    rope = rope.rope
    scaled_dot_product_attention = attention.scaled_dot_product_attention

    conv = convolution.conv
    conv1d = convolution.conv1d
    conv2d = convolution.conv2d
    conv3d = convolution.conv3d
    conv_transpose = convolution.conv_transpose
    conv_transpose1d = convolution.conv_transpose1d
    conv_transpose2d = convolution.conv_transpose2d
    conv_transpose3d = convolution.conv_transpose3d

    max_pool = pooling.max_pool
    max_pool1d = pooling.max_pool1d
    max_pool2d = pooling.max_pool2d
    max_pool_with_indices = pooling.max_pool_with_indices
    avg_pool = pooling.avg_pool
    avg_pool1d = pooling.avg_pool1d
    avg_pool2d = pooling.avg_pool2d
    lp_pool = pooling.lp_pool
    global_max_pool = pooling.global_max_pool
    global_avg_pool = pooling.global_avg_pool
    global_lp_pool = pooling.global_lp_pool
    adaptive_avg_pool = pooling.adaptive_avg_pool
    adaptive_max_pool = pooling.adaptive_max_pool
    adaptive_avg_pool1d = pooling.adaptive_avg_pool1d
    adaptive_avg_pool2d = pooling.adaptive_avg_pool2d
    adaptive_max_pool1d = pooling.adaptive_max_pool1d
    adaptive_max_pool2d = pooling.adaptive_max_pool2d

    # ------------------------------------------------------------ losses and distances

    cross_entropy = loss.cross_entropy
    nll_loss = loss.nll_loss
    mse_loss = loss.mse_loss
    l1_loss = loss.l1_loss
    smooth_l1_loss = loss.smooth_l1_loss
    huber_loss = loss.huber_loss
    binary_cross_entropy = loss.binary_cross_entropy
    binary_cross_entropy_with_logits = loss.binary_cross_entropy_with_logits
    kl_div = loss.kl_div
    cdist = distance.cdist
    pairwise_distance = distance.pairwise_distance
    cosine_similarity = distance.cosine_similarity

    # ------------------------------------------------------------ images

    interpolate = resample.interpolate
    upsample = resample.upsample
    resize = resample.resize
    grid_sample = grid.grid_sample
    affine_grid = grid.affine_grid
    unfold = patches.unfold
    fold = patches.fold
    pixel_shuffle = patches.pixel_shuffle
    pixel_unshuffle = patches.pixel_unshuffle
    channel_shuffle = patches.channel_shuffle

    lstm = recurrent.lstm
    gru = recurrent.gru
    rnn = recurrent.rnn

    # ------------------------------------------------------------ 8-bit integers (quantise.py)

    quantize_linear = quantise.quantize_linear
    dequantize_linear = quantise.dequantize_linear
    dynamic_quantize_linear = quantise.dynamic_quantize_linear
    matmul_integer = quantise.matmul_integer
    qlinear_matmul = quantise.qlinear_matmul
    conv_integer = quantise.conv_integer

    # ------------------------------------------------------------ from nothing (creation.py)

    asarray = staticmethod(creation.asarray)
    full = staticmethod(creation.full)
    zeros = staticmethod(creation.zeros)
    ones = staticmethod(creation.ones)
    empty = staticmethod(creation.empty)
    full_like = creation.full_like
    empty_like = creation.empty_like
    zeros_like = creation.zeros_like
    ones_like = creation.ones_like
    arange = staticmethod(creation.arange)
    linspace = staticmethod(creation.linspace)
    eye = staticmethod(creation.eye)
    tri = staticmethod(creation.tri)
    meshgrid = staticmethod(creation.meshgrid)
    logspace = staticmethod(creation.logspace)
    geomspace = staticmethod(creation.geomspace)
    identity = staticmethod(creation.identity)
    tril_indices = staticmethod(creation.tril_indices)
    triu_indices = staticmethod(creation.triu_indices)

    # ------------------------------------------------------------ habits.py

    float = habits.float
    double = habits.double
    half = habits.half
    long = habits.long
    int = habits.int
    short = habits.short
    char = habits.char
    byte = habits.byte
    bool = habits.bool
    bfloat16 = habits.bfloat16
    type_as = habits.type_as
    numel = habits.numel
    dim = habits.dim
    t = habits.t
    expand_as = habits.expand_as
    view_as = habits.view_as
    reshape_as = habits.reshape_as
    clone = habits.clone
    copy = habits.copy
    contiguous = habits.contiguous
    detach = habits.detach
    cpu = habits.cpu

    # ------------------------------------------------------------ special.py

    deg2rad = special.deg2rad
    rad2deg = special.rad2deg
    degrees = special.degrees
    radians = special.radians
    cbrt = special.cbrt
    sinc = special.sinc
    logit = special.logit
    erfc = special.erfc
    erfinv = special.erfinv
    lgamma = special.lgamma
    gammaln = special.gammaln
    digamma = special.digamma
    signbit = special.signbit
    isposinf = special.isposinf
    isneginf = special.isneginf
    nan_to_num = special.nan_to_num
    fmax = special.fmax
    fmin = special.fmin
    hypot = special.hypot
    logaddexp = special.logaddexp
    logaddexp2 = special.logaddexp2
    heaviside = special.heaviside
    xlogy = special.xlogy
    nextafter = special.nextafter
    gcd = special.gcd
    lcm = special.lcm
    float_power = special.float_power
    ldexp = special.ldexp
    frac = special.frac
    modf = special.modf
    frexp = special.frexp
    bitwise_count = special.bitwise_count
    logcumsumexp = special.logcumsumexp

    # ------------------------------------------------------------ statistics.py

    median = statistics.median
    nanmedian = statistics.nanmedian
    quantile = statistics.quantile
    percentile = statistics.percentile
    nanquantile = statistics.nanquantile
    nanpercentile = statistics.nanpercentile
    nansum = statistics.nansum
    nanprod = statistics.nanprod
    nanmax = statistics.nanmax
    nanmin = statistics.nanmin
    nanargmax = statistics.nanargmax
    nanargmin = statistics.nanargmin
    nanmean = statistics.nanmean
    nanvar = statistics.nanvar
    nanstd = statistics.nanstd
    nancumsum = statistics.nancumsum
    nancumprod = statistics.nancumprod
    ptp = statistics.ptp
    average = statistics.average
    cov = statistics.cov
    corrcoef = statistics.corrcoef

    # ------------------------------------------------------------ search.py

    searchsorted = search.searchsorted
    digitize = search.digitize
    isin = search.isin
    interp = search.interp
    bincount = search.bincount
    histogram = search.histogram
    histogram_bin_edges = search.histogram_bin_edges
    flatnonzero = search.flatnonzero
    bucketize = search.bucketize

    # ------------------------------------------------------------ products.py

    inner = products.inner
    vdot = products.vdot
    tensordot = products.tensordot
    cross = products.cross
    kron = products.kron
    allclose = products.allclose
    array_equal = products.array_equal
    addmm = products.addmm
    addcmul = products.addcmul
    addcdiv = products.addcdiv
    baddbmm = products.baddbmm

    # ------------------------------------------------------------ differences.py

    diff = differences.diff
    ediff1d = differences.ediff1d
    gradient = differences.gradient
    unwrap = differences.unwrap

    # ------------------------------------------------------------ arrange.py

    fliplr = arrange.fliplr
    flipud = arrange.flipud
    rot90 = arrange.rot90
    delete = arrange.delete
    insert = arrange.insert
    diagflat = arrange.diagflat
    put_along_axis = arrange.put_along_axis
    choose = arrange.choose
    combinations = arrange.combinations
    vander = arrange.vander
    block_diag = staticmethod(arrange.block_diag)
    cartesian_prod = staticmethod(arrange.cartesian_prod)

    # ------------------------------------------------------------ random.py

    key = staticmethod(random.key)
    split_key = staticmethod(random.split_key)
    rand = staticmethod(random.rand)
    randn = staticmethod(random.randn)
    randint = staticmethod(random.randint)
    dropout = random.dropout
    normal = staticmethod(draws.normal)
    uniform = staticmethod(draws.uniform)
    exponential = staticmethod(draws.exponential)
    bernoulli = draws.bernoulli
    multinomial = draws.multinomial
    choice = staticmethod(draws.choice)
    gumbel_softmax = draws.gumbel_softmax
    randperm = staticmethod(draws.randperm)
    permutation = draws.permutation
    shuffle = draws.shuffle

    # ------------------------------------------------------------ loops and branches (control.py)

    loop = staticmethod(control.loop)
    while_loop = staticmethod(control.while_loop)
    cond = staticmethod(control.cond)


def _check_known(name: str, kind: TensorType) -> None:
    late = [v.name for d in kind.shape for v in variables(d) if isinstance(v, LateVariable)]
    if late:
        raise GraphError(
            "input",
            f"the shape of '{name}' must be known before a run, got {kind}: {late[0]} is the size "
            "of what a run computes.",
        )


def _check_name(name: Any, where: str) -> None:
    if not isinstance(name, str) or not name:
        raise GraphError(where, f"name must be a non-empty string, got {name!r}.")
