"""Graphs that say what everything is called, and what is kept between runs.

    g = Graph("counter")
    delta, total = g.input("delta", (4,)), g.state("total", (4,))
    g.output("sum", total + delta, feeds=total)
    plan = g.prepare()                 --build-->  ir.graph.Graph  --prepare_graph-->  ExecutionPlan

Everything that a Tensor can do, what is made here can. A dim that is a string is a variable of that
name; `dims={"batch": (1, 64)}` gives its bounds when the graph is prepared. What is declared is
part of the plan, in the order in which it was declared, whether or not anything reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from semel.errors import GraphError, InputError
from semel.graph.extent import find_extent, with_extent
from semel.graph.gathered import with_groups
from semel.graph.least import least_sizes
from semel.graph.pages import Pages
from semel.graph.random import first_counter, run_key
from semel.graph.routers import Router, Routing, experts_of, find_routers
from semel.graph.sequences import Sequences
from semel.graph.state import Cursor, State
from semel.ir import graph as ir
from semel.ir.expr import Variable
from semel.ir.fields import take_int
from semel.ir.graph import Held, Storage, make_node, next_name, no_scope, shared
from semel.ir.late import substitute_nodes, with_counts
from semel.ir.listed import public_names
from semel.ir.types import TensorType, as_dtype, as_shape
from semel.locks import importing
from semel.ops.attrs import InputAttrs, ParamAttrs, StateAttrs
from semel.ops.state import is_whole
from semel.runtime.buffer import as_array as exact_array
from semel.tensor.body import check_closed
from semel.tensor.handle import DTypeLike, TensorLike, as_array, lift, wrap
from semel.tensor.place import take_device
from semel.tensor.tensor import Tensor

if TYPE_CHECKING:
    from semel.plan.plan import ExecutionPlan, Values
    from semel.plan.program import Program

#: Another program in the place of one with these routers.
Change: TypeAlias = "Callable[[Program, tuple[Router, ...]], Program]"
#: Bounds of variables by name: (least, most).
Dims = Mapping[str, tuple[int, int | None]]

#: Members that the package uses, and people need not be offered.
_OURS = frozenset(
    {
        "axis_of",
        "check_owns",
        "is_replaced",
        "least_sizes",
        "prepare_routed",
        "shared_cursor",
    }
)


class Graph:
    """Named inputs, params, constants, states and outputs of one computation.

    >>> g = Graph("scale")
    >>> x, w = g.input("x", ("n", 2)), g.param("w", np.array([1, 10], np.float32))
    >>> _ = g.output("y", x * w)
    >>> compiled = Session("cpu").compile(g, dims={"n": (1, 8)})
    >>> compiled.run(x=np.ones((1, 2), np.float32))["y"].tolist()
    [[1.0, 10.0]]
    """

    def __init__(self, name: str) -> None:
        self.name = _checked_name(name, "graph")
        self.inputs: dict[str, Tensor] = {}
        self.params: dict[str, Tensor] = {}
        self.states: dict[str, State] = {}
        self.outputs: dict[str, Tensor] = {}
        self.cursors: dict[str, Cursor] = {}
        #: Along which axis rows are appended, by the state's name.
        self.axes: dict[str, int] = {}
        self._variables: dict[str, Variable] = {}
        self._sequences: dict[str, Sequences] = {}
        self._routings: list[Routing] = []

    def __dir__(self) -> list[str]:
        return public_names(self, _OURS)

    def __repr__(self) -> str:
        with importing:
            from semel.graph.show import graph_line
        return graph_line(self)

    def _repr_html_(self) -> str:
        with importing:
            from semel.graph.show import graph_html
        return graph_html(self)

    # ------------------------------------------------------------ what goes in

    def input(
        self,
        name: str,
        shape: Any,
        dtype: DTypeLike = "float32",
        *,
        default: Any = None,
        device: Any = None,
    ) -> Tensor:
        """A tensor that every run is given; a dim that is a string is a variable.

        A run that is not given it takes the `default`, a copy of which goes with the plan. It lies
        on the `device`, and what is computed from it is computed there; without one, on the
        plan's own.
        """
        self._check_free(name, "input")
        kind = TensorType(as_shape(self._shape(shape), "input"), as_dtype(dtype, "input"))
        data = None if default is None else _default(name, kind, default)
        where = "" if device is None else take_device("input", device)
        attrs = InputAttrs(name, kind, data, device=where)
        self.inputs[name] = made = wrap(make_node("input", (), attrs))
        return made

    def param(
        self,
        name: str,
        data: Any = None,
        dtype: DTypeLike | None = None,
        *,
        shape: Any = None,
        device: Any = None,
    ) -> Tensor:
        """Data that may be replaced later, by name.

        With a `shape` in the place of data it must be set before the first run. It lies on each
        device where somebody reads it, or on the `device` alone.
        """
        where = None if device is None else take_device("param", device)
        self._check_free(name, "param")
        if (data is None) == (shape is None):
            raise GraphError(
                "param", f"'{name}' must have either data, or a shape for data that is set later."
            )
        if data is not None:
            made = Tensor.param(name, data, dtype)
        else:
            kind = TensorType(_numbers(name, shape), as_dtype(dtype or "float32", "param"))
            storage = Storage.missing(kind.shape, kind.dtype.numpy)  # type: ignore[arg-type]
            made = wrap(make_node("param", (), ParamAttrs(name, storage, kind)))
        self.params[name] = made
        return made if where is None else made.to(where)

    def constant(self, data: Any, dtype: DTypeLike | None = None) -> Tensor:
        """Data that stays."""
        return Tensor(data, dtype)

    def state(
        self,
        name: str,
        shape: Any,
        dtype: DTypeLike = "float32",
        *,
        init: Any = None,
        exchanged: bool = False,
        device: Any = None,
    ) -> State:
        """A tensor that is kept between runs, of its largest shape; zeros at first, or `init`.

        One that is replaced may be `exchanged`: its next value is always made in a second buffer,
        so that a run that fails leaves the old one as it was. It lies on the `device`, and so must
        what is stored there; without one, on the plan's own.
        """
        where = "" if device is None else take_device("state", device)
        self._check_free(name, "state")
        kind = TensorType(as_shape(shape, "state"), as_dtype(dtype, "state"))
        first = None if init is None else Storage(as_array(init, kind.dtype))
        leaf = make_node("state", (), StateAttrs(name, kind, first, exchanged, where))
        self.states[name] = made = State.of(self, leaf)
        return made

    def sequences(
        self, name: str, count: int, capacity: int, *, counts: TensorLike | None = None
    ) -> Sequences:
        """Sequences with lengths of their own, for `append(x, sequences=...)`.

        The lengths are a state of that name. In each run every one of them grows by all rows that
        are appended or, of sequence b, by the last `counts[b]` of them.
        """
        sizes = _sizes("sequences", name, count=count, capacity=capacity)
        lengths = self.state(name, (sizes["count"],), "int64", exchanged=True)
        try:
            made = Sequences(lengths, sizes["capacity"], counts)
        except GraphError:
            del self.states[name]
            raise
        self._sequences[name] = made
        return made

    def paged(
        self,
        name: str,
        blocks: int,
        block_rows: int,
        *,
        sequences: int,
        max_blocks: int | None = None,
        counts: Tensor | None = None,
    ) -> Pages:
        """Sequences in a pool of blocks, handed out as they grow and given back when they are cut.

        A sequence has at most `max_blocks`, all if nothing is said. `counts`, an input, says of
        each how many of the last rows of a run are new; without it all are.
        """
        sizes = _sizes(
            "paged",
            name,
            blocks=blocks,
            block_rows=block_rows,
            sequences=sequences,
            max_blocks=blocks if max_blocks is None else max_blocks,
        )
        self._check_free(f"{name} table", "state")
        count = sizes["sequences"]
        lengths = self.state(name, (count,), "int64", exchanged=True)
        nothing = np.full((count, sizes["max_blocks"]), -1, np.int32)
        table = self.state(f"{name} table", nothing.shape, "int32", init=nothing)
        try:
            made = Pages(self, lengths, table, sizes["blocks"], sizes["block_rows"], counts)
        except GraphError:
            del self.states[name], self.states[table.name]
            raise
        self._sequences[name] = made
        return made

    def random_key(self, name: str, seed: int = 0) -> Tensor:
        """A key for random ops, another one in each run; the same seed gives the same keys.

        It comes from a state of that name, which goes on when a run succeeds.
        """
        return run_key(self.state(name, (2,), "uint32", init=first_counter(seed), exchanged=True))

    def cursor(self, name: str, capacity: int) -> Cursor:
        """A cursor of that name, for states that do not grow in step with the others."""
        _checked_name(name, "cursor")
        if name in self.cursors:
            raise GraphError("cursor", f"'{name}' is there already.")
        self.cursors[name] = made = Cursor(name, capacity)
        return made

    def moe(
        self,
        x: TensorLike,
        up: TensorLike,
        down: TensorLike,
        *,
        logits: TensorLike | None = None,
        k: int | None = None,
        ids: TensorLike | None = None,
        weights: TensorLike | None = None,
        gate: TensorLike | None = None,
        activation: Callable[[Tensor], Tensor] | None = None,
        layer: int | None = None,
    ) -> Tensor:
        """A layer of experts: each row of x through those that it is routed to, added up.

        `up`, `gate` and `down` are (experts, K, N) each: activation(x @ gate) * (x @ up) @ down,
        or activation(x @ up) @ down. Each row of x goes to the `k` experts with the largest
        `logits`, which count by the softmax of these; or to `ids`, which count by `weights` or
        all the same. The activation is silu if nothing is said. What was routed where is told
        under the number of its `layer`, the next that is free if none is given.
        """
        routing = Routing.of(logits, k, ids, weights)
        made = experts_of(x, up, down, routing, gate, activation, layer)
        self._routings.append(routing)
        return made

    # ------------------------------------------------------------ what comes out

    def output(self, name: str, value: TensorLike, *, feeds: State | None = None) -> Tensor:
        """A named result; if it `feeds` a state, that is it in the next run."""
        _checked_name(name, "output")
        if name in self.outputs:
            raise GraphError("output", f"'{name}' is there already.")
        made = lift(value)
        if feeds is not None:
            self._check_own(feeds)
            feeds.replace(made)
        self.outputs[name] = made
        return made

    def prepare(
        self,
        *,
        dims: Dims | None = None,
        extent: str | bool | None = None,
        keep: Mapping[str, Tensor] | None = None,
        bindings: Values | None = None,
        **options: Any,
    ) -> ExecutionPlan:
        """Compile it: a plan with the states in their first values, and cursors at 0.

        `dims` are bounds of the variables that strings in shapes stand for; one without grows as it
        must. `extent` names one of them, or is True if there is one only: then inputs and outputs
        with that dim have their largest shape, and `plan.set_extent` says how many rows of it a
        run takes. The other options are those of `semel.prepare`.
        """
        return self._prepare(dims, extent, keep, bindings, options)[0]

    def prepare_routed(
        self,
        *,
        dims: Dims | None = None,
        extent: str | bool | None = None,
        keep: Mapping[str, Tensor] | None = None,
        bindings: Values | None = None,
        change: Change | None = None,
        **options: Any,
    ) -> tuple[ExecutionPlan, tuple[Router, ...]]:
        """Like `prepare`, with what its routers decide kept too; and under which names.

        With `change`, the plan is one of what that makes of the program and these routers.
        """
        return self._prepare(dims, extent, keep, bindings, options, True, change)

    def _prepare(
        self,
        dims: Dims | None,
        extent: str | bool | None,
        keep: Mapping[str, Tensor] | None,
        bindings: Values | None,
        options: Mapping[str, Any],
        is_routed: bool = False,
        change: Change | None = None,
    ) -> tuple[ExecutionPlan, tuple[Router, ...]]:
        with importing:  # only now is a compiler wanted
            from semel.compiler.pipeline import prepare_graph
            from semel.plan.errors import as_values

        with no_scope():
            graph, became = self._built(dims, extent, [t.node for t in (keep or {}).values()])
            kept = {name: self._kept(value, became) for name, value in (keep or {}).items()}
            routed = self._routed(graph, became) if is_routed else []
            for name, node in (pair for _, nodes in routed for pair in nodes.items()):
                if name in kept:
                    raise GraphError("keep", f"'{name}' is what a router decides, choose another.")
                kept[name] = node
            routers = tuple(router for router, _ in routed)
            plan = prepare_graph(
                graph,
                keep={
                    **kept,
                    **{name: node for _, nodes in routed for name, node in nodes.items()},
                },
                bindings=None if bindings is None else as_values(bindings, {}),
                written={made: node for node, made in became.items()},
                name=self.name,
                change=None if change is None else lambda program: change(program, routers),
                **options,
            )
        return plan, routers

    def _routed(
        self, graph: ir.Graph, became: Mapping[ir.Node, ir.Node]
    ) -> list[tuple[Router, dict[str, ir.Node]]]:
        """The routers of a graph, and what must be kept of each."""
        known = {
            became[r.ids.node]: became[r.weights.node]
            for r in self._routings
            if r.weights is not None and r.ids.node in became and r.weights.node in became
        }
        return [found.kept() for found in find_routers(graph, known)]

    def build(self, dims: Dims | None = None, extent: str | bool | None = None) -> ir.Graph:
        """The graph as the compiler takes it."""
        return self._built(dims, extent)[0]

    def _built(
        self,
        dims: Dims | None,
        extent: str | bool | None = None,
        kept: Collection[ir.Node] = (),
    ) -> tuple[ir.Graph, dict[ir.Node, ir.Node]]:
        """The graph, and what each node became; those that are `kept` are nodes of it."""
        if not self.outputs:
            raise GraphError(f"graph '{self.name}'", "needs at least one output.")
        updated = {name: s.latest for name, s in self.states.items() if s.latest is not s.node}
        results = [value.node for value in self.outputs.values()]
        names = (*(next_name(name) for name in updated), *self.outputs)
        held = [Held(c.variable, c.next) for c in self.cursors.values() if c.appended]
        leaves = (*self.inputs.values(), *self.params.values(), *self.states.values())
        with no_scope():
            graph = shared(
                ir.Graph(
                    (*updated.values(), *results),
                    names,
                    updates=tuple(updated),
                    held=tuple(held),
                    declared=tuple(leaf.node for leaf in leaves),
                )
            )
        check_closed(graph, f"graph '{self.name}'")
        self._check_own_leaves(graph)
        # Before dims change: what tells a late size is known by the dims it was made with.
        told, first = with_counts(graph)
        built, new = substitute_nodes(told, self._bounds(dims or {}))
        became = {node: new[first.get(node, node)] for node in first or graph.nodes}
        if extent is not None and extent is not False:
            built, new = with_extent(built, find_extent(built, extent))
            became = {node: new[made] for node, made in became.items()}
        with no_scope():
            built, new = with_groups(built, [became[n] for n in kept if n in became])
        return built, {node: new.get(made, made) for node, made in became.items()}

    def least_sizes(self) -> dict[str, int]:
        """The least value, above 1, of each dim that is a string, as far as its graph needs one."""
        built, _ = self._built(None)
        return least_sizes(built, set(self._variables.values()))

    def _kept(self, value: Tensor, became: Mapping[ir.Node, ir.Node]) -> ir.Node:
        if value.node not in became:
            raise GraphError(
                f"graph '{self.name}'",
                f"what is kept must be computed for its outputs, {value.node!r} is not.",
            )
        return became[value.node]

    # ------------------------------------------------------------ for states

    def shared_cursor(self, capacity: int) -> Cursor:
        """The cursor of all states with so much room; the first one is simply `cursor`.

        A new one belongs to the graph once rows are appended at it.
        """
        name = "cursor"
        if name in self.cursors and self.cursors[name].capacity != capacity:
            name = f"cursor_{capacity}"
        return self.cursors.get(name) or Cursor(name, capacity)

    def axis_of(self, state: State) -> int:
        """The axis along which rows are appended."""
        return self.axes[state.name]

    def check_owns(self, sequences: Sequences) -> None:
        """Refuse sequences of another graph."""
        if self._sequences.get(sequences.name) is not sequences:
            raise GraphError(
                f"graph '{self.name}'", f"sequences must be made in it, got {sequences!r}."
            )

    def is_replaced(self, state: State) -> bool:
        """Whether the next value of a state is all new."""
        update = state.latest
        return update.op.kind == "update" and is_whole(update)

    # ------------------------------------------------------------ names and dims

    def _shape(self, shape: Any) -> Any:
        if isinstance(shape, str):
            return (self._variable(shape),)
        if not isinstance(shape, (tuple, list)):
            return shape
        return tuple(self._variable(dim) if isinstance(dim, str) else dim for dim in shape)

    def _variable(self, name: str) -> Variable:
        return self._variables.setdefault(name, Variable(name, 1))

    def _bounds(self, dims: Dims) -> dict[Variable, Variable]:
        if not isinstance(dims, Mapping):
            raise GraphError("dims", f"must map names to bounds, got {dims!r}.")
        unknown = sorted(dims.keys() - self._variables.keys())
        if unknown:
            known = ", ".join(self._variables) or "none"
            raise GraphError("dims", f"must be of dims of inputs ({known}), got {unknown[0]!r}.")
        bounds: dict[Variable, Variable] = {}
        for name, limits in dims.items():
            try:
                low, high = limits
                made = Variable(name, low, high)
            except (TypeError, ValueError):
                message = f"'{name}' must have a least and a largest value, got {limits!r}."
                raise GraphError("dims", message) from None
            if low < 1:
                raise GraphError(
                    "dims",
                    f"'{name}' must be at least 1, got {low}.",
                    hint="Use a Variable in the shape for one that may be 0.",
                )
            bounds[self._variables[name]] = made
        return bounds

    def _check_free(self, name: str, what: str) -> None:
        """Inputs, params and states share their names: errors and tables say them alone."""
        _checked_name(name, what)
        for kind, known in (
            ("an input", self.inputs),
            ("a param", self.params),
            ("a state", self.states),
        ):
            if name in known:
                raise GraphError(what, f"'{name}' is {kind} of graph '{self.name}' already.")

    def _check_own(self, state: Any) -> None:
        if not isinstance(state, State) or self.states.get(state.name) is not state:
            raise GraphError(
                "output", f"feeds must be a state of graph '{self.name}', got {state!r}."
            )

    def _check_own_leaves(self, graph: ir.Graph) -> None:
        for what, known, used in (
            ("state", self.states, {n.attrs.name for n in graph.states}),
            ("input", self.inputs, {n.attrs.name for n in graph.inputs}),
        ):
            foreign = sorted(used - known.keys())
            if foreign:
                raise GraphError(
                    f"graph '{self.name}'",
                    f"{what} '{foreign[0]}' must be declared in it: it is of another graph.",
                )


def _default(name: str, kind: TensorType, given: Any) -> Storage:
    """A copy of what an input is if nobody gives it; whether its shape fits is the op's to say."""
    try:
        array = exact_array(given, kind.dtype, f"input '{name}'")
    except InputError as error:
        raise GraphError("input", f"the default must be {kind}: {error}") from error
    return Storage(np.array(array, order="C"))


def _sizes(where: str, name: Any, **given: Any) -> dict[str, int]:
    """These sizes as ints, each of at least 1."""
    sizes = {what: take_int(where, what, value) for what, value in given.items()}
    for what, value in sizes.items():
        if value < 1:
            raise GraphError(where, f"{what} of '{name}' must be at least 1, got {value}.")
    return sizes


def _numbers(name: str, shape: Any) -> tuple[int, ...]:
    found = as_shape(shape, "param")
    if not all(isinstance(dim, int) for dim in found):
        raise GraphError("param", f"the shape of '{name}' must be numbers, got {found}.")
    return tuple(dim for dim in found if isinstance(dim, int))


def _checked_name(name: Any, what: str) -> str:
    if not isinstance(name, str) or not name:
        raise GraphError(what, f"name must be a non-empty string, got {name!r}.")
    return name
