"""Reductions over windows: several places at once, and no test where none can fail.

    loops (rows..., place, channel) around { acc = 0; for tap: acc += f(place, tap); store }
    -->
    for row: { blocks of 4 places, an accumulator each, those at the ends for themselves }

A depthwise convolution or a pool does little with what it loads. Neighbouring places read
the same filters and mostly the same elements: four of them, tap by tap, load half as often,
and four sums are under way where one would wait for itself. Padding is a test at every tap. Where
it asks for the row, the taps it holds for are a run: they are a loop of their own, between those
above and below the data, which load nothing (`_Run`). Where it asks for the place, all places but
some at the ends of a row lie inside, and are not asked. Where that is follows from the tests
themselves (`_inside`), for symbolic sizes too. The first and the last block of a row stand where
padding is known (`_Fours`); rows too short for that are asked place by place.

Every place adds its taps in the order it had, so that nothing changes by a bit.

One idea: a row of places in its forms, which must add in one order, so that they are read beside
each other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

from semel.ir.expr import (
    Dim,
    Index,
    atoms,
    bounds,
    ceildiv,
    floordiv,
    linear_coefficient,
    maximum,
    minimum,
    product,
    substitute,
    upper_bound,
)
from semel.ir.target import Target
from semel.ir.types import BOOL
from semel.kernel import ir
from semel.kernel.conditions import assume
from semel.kernel.ir import (
    Local,
    Statement,
    Value,
    statement_values,
    walk_statements,
    walk_values,
)
from semel.kernel.rewrite import ValueMap, map_statements, substitute_indices
from semel.lower.lowered import Names, split_rows
from semel.lower.window_tiles import cut_windows

#: Places at once: more accumulators, filters and elements than this do not fit the registers.
PLACES = 4
#: Loops of so few vectors are not worth code for their ends.
SHORT_RUN = 2
_TRUE = ir.const(BOOL, True)


@dataclass
class _Inside:
    """Where the tests of a body surely hold: [low, high) of each loop, and the tests.

    `before` and `behind` are those that low and high follow from; `loose` are tests that may hold
    outside, too, for some taps.
    """

    low: dict[Index, Dim] = field(default_factory=dict)
    high: dict[Index, Dim] = field(default_factory=dict)
    tests: set[Value] = field(default_factory=set)
    before: dict[Index, set[Value]] = field(default_factory=dict)
    behind: dict[Index, set[Value]] = field(default_factory=dict)
    loose: set[Value] = field(default_factory=set)

    def failing(self, tests: set[Value]) -> set[Value]:
        """Of the tests that an end of the loop follows from, those that fail in all of it."""
        return tests - self.loose if len(tests) == 1 else set()


def can_block(loops: Sequence[Index], body: Sequence[Statement]) -> bool:
    """Whether the body is accumulators, loops and stores only, under a place and a channel."""
    plain = (ir.Loop, ir.Declare, ir.Reduce, ir.Store)
    return len(loops) > 1 and all(isinstance(s, plain) for s in walk_statements(body))


def block_places(
    loops: Sequence[Index],
    body: tuple[Statement, ...],
    names: Names,
    target: Target,
    tile_elements: int,
) -> tuple[Index, tuple[Statement, ...]]:
    """The tile and its statements: a stripe of channels of some rows of places, or of parts of
    long ones."""
    *rest, place, channel = loops
    runs = _runs(body, rest)
    inside = _inside(body, loops[:-1] if runs is None else [place])
    rows = product(i.extent for i in rest)
    is_tested = bool(_inside(body, [channel]).tests)
    cut = cut_windows(
        rows, place, channel, body, target, tile_elements, 4 * PLACES, is_whole=is_tested
    )
    blocks, several = ceildiv(place.extent, PLACES), -(-cut.places // PLACES)
    parts = ceildiv(place.extent, several * PLACES)
    tile = Index("tile", ceildiv(rows, cut.rows) * parts * cut.stripes)
    number, part = tile // cut.stripes // parts, tile // cut.stripes % parts
    stripe = tile % cut.stripes
    channels = _Channels(channel, is_tested, target.lanes(32), names, stripe, cut.stripes)
    first = part * several
    last = minimum(first + several, blocks)
    statements = _row(rest, place, body, inside, runs, names, channels, first, last)
    if cut.rows == 1:
        return tile, substitute_indices(statements, split_rows(number, rest))
    here = Index("row", rows)
    inner = substitute_indices(statements, split_rows(here, rest))
    stop = minimum(number * cut.rows + cut.rows, rows)
    return tile, (ir.Loop(here, number * cut.rows, stop, inner),)


@dataclass(frozen=True)
class _Channels:
    """Channels in vectors, in so many stripes, of which a tile takes one."""

    loop: Index
    is_tested: bool
    lanes: int
    names: Names
    stripe: Dim
    stripes: int

    def each(self, statements: tuple[Statement, ...]) -> tuple[Statement, ...]:
        """The statements for all of a stripe. The last vector ends with the last channel, so that
        no lane is idle: some channels are computed and stored once more."""
        loop, lanes, extent = self.loop, self.lanes, self.loop.extent
        if not isinstance(extent, int) or extent <= lanes or self.is_tested:
            found: list[Statement] = []
            for each in split_at_tests(loop, 0, extent, statements, self.names, lanes):
                found += ending_whole(each, self.names, lanes)
            return tuple(found)
        count = -(-extent // lanes)
        vector, own = Index(self.names("g"), count), Index(self.names("v"), extent)
        start = minimum(vector * lanes, extent - lanes)
        inner = substitute_indices(statements, {loop: own})
        first, last = (n * count // self.stripes for n in (self.stripe, self.stripe + 1))
        return (ir.Loop(vector, first, last, (ir.Loop(own, start, start + lanes, inner, lanes),)),)


def split_at_tests(
    loop: Index, start: Dim, stop: Dim, body: tuple[Statement, ...], names: Names, lanes: int
) -> tuple[Statement, ...]:
    """A vector loop over [start, stop), in which what every lane tests is known.

    Tests on the loop hold in one run of it (a pad's, inside the data); before and behind that run
    the body asks, in it the body need not.
    """
    if (upper_bound(loop.extent) or lanes) <= SHORT_RUN * lanes:
        own = Index(names("v"), loop.extent)
        return (ir.Loop(own, start, stop, substitute_indices(body, {loop: own}), lanes),)
    loops: list[Statement] = []
    for begin, end, statements in inside_and_ends(loop, start, stop, body):
        own = Index(names("v"), loop.extent)
        inner = substitute_indices(statements, {loop: own})
        loops.append(ir.Loop(own, begin, end, inner, lanes))
    return tuple(loops)


def inside_and_ends(
    loop: Index,
    start: Dim,
    stop: Dim,
    body: tuple[Statement, ...],
    fixed: Collection[Index] = (),
) -> list[tuple[Dim, Dim, tuple[Statement, ...]]]:
    """[start, stop) in up to three: where no test on the loop can fail, before it and behind it.

    There the body asks what the ends of the part do not decide. What is `fixed` is known before
    the loop.
    """
    inside = _inside(body, [loop], fixed)
    if not inside.tests:
        return [(start, stop, body)]
    bare = assume(body, inside.tests.__contains__)
    first = minimum(maximum(inside.low.get(loop, 0), start), stop)
    last = maximum(minimum(inside.high.get(loop, loop.extent), stop), first)
    low, high = (inside.failing(ends.get(loop, set())) for ends in (inside.before, inside.behind))
    before = _decided(loop, start, first, body, inside.tests, low)
    behind = _decided(loop, last, stop, body, inside.tests, high)
    parts = [(start, first, before), (first, last, bare), (last, stop, behind)]
    return [part for part in parts if part[0] != part[1]]


def _decided(
    loop: Index,
    start: Dim,
    stop: Dim,
    body: tuple[Statement, ...],
    tests: set[Value],
    failing: set[Value],
) -> tuple[Statement, ...]:
    """The body without the tests that hold, or fail, for all of [start, stop)."""
    if start == stop:
        return body
    here = start + Index(f"{loop.name}.at", stop - start)
    holds: set[Value] = set()
    fails = set(failing)
    for test in tests - failing:
        least = _least(test)
        assert least is not None
        ends = bounds(substitute(least, {loop: here}))
        if ends[0] is not None and ends[0] >= 0:
            holds.add(test)
        elif ends[1] is not None and ends[1] < 0:
            fails.add(test)
    return assume(body, holds.__contains__, fails.__contains__) if holds or fails else body


def any_places(
    loop: Index,
    start: Dim,
    count: Dim,
    body: tuple[Statement, ...],
    names: Names,
    lanes: int,
) -> tuple[Statement, ...]:
    """The body for `count` places from `start` on, as many as the run says.

    Whole vectors, the last of which ends with the last place and computes some once more; where
    there are not enough places for one, few lanes of one.
    """
    binds: list[Statement] = []
    number, enough = ir.index(count), ir.index(lanes)
    vectors, lane = ceildiv(count, lanes), Index(names("v"), lanes)
    vector = Index(names("k"), vectors)
    begin: list[Statement] = []
    at = bind(names("o"), count, ir.index(minimum(vector * lanes, count - lanes)), begin)
    inner = substitute_indices(body, {loop: start + at + lane})
    whole = ir.Loop(vector, 0, vectors, (*begin, ir.Loop(lane, 0, lanes, inner, lanes)))
    few, own = bind(names("n"), lanes, number, binds), Index(names("v"), lanes)
    masked = ir.Loop(own, 0, few, substitute_indices(body, {loop: start + own}), lanes)
    return ir.If(number >= enough, (whole,)), ir.If(number < enough, (*binds, masked))


def ending_whole(loop: Statement, names: Names, lanes: int) -> Sequence[Statement]:
    """The loop with a whole vector at its end: some places are computed and stored once more.

    So no lane is idle, and elements apart are picked from whole vectors there, too.
    """
    assert isinstance(loop, ir.Loop)
    start, stop, count = loop.start, loop.stop, loop.stop - loop.start
    if not isinstance(count, int):
        return any_places(loop.index, start, count, loop.body, names, lanes)
    if count <= lanes or count % lanes == 0:
        return [loop]
    middle = start + count // lanes * lanes
    return [replace(loop, stop=middle), replace(loop, start=stop - lanes)]


def _row(
    rest: Sequence[Index],
    place: Index,
    body: tuple[Statement, ...],
    inside: _Inside,
    runs: dict[Index, _Run] | None,
    names: Names,
    channels: _Channels,
    first: Dim,
    last: Dim,
) -> tuple[Statement, ...]:
    """Blocks [first, last) of the places of one row, four in each."""
    binds: list[Statement] = []
    if runs:
        body = _in_runs(body, _bound(runs, names, binds))
    found = None if runs is None else _fours(place, inside)
    start, stop = first * PLACES, minimum(last * PLACES, place.extent)
    if found is None:
        others = _inside_and_singly(rest, place, body, inside, runs, names, channels, start, stop)
        return (*binds, *others)
    fours, fits = found
    blocks = _in_blocks(place, body, inside, fours, names, channels, first, last)
    if fits is _TRUE:
        return (*binds, *blocks)
    end = Index(names("w"), place.extent)
    singly = ir.Loop(end, start, stop, channels.each(substitute_indices(body, {place: end})))
    return (*binds, ir.If(fits, blocks), ir.If(ir.op("not", fits), (singly,)))


def _inside_and_singly(
    rest: Sequence[Index],
    place: Index,
    body: tuple[Statement, ...],
    inside: _Inside,
    runs: dict[Index, _Run] | None,
    names: Names,
    channels: _Channels,
    start: Dim,
    stop: Dim,
) -> tuple[Statement, ...]:
    """The places [start, stop) of one row: blocks inside, then what is left at both ends."""
    binds: list[Statement] = []
    bare = assume(body, inside.tests.__contains__) if inside.tests else body
    first, last = _ends(rest, place, inside, runs, names, start, stop, binds)
    block = Index(names("b"), floordiv(place.extent, PLACES) + 1)
    blocks = floordiv(last - first, PLACES)
    several = several_places(bare, place, first + block * PLACES, names)
    end = Index(names("w"), place.extent)
    moved: list[Statement] = []
    skipped: Dim = blocks * PLACES
    if first != start:
        skips = ir.select(ir.index(end) < ir.index(first - start), ir.index(0), ir.index(skipped))
        skipped = bind(names("s"), place.extent + 1, skips, moved)
    singly = channels.each(substitute_indices(body, {place: start + end + skipped}))
    return (
        *binds,
        ir.Loop(block, 0, blocks, channels.each(several)),
        ir.Loop(end, 0, stop - start - blocks * PLACES, (*moved, *singly)),
    )


# ---------------------------------------------------------------- blocks at the ends of a row, too


@dataclass(frozen=True)
class _Fours:
    """A row of places in `blocks`: [begin, end) of them meet no padding, of one each at the ends.

    The last blocks begin at `final`, or with it inside: these may overlap the ones before, so that
    some places are computed and stored once more.
    """

    blocks: Dim
    begin: int
    end: Dim
    final: Dim

    @property
    def has_inside(self) -> bool:
        return not isinstance(self.end, int) or self.begin < self.end


def _fours(place: Index, inside: _Inside) -> tuple[_Fours, Value] | None:
    """The blocks of a row, and where that is known when it runs only, whether there are such."""
    extent = place.extent
    low, high = inside.low.get(place, 0), inside.high.get(place, extent)
    blocks = ceildiv(extent, PLACES)
    begin, end = int(low != 0), blocks - int(high != extent)
    final = maximum(extent - (PLACES if high == extent else 2 * PLACES), low)
    fours = _Fours(blocks, begin, end, final)
    facts = [extent - PLACES, PLACES - low, high - extent + PLACES]
    if not isinstance(extent, int):
        facts[0] -= PLACES  # no block meets padding at both ends
    if fours.has_inside:
        facts.append(high - PLACES - low)
    fits: Value = _TRUE
    for fact in facts:
        least, most = bounds(fact)
        if most is not None and most < 0:
            return None
        if least is None or least < 0:
            fits = _and(fits, ir.index(fact) >= ir.index(0))
    return fours, fits


def _in_blocks(
    place: Index,
    body: tuple[Statement, ...],
    inside: _Inside,
    fours: _Fours,
    names: Names,
    channels: _Channels,
    first: Dim,
    last: Dim,
) -> tuple[Statement, ...]:
    """Blocks [first, last) of a row. In those at its ends it is known which taps meet padding."""
    extent, number = place.extent, Index(names("b"), fours.blocks)
    long = not isinstance(extent, int)  # only one end meets padding there
    at_start, at_end = (ends.get(place, set()) for ends in (inside.before, inside.behind))
    loops: list[Statement] = []

    def loop(start: Dim, stop: Dim, body: tuple[Statement, ...]) -> None:
        begin, end = maximum(first, start), minimum(last, stop)
        loops.append(ir.Loop(number, begin, end, channels.each(body)))

    if fours.begin:
        ahead = assume(body, at_end.__contains__) if long else body
        loop(0, 1, _known(several_places(ahead, place, 0, names)))
    if fours.has_inside:
        bare = assume(body, inside.tests.__contains__) if inside.tests else body
        base = minimum(number * PLACES, fours.final)
        loop(fours.begin, fours.end, several_places(bare, place, base, names))
    if fours.end != fours.blocks and (fours.blocks != 1 or not fours.begin):
        rest = assume(body, at_start.__contains__) if long else body
        base = extent - PLACES
        loop(fours.end, fours.blocks, _known(several_places(rest, place, base, names)))
    return tuple(loops)


def _known(body: Sequence[Statement]) -> tuple[Statement, ...]:
    """The statements with unrolled loops written out, where that decides what is asked."""

    def spread(statement: Statement) -> Iterator[Statement]:
        if not isinstance(statement, ir.Loop):
            yield statement
        elif statement.unroll:
            assert isinstance(statement.start, int) and isinstance(statement.stop, int)
            for number in range(statement.start, statement.stop):
                for each in substitute_indices(statement.body, {statement.index: number}):
                    yield from spread(each)
        else:
            yield replace(statement, body=tuple(e for s in statement.body for e in spread(s)))

    def ends(test: Value) -> tuple[int | None, int | None]:
        least = _least(test)
        return (None, None) if least is None else bounds(least)

    def holds(test: Value) -> bool:
        least, _ = ends(test)
        return least is not None and least >= 0

    def fails(test: Value) -> bool:
        _, most = ends(test)
        return most is not None and most < 0

    every = tuple(each for statement in body for each in spread(statement))
    return assume(every, holds, fails)


def _ends(
    rest: Sequence[Index],
    place: Index,
    inside: _Inside,
    runs: dict[Index, _Run] | None,
    names: Names,
    start: Dim,
    stop: Dim,
    binds: list[Statement],
) -> tuple[Dim, Dim]:
    """Where the places inside begin and end, of those in [start, stop)."""
    if not inside.tests:
        return start, stop
    low = minimum(maximum(inside.low.get(place, 0), start), stop)
    high = maximum(minimum(inside.high.get(place, place.extent), stop), low)
    ends = [ir.index(low), ir.index(high)]
    if runs is None:  # a row at the edge is asked at every tap
        holds, outside = _holds(rest, inside), ir.index(stop)
        ends = [ir.select(holds, end, outside) for end in ends]
    first, last = (bind(names("e"), place.extent + 1, end, binds) for end in ends)
    return first, last


def bind(name: str, extent: Dim, value: Value, into: list[Statement]) -> Index:
    """An index of that value, which is below its extent."""
    index = Index(name, extent)
    into.append(ir.Bind(index, value))
    return index


def _holds(rest: Sequence[Index], inside: _Inside) -> Value:
    """Whether a row lies inside."""
    result: Value = _TRUE
    for loop in rest:
        here = ir.index(loop)
        if loop in inside.low:
            result = _and(result, here >= ir.index(inside.low[loop]))
        if loop in inside.high:
            result = _and(result, here < ir.index(inside.high[loop]))
    return result


def _and(a: Value, b: Value) -> Value:
    if a is _TRUE:
        return b
    return a if b is _TRUE else a & b


# ---------------------------------------------------------------- taps above and below the data


@dataclass(frozen=True)
class _Run:
    """The taps of one loop that lie in the data, [start, stop), and the tests that say so."""

    start: Dim = 0
    stop: Dim | None = None
    low: Value | None = None
    high: Value | None = None


def _runs(body: Sequence[Statement], rest: Sequence[Index]) -> dict[Index, _Run] | None:
    """The run of each loop over taps for which the row is tested; None: tests that say no run."""
    found: dict[Index, _Run] = {}
    loops = {s.index: s for s in walk_statements(body) if isinstance(s, ir.Loop)}
    roots = [v for s in walk_statements(body) for v in statement_values(s)]
    for value in walk_values(roots):
        least = _least(value)
        if least is None or atoms(least).isdisjoint(rest):
            continue
        taps = [a for a in atoms(least) if a in loops]
        if not taps:
            continue
        step = linear_coefficient(least, taps[0]) if len(taps) == 1 else None
        if not isinstance(step, int) or step == 0:
            return None
        (tap,) = taps
        loop, run = loops[tap], found.get(tap, _Run())
        at_zero = substitute(least, {tap: 0})
        if step > 0:  # step * tap + at_zero >= 0
            if run.low is not None:
                return None
            bound = minimum(maximum(ceildiv(-1 * at_zero, step), 0), loop.stop)
            found[tap] = replace(run, start=bound, low=value)
        else:
            if run.high is not None:
                return None
            bound = minimum(maximum(floordiv(at_zero, -step) + 1, 0), loop.stop)
            found[tap] = replace(run, stop=bound, high=value)
        if loop.start != 0 or loop.lanes > 1:
            return None
    return found


def _bound(runs: dict[Index, _Run], names: Names, into: list[Statement]) -> dict[Index, _Run]:
    """The same with ends that are computed once for a row."""
    result: dict[Index, _Run] = {}
    for tap, run in runs.items():
        start = bind(names("f"), tap.extent + 1, ir.index(run.start), into)
        stop = run.stop
        if stop is not None:
            stop = bind(names("l"), tap.extent + 1, ir.index(maximum(stop, start)), into)
        result[tap] = replace(run, start=start, stop=stop)
    return result


def _in_runs(body: Sequence[Statement], runs: dict[Index, _Run]) -> tuple[Statement, ...]:
    """The statements with each loop of a run in three: taps before, inside and behind."""
    result: list[Statement] = []
    for statement in body:
        if not isinstance(statement, ir.Loop):
            result.append(statement)
            continue
        inner = _in_runs(statement.body, runs)
        run = runs.get(statement.index)
        if run is None:
            result.append(replace(statement, body=inner))
            continue
        tests = [test for test in (run.low, run.high) if test is not None]
        stop = statement.stop if run.stop is None else run.stop
        for begin, end, holds, fails in (
            (0, run.start, [], [run.low]),
            (run.start, stop, tests, []),
            (stop, statement.stop, [], [run.high]),
        ):
            if begin != end and None not in fails:
                part = assume(inner, holds.__contains__, fails.__contains__)
                result.append(replace(statement, start=begin, stop=end, body=part, unroll=False))
    return tuple(result)


# ---------------------------------------------------------------- tests that cannot fail


def _inside(
    body: Sequence[Statement], loops: Sequence[Index], fixed: Collection[Index] = ()
) -> _Inside:
    """Bounds of each loop between which the tests on it hold for every tap."""
    result = _Inside()
    roots = [v for s in walk_statements(body) for v in statement_values(s)]
    for value in walk_values(roots):
        least = _least(value)
        if least is None:
            continue
        used = [i for i in loops if i in atoms(least)]
        if len(used) != 1:
            continue
        loop = used[0]
        step = linear_coefficient(least, loop)
        if not isinstance(step, int) or step == 0:
            continue
        for_all = substitute(least, {loop: 0})
        at_zero = _over_taps(for_all, fixed)
        if at_zero is None:
            continue
        result.tests.add(value)
        if at_zero != for_all:
            result.loose.add(value)
        if step > 0:  # step * loop + at_zero >= 0
            bound = ceildiv(-1 * at_zero, step)
            result.low[loop] = maximum(result.low.get(loop, 0), bound)
            result.before.setdefault(loop, set()).add(value)
        else:
            bound = floordiv(at_zero, -step) + 1
            result.high[loop] = minimum(result.high.get(loop, loop.extent), bound)
            result.behind.setdefault(loop, set()).add(value)
    return result


def _least(value: Value) -> Dim | None:
    """The expression that is >= 0 where the test holds, if `value` compares indices."""
    if value.op not in ("ge", "lt") or not all(a.op in ("index", "const") for a in value.args):
        return None
    left, right = (a.data for a in value.args)
    if not all(a.dtype.is_integer for a in value.args):
        return None
    difference: Dim = left - right if value.op == "ge" else right - left - 1
    return difference


def _over_taps(dim: Dim, fixed: Collection[Index]) -> Dim | None:
    """The least value over all taps: indices of loops inside the body, with known extents."""
    taps = (a for a in atoms(dim) if isinstance(a, Index) and a not in fixed)
    for index in sorted(taps, key=lambda i: i.name):
        step = linear_coefficient(dim, index)
        if not isinstance(step, int) or not isinstance(index.extent, int):
            return None
        dim = substitute(dim, {index: 0 if step > 0 else max(index.extent - 1, 0)})
    return dim


# ---------------------------------------------------------------- several places


@dataclass(frozen=True)
class Lines:
    """What places that are computed together read: line `stride * place + dilation * tap`."""

    tap: Index
    stride: int
    dilation: int

    def readers(self, places: int) -> Iterator[tuple[int, int]]:
        """Each place and tap that read a line, line by line; taps of a place in their order."""
        assert isinstance(self.tap.extent, int)
        taps = self.tap.extent
        for line in range(self.stride * (places - 1) + self.dilation * (taps - 1) + 1):
            for place in range(places):
                tap, rest = divmod(line - self.stride * place, self.dilation)
                if rest == 0 and 0 <= tap < taps:
                    yield place, tap


def several_places(
    body: Sequence[Statement],
    place: Index,
    base: Dim,
    names: Names,
    lines: Lines | None = None,
) -> tuple[Statement, ...]:
    """The body for places base, base + 1, ...: tap by tap, each tap for all places.

    With `lines`, an unrolled loop over their taps goes line by line instead, so that places that
    share a line load it once.
    """
    lane = Index(names("u"), PLACES)
    renamed: dict[Local, Local] = {
        s.local: replace(s.local, name=f"{s.local.name}_{PLACES}", copies=(PLACES,))
        for s in walk_statements(body)
        if isinstance(s, ir.Declare)
    }

    def leaf(value: Value) -> Value:
        if value.op == "local" and value.data[0] in renamed:
            return ir.local(renamed[value.data[0]], (lane,))
        return value

    values = ValueMap(leaf)

    def for_one(statement: Statement) -> Statement:
        """The statement, for the place that is called `lane`."""
        if isinstance(statement, ir.Loop):
            return replace(statement, body=tuple(for_one(s) for s in statement.body))
        (moved,) = map_statements([statement], values)
        if isinstance(moved, ir.Reduce):
            moved = replace(moved, locals=tuple(renamed[x] for x in moved.locals), at=(lane,))
        (moved,) = substitute_indices([moved], {place: base + lane})
        return moved

    def spread(statement: Statement) -> Iterator[Statement]:
        if isinstance(statement, ir.Declare):
            yield ir.Declare(renamed[statement.local], statement.init)
        elif isinstance(statement, ir.Loop) and lines is not None and statement.index is lines.tap:
            inner = [for_one(s) for s in statement.body]
            for number, tap in lines.readers(PLACES):
                yield from substitute_indices(inner, {lane: number, lines.tap: tap})
        elif isinstance(statement, ir.Loop):
            yield replace(statement, body=tuple(each for s in statement.body for each in spread(s)))
        else:
            yield ir.Loop(lane, 0, PLACES, (for_one(statement),), unroll=True)

    return tuple(each for statement in body for each in spread(statement))
