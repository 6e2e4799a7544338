"""From lazy to computed: plans, arrays, Python numbers.

    Tensor  --Graph-->  prepare_graph  -->  ExecutionPlan  -->  array

`prepare` gives the plan; `numpy`, `realize`, `item` and the array protocols compute the value
(compiler/eager.py: what was computed before with other data takes no plan of its own) and
keep the sealed result on the tensor, so that asking twice computes once. A tensor
that depends on an input or a variable has no value of its own: asking for it is an error that
says to prepare it. What leaves this module is a copy, or a read-only view.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from semel.config import Settings, settings
from semel.errors import GraphError
from semel.ir import questions
from semel.ir.expr import Dim, LateVariable, as_number, variables
from semel.ir.fields import MemoryLimit
from semel.ir.graph import Graph, Node, Storage, no_scope, shared
from semel.ir.late import with_counts
from semel.ir.outline import Outline, take_outline
from semel.locks import importing
from semel.runtime.interop import CPU, VERSION, borrow_dlpack, read_dlpack, write_dlpack
from semel.tensor import place
from semel.tensor.body import check_closed
from semel.tensor.handle import Array, constant, dim_value, given_value, tensor_class, wrap

if TYPE_CHECKING:
    from semel.plan.plan import ExecutionPlan, Values
    from semel.tensor.tensor import Tensor


def prepare(
    outputs: Tensor | Sequence[Tensor] | Mapping[str, Tensor],
    *,
    threads: int | None = None,
    memory_limit: MemoryLimit = None,
    fusion: bool | None = None,
    tune: bool | Mapping[str, int] | None = None,
    bindings: Values | None = None,
    keep: Tensor | Sequence[Tensor] | Mapping[str, Tensor] = (),
    device: Any = None,
    devices: Any = None,
    target: str | None = None,
    keep_params: bool = False,
) -> ExecutionPlan:
    """Compile once: a plan that computes these tensors, in order, again and again.

    >>> x = Tensor.input("x", (Variable("n", 1, 9),))
    >>> plan = semel.prepare({"total": x.sum(), "largest": x.max()})
    >>> plan(x=np.array([1, 5, 2], np.float32))
    (array(8., dtype=float32), array(5., dtype=float32))

    A mapping names the outputs. `threads`, `memory_limit` (bytes) and `fusion` override
    the settings for this plan. `tune=True` takes some seconds to measure other ways to cut
    the kernels and remembers the faster ones for this machine; `tune={"n": 128}` does so
    with variables at these values (else: their upper bounds, at most 256). Without `tune` a
    prepare uses what is remembered; `tune=False` uses the defaults. No choice changes a bit
    of the result.

    `bindings` are first values of variables, `{"n": 5}` or `[n.bind(5)]`: the plan is compiled
    for all sizes as ever, and runs at these until others are bound. The tensors in `keep` must
    be computed on the way: their values can be read after each run, as `plan.buffer(tensor)`, or
    by name in `plan.kept` (those of a mapping, else kept0, kept1, ...). `device` is where the plan
    runs: "cpu" if nobody says otherwise, a part of it ("cpu:1"), or "null", which compiles
    everything and computes nothing. `devices` are those that tensors may have been moved to, the
    first of them the plan's own. With `devices="auto"` each kernel that the graph does not place is
    where a model of the machine's parts has it computed best, and `plan.explain()` says why. A
    `memory_limit` may be one for each device, by name. `target` names what its code may ask of the
    processor, as "x86-64-v3" does, and this machine must have; else it is as the settings say, by
    default all that this machine has. With `keep_params` the plan holds the data of params and
    constants as it was given beside the forms that it reads, so that each param can be replaced
    alone even where a weight is made of several, and `save(targets=...)` finds them.
    """
    # Two thirds of the package are the compiler and its plans, imported when one is wanted.
    with importing:
        from semel.compiler.pipeline import prepare_graph
        from semel.plan.errors import as_values

    graph = build_graph(outputs)
    with no_scope():
        return prepare_graph(
            graph,
            threads=threads,
            memory_limit=memory_limit,
            fusion=fusion,
            tune=tune,
            bindings=None if bindings is None else as_values(bindings, {}),
            keep=_nodes_to_keep(graph, keep),
            device=device,
            devices=devices,
            target=target,
            keep_params=keep_params,
        )


def build_graph(outputs: Tensor | Sequence[Tensor] | Mapping[str, Tensor]) -> Graph:
    """The graph of these tensors, named if a mapping names them."""
    handles = _handles(outputs, "outputs")
    names = _names(outputs, "outputs") if isinstance(outputs, Mapping) else ()
    with no_scope():
        graph = shared(Graph(tuple(h.node for h in handles), names))
    check_closed(graph, "prepare")
    return graph


def _is_late(dim: Dim) -> bool:
    """Whether a size is known only once it is computed."""
    return any(isinstance(v, LateVariable) for v in variables(dim))


def _handles(given: Tensor | Sequence[Tensor] | Mapping[str, Tensor], what: str) -> list[Tensor]:
    """One tensor, several, or those of a mapping, as a list."""
    if isinstance(given, tensor_class()):
        return [given]
    if not isinstance(given, Iterable):
        raise GraphError("prepare", f"{what} must be Tensors, got {type(given).__name__}.")
    handles = list(given.values()) if isinstance(given, Mapping) else list(given)
    for handle in handles:
        if not isinstance(handle, tensor_class()):
            raise GraphError("prepare", f"{what} must be Tensors, got {type(handle).__name__}.")
    return handles


def _names(given: Mapping[Any, Tensor], what: str) -> tuple[str, ...]:
    for name in given:
        if not isinstance(name, str) or not name:
            raise GraphError("prepare", f"names of {what} must be non-empty strings, got {name!r}.")
    return tuple(given)


def _nodes_to_keep(
    graph: Graph, keep: Tensor | Sequence[Tensor] | Mapping[str, Tensor]
) -> dict[str, Node]:
    """The nodes to keep by name; each must be part of the graph."""
    handles = _handles(keep, "keep")
    names = [f"kept{i}" for i in range(len(handles))]
    names = list(_names(keep, "keep")) if isinstance(keep, Mapping) else names
    nodes = {name: handle.node for name, handle in zip(names, handles, strict=True)}
    inside = set(graph.nodes)
    for name, node in nodes.items():
        if node not in inside:
            raise GraphError(
                "prepare",
                f"what is kept must be computed for the outputs, '{name}' ({node!r}) is not.",
                hint="Make it an output.",
            )
    return nodes


# ------------------------------------------------------------ values


def value_of(x: Tensor, where: str) -> Array:
    """The sealed value; computed at the first call."""
    if x._value is None:
        x._value = given_value(x) or Storage(_compute(x, where))
    return x._value.array


def _compute(x: Tensor, where: str) -> Array:
    options = settings()
    # Who wants to see the compiler's products wants those of the graph as it is written.
    outline = take_outline(x._node) if options.dump is None else None
    with no_scope():
        return _compile_and_run(x, where) if outline is None else _eager()(outline, options)


@cache
def _eager() -> Callable[[Outline, Settings], Array]:
    """What computes small graphs; imported when the first one is."""
    with importing:
        from semel.compiler.eager import compute

    return compute


def _compile_and_run(x: Tensor, where: str) -> Array:
    """For what has no outline: it is a plan, or an error."""
    missing = waits_for(x)
    if missing and questions.answers() is not None:
        raise GraphError(
            where,
            f"a tensor has no value while jit follows the function, got {x.type}.",
            hint="Choose by semel.where, semel.cond or semel.while_loop, or ask for the value "
            "outside of the jitted function.",
        )
    if missing:
        check_closed(Graph((x._node,)), where)
        raise GraphError(
            where,
            f"a value must not depend on inputs or variables, got {', '.join(missing)}.",
            hint="Prepare it once, plan = t.prepare(), and call plan(name=array).",
        )
    result: Array = prepare(x)()
    return result


def waits_for(x: Tensor) -> list[str]:
    """What must be given before the tensor has a value: inputs, states, params, variables."""
    graph, _ = with_counts(Graph((x._node,)))
    params = (n for n in graph.nodes if n.op.name == "param" and n.attrs.storage.is_missing)
    leaves = (*graph.inputs, *graph.states, *params)
    missing = [f"{n.op.name} '{n.attrs.name}': {n.type}" for n in leaves]
    bound = [v for v in graph.variables if not isinstance(v, LateVariable)]
    return missing + [f"variable '{v.name}'" for v in bound]


def realize(x: Tensor) -> Tensor:
    """The computed tensor, as a constant."""
    return constant(value_of(x, "realize"))


def numpy(x: Tensor) -> Array:
    """The value as a NumPy array of your own."""
    return value_of(x, "numpy").copy()


def tolist(x: Tensor) -> Any:
    """The value as nested lists of Python numbers."""
    array = value_of(x, "tolist")
    return array.astype(x.dtype.compute.numpy, copy=False).tolist()


# ------------------------------------------------------------ Python numbers


def item(x: Tensor) -> Any:
    """The only element as a Python number."""
    value = _only(x, "item", "needs exactly one element")
    return value.astype(x.dtype.compute.numpy).item()


def truth(x: Tensor) -> bool:
    """Whether the only element is true."""
    refusal = "the truth of a tensor needs exactly one element"
    return bool(_only(x, "bool", refusal, "Use .any() or .all()."))


def _only(x: Tensor, where: str, refusal: str, hint: str = "") -> Array:
    """The one element there is; how many there are may be known only once it is computed."""
    size = x.size
    if size != 1 and not _is_late(size):
        raise GraphError(where, f"{refusal}, got {x.type}.", hint=hint)
    array = value_of(x, where)
    if array.size != 1:
        raise GraphError(where, f"{refusal}, got {x.type} with {array.size}.", hint=hint)
    return array.reshape(())


def length(x: Tensor) -> int:
    """The size of the first axis, computed if only a run knows it."""
    if x.ndim == 0:
        raise TypeError("len() of a 0-d tensor")
    first = x.shape[0]
    if _is_late(first):
        return int(value_of(dim_value(first), "len"))
    if not isinstance(first, int) and questions.answers() is not None:
        return as_number(first)
    if not isinstance(first, int):
        raise GraphError("len", f"the first dim must be fixed, got {x.type}.")
    return first


# ------------------------------------------------------------ arrays of other libraries


def to_array(x: Tensor, dtype: Any = None, copy: bool | None = None) -> Array:
    """NumPy's `__array__`: a copy, or with copy=False a read-only view."""
    array = value_of(x, "numpy")
    wanted = array.dtype if dtype is None else np.dtype(dtype)
    if copy is False:
        if wanted != array.dtype:
            raise ValueError(f"[numpy] {x.type} as {wanted} needs a copy.")
        return array
    return array.astype(wanted)


def _is_foreign(x: Tensor) -> bool:
    """Whether the dtype is none of NumPy's own, so that no text or code says it."""
    return x.dtype.numpy.isbuiltin != 1


def array_interface(x: Tensor) -> dict[str, Any]:
    """A read-only view for NumPy, which keeps the value alive."""
    if _is_foreign(x):
        raise AttributeError(f"{x.dtype} has no array interface; NumPy takes __array__")
    array = value_of(x, "numpy")
    # A buffer rather than an address: the consumer then holds the memory itself.
    data = memoryview(array.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
    return {"version": 3, "shape": array.shape, "typestr": array.dtype.str, "data": data}


def to_buffer(x: Tensor, flags: int, /) -> memoryview:
    """Python's `__buffer__`: a read-only view."""
    if _is_foreign(x):
        raise BufferError(f"[buffer] {x.dtype} has no buffer format; use DLPack or numpy().")
    return memoryview(value_of(x, "buffer"))  # type: ignore[arg-type]


def to_dlpack(
    x: Tensor,
    *,
    stream: Any = None,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[int, int] | None = None,
    copy: bool | None = None,
) -> object:
    """A capsule: a copy of its own, or with copy=False a read-only view."""
    if stream is not None:
        raise BufferError(f"[dlpack] CPU memory has no streams, got stream={stream!r}.")
    if dl_device is not None and tuple(int(v) for v in dl_device) != CPU:
        raise BufferError(f"[dlpack] data is on device {CPU}, got dl_device={dl_device}.")
    versioned = max_version is not None and tuple(max_version) >= VERSION
    array = value_of(x, "dlpack")
    if copy is False:
        return write_dlpack(array, versioned=versioned)
    return write_dlpack(array.copy(), versioned=versioned, is_copied=True)


def from_dlpack(source: Any, *, device: Any = None, copy: bool | None = None) -> Tensor:
    """Another library's CPU tensor, copied; with copy=False its memory, where that lies.

    A tensor never changes, so whoever passes `copy=False` promises not to write to that memory
    any more: what was computed from it, folded or packed is not computed again. The memory is
    kept until the last tensor that reads it is gone.
    """
    made = _taken(source, copy)
    return made if device is None else place.to_device(made, device)


def _taken(source: Any, copy: bool | None) -> Tensor:
    if isinstance(source, tensor_class()):
        return wrap(source.node)
    if not hasattr(source, "__dlpack__"):
        raise GraphError(
            "from_dlpack", f"needs an object with __dlpack__, got {type(source).__name__}."
        )
    return constant(borrow_dlpack(source) if copy is False else read_dlpack(source))
