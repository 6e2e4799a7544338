"""One graph compiled for several ranges of sizes, each when it is first needed.

    BucketedCompileCache(build, power_of_two_ladder(8, 64), dim="n")  --run_padded(10, ...)--> 9..16

A bucket is a compiled graph whose memory is for the largest size of its range; a run of fewer rows
costs what these rows cost, and its results are those of a compile at exactly that size: nothing is
padded, so nothing has to be masked. All buckets have one set of params: data that is equal is held
once, and `set_param` reaches every bucket, those that are yet to be compiled included. They
have one state too: it moves, on the device, to the bucket that runs next.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import Any

import numpy as np

from semel.errors import GraphError, InputError
from semel.graph.builder import Dims, Graph
from semel.ir.fields import take, take_arrays, take_int, take_memory_limit
from semel.ir.graph import Storage
from semel.locks import make_lock
from semel.plan.param_files import choose_params, read_source
from semel.plan.table import Entry, Table
from semel.runtime.buffer import Array, as_array
from semel.session.compiled import CompiledGraph
from semel.session.outputs import Outputs, as_names
from semel.session.session import Session


def power_of_two_ladder(least: int, most: int) -> list[range]:
    """Ranges whose ends are powers of two, from 1 to `most` at least; the first holds `least`.

    No size is less than half of the largest of its range, but in the first one.

    >>> semel.power_of_two_ladder(8, 50)
    [range(1, 9), range(9, 17), range(17, 33), range(33, 65)]
    """
    low, high = (
        take_int("power_of_two_ladder", n, v) for n, v in (("least", least), ("most", most))
    )
    if low < 1 or high < low:
        raise InputError("power_of_two_ladder", f"needs 1 <= least <= most, got {low} and {high}.")
    top = 1 << (low - 1).bit_length()
    ranges = [range(1, top + 1)]
    while top < high:
        ranges.append(range(top + 1, 2 * top + 1))
        top *= 2
    return ranges


def pad_rows(array: Any, rows: int, axis: int = 0) -> Array:
    """A copy with zeros behind it, so that it has so many rows."""
    given = np.asarray(array)
    at, wanted = _axis_of("pad_rows", given, axis), take_int("pad_rows", "rows", rows)
    have = given.shape[at]
    if have > wanted:
        raise InputError(
            "pad_rows", f"must have at most {wanted} rows along axis {at}, got {have}."
        )
    padded = np.zeros((*given.shape[:at], wanted, *given.shape[at + 1 :]), given.dtype)
    padded[(*[slice(None)] * at, slice(have))] = given
    return padded


def slice_rows(array: Any, rows: int, axis: int = 0) -> Array:
    """Its first rows."""
    given = np.asarray(array)
    at, wanted = _axis_of("slice_rows", given, axis), take_int("slice_rows", "rows", rows)
    have = given.shape[at]
    if not 0 <= wanted <= have:
        raise InputError("slice_rows", f"rows must lie in [0, {have}], got {wanted}.")
    return given[(*[slice(None)] * at, slice(wanted))]


def _axis_of(where: str, array: Array, axis: int) -> int:
    """The axis, counted from the front."""
    at, rank = take_int(where, "axis", axis), array.ndim
    if not -rank <= at < rank:
        raise InputError(where, f"axis must be one of {rank}, got {at}.")
    return at % rank


class BucketedCompileCache:
    """Compiled graphs by ranges of sizes.

    `build(upper)` makes the graph for sizes up to `upper`; the dim called `dim` in it is the one
    that varies, and `dims` are bounds of others. `max_bytes` is for the memory of all buckets but
    their weights: beyond it, those that were not used for longest go. The other options are those
    of `Session.compile`.
    """

    def __init__(
        self,
        build: Callable[[int], Graph],
        ranges: Iterable[range],
        *,
        dim: str,
        session: Session | None = None,
        dims: Dims | None = None,
        max_bytes: int | None = None,
        **options: Any,
    ) -> None:
        self.ranges = _checked(ranges)
        self._build, self._dim = build, dim
        self._session = session or Session()
        self._max_bytes = take_memory_limit("BucketedCompileCache", max_bytes)
        self._dims, self._options = dict(dims or {}), options
        self._lock = make_lock()
        #: By the position of the range; those that were used last come last.
        self._buckets: OrderedDict[int, CompiledGraph] = OrderedDict()
        self._params: dict[str, Storage] = {}
        self._replaced: set[str] = set()  # params whose data is not that of the graphs
        self._latest: int | None = None  # where the state is
        self.compile_count = 0

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{r.start}..{r.stop - 1}{' compiled' if i in self._buckets else ''}"
            for i, r in enumerate(self.ranges)
        )
        return f"BucketedCompileCache({shown})"

    # ------------------------------------------------------------ buckets

    def upper(self, key: int) -> int | None:
        """The largest size of the bucket for `key`; None if there is none."""
        at = self._position(key)
        return None if at is None else self.ranges[at].stop - 1

    def bucket(self, key: int) -> CompiledGraph | None:
        """The compiled graph for a size, with the state in it; None if it is in no range."""
        at = self._position(key)
        if at is None:
            return None
        with self._lock:
            found = self._compiled(at)
            if self._latest is not None and self._latest != at:
                self._move_state(found)
            self._latest = at
            self._make_room()
            return found

    def warm(self, keys: Iterable[int] | None = None) -> None:
        """Compile the buckets of these sizes now, or all."""
        if keys is not None and not isinstance(keys, Iterable):
            raise InputError("warm", f"must be given sizes, got {type(keys).__name__}.")
        wanted = range(len(self.ranges)) if keys is None else [self._position(k) for k in keys]
        with self._lock:
            for at in wanted:
                if at is not None:
                    self._compiled(at)
                    self._make_room()

    @property
    def own_bytes(self) -> int:
        """Memory of all buckets but their weights."""
        return sum(c.plan.memory.own_bytes for c in self._buckets.values())

    def _position(self, key: int) -> int | None:
        size = take_int("BucketedCompileCache", "key", key)
        return next((i for i, sizes in enumerate(self.ranges) if size in sizes), None)

    def _compiled(self, at: int) -> CompiledGraph:
        found = self._buckets.get(at)
        if found is None:
            upper = self.ranges[at].stop - 1
            graph = self._build(upper)
            dims = {**self._dims, self._dim: (1, upper)}
            found = self._session.compile(graph, dims=dims, **self._options)
            self._share_params(graph, found)
            self._buckets[at] = found
            self.compile_count += 1
        self._buckets.move_to_end(at)
        return found

    def _move_state(self, to: CompiledGraph) -> None:
        source = self._buckets.get(self._latest if self._latest is not None else -1)
        if source is not None and len(source.states):
            to.copy_state_from(source)

    def _make_room(self) -> None:
        """Let the buckets go that were not used for longest, but not that which has the state."""
        while self._max_bytes is not None and self.own_bytes > self._max_bytes:
            if len(self._buckets) < 2:
                return
            del self._buckets[next(at for at in self._buckets if at != self._latest)]

    # ------------------------------------------------------------ params

    def set_param(self, name: str, data: Any) -> None:
        """Replace a param in all buckets, those that are yet to be compiled included."""
        self.set_params({take("set_param", "name", str, name): data})

    def set_params(self, arrays: Mapping[str, Any]) -> None:
        """Replace several params at once."""
        given = take_arrays("set_params", arrays)
        with self._lock:
            known = self._param_table()
            shared = {
                name: Storage(np.array(as_array(data, known[name].dtype, f"param '{name}'")))
                for name, data in given.items()
            }
            for compiled in self._buckets.values():
                compiled.set_params(shared)
            self._params.update(shared)
            self._replaced.update(shared)

    def load_params(
        self, source: Mapping[str, Any] | str | os.PathLike[str], *, strict: bool = True
    ) -> None:
        """Replace params by the arrays of a mapping or of a .safetensors file, in all buckets.

        As `CompiledGraph.load_params` does: all or none, and a ParamError says all that is wrong.
        """
        given, casting = read_source(source), self._options.get("casting", "exact")
        with self._lock:
            self.set_params(choose_params(self._param_table(), given, strict, casting))

    def _param_table(self) -> Table:
        """What params there are, and of what types: a bucket must be there to say so."""
        if not self._buckets:
            self._compiled(0)
        return next(iter(self._buckets.values())).params

    def _share_params(self, graph: Graph, compiled: CompiledGraph) -> None:
        """Let a new bucket read what the others read."""
        instead: dict[str, Storage] = {}
        for name, tensor in graph.params.items():
            own: Storage = tensor.node.attrs.storage
            shared = self._params.get(name)
            if shared is None:
                if not own.is_missing:
                    self._params[name] = own
            elif shared is not own:
                self._check_equal(name, own, shared)
                instead[name] = shared
        if instead:
            compiled.set_params(instead)

    def _check_equal(self, name: str, own: Storage, shared: Storage) -> None:
        is_free = own.is_missing or name in self._replaced
        if not is_free and not np.array_equal(own.array, shared.array, equal_nan=True):
            raise GraphError(
                f"param '{name}'",
                "must have the same data in the graphs of all sizes: buckets share it.",
                hint="Give what depends on the size as a constant, or under another name.",
            )

    # ------------------------------------------------------------ runs

    def run_padded(
        self,
        key: int,
        inputs: Mapping[str, Any],
        *,
        rows: int | None = None,
        whole: Iterable[str] = (),
    ) -> Outputs | None:
        """Run in the bucket of `key`; None, and nothing is built, if it is in no range.

        `rows` is how many there are (default: `key`), which inputs that have the dim must agree
        with. Outputs have as many; those in `whole` have the bucket's, with zeros behind.
        """
        upper, count = self.upper(key), key if rows is None else take_int("run", "rows", rows)
        if upper is None:
            return None
        if not 1 <= count <= upper:
            raise InputError("run_padded", f"rows must lie in [1, {upper}], got {count}.")
        with self._in_use(key) as compiled:
            self._check_rows(compiled, inputs, count)
            axes = {name: self._output_axis(compiled.outputs[name]) for name in as_names(whole)}
            out = compiled.run(inputs)
        if not axes:
            return out
        return type(out)(
            [pad_rows(a, upper, axes[name]) if name in axes else a for name, a in out.items()]
        )

    @contextmanager
    def _in_use(self, key: int) -> Iterator[CompiledGraph]:
        """The bucket of a size that there is; the state does not move on meanwhile."""
        with ExitStack() as until_then:
            with self._lock:
                compiled = self.bucket(key)
                assert compiled is not None  # since there is such a size
                if len(compiled.states):
                    until_then.enter_context(compiled.plan.lock)
            yield compiled

    def run_padded_mixed(
        self,
        key: int,
        inputs: Mapping[str, Any],
        others: Mapping[str, Any],
        *,
        rows: int | None = None,
        whole: Iterable[str] = (),
    ) -> Outputs | None:
        """Like `run_padded`; `others` are inputs that do not have the dim, which is checked."""
        given, beside = (take_arrays("run_padded_mixed", arrays) for arrays in (inputs, others))
        compiled = self.bucket(key)
        if compiled is not None:
            for name in beside:
                if self._axis(compiled.inputs[name].shape) is not None:
                    raise InputError(
                        f"input '{name}'", f"has the dim '{self._dim}': it belongs to `inputs`."
                    )
        return self.run_padded(key, {**given, **beside}, rows=rows, whole=whole)

    def _check_rows(self, compiled: CompiledGraph, inputs: Mapping[str, Any], rows: int) -> None:
        if not isinstance(inputs, Mapping):
            raise InputError("run_padded", f"takes inputs by name, got {type(inputs).__name__}.")
        for name, value in inputs.items():
            axis = self._axis(compiled.inputs[name].shape)
            shape = np.shape(value)
            if axis is not None and axis < len(shape) and shape[axis] != rows:
                raise InputError(
                    f"input '{name}'",
                    f"must have {rows} rows along axis {axis}, got {shape[axis]}.",
                    name=name,
                )

    def _output_axis(self, entry: Entry) -> int:
        """Where the dim is in an output that is wanted whole."""
        axis = self._axis(entry.shape)
        if axis is None:
            raise InputError(
                f"output '{entry.name}'",
                f"must have the dim '{self._dim}' to be whole, it is {entry}.",
                name=entry.name,
            )
        return axis

    def _axis(self, shape: Sequence[Any]) -> int | None:
        """Where the dim is in a shape, if it is there by itself."""
        return next((i for i, dim in enumerate(shape) if str(dim) == self._dim), None)


def _checked(ranges: Iterable[range]) -> tuple[range, ...]:
    where = "BucketedCompileCache"
    given: Any = ranges
    found = tuple(given) if isinstance(given, Iterable) else ()
    if not found:
        raise GraphError(where, f"needs at least one range of sizes, got {ranges!r:.60}.")
    for sizes in found:
        if not isinstance(sizes, range):
            raise GraphError(where, f"needs ranges of sizes, got {sizes!r:.60}.")
        if sizes.step != 1 or not sizes or sizes.start < 1:
            raise GraphError(
                where, f"ranges must be of sizes from 1 on, and not empty, got {sizes}."
            )
    for before, after in pairwise(found):
        if after.start < before.stop:
            raise GraphError(where, f"ranges must rise and not overlap, got {before} and {after}.")
    return found
