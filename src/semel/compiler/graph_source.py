"""What a plan was compiled from, for whoever wants it for another machine, or changed, too.

    Graph, options  --GraphSource-->  GraphSource  --target's name, params, change-->  Program

A plan holds its source as long as it lives, and must not hold weights twice: of constants and
params the source knows where they are and does not keep them. While somebody else has them, a
model, a mapped file or the plan itself, the graph can be put together again. What costs next to
nothing, small constants and those in mapped files, a plan's source holds all the same; and with
`keep_params=True`, which says that another copy is welcome, all constants: params are the plan's.
A program that waits for the next plan (`compiler.programs`) holds no data, so that it is forgotten
when nobody can ask for it any more.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from semel.errors import ParamError, PlanError
from semel.ir.graph import Graph, Node, Storage, make_node, map_bodies, rewrite
from semel.plan.program import Program
from semel.runtime.interop import is_mapped

#: What makes another graph of one, and says what each node became.
Change = Callable[[Graph], tuple[Graph, Mapping[Node, Node]]]
#: Where leaves have data.
_DATA = {"constant": "storage", "param": "storage", "input": "default", "state": "init"}
#: What the compiler made by the way (axes, scales, zero points) is smaller, and nobody else has it.
_SMALL_BYTES = 4096


@dataclass(frozen=True, slots=True)
class _Weight:
    """A leaf without its data."""

    op: str
    make: Callable[[Storage], Any]
    storage: Callable[[], Storage | None]
    label: str
    #: Whether the source of a plan holds the data.
    is_held: bool


class GraphSource:
    """Compiles the graph of a plan for a target by its name, with `compile_for`.

    `keep` are nodes of it that go by name: outputs behind the others, as long as they wait here.
    With `keep_constants` the source holds what is no param.
    """

    def __init__(
        self,
        graph: Graph,
        keep: Mapping[str, Node],
        compile_for: Callable[[Graph, Mapping[str, Node], str], Program],
        *,
        keep_constants: bool = False,
    ) -> None:
        self._keep_constants = keep_constants
        self._held: tuple[Storage | None, ...] = ()
        self._weights: dict[Node, _Weight] = {}
        self._num_kept = len(keep)
        self._compile_for = compile_for
        outputs, names = (*graph.outputs, *keep.values()), (*graph.names, *keep)
        self._graph = rewrite(replace(graph, outputs=outputs, names=names), self._hollow)

    def __call__(
        self,
        target: str,
        params: Mapping[str, np.ndarray[Any, Any]],
        change: Change | None = None,
    ) -> Program:
        """The program for a target, with this data of params; PlanError if a weight is gone.

        With a `change`, that of what it makes of the graph.
        """
        given = {name: Storage(array) for name, array in params.items()}
        filled = rewrite(self._graph, lambda node: self._fill(node, given))
        first = len(filled.outputs) - self._num_kept
        keep = dict(zip(filled.names[first:], filled.outputs[first:], strict=True))
        graph = replace(filled, outputs=filled.outputs[:first], names=filled.names[:first])
        if change is not None:
            graph, became = change(graph)
            keep = {name: became[node] for name, node in keep.items()}
        return self._compile_for(graph, keep, target)

    def holding(self) -> GraphSource:
        """The same for a plan: with what it may hold."""
        made = copy.copy(self)
        made._held = tuple(w.storage() for w in self._weights.values() if w.is_held)
        return made

    def loose(self) -> GraphSource:
        """The same without data of its own."""
        made = copy.copy(self)
        made._held = ()
        return made

    def _hollow(self, node: Node) -> Node | None:
        storage = _data(node)
        if storage is None:
            return _with_bodies(node, self._hollow)
        kind, where = type(node.attrs), _DATA[node.op.name]
        rest = {f.name: getattr(node.attrs, f.name) for f in fields(kind) if f.name != where}
        nothing = Storage.missing(storage.array.shape, storage.array.dtype)
        hollow = make_node(node.op.name, (), kind(**{where: nothing}, **rest))
        self._weights[hollow] = _Weight(
            node.op.name,
            lambda data: kind(**{where: data}, **rest),
            (lambda: storage) if storage.is_missing else weakref.ref(storage),
            rest.get("name") or f"a constant {node.type}",
            self._is_held(node, storage),
        )
        return hollow

    def _is_held(self, node: Node, storage: Storage) -> bool:
        """Whether the data of a leaf is a plan's to hold: a param's may be replaced."""
        array = storage.array
        if storage.is_missing or node.op.name == "param":
            return False
        return self._keep_constants or array.nbytes <= _SMALL_BYTES or is_mapped(array)

    def _fill(self, node: Node, given: Mapping[str, Storage]) -> Node | None:
        weight = self._weights.get(node)
        if weight is None:
            return _with_bodies(node, lambda each: self._fill(each, given))
        storage, now = weight.storage(), given.get(weight.label) if weight.op == "param" else None
        if now is not None and (storage is None or storage.array is not now.array):
            storage = now  # else the same data: whoever else reads it shares what is made of it
        if storage is None:
            raise PlanError(
                "plan",
                f"weights must be there to be laid out once more; {weight.label} is gone.",
                hint="Hold the graph, or the tensors, that the plan was made from until then, or "
                "prepare with keep_params=True.",
            )
        return make_node(weight.op, (), weight.make(storage))


def fill_params(graph: Graph, given: Mapping[str, Storage]) -> Graph:
    """The graph with this data of params, by name; those in bodies too."""

    def rule(node: Node) -> Node | None:
        if node.op.name != "param":
            return _with_bodies(node, rule)
        name, old = node.attrs.name, node.attrs.storage.array
        new = given.get(name)
        if new is None:
            return None
        if new.array.shape != old.shape or new.array.dtype != old.dtype:
            raise ParamError(
                f"param '{name}'",
                f"was replaced by {new.array.dtype}{list(new.array.shape)}, and another param of "
                f"that name is {old.dtype}{list(old.shape)}.",
                hint="Give them names of their own.",
                name=name,
            )
        return make_node("param", (), replace(node.attrs, storage=new))

    return rewrite(graph, rule)


def _with_bodies(node: Node, rule: Callable[[Node], Node | None]) -> Node | None:
    """The node with bodies whose nodes the rule has changed."""
    attrs = map_bodies(node.attrs, lambda body: rewrite(body, rule))
    return None if attrs == node.attrs else make_node(node.op.name, node.inputs, attrs)


def _data(node: Node) -> Storage | None:
    """What a leaf was given."""
    found: Storage | None = getattr(node.attrs, _DATA.get(node.op.name, ""), None)
    return found
