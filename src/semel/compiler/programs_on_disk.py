"""Programs that were compiled before, by any process of ours, found on disk.

    graph, request, device, target  --disk_key-->      key, or None: always compiled
    key, graph                      --find_on_disk-->  Program, or None
    key, program                    --keep_on_disk-->  the next process finds it

An entry is the file of the program's plan as if no param had data yet, and says of each value which
nodes it holds. So it is small, and what finds it takes the params from the graph at hand and
makes the weights that follow from them, as `set_param` does. Of constants the compiler looks at the
numbers: these are part of the key, and what was made of them is in the entry.

A program that is found is what compiling would have given, and counts as compiled: what lies on
a disk decides how long a prepare takes, and nothing else. Why this way:
docs/decisions/0182-programs-on-disk.md.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterator, Sequence
from dataclasses import replace

import ml_dtypes
import numpy as np

from semel.cache.kernels import default_cache
from semel.cache.key import sources_key, value_key
from semel.compiler.programs import Request
from semel.compiler.recipes import leaves_of, shared_formula
from semel.devices import find_backend
from semel.errors import SemelError
from semel.ir.graph import Graph, Storage, attr_bodies
from semel.ir.target import Target
from semel.plan.params import with_params
from semel.plan.pickled import pack_program, restore_program
from semel.plan.program import Program, ProgramValue
from semel.plan.weights import Weight
from semel.runtime.device import find_device
from semel.topics import Topic

MIN_NODES = (
    48  #: of a graph and its bodies; smaller ones are compiled sooner than they are looked for
)
MAX_CONSTANT_BYTES = 16 << 20  #: of all constants together
#: What programs depend on besides what kernels do.
SOURCES = (
    "cache",
    "compiler",
    "config.py",
    "devices",
    "loading.py",
    "ops",
    "passes",
    "plan",
    "runtime",
    "schedule",
    "topics.py",
    "version.py",
)
_LENGTH_BYTES = 8
_COMPILE = Topic("compile")


def disk_key(graph: Graph, request: Request, device: str, target: Target) -> str | None:
    """What a program is found by: the graph, the numbers of its constants, and all options."""
    if request.key is None or _num_nodes(graph) < MIN_NODES:
        return None
    constants = _constants(graph, request.form.storages)
    if sum(storage.array.nbytes for storage in constants) > MAX_CONSTANT_BYTES:
        return None
    name = value_key((request.form.key, request.how))
    if name is None:
        return None
    versions = (platform.python_version(), np.__version__, ml_dtypes.__version__)
    numbers = hashlib.sha256()
    for storage in constants:
        numbers.update(storage.array.reshape(-1).view(np.uint8).data)
    parts = (name, numbers.hexdigest(), sources_key(SOURCES), *versions)
    return find_backend(device).compiler(target).key("program", parts)


def find_on_disk(key: str, graph: Graph, ids: Sequence[int]) -> Program | None:
    """The program, for the nodes that `ids` are those of; an entry that is no good is removed."""
    data = default_cache().get_program(key)
    if data is None:
        return None
    try:
        program = _unpack(data, ids)
        given = {name: storage for name, storage in _params(graph) if not storage.is_missing}
        threads = find_device(program.device).default_threads()
        filled, _ = with_params(program, given, threads)
    except (SemelError, LookupError, TypeError, ValueError) as error:
        default_cache().discard_program(key, f"{error!r:.200}")
        return None
    _COMPILE("%s: found on disk", ", ".join(graph.names))
    return replace(filled, params=tuple(replace(param, version=0) for param in filled.params))


def keep_on_disk(key: str, program: Program, ids: Sequence[int]) -> None:
    """Let other processes find the program; if it cannot be written down, nobody does."""
    try:
        data = _pack(program, ids)
    except SemelError as error:
        _COMPILE("%s: not kept on disk: %s", program, error)
        return
    default_cache().put_program(key, data)


# ---------------------------------------------------------------- entries


def _pack(program: Program, ids: Sequence[int]) -> bytes:
    """A length, the nodes of each value as JSON, which a plan file does not know, and that file."""
    place = {id_: i for i, id_ in enumerate(ids)}
    nodes = [[place[i] for i in value.node_ids if i in place] for value in program.values]
    head = json.dumps(nodes, separators=(",", ":")).encode()
    return len(head).to_bytes(_LENGTH_BYTES, "little") + head + pack_program(_without_data(program))


def _unpack(data: bytes, ids: Sequence[int]) -> Program:
    start = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
    nodes: list[list[int]] = json.loads(data[_LENGTH_BYTES:start])
    program = restore_program(data[start:])
    values = tuple(
        replace(value, node_ids=tuple(ids[i] for i in places))
        for value, places in zip(program.values, nodes, strict=True)
    )
    named = {formula: shared_formula(formula) for formula in program.formulas}
    recipes = tuple(
        recipe if recipe.formula is None else replace(recipe, formula=named[recipe.formula])
        for recipe in program.recipes
    )
    return replace(program, values=values, recipes=recipes)


def _without_data(program: Program) -> Program:
    """The program as if nobody had set its params."""
    of_params = {recipe.value for recipe in program.recipes if recipe.params}
    values = (_absent(value) if i in of_params else value for i, value in enumerate(program.values))
    params = (replace(param, raw=None, is_missing=True) for param in program.params)
    return replace(program, values=tuple(values), params=tuple(params))


def _absent(value: ProgramValue) -> ProgramValue:
    return replace(value, weight=Weight.absent(value.type))


# ---------------------------------------------------------------- graphs


def _num_nodes(graph: Graph) -> int:
    """Those of loops and branches too."""
    bodies = (body for n in graph.nodes if n.op.has_bodies for body in attr_bodies(n.attrs))
    return len(graph.nodes) + sum(map(_num_nodes, bodies))


def _params(graph: Graph) -> Iterator[tuple[str, Storage]]:
    for node in leaves_of(graph, "param"):
        yield node.attrs.name, node.attrs.storage


def _constants(graph: Graph, storages: Sequence[Storage]) -> list[Storage]:
    """Those that the compiler may look into: all but what belongs to params alone."""
    params = {storage for _, storage in _params(graph)}
    others = _others(graph)
    return [storage for storage in storages if storage not in params or storage in others]


def _others(graph: Graph) -> set[Storage]:
    """The storages of constants, defaults and states."""
    found: set[Storage] = set()
    for op, where in (("constant", "storage"), ("input", "default"), ("state", "init")):
        nodes = leaves_of(graph, op)
        found.update(s for n in nodes if (s := getattr(n.attrs, where, None)) is not None)
    return found
