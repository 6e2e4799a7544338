"""Semel: prepare once, execute many.

    Tensor  --prepare-->  ExecutionPlan  --execute-->  results, again and again

The public names, sorted. Importing this touches no device, starts no thread and loads no
compiler; those wait for the first `prepare`.
"""

from typing import TYPE_CHECKING

from semel.config import set_num_threads
from semel.errors import (
    BusyError,
    CacheError,
    CancelledError,
    CodecError,
    CompileError,
    CustomFunctionError,
    CycleError,
    DeviceError,
    GraphError,
    IndexRangeError,
    InputError,
    InternalError,
    ModelError,
    OrderError,
    OutOfMemoryError,
    ParamError,
    PlanError,
    PlanFileError,
    RecompileError,
    ReleasedError,
    SemelError,
    StaleError,
    StateError,
    StateFileError,
    TimedOutError,
    UnsupportedError,
    UserError,
    VariableError,
)
from semel.graph.builder import Graph
from semel.ir.expr import Variable
from semel.ir.types import DType
from semel.tensor.activations import gelu, relu, silu
from semel.tensor.attention import scaled_dot_product_attention
from semel.tensor.contract import dot, einsum, matmul, outer
from semel.tensor.control import cond, loop, while_loop
from semel.tensor.creation import (
    arange,
    empty,
    eye,
    full,
    full_like,
    linspace,
    meshgrid,
    ones,
    ones_like,
    tri,
    zeros,
    zeros_like,
)
from semel.tensor.dtypes import (
    bfloat16,
    bool_,
    float4_e2m1fn,
    float8_e4m3fn,
    float8_e4m3fnuz,
    float8_e5m2,
    float8_e5m2fnuz,
    float8_e8m0fnu,
    float16,
    float32,
    float64,
    int2,
    int4,
    int8,
    int16,
    int32,
    int64,
    uint2,
    uint4,
    uint8,
    uint16,
    uint32,
    uint64,
)
from semel.tensor.elementwise import (
    atan2,
    clip,
    lerp,
    logical_and,
    logical_or,
    logical_xor,
    maximum,
    minimum,
    where,
)
from semel.tensor.indexing import diag, one_hot, take, take_along_axis, tril, triu
from semel.tensor.late import argwhere, masked_select, nonzero, unique
from semel.tensor.movement import (
    broadcast_to,
    concat,
    flip,
    pad,
    permute,
    repeat,
    reshape,
    roll,
    split,
    stack,
    tile,
)
from semel.tensor.nn import layer_norm, log_softmax, rms_norm, softmax
from semel.tensor.order import argsort, cumprod, cumsum, sort, topk
from semel.tensor.random import dropout, key, manual_seed, rand, randint, randn, split_key
from semel.tensor.realize import from_dlpack, prepare
from semel.tensor.recurrent import gru, lstm, rnn
from semel.tensor.reduce import (
    all,
    any,
    argmax,
    argmin,
    logsumexp,
    max,
    mean,
    min,
    prod,
    std,
    sum,
    var,
)
from semel.tensor.tensor import Tensor
from semel.tensor.unary import (
    abs as absolute,
)
from semel.tensor.unary import (
    acos,
    asin,
    atan,
    ceil,
    cos,
    cosh,
    erf,
    exp,
    exp2,
    expm1,
    floor,
    isfinite,
    isinf,
    isnan,
    log,
    log1p,
    log2,
    log10,
    logical_not,
    rsqrt,
    sigmoid,
    sign,
    sin,
    sinh,
    sqrt,
    square,
    tan,
    tanh,
    trunc,
)
from semel.version import VERSION as __version__  # noqa: N811

if TYPE_CHECKING:
    from semel.compiler.recompiles import no_recompiles
    from semel.executor.context import DeviceContext
    from semel.executor.executor import UnifiedExecutor
    from semel.frontends.load import load
    from semel.loading import load_plan
    from semel.plan.builder import ExecutionPlanBuilder
    from semel.plan.plan import ExecutionPlan
    from semel.plan.report.explain import Explanation
    from semel.plan.report.profile import ProfileReport
    from semel.plan.report.records import KernelProfile
    from semel.plan.row import RuntimeVar
    from semel.plan.rows import (
        PreparedBranch,
        PreparedBufferView,
        PreparedCopy,
        PreparedCustomFunction,
        PreparedKernel,
        PreparedLoop,
        PreparedRebind,
        PreparedSignal,
        PreparedWait,
    )
    from semel.plan.snapshot import Snapshot
    from semel.runtime.buffer import Buffer
    from semel.runtime.custom import (
        custom_function,
        register_native_function,
        unregister_custom_function,
    )
    from semel.runtime.kernel import CachedKernel
    from semel.runtime.links import SyncStrategy
    from semel.runtime.registry import DeviceRegistry
    from semel.runtime.spec import DeviceSpec
    from semel.runtime.timeline import TimelineSignal
    from semel.session.buckets import (
        BucketedCompileCache,
        pad_rows,
        power_of_two_ladder,
        slice_rows,
    )
    from semel.session.compiled import CompiledGraph
    from semel.session.experts import ExpertPool
    from semel.session.outputs import Outputs
    from semel.session.protocol import ExecutableGraph
    from semel.session.residency import ExpertResidency
    from semel.session.session import Session

#: What a program that only makes tensors does without: imported when it is asked for. The
#: imports above say the same to type checkers.
_LATER = {
    "no_recompiles": "semel.compiler.recompiles",
    "DeviceContext": "semel.executor.context",
    "UnifiedExecutor": "semel.executor.executor",
    "load_plan": "semel.loading",
    "ExecutionPlanBuilder": "semel.plan.builder",
    "ExecutionPlan": "semel.plan.plan",
    "Explanation": "semel.plan.report.explain",
    "ProfileReport": "semel.plan.report.profile",
    "KernelProfile": "semel.plan.report.records",
    "RuntimeVar": "semel.plan.row",
    "PreparedBranch": "semel.plan.rows",
    "PreparedBufferView": "semel.plan.rows",
    "PreparedCopy": "semel.plan.rows",
    "PreparedCustomFunction": "semel.plan.rows",
    "PreparedKernel": "semel.plan.rows",
    "PreparedLoop": "semel.plan.rows",
    "PreparedRebind": "semel.plan.rows",
    "PreparedSignal": "semel.plan.rows",
    "PreparedWait": "semel.plan.rows",
    "Buffer": "semel.runtime.buffer",
    "custom_function": "semel.runtime.custom",
    "register_native_function": "semel.runtime.custom",
    "unregister_custom_function": "semel.runtime.custom",
    "CachedKernel": "semel.runtime.kernel",
    "SyncStrategy": "semel.runtime.links",
    "DeviceRegistry": "semel.runtime.registry",
    "DeviceSpec": "semel.runtime.spec",
    "TimelineSignal": "semel.runtime.timeline",
    "BucketedCompileCache": "semel.session.buckets",
    "pad_rows": "semel.session.buckets",
    "power_of_two_ladder": "semel.session.buckets",
    "slice_rows": "semel.session.buckets",
    "CompiledGraph": "semel.session.compiled",
    "ExpertPool": "semel.session.experts",
    "ExpertResidency": "semel.session.residency",
    "load": "semel.frontends.load",
    "Outputs": "semel.session.outputs",
    "ExecutableGraph": "semel.session.protocol",
    "Session": "semel.session.session",
    "Snapshot": "semel.plan.snapshot",
}

__all__ = [  # noqa: RUF022  (plain alphabetical order)
    "BucketedCompileCache",
    "Buffer",
    "BusyError",
    "CacheError",
    "CachedKernel",
    "CancelledError",
    "CodecError",
    "CompileError",
    "CompiledGraph",
    "CustomFunctionError",
    "CycleError",
    "DType",
    "DeviceContext",
    "DeviceError",
    "DeviceRegistry",
    "DeviceSpec",
    "ExecutableGraph",
    "ExecutionPlan",
    "ExecutionPlanBuilder",
    "ExpertPool",
    "ExpertResidency",
    "Explanation",
    "Graph",
    "GraphError",
    "IndexRangeError",
    "InputError",
    "InternalError",
    "KernelProfile",
    "ModelError",
    "OrderError",
    "OutOfMemoryError",
    "Outputs",
    "ParamError",
    "PlanError",
    "PlanFileError",
    "PreparedBranch",
    "PreparedBufferView",
    "PreparedCopy",
    "PreparedCustomFunction",
    "PreparedKernel",
    "PreparedLoop",
    "PreparedRebind",
    "PreparedSignal",
    "PreparedWait",
    "ProfileReport",
    "RecompileError",
    "ReleasedError",
    "RuntimeVar",
    "SemelError",
    "Session",
    "Snapshot",
    "StaleError",
    "StateError",
    "StateFileError",
    "SyncStrategy",
    "Tensor",
    "TimedOutError",
    "TimelineSignal",
    "UnifiedExecutor",
    "UnsupportedError",
    "UserError",
    "Variable",
    "VariableError",
    "__version__",
    "absolute",
    "acos",
    "all",
    "any",
    "arange",
    "argmax",
    "argmin",
    "argsort",
    "argwhere",
    "asin",
    "atan",
    "atan2",
    "bfloat16",
    "bool_",
    "broadcast_to",
    "ceil",
    "clip",
    "concat",
    "cond",
    "cos",
    "cosh",
    "cumprod",
    "cumsum",
    "custom_function",
    "diag",
    "dot",
    "dropout",
    "einsum",
    "empty",
    "erf",
    "exp",
    "exp2",
    "expm1",
    "eye",
    "flip",
    "float16",
    "float32",
    "float4_e2m1fn",
    "float64",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "floor",
    "from_dlpack",
    "full",
    "full_like",
    "gelu",
    "gru",
    "int16",
    "int2",
    "int32",
    "int4",
    "int64",
    "int8",
    "isfinite",
    "isinf",
    "isnan",
    "key",
    "layer_norm",
    "lerp",
    "linspace",
    "load",
    "load_plan",
    "log",
    "log10",
    "log1p",
    "log2",
    "log_softmax",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "logsumexp",
    "loop",
    "lstm",
    "manual_seed",
    "masked_select",
    "matmul",
    "max",
    "maximum",
    "mean",
    "meshgrid",
    "min",
    "minimum",
    "no_recompiles",
    "nonzero",
    "one_hot",
    "ones",
    "ones_like",
    "outer",
    "pad",
    "pad_rows",
    "permute",
    "power_of_two_ladder",
    "prepare",
    "prod",
    "rand",
    "randint",
    "randn",
    "register_native_function",
    "relu",
    "repeat",
    "reshape",
    "rms_norm",
    "rnn",
    "roll",
    "rsqrt",
    "scaled_dot_product_attention",
    "set_num_threads",
    "sigmoid",
    "sign",
    "silu",
    "sin",
    "sinh",
    "slice_rows",
    "softmax",
    "sort",
    "split",
    "split_key",
    "sqrt",
    "square",
    "stack",
    "std",
    "sum",
    "take",
    "take_along_axis",
    "tan",
    "tanh",
    "tile",
    "topk",
    "tri",
    "tril",
    "triu",
    "trunc",
    "uint16",
    "uint2",
    "uint32",
    "uint4",
    "uint64",
    "uint8",
    "unique",
    "unregister_custom_function",
    "var",
    "where",
    "while_loop",
    "zeros",
    "zeros_like",
]

if not TYPE_CHECKING:  # a checker must not believe that every name exists

    def __getattr__(name: str) -> object:
        from importlib import import_module

        from semel.locks import importing

        if name not in _LATER:
            raise AttributeError(f"module 'semel' has no attribute {name!r}")
        with importing:
            value = globals()[name] = getattr(import_module(_LATER[name]), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
