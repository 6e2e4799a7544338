"""Weights: the data of a program, and how what it reads is made from what its owner gives.

    params, constants  --Recipe-->  Weight: sealed bytes, where rows read them

A program reads its weights in formulas that suit its kernels: packed, cast, folded. A `Recipe` says
how one value of place "param" follows from params and constants: by the kernels of a `Formula`,
whose sizes are variables, so that weights of many shapes share one. A recipe without a formula is
the param as it was given. All of it is plain data: a plan file holds it, and `plan.derive` runs it.

There is one store of the process: a weight is found again, by what it was made from and how, as
long as some program holds it. So plans, clones and programs that read the same data in the same
formula hold it once, and nobody has to say when it goes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakValueDictionary

import numpy as np

from semel.errors import PlanError
from semel.ir.expr import evaluate
from semel.ir.graph import Storage
from semel.ir.types import TensorType, as_dtype
from semel.locks import make_lock
from semel.runtime.allocator import ALIGNMENT_BYTES, HostMemory
from semel.runtime.device import Device
from semel.runtime.memory import Memory

if TYPE_CHECKING:
    from semel.plan.program import Program
    from semel.plan.rows import PreparedKernel

Array: TypeAlias = "np.ndarray[Any, Any]"


class Weight:
    """A sealed array, and where it lies on the devices that read it. Identity is the object's.

    One that `is_absent` follows from params that are yet to be set: it has a type and a place, and
    no run reads it.
    """

    __slots__ = ("__weakref__", "_memory", "array", "is_absent")

    def __init__(self, array: Array, memory: HostMemory | None = None) -> None:
        """`memory` are the array's bytes, if somebody has them as memory of the host."""
        self.is_absent = False
        self.array = array
        self.array.flags.writeable = False
        self._memory: dict[str, Memory] = {}
        if memory is not None:
            self._memory[HOST] = memory

    @classmethod
    def absent(cls, kind: TensorType) -> Weight:
        """The place of a weight that cannot be made yet; it takes no memory that anyone touches."""
        shape = tuple(int(dim) for dim in kind.shape)  # type: ignore[arg-type]
        made = cls(np.broadcast_to(np.zeros((), kind.dtype.numpy), shape))
        made.is_absent = True
        return made

    def __repr__(self) -> str:
        return f"Weight({self.array.dtype}{list(self.array.shape)})"

    @property
    def size_bytes(self) -> int:
        return self.array.nbytes

    @property
    def held_bytes(self) -> int:
        """What of it is in memory now."""
        return self.size_bytes

    def succeeded_by(self, weight: Weight) -> Weight:
        """What to read in the place of this one, if `weight` replaces it."""
        return weight

    def on(self, device: Device) -> Memory:
        """Where the device reads it: on the host, the array itself.

        Only what is too small for a kernel to read safely is copied.
        """
        key = HOST if device.is_host else device.name
        found = self._memory.get(key)
        return found or self._memory.setdefault(key, self._placed(device))

    def _placed(self, device: Device) -> Memory:
        array = self.array
        if self.is_absent:
            return device.allocate(array.nbytes, mapped=True)
        is_large = array.nbytes >= ALIGNMENT_BYTES
        if device.is_host and is_large and array.flags.c_contiguous and array.flags.aligned:
            return HostMemory.over(array.reshape(-1).view(np.uint8))
        memory = device.allocate(array.nbytes)
        memory.copy_in(0, array)
        memory.seal()
        return memory


#: The key of memory that every device of the host reads.
HOST = "host"


# ---------------------------------------------------------------- recipes


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Formula:
    """Kernel calls from sources to a result, for all sizes.

    `types` are those of all values: `num_sources` sources, the result, then what is in between.
    `name`, if it has one, says what is computed and how, in words of no process.
    """

    rows: tuple[PreparedKernel, ...]
    types: tuple[TensorType, ...]
    num_sources: int
    name: str = ""

    def types_at(self, sizes: Mapping[str, int]) -> tuple[TensorType, ...]:
        """The types of the values at these sizes."""
        return tuple(
            TensorType(tuple(evaluate(d, sizes) for d in kind.shape), kind.dtype)
            for kind in self.types
        )


#: The number of a param, or data that nobody replaces.
Source: TypeAlias = "int | Weight"


@dataclass(frozen=True, eq=False, slots=True)
class Recipe:
    """How the value `value` of a program is made. Without a formula it is its only source."""

    value: int
    sources: tuple[Source, ...]
    formula: Formula | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    #: The numbers of the params among its sources; asked of all recipes when one param changes.
    params: tuple[int, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "params", tuple(s for s in self.sources if isinstance(s, int)))


def fixed_rows(formula: Formula | None, sizes: Mapping[str, int]) -> tuple[PreparedKernel, ...]:
    """The rows of a recipe, for its sizes."""
    rows = () if formula is None else formula.rows
    return tuple(
        replace(row, fixedvars={v.name: sizes[v.name] for v in row.runtime_vars}) for row in rows
    )


@dataclass(frozen=True, slots=True)
class Param:
    """A param of a program. `version` counts how often its data was replaced.

    `id` names the data. The data itself is `raw`, as long as something needs it: rows that read it
    as it is, or recipes of several sources that were asked for (`is_kept`) or whose file is mapped.
    One that `is_missing` was declared without data, and nobody has set it yet.
    """

    name: str
    type: TensorType
    version: int = 0
    id: Hashable = field(default_factory=object, repr=False)
    raw: Weight | None = field(default=None, repr=False)
    is_kept: bool = field(default=False, repr=False)
    is_missing: bool = False


def missing_data(params: Sequence[Param]) -> set[int]:
    """The numbers of the params that nobody has set yet."""
    return {i for i, param in enumerate(params) if param.is_missing}


def needed_params(missing: set[int], recipes: Iterable[Recipe]) -> set[int]:
    """The params whose data must be held: rows read it, or a recipe waits for a `missing` one."""
    needed: set[int] = set()
    for recipe in recipes:
        if recipe.formula is None or not missing.isdisjoint(recipe.params):
            needed.update(recipe.params)
    return needed


def check_recipes(program: Program) -> None:
    """Every value of place "param" has one recipe, whose types fit."""
    values = program.values
    wanted = {i for i, value in enumerate(values) if value.place == "param"}
    made = [recipe.value for recipe in program.recipes]
    if wanted != set(made) or len(wanted) != len(made):
        raise PlanError("program", "every param value must have one recipe, and nothing else.")
    for recipe in program.recipes:
        value = values[recipe.value]
        _check_recipe(value.name, value.type, program.params, recipe)
        is_missing = any(program.params[i].is_missing for i in recipe.params)
        if value.weight is None or value.weight.is_absent != is_missing:
            raise PlanError(
                value.name, "must have data unless a param that it is made of has none."
            )


def _check_recipe(name: str, kind: TensorType, params: Sequence[Param], recipe: Recipe) -> None:
    if not all(0 <= number < len(params) for number in recipe.params):
        raise PlanError(name, f"its recipe must read params that there are, got {recipe.params}.")
    given = tuple(_source_type(source, params) for source in recipe.sources)
    if recipe.formula is None:
        if given != (kind,) or not recipe.params:
            raise PlanError(name, f"must be the param itself, {kind}, got {list(map(str, given))}.")
        return
    formula = recipe.formula
    types = formula.types_at(recipe.sizes)
    count = len(given)
    is_right = formula.num_sources == count and types[count : count + 1] == (kind,)
    if not is_right or not all(map(_same_data, types[:count], given)):
        raise PlanError(
            name, f"its recipe must make {kind} of {list(map(str, given))}, got other types."
        )
    for row in formula.rows:
        if not all(0 <= index < len(types) for index in row.buffer_indices):
            raise PlanError(name, f"its recipe must use its own values, got {row.buffer_indices}.")
        written = {row.buffer_indices[i] for i in row.output_indices}
        if any(index < formula.num_sources for index in written):
            raise PlanError(name, "its recipe must not write what it reads.")


def _same_data(a: TensorType, b: TensorType) -> bool:
    """Whether the elements of one can be read as those of the other; shapes may differ."""
    return a.dtype == b.dtype and a.num_elements == b.num_elements


def _source_type(source: Source, params: Sequence[Param]) -> TensorType:
    if isinstance(source, int):
        return params[source].type
    return TensorType(source.array.shape, as_dtype(source.array.dtype, "recipe"))


# ---------------------------------------------------------------- the store


class WeightStore:
    """Weights by what they were made from and how, as long as somebody holds them."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[Hashable, Weight] = WeakValueDictionary()
        self._lock = make_lock()

    def __len__(self) -> int:
        """How many weights somebody holds."""
        return len(self._known)

    def find(self, key: Hashable) -> Weight | None:
        """The weight, if somebody holds it."""
        with self._lock:
            return self._known.get(key)

    def add(self, key: Hashable, weight: Weight) -> Weight:
        """Let others find a weight; the one to use, which another thread may have added before."""
        with self._lock:
            return self._known.setdefault(key, weight)

    def of_storage(self, storage: Storage) -> Weight:
        """The data of a constant or a param as it is."""
        found = self.find(storage.id)
        if found is None:
            made = Weight(storage.array)
            made.is_absent = storage.is_missing
            found = self.add(storage.id, made)
        return found


weight_store = WeightStore()


def recipe_key(formula: Formula, sizes: Mapping[str, int], ids: Iterable[Hashable]) -> Hashable:
    """What a derived weight is known by: how it is made, and the data that it is made of."""
    return (formula, tuple(sorted(sizes.items())), tuple(ids))
