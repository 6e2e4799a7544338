"""Tensor, layer 17: from lazy to computed.

    Tensor  --Graph-->  prepare_graph  -->  ExecutionPlan  -->  array

`prepare` gives the plan; `numpy`, `realize`, `item` and the array protocols compute the value
(compiler/eager.py: what was computed before with other data takes no plan of its own) and
keep the sealed result on the handle, so that asking twice computes once. A tensor
that depends on an input or a variable has no value of its own: asking for it is an error that
says to prepare it. What leaves this module is a copy, or a read-only view.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np

from semel.compiler.eager import compute
from semel.compiler.pipeline import prepare_graph
from semel.config import settings
from semel.errors import GraphError
from semel.ir.expr import Dim, LateVariable, variables
from semel.ir.graph import Graph, Node, Storage, no_scope, shared
from semel.ir.late import with_counts
from semel.ir.outline import take_outline
from semel.plan.plan import ExecutionPlan, Values
from semel.plan.refusals import as_values
from semel.runtime.free import HOST_DEVICE
from semel.runtime.interop import CPU, VERSION, read_dlpack, write_dlpack
from semel.tensor.body import check_closed
from semel.tensor.handle import Array, Handle
from semel.tensor.recurrent import Recurrent


def prepare(
    outputs: Handle | Sequence[Handle] | Mapping[str, Handle],
    *,
    threads: int | None = None,
    memory_limit: int | None = None,
    fusion: bool | None = None,
    tune: bool | Mapping[str, int] | None = None,
    bindings: Values | None = None,
    keep: Handle | Sequence[Handle] | Mapping[str, Handle] = (),
    device: str = HOST_DEVICE,
) -> ExecutionPlan:
    """Compile once: a plan that computes these tensors, in order, again and again.

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
    runs: "cpu", or "null", which compiles everything and computes nothing.
    """
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
        )


def build_graph(outputs: Handle | Sequence[Handle] | Mapping[str, Handle]) -> Graph:
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


def _handles(given: Handle | Sequence[Handle] | Mapping[str, Handle], what: str) -> list[Handle]:
    """One tensor, several, or those of a mapping, as a list."""
    if isinstance(given, Handle):
        return [given]
    if not isinstance(given, Iterable):
        raise GraphError("prepare", f"{what} must be Tensors, got {type(given).__name__}.")
    handles = list(given.values()) if isinstance(given, Mapping) else list(given)
    for handle in handles:
        if not isinstance(handle, Handle):
            raise GraphError("prepare", f"{what} must be Tensors, got {type(handle).__name__}.")
    return handles


def _names(given: Mapping[Any, Handle], what: str) -> tuple[str, ...]:
    for name in given:
        if not isinstance(name, str) or not name:
            raise GraphError("prepare", f"names of {what} must be non-empty strings, got {name!r}.")
    return tuple(given)


def _nodes_to_keep(
    graph: Graph, keep: Handle | Sequence[Handle] | Mapping[str, Handle]
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


class Realize(Recurrent):
    """Computing a tensor, and showing it to Python, NumPy and others."""

    __slots__ = ()

    def prepare(
        self,
        *,
        threads: int | None = None,
        memory_limit: int | None = None,
        fusion: bool | None = None,
        tune: bool | Mapping[str, int] | None = None,
        bindings: Values | None = None,
        keep: Handle | Sequence[Handle] | Mapping[str, Handle] = (),
        device: str = HOST_DEVICE,
    ) -> ExecutionPlan:
        """Compile once: a plan that computes this tensor again and again.

        The arguments are those of `semel.prepare`.
        """
        return prepare(
            self,
            threads=threads,
            memory_limit=memory_limit,
            fusion=fusion,
            tune=tune,
            bindings=bindings,
            keep=keep,
            device=device,
        )

    def realize(self) -> Self:
        """The computed tensor, as a constant."""
        return self._constant(self._array("realize"))

    def numpy(self) -> Array:
        """The value as a NumPy array of your own."""
        return self._array("numpy").copy()

    def _array(self, where: str) -> Array:
        """The sealed value; computed at the first call."""
        if self._value is None:
            self._value = self._given() or Storage(self._compute(where))
        return self._value.array

    def _compute(self, where: str) -> Array:
        options = settings()
        # Who wants to see the compiler's products wants those of the graph as it is written.
        outline = take_outline(self._node) if options.dump is None else None
        with no_scope():
            return self._compile_and_run(where) if outline is None else compute(outline, options)

    def _compile_and_run(self, where: str) -> Array:
        """For what has no outline: it is a plan, or an error."""
        graph, _ = with_counts(Graph((self._node,)))
        missing = [f"input '{n.attrs.name}': {n.type}" for n in graph.inputs]
        bound = [v for v in graph.variables if not isinstance(v, LateVariable)]
        missing += [f"variable '{v.name}'" for v in bound]
        if missing:
            raise GraphError(
                where,
                f"a value must not depend on inputs or variables, got {', '.join(missing)}.",
                hint="Prepare it once, plan = t.prepare(), and call plan(name=array).",
            )
        result: Array = prepare(self)()
        return result

    # ------------------------------------------------------------ Python numbers

    def item(self) -> Any:
        """The only element as a Python number."""
        value = self._only("item", f"needs exactly one element, got {self.type}.")
        return float(value) if self.dtype.is_float else value.item()

    def _only(self, where: str, refusal: str, hint: str = "") -> Array:
        """The one element there is; how many there are may be known only once it is computed."""
        if not _is_late(self.size) and self.size != 1:
            raise GraphError(where, refusal, hint=hint)
        array = self._array(where)
        if array.size != 1:
            raise GraphError(where, f"{refusal[:-1]} with {array.size}.", hint=hint)
        return array.reshape(())

    def __len__(self) -> int:
        if self.ndim and _is_late(self.shape[0]):
            return int(self._dim(self.shape[0])._array("len"))
        return super().__len__()

    def tolist(self) -> Any:
        """The value as nested lists of Python numbers."""
        array = self._array("tolist")
        return (array.astype(np.float32) if self.dtype.is_half else array).tolist()

    def __bool__(self) -> bool:
        refusal = f"the truth of a tensor needs exactly one element, got {self.type}."
        return bool(self._only("bool", refusal, "Use .any() or .all()."))

    def __int__(self) -> int:
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __index__(self) -> int:
        if not self.dtype.is_integer:
            raise TypeError(f"only integer tensors can be an index, got {self.type}")
        return int(self.item())

    # ------------------------------------------------------------ arrays of other libraries

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array = self._array("numpy")
        wanted = array.dtype if dtype is None else np.dtype(dtype)
        if copy is False:
            if wanted != array.dtype:
                raise ValueError(f"[numpy] {self.type} as {wanted} needs a copy.")
            return array
        return array.astype(wanted)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """A read-only view for NumPy, which keeps the value alive."""
        if self.dtype.name == "bfloat16":
            raise AttributeError("bfloat16 has no array interface; NumPy takes __array__")
        array = self._array("numpy")
        # A buffer rather than an address: the consumer then holds the memory itself.
        data = memoryview(array.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
        return {"version": 3, "shape": array.shape, "typestr": array.dtype.str, "data": data}

    if sys.version_info >= (3, 12):

        def __buffer__(self, flags: int, /) -> memoryview:
            if self.dtype.name == "bfloat16":
                raise BufferError("[buffer] bfloat16 has no buffer format; use DLPack.")
            return memoryview(self._array("buffer"))

    def __dlpack__(
        self,
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
        array = self._array("dlpack")
        return write_dlpack(array if copy is False else array.copy(), versioned=versioned)

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU

    @classmethod
    def from_dlpack(cls, source: Any) -> Self:
        """A copy of another library's CPU tensor."""
        if not hasattr(source, "__dlpack__"):
            raise GraphError(
                "from_dlpack", f"needs an object with __dlpack__, got {type(source).__name__}."
            )
        return cls._constant(read_dlpack(source))
