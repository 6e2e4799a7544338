"""Params replaced: a program whose weights are those of other data.

    Program x {name: array}  --with_params-->  Program, and the weights that differ

Everything is checked, and every affected weight is made, before anything changes. Recipes run
again for exactly the values that read a given param, and wait as long as they read one that was
declared without data and is yet to be set. One that reads other params too needs their
data: it is there if rows read it as it is, if its file is mapped, or if the plan was prepared with
`keep_params=True`; otherwise those params must be set together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from semel.errors import InputError
from semel.ir.graph import Storage
from semel.plan.derive import Job, derive
from semel.plan.program import Program
from semel.plan.weights import Param, Recipe, Weight, needed_params, weight_store
from semel.runtime.buffer import as_array
from semel.runtime.interop import is_immutable, is_mapped
from semel.runtime.spare import spare_memory


def with_params(
    program: Program, given: Mapping[str, Any], threads: int
) -> tuple[Program, dict[int, Weight]]:
    """The program with these params, and its weights that changed, by value."""
    number = {param.name: i for i, param in enumerate(program.params)}
    for name in given:
        if name not in number:
            known = ", ".join(number) or "none"
            raise InputError("plan", f"has no param '{name}'; known: {known}.", name=name)
    # Data that plans share comes as a Storage, which nobody writes to.
    shared = {number[name]: data for name, data in given.items() if isinstance(data, Storage)}
    plain = {n: data.array if isinstance(data, Storage) else data for n, data in given.items()}
    arrays = {number[name]: _checked(program.params[number[name]], a) for name, a in plain.items()}
    missing = {i for i, p in enumerate(program.params) if p.is_missing} - arrays.keys()
    affected = [
        recipe
        for recipe in program.recipes
        if not arrays.keys().isdisjoint(recipe.params) and missing.isdisjoint(recipe.params)
    ]
    for recipe in affected:
        _check_sources(program.params, recipe, arrays.keys())
    held = needed_params(program.params, program.recipes)
    held |= {i for i, param in enumerate(program.params) if param.is_kept}
    storages = {
        i: shared.get(i) or Storage(_owned(array) if i in held else _lent(array))
        for i, array in arrays.items()
    }
    fresh = {i: weight_store.of_storage(storage) for i, storage in storages.items()}
    params = tuple(
        _replaced(param, storages[i].id, fresh[i]) if i in fresh else param
        for i, param in enumerate(program.params)
    )
    made = {
        index: _before(program, index).succeeded_by(weight)
        for index, weight in _derive(params, affected, threads).items()
    }
    params = _as_read(params, affected, made)
    values = list(program.values)
    for index, weight in made.items():
        values[index] = replace(values[index], weight=weight)
    params = without_spare_data(params, program.recipes)
    return replace(program, values=tuple(values), params=params), made


def without_spare_data(params: tuple[Param, ...], recipes: Iterable[Recipe]) -> tuple[Param, ...]:
    """The params, with data only where something needs it, it was asked for or costs no memory."""
    needed = needed_params(params, recipes)
    return tuple(
        param if i in needed else _without_spare_data(param) for i, param in enumerate(params)
    )


def _without_spare_data(param: Param) -> Param:
    if param.raw is None or param.is_kept or is_mapped(param.raw.array):
        return param
    return replace(param, raw=None)


def _derive(params: tuple[Param, ...], recipes: list[Recipe], threads: int) -> dict[int, Weight]:
    """The weights of these values."""
    jobs: dict[int, Job] = {}
    made: dict[int, Weight] = {}
    for recipe in recipes:
        sources = [_data(params, source) for source in recipe.sources]
        if recipe.formula is None:
            made[recipe.value] = sources[0]
        else:
            ids = tuple(params[s].id if isinstance(s, int) else s for s in recipe.sources)
            jobs[recipe.value] = Job(recipe.formula, recipe.sizes, tuple(sources), ids)
    return made | dict(zip(jobs, derive(list(jobs.values()), threads), strict=True))


def _before(program: Program, index: int) -> Weight:
    found = program.values[index].weight
    assert found is not None  # it is made by a recipe
    return found


def _as_read(
    params: tuple[Param, ...], recipes: list[Recipe], made: Mapping[int, Weight]
) -> tuple[Param, ...]:
    """The params; the data of one that rows read as it is lies where they read it."""
    read = {r.params[0]: made[r.value] for r in recipes if r.formula is None}
    return tuple(
        replace(param, raw=read[i]) if i in read and not param.is_kept else param
        for i, param in enumerate(params)
    )


def _data(params: tuple[Param, ...], source: int | Weight) -> Weight:
    found = params[source].raw if isinstance(source, int) else source
    assert found is not None  # `_check_sources` has seen to it
    return found


def _replaced(param: Param, id: int, weight: Weight) -> Param:
    return replace(param, version=param.version + 1, id=id, raw=weight, is_missing=False)


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


def _checked(param: Param, value: Any) -> np.ndarray[Any, Any]:
    """The array, if it is one of the param's type."""
    where = f"param '{param.name}'"
    array = as_array(value, param.type.dtype, where)
    if array.shape != param.type.shape:
        raise InputError(
            where,
            f"shape must be {param.type.shape}, got {array.shape}.",
            shape=array.shape,
        )
    return array


def _lent(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The caller's array itself, for data that is dropped once weights are made of it."""
    can_be_read = array.flags.c_contiguous and array.flags.aligned
    return array.view() if can_be_read else _owned(array)


def _owned(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A copy that nobody else has, unless nobody can change the array."""
    if is_immutable(array):
        return array
    made: np.ndarray[Any, Any] = spare_memory.empty(array.nbytes).view(array.dtype)
    made = made.reshape(array.shape)
    made[...] = array
    return made
