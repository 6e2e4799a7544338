"""Params replaced: a program whose weights are those of other data.

    Program x {name: array}  --with_params-->  Program, and the weights that differ

Everything is checked, and every affected weight is made, before anything changes. Recipes run
again for exactly the values that read a given param, and wait as long as they read one that was
declared without data and is yet to be set. One that reads other params too needs their
data: it is there if rows read it as it is, if its file is mapped, or if the plan was prepared with
`keep_params=True`; otherwise those params must be set together.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from semel.errors import InputError
from semel.ir.graph import Storage
from semel.plan.derive import Job, derive
from semel.plan.program import Program
from semel.plan.weights import (
    Param,
    Recipe,
    Weight,
    missing_data,
    needed_params,
    weight_store,
)
from semel.runtime.buffer import as_array_of
from semel.runtime.interop import is_immutable, is_mapped
from semel.runtime.spare import spare_memory

#: Less is found in the cache wherever it lies: to look for memory that waits would cost more.
SPARE_FROM_BYTES = 1 << 14


@dataclass(slots=True)
class _Data:
    """What a param is from now on, and how it is known to the store of weights."""

    id: int
    weight: Weight


def with_params(
    program: Program, given: Mapping[str, Any], threads: int
) -> tuple[Program, dict[int, Weight]]:
    """The program with these params, and its weights that changed, by value."""
    old = program.params
    arrays = _checked_all(old, given)
    missing = missing_data(old) - arrays.keys()
    affected = [
        recipe
        for recipe in program.recipes
        if not arrays.keys().isdisjoint(recipe.params) and missing.isdisjoint(recipe.params)
    ]
    for recipe in affected:
        _check_sources(old, recipe, arrays.keys())
    needed = needed_params(missing, program.recipes)
    data = {i: _taken(array, i in needed or old[i].is_kept) for i, array in arrays.items()}
    made = {
        index: _before(program, index).succeeded_by(weight)
        for index, weight in _derive(old, data, affected, threads).items()
    }
    for recipe in affected:
        if recipe.formula is None and not old[recipe.params[0]].is_kept:
            # It lies where rows read it as it is.
            data[recipe.params[0]].weight = made[recipe.value]
    params = tuple(
        _replaced(param, data[i], i in needed) if i in data else _without_spare(param, i in needed)
        for i, param in enumerate(old)
    )
    values = list(program.values)
    for index, weight in made.items():
        values[index] = replace(values[index], weight=weight)
    return replace(program, values=tuple(values), params=params), made


def _checked_all(
    params: tuple[Param, ...], given: Mapping[str, Any]
) -> dict[int, Storage | np.ndarray[Any, Any]]:
    """What is given, by number; data that plans share is a Storage, which nobody writes to."""
    number = {param.name: i for i, param in enumerate(params)}
    for name in given:
        if name not in number:
            known = ", ".join(number) or "none"
            raise InputError("plan", f"has no param '{name}'; known: {known}.", name=name)
    found: dict[int, Storage | np.ndarray[Any, Any]] = {}
    for name, data in given.items():
        i, is_shared = number[name], isinstance(data, Storage)
        kind, value = params[i].type, data.array if is_shared else data
        array = as_array_of(value, kind.dtype, kind.shape, f"param '{name}'")
        found[i] = data if is_shared else array
    return found


def _taken(given: Storage | np.ndarray[Any, Any], is_held: bool) -> _Data:
    """The data of a param; what nobody shares is not looked for either."""
    if isinstance(given, Storage):
        return _Data(given.id, weight_store.of_storage(given))
    storage = Storage(_owned(given) if is_held else _lent(given))
    return _Data(storage.id, Weight(storage.array))


def without_spare_data(params: tuple[Param, ...], recipes: Iterable[Recipe]) -> tuple[Param, ...]:
    """The params, with data only where something needs it, it was asked for or costs no memory."""
    needed = needed_params(missing_data(params), recipes)
    return tuple(_without_spare(param, i in needed) for i, param in enumerate(params))


def _replaced(param: Param, data: _Data, is_needed: bool) -> Param:
    raw = _held(param, data.weight, is_needed)
    return Param(param.name, param.type, param.version + 1, data.id, raw, param.is_kept)


def _without_spare(param: Param, is_needed: bool) -> Param:
    raw = None if param.raw is None else _held(param, param.raw, is_needed)
    return param if raw is param.raw else replace(param, raw=raw)


def _held(param: Param, raw: Weight, is_needed: bool) -> Weight | None:
    """The data of a param, if it is to be held."""
    return raw if is_needed or param.is_kept or is_mapped(raw.array) else None


def _derive(
    params: tuple[Param, ...], data: Mapping[int, _Data], recipes: list[Recipe], threads: int
) -> dict[int, Weight]:
    """The weights of these values, from new data and from what other params hold."""

    def source(it: int | Weight) -> Weight:
        if isinstance(it, Weight):
            return it
        found = data[it].weight if it in data else params[it].raw
        assert found is not None  # `_check_sources` has seen to it
        return found

    def name(it: int | Weight) -> Hashable:
        return it if isinstance(it, Weight) else data[it].id if it in data else params[it].id

    jobs: dict[int, Job] = {}
    made: dict[int, Weight] = {}
    for recipe in recipes:
        sources = tuple(source(it) for it in recipe.sources)
        if recipe.formula is None:
            made[recipe.value] = sources[0]
        else:
            ids = tuple(name(it) for it in recipe.sources)
            jobs[recipe.value] = Job(recipe.formula, recipe.sizes, sources, ids)
    return made | dict(zip(jobs, derive(list(jobs.values()), threads), strict=True))


def _before(program: Program, index: int) -> Weight:
    found = program.values[index].weight
    assert found is not None  # it is made by a recipe
    return found


def _check_sources(params: tuple[Param, ...], recipe: Recipe, given: Any) -> None:
    """What a recipe reads must be given, or be there."""
    together = [params[i].name for i in dict.fromkeys(recipe.params)]
    gone = [params[i].name for i in recipe.params if i not in given and params[i].raw is None]
    if gone:
        raise InputError(
            f"param '{next(params[i].name for i in recipe.params if i in given)}'",
            f"must be set together with {', '.join(map(repr, gone))}: a weight is made from all of "
            f"{', '.join(map(repr, together))}, and their data is not held any more.",
            hint="plan.set_params({...}) sets several; prepare(keep_params=True) holds their data.",
            together=together,
        )


def _lent(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The caller's array itself, for data that is dropped once weights are made of it."""
    can_be_read = array.flags.c_contiguous and array.flags.aligned
    return array.view() if can_be_read else _owned(array)


def _owned(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A copy that nobody else has, unless nobody can change the array."""
    if is_immutable(array):
        return array
    if array.nbytes < SPARE_FROM_BYTES:
        return array.copy()
    made: np.ndarray[Any, Any] = spare_memory.empty(array.nbytes).view(array.dtype)
    made = made.reshape(array.shape)
    made[...] = array
    return made
