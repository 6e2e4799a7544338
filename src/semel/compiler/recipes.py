"""Stored leaves to weights, and to the recipes that make them.

    graph with stored leaves  --begin_weights-->  Recipes: the kernels that are to be compiled
    Recipes, their code       --Recipes.made-->   {leaf: Made: its weight, formula, sizes, sources}

The expression of a leaf is compiled like any graph, with its data as inputs and its sizes as
variables where that goes, so that weights of many shapes share one formula and few kernels are
compiled: a model's matrices are all packed by one. All leaves are made by one run, on all threads;
what another program holds already is not made again. The two halves are apart so that whoever
compiles the graph itself has its kernels compiled beside those of the recipes.

A size becomes a variable where it begins, in the shape of a source, and is followed through the
expression: a reshape that joins axes multiplies, one that splits an axis leaves the outer part
variable and the inner ones as numbers (the lanes of a panel), a pad or a slice begins a new one.
Where no such rule holds the sizes involved stay numbers, which is always right.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol
from weakref import WeakValueDictionary

from semel.cache.key import value_key
from semel.compiler.artefacts import Compiled
from semel.errors import InternalError
from semel.ir.expr import Dim, Variable, product, substitute, upper_bound, variables
from semel.ir.form import graph_form
from semel.ir.graph import Graph, Node, attr_bodies, make_node
from semel.ir.types import Shape, TensorType
from semel.locks import make_lock
from semel.lower.lowered import Lowered
from semel.ops.attrs import ExpandAttrs, InputAttrs, PadAttrs, ReshapeAttrs, SliceAttrs
from semel.ops.filled import filled
from semel.ops.stored import reads_params
from semel.plan.derive import Job, derive
from semel.plan.program import Program
from semel.plan.row import KernelNotes
from semel.plan.rows import PreparedKernel
from semel.plan.weights import Formula, Weight, weight_store

MAX_FORMULAS = 256  #: known at most; the latest used ones
MOST_SIZES = 4  #: of a formula that vary
MAX_ELEMENTS = 1 << 44  #: of a value at the most that they can be
_TOPS = (1 << 16, 1 << 14, 1 << 12, 1 << 10)  #: what each can be


class Begun(Protocol):
    """A formula up to its kernels, which are still to be compiled."""

    @property
    def kernels(self) -> tuple[Lowered, ...]:
        """What it needs."""

    def finish(self, compiled: Sequence[Compiled] | None) -> Program:
        """The program, of kernels as somebody compiled them; of None that it compiles itself."""


@dataclass(frozen=True, slots=True)
class FormulaCompiler:
    """Compiles graphs of inputs; `key` says how."""

    key: Hashable
    begin: Callable[[Graph], Begun]


@dataclass(frozen=True, slots=True)
class Made:
    """A stored leaf: `sources` are leaves, each a constant or a param."""

    weight: Weight
    formula: Formula
    sizes: Mapping[str, int]
    sources: tuple[Node, ...]


class Recipes:
    """All stored leaves of a graph, and the formulas that make them, begun where not known."""

    def __init__(
        self, graph: Graph, here: FormulaCompiler, there: FormulaCompiler | None = None
    ) -> None:
        self._leaves = _lift_all(dict.fromkeys(leaves_of(graph, "stored")))
        self._here, self._there = here, there
        self._begun: dict[Hashable, Begun] = {}
        self._formulas: dict[Hashable, Formula] = {}  # held, whatever others ask for meanwhile
        for each in self._leaves.values():
            key = _key(each.graph, here)
            if key in self._begun or key in self._formulas:
                continue
            formula = _find_formula(key)
            if formula is None:
                self._begun[key] = here.begin(each.graph)
            else:
                self._formulas[key] = formula

    @property
    def kernels(self) -> tuple[Lowered, ...]:
        """What must be compiled, for the machine that makes the weights."""
        return tuple(kernel for begun in self._begun.values() for kernel in begun.kernels)

    def made(self, compiled: Sequence[Compiled] | None) -> dict[Node, Made]:
        """Every leaf, made by `kernels` as they were compiled, or by None that are compiled here.

        Those of missing params are absent.

        Recipes that a program carries are for the machine that runs it, if that is another one.
        """
        done = 0
        for key, begun in self._begun.items():
            start, done = done, done + len(begun.kernels)
            own = None if compiled is None else compiled[start:done]
            self._formulas[key] = _keep_formula(key, begun.finish(own))
        jobs: dict[Node, Job] = {}
        for leaf, each in self._leaves.items():
            storages = [node.attrs.storage for node in each.sources]
            if not any(storage.is_missing for storage in storages):
                weights = tuple(weight_store.of_storage(storage) for storage in storages)
                ids = tuple(storage.id for storage in storages)
                jobs[leaf] = Job(self._formula(each.graph, self._here), each.sizes, weights, ids)
        weight_of = dict(zip(jobs, derive(list(jobs.values())), strict=True))
        made: dict[Node, Made] = {}
        for leaf, each in self._leaves.items():
            is_there = self._there is not None and reads_params(leaf)
            compiler = self._there if self._there is not None and is_there else self._here
            formula = self._formula(each.graph, compiler)
            weight = weight_of.get(leaf) or Weight.absent(leaf.type)
            made[leaf] = Made(weight, formula, each.sizes, each.sources)
        return made

    def _formula(self, graph: Graph, compiler: FormulaCompiler) -> Formula:
        key = _key(graph, compiler)
        formula = self._formulas.get(key) or _find_formula(key)
        if formula is None:
            formula = _keep_formula(key, compiler.begin(graph).finish(None))
        self._formulas[key] = formula
        return formula


def leaves_of(graph: Graph, op: str) -> Iterator[Node]:
    """The leaves of that name, in order, those in bodies and in what is stored too."""
    if op not in graph.ops and not graph.has_bodies and "stored" not in graph.ops:
        return
    for node in graph.nodes:
        if node.op.name == op:
            yield node
        for body in attr_bodies(node.attrs):
            yield from leaves_of(body, op)


# ---------------------------------------------------------------- formulas

_formulas: OrderedDict[Hashable, Formula] = OrderedDict()
#: Those that have a name, as long as somebody holds them.
_named: WeakValueDictionary[str, Formula] = WeakValueDictionary()
_lock = make_lock()


def _key(graph: Graph, compiler: FormulaCompiler) -> Hashable:
    return (graph_form(graph).key, compiler.key)


def _find_formula(key: Hashable) -> Formula | None:
    """The formula of this key, if somebody made it."""
    with _lock:
        formula = _formulas.get(key)
    formula = formula or _named.get(value_key(key) or "")
    return formula and _remember(key, formula)


def _keep_formula(key: Hashable, program: Program) -> Formula:
    """The formula that a program is; another's, where somebody was quicker."""
    made = replace(_formula(program), name=value_key(key) or "")
    return _remember(key, shared_formula(made))


def _remember(key: Hashable, formula: Formula) -> Formula:
    with _lock:
        formula = _formulas.setdefault(key, formula)
        _formulas.move_to_end(key)
        while len(_formulas) > MAX_FORMULAS:
            _formulas.popitem(last=False)
    return formula


def shared_formula(formula: Formula) -> Formula:
    """The one of this name that somebody holds, so that what it makes is made once; or this one."""
    if not formula.name:
        return formula
    with _lock:
        return _named.setdefault(formula.name, formula)


def _formula(program: Program) -> Formula:
    """The rows of a program, its inputs first among the values and then its result."""
    named = [*(io.index for io in program.inputs), *program.results]
    order = dict.fromkeys((*named, *range(len(program.values))))
    number = {old: new for new, old in enumerate(order)}
    rows: list[PreparedKernel] = []
    for row in program.rows:
        if not isinstance(row, PreparedKernel):
            raise InternalError("recipe", f"must consist of kernels, got {row.kind}.")
        indices = tuple(number[i] for i in row.buffer_indices)
        rows.append(replace(row, ast=(), buffer_indices=indices, notes=KernelNotes()))
    if any(value.weight is not None for value in program.values):
        raise InternalError("recipe", "must have no data of its own.")
    return Formula(tuple(rows), tuple(program.values[i].type for i in order), len(program.inputs))


# ---------------------------------------------------------------- sizes


@dataclass(frozen=True, slots=True)
class Lifted:
    """A graph whose data are inputs, in the order of `sources`, and the sizes that it is run at."""

    graph: Graph
    sizes: dict[str, int]
    sources: tuple[Node, ...]


def _lift_all(leaves: Iterable[Node]) -> dict[Node, Lifted]:
    """Every leaf with its sizes as variables; expressions of one form are lifted once."""
    known: dict[Hashable, Lifted] = {}
    found: dict[Node, Lifted] = {}
    for leaf in leaves:
        value: Graph = leaf.attrs.value
        key = graph_form(value).key
        if key not in known:
            known[key] = lift_sizes(value)
        found[leaf] = replace(known[key], sources=_sources(value))
    return found


def _sources(value: Graph) -> tuple[Node, ...]:
    """The data that a stored value is computed from."""
    return tuple(n for n in value.nodes if n.op.name in ("constant", "param"))


def lift_sizes(value: Graph) -> Lifted:
    """The graph with its data as inputs and its sizes as variables."""
    sources = _sources(value)
    read = _read_as(value)
    sizes = _Sizes()
    shapes: dict[Node, Shape] = {}
    for node in value.nodes:
        if node in sources:
            shapes[node] = sizes.begin(read.get(node, node).type.shape)
        elif node in read.values():
            shapes[node] = shapes[node.inputs[0]]
        else:
            shapes[node] = sizes.follow(node, [shapes[n] for n in node.inputs])
    names = sizes.names(shapes[n] for n in (*sources, *value.nodes))
    shapes = {
        node: tuple(substitute(sizes.now(d), names) for d in shape)
        for node, shape in shapes.items()
    }
    new: dict[Node, Node] = {}
    for place, node in enumerate(sources):
        kind = TensorType(shapes[node], node.type.dtype)
        new[node] = make_node("input", (), InputAttrs(f"data{place}", kind))
    for node in value.nodes:
        if node in read.values():
            new[node] = new[node.inputs[0]]
        elif node.op.is_literal:
            new[node] = filled(node.attrs.value, node.attrs.dtype, shapes[node])
        elif node not in new:
            operands = [new[n] for n in node.inputs]
            attrs = _attrs(node, shapes[node], [shapes[n] for n in node.inputs])
            new[node] = make_node(node.op.name, operands, attrs)
    graph = Graph((new[value.outputs[0]],), ("value",))
    numbers = {variable.name: sizes.number(old) for old, variable in names.items()}
    return Lifted(graph, numbers, sources)


def _read_as(value: Graph) -> dict[Node, Node]:
    """Sources that are only read in another shape, and what gives it: they can have it at once."""
    readers: dict[Node, list[Node]] = {}
    for node in value.nodes:
        for operand in node.inputs:
            readers.setdefault(operand, []).append(node)
    return {
        node: found[0]
        for node, found in readers.items()
        if node.op.name in ("constant", "param")
        and len(found) == 1
        and found[0].op.name == "reshape"
    }


def _attrs(node: Node, shape: Shape, below: Sequence[Shape]) -> object:
    """The attributes of a node of this shape."""
    attrs = node.attrs
    match node.op.name:
        case "reshape":
            return ReshapeAttrs(shape)
        case "expand":
            return ExpandAttrs(shape)
        case "slice":
            return SliceAttrs(attrs.starts, shape, attrs.steps)
        case "pad":
            rows = zip(shape, below[0], attrs.before, strict=True)
            return PadAttrs(attrs.before, tuple(size - old - before for size, old, before in rows))
    return attrs


class _Sizes:
    """Sizes as expressions over variables; what turns out to be equal is made equal."""

    def __init__(self) -> None:
        self._numbers: dict[Variable, int] = {}
        self._became: dict[Variable, Dim] = {}

    def number(self, variable: Variable) -> int:
        """What a variable stands for."""
        return self._numbers[variable]

    def names(self, shapes: Iterable[Shape]) -> dict[Variable, Variable]:
        """What is left of the variables, by order of appearance, so that equal formulas are equal.

        They are few and have a maximum, so that bytes can be counted with for all of their values;
        others stay numbers, the small ones (the sizes of a convolution's window) first.
        """
        every = list(shapes)
        dims = [dim for shape in every for dim in shape]
        found = dict.fromkeys(v for dim in dims for v in variables(self.now(dim)))
        falling = sorted(found, key=self.number, reverse=True)
        for top in _TOPS:
            few = [v for v in falling if self.number(v) <= top][:MOST_SIZES]
            self._fix([v for v in found if v not in few])
            left = [v for v in found if v in few]
            names = {variable: Variable(f"n{i}", 1, top) for i, variable in enumerate(left)}
            counts = [substitute(self.now(product(shape)), names) for shape in every]
            if all((upper_bound(count) or 0) <= MAX_ELEMENTS for count in counts):
                return names
        self._fix(list(found))
        return {}

    def now(self, dim: Dim) -> Dim:
        """The expression, with all that is known of its variables."""
        while any(v in self._became for v in variables(dim)):
            dim = substitute(dim, self._became)
        return dim

    def follow(self, node: Node, below: list[Shape]) -> Shape:
        """The shape of a node over operands of these shapes."""
        fixed: Shape = node.type.shape
        match node.op.name:
            case "scalar":
                return self.begin(fixed)
            case "reshape":
                return self._reshaped(node.inputs[0].type.shape, below[0], fixed)
            case "permute":
                return tuple(below[0][axis] for axis in node.attrs.axes)
            case "pad":
                # The last axis may be padded by nothing, and is another size all the same.
                return (*self._changed(node, below[0])[:-1], *map(self._begin, fixed[-1:]))
            case "concat":
                return self._joined(node.attrs.axis, below)
            case "expand" | "slice":
                return self._changed(node, below[0])
        match node.op.kind:
            case "elementwise" if node.op.is_pointwise and below:
                for other in below[1:]:
                    self._equal(below[0], other)
                return below[0]
            case "reduce":
                kept = zip(node.inputs[0].type.shape, below[0], fixed, strict=True)
                return tuple(dim if old == new else new for old, dim, new in kept)
        for shape in below:
            self._fix(shape)
        return fixed

    def begin(self, shape: Shape) -> Shape:
        """The shape of a source."""
        return tuple(self._begin(size) for size in shape)

    def _joined(self, axis: int, below: Sequence[Shape]) -> Shape:
        """Shapes side by side along an axis."""
        for other in below[1:]:
            self._equal(*(shape[:axis] + shape[axis + 1 :] for shape in (below[0], other)))
        total = sum((shape[axis] for shape in below[1:]), below[0][axis])
        return (*below[0][:axis], total, *below[0][axis + 1 :])

    def _changed(self, node: Node, dims: Shape) -> Shape:
        """`dims`, and new sizes where the node has others than its operand."""
        rows = zip(node.inputs[0].type.shape, dims, node.type.shape, strict=True)
        return tuple(dim if old == new else self._begin(new) for old, dim, new in rows)

    def _begin(self, size: Dim) -> Dim:
        if not isinstance(size, int):
            raise InternalError("recipe", f"sizes must be numbers, got {size}.")
        if size <= 1:
            return size
        variable = Variable(f"size{len(self._numbers)}", 1)
        self._numbers[variable] = size
        return variable

    def _equal(self, a: Shape, b: Shape) -> None:
        for left, right in zip(a, b, strict=True):
            x, y = self.now(left), self.now(right)
            if x == y:
                continue
            if isinstance(x, Variable) and x not in variables(y):
                self._became[x] = y
            elif isinstance(y, Variable) and y not in variables(x):
                self._became[y] = x
            else:
                self._fix((x, y))

    def _fix(self, dims: Sequence[Dim]) -> None:
        """Let sizes be the numbers that they are."""
        for variable in (v for dim in dims for v in variables(self.now(dim))):
            self._became[variable] = self._numbers[variable]

    def _reshaped(self, before: Shape, dims: Shape, after: Shape) -> Shape:
        """`dims`, which are `before` as numbers, in the shape that `after` is as numbers."""
        if 0 in before:
            self._fix(dims)
            return after
        result: list[Dim] = []
        for old, new in _groups(_numbers(before), _numbers(after)):
            inside = [dims[i] for i in old if before[i] != 1]
            wanted = [i for i in new if after[i] != 1]
            sizes = dict(zip(wanted, self._cut(inside, [after[i] for i in wanted]), strict=True))
            result += [sizes.get(i, 1) for i in new]
        return tuple(result)

    def _cut(self, inside: Sequence[Dim], after: Sequence[Dim]) -> Sequence[Dim]:
        """Axes of the sizes that `after` are as numbers, with the elements of `inside`."""
        if len(after) == 1:
            return [product(inside)]
        whole = self.now(inside[0]) if len(inside) == 1 else 0
        if isinstance(whole, Variable):
            outer = self._begin(after[0])
            self._became[whole] = outer * product(after[1:])
            return [outer, *after[1:]]
        self._fix(inside)
        return after


def _numbers(shape: Shape) -> list[int]:
    return [int(size) for size in shape]  # type: ignore[arg-type]  # what is stored has fixed sizes


def _groups(before: Sequence[int], after: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """Axes of both shapes in the smallest groups of as many elements; the last are of size 1."""
    i = j = 0
    while i < len(before) and j < len(after):
        old, new, left, right = [i], [j], before[i], after[j]
        i, j = i + 1, j + 1
        while left != right:
            if left < right:
                left, i = left * before[i], i + 1
                old.append(i - 1)
            else:
                right, j = right * after[j], j + 1
                new.append(j - 1)
        yield old, new
    yield list(range(i, len(before))), list(range(j, len(after)))
