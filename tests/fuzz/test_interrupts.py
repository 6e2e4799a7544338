"""Signal handlers at every place of every operation: right numbers after it, or errors of ours."""

from __future__ import annotations

import signal
from contextlib import suppress
from functools import partial
from random import Random

import pytest
from tests.fuzz.interrupts import Place, find_places, interrupt, where
from tests.fuzz.long import long, search
from tests.fuzz.worlds import ACTIONS, HANDLERS, StopError, World

from semel import SemelError

# A handler that raises inside a destructor is told of and passed over, by Python itself.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

#: Places of an operation in the short mode, for each handler; where one compiles or forks, fewer.
PLACES, FEW_PLACES = 4, 1
SLOW = {"prepare", "value of another form", "forks"}


def _places(action: str) -> list[Place]:
    ACTIONS[action](World())  # what is remembered from the first time on
    return find_places(partial(ACTIONS[action], World()))


def _check(action: str, handler: str, place: Place) -> bool:
    """One interruption; whether the action came to its end."""
    world, came = World(), False
    try:
        with suppress(StopError):
            came = interrupt(
                partial(ACTIONS[action], world), place, partial(HANDLERS[handler], world)
            )
        world.check()
    except (AssertionError, SemelError) as error:
        raise AssertionError(f"{action}, {handler} at {where(place)}: {error!r}") from error
    return came


@pytest.mark.parametrize("action", ACTIONS)
def test_an_interruption(action: str) -> None:
    found, rng = _places(action), Random(action)
    for handler in HANDLERS:
        count = FEW_PLACES if {action, handler} & SLOW else PLACES
        for place in rng.sample(found, min(count, len(found))):
            _check(action, handler, place)


@long
def test_interruptions() -> None:
    known = {action: _places(action) for action in ACTIONS}

    def check(seed: int) -> None:
        rng = Random(seed)
        action, handler = rng.choice(list(ACTIONS)), rng.choice(list(HANDLERS))
        _check(action, handler, rng.choice(known[action]))

    search(check)


#: The places of `plan(x=...)` between taking over the shape and copying the array.
HALF_DONE = ["_slowly", "array", "_alive"]


@pytest.mark.parametrize("function", HALF_DONE)
@pytest.mark.parametrize("action", ["call", "grow", "write another shape", "write more"])
def test_an_interrupted_write_leaves_no_input_of_another_shape(action: str, function: str) -> None:
    """What lies there is neither the old input nor the new one, and outputs are of the old one."""
    for place in _places(action):
        if place[0].co_name == function:
            _check(action, "raises", place)


def test_a_signal_comes_where_it_is_asked_for() -> None:
    """The harness itself: at each place, once, and nothing of it stays."""
    before = signal.getsignal(signal.SIGINT)
    world = World()
    places = find_places(world.run)
    for place in places:
        seen: list[int] = []
        assert interrupt(world.run, place, partial(seen.append, 1)), where(place)
        assert seen == [1], where(place)
        with pytest.raises(StopError, match="enough"):
            interrupt(world.run, place, partial(HANDLERS["raises"], world))
        assert signal.getsignal(signal.SIGINT) is before
    assert len(places) > 20
