"""Lanes: work in order, one at a time, and tickets for it."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from functools import partial

import pytest
from tests.forks import in_child

from semel.errors import PlanError, TimedOutError
from semel.runtime.lane import _LONG_NAP_S, Lane, Ticket, _Queue


class Gate:
    """Work that holds its lane until it is opened."""

    def __init__(self) -> None:
        self.begun, self._open = threading.Event(), threading.Event()

    def __call__(self) -> str:
        self.begun.set()
        assert self._open.wait(100)
        return "through"

    def open(self) -> None:
        self._open.set()


def held(lane: Lane) -> tuple[Gate, Ticket[str]]:
    """The lane at work, on its own thread, until the gate opens."""
    gate = Gate()
    ticket = lane.submit(gate)
    assert gate.begun.wait(100)
    return gate, ticket


# ---------------------------------------------------------------- order and results


def test_work_is_done_in_order_and_one_at_a_time() -> None:
    lane, seen, at_work = Lane(), [], []

    def work(i: int) -> int:
        at_work.append(i)
        seen.append((i, len(at_work)))
        at_work.remove(i)
        return i * i

    tickets = [lane.submit(partial(work, i)) for i in range(200)]
    assert [t.result() for t in tickets] == [i * i for i in range(200)]
    assert seen == [(i, 1) for i in range(200)]
    assert lane.num_pending == 0 and all(t.done() for t in tickets)


def test_each_thread_finds_its_work_in_its_order() -> None:
    lane = Lane("shared", depth=3)
    seen: list[tuple[int, int]] = []

    def submit(who: int) -> None:
        for i in range(50):
            lane.submit(partial(seen.append, (who, i)))

    threads = [threading.Thread(target=submit, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    lane.sync()
    for who in range(4):
        assert [i for w, i in seen if w == who] == list(range(50))


def test_what_work_raises_is_raised_again() -> None:
    lane, error = Lane(), ValueError("bad")

    def fail() -> None:
        raise error

    ticket = lane.submit(fail)
    assert ticket.exception() is error
    for _ in range(2):
        with pytest.raises(ValueError, match="bad"):
            ticket.result()
    assert lane.submit(lambda: 3).result() == 3


def test_a_ticket_that_has_not_begun_is_run_where_it_is_wanted() -> None:
    lane = Lane()
    lane._queue._has_thread = True  # or so it believes: nobody else can do it
    assert lane.submit(threading.get_ident).result() == threading.get_ident()
    first, second = lane.submit(int), lane.submit(int)
    with pytest.raises(TimedOutError, match="it is waiting"):  # it could not keep the time
        first.result(timeout=0.01)
    assert first.result() == second.result() == 0


class Bell:
    """In the place of a queue's, whose thread is the test: what naps it takes, and what then."""

    def __init__(self, meanwhile: Callable[[], object] = int) -> None:
        self.naps: list[float] = []
        self.num_rung = 0
        self._meanwhile = meanwhile

    def acquire(self, timeout: float = -1) -> bool:
        self.naps.append(timeout)
        self._meanwhile()
        return False

    def release(self) -> None:
        self.num_rung += 1


def queue_without_thread(bell: Bell) -> _Queue:
    queue = _Queue("test", None)
    queue._has_thread, queue._bell = True, bell  # type: ignore[assignment]
    return queue


def test_the_thread_leaves_short_work_to_those_who_do_it_themselves() -> None:
    def ask() -> None:
        if len(bell.naps) < 8:
            waiting.pop(0).result()
            waiting.append(queue.submit(int))

    bell = Bell(ask)
    queue = queue_without_thread(bell)
    waiting = [queue.submit(int) for _ in range(3)]
    assert queue.rest()
    assert bell.naps == []  # nobody is at it
    waiting.pop(0).result()
    assert queue.rest()
    assert bell.naps == [1e-4, 2e-4, 4e-4, 8e-4, *[_LONG_NAP_S] * 4]
    assert queue.take() is waiting[0]
    waiting[0].run()
    queue.finish(waiting[0])
    assert queue.rest()
    assert len(bell.naps) == 8


def test_the_thread_leaves_the_next_work_to_those_who_wait_for_what_it_does() -> None:
    bell = Bell()
    queue = queue_without_thread(bell)
    first, _ = queue.submit(int), queue.submit(int)
    assert queue.take() is first
    queue.run_here(first)  # it is under way: they will wait
    first.run()
    queue.finish(first)
    assert queue.rest()
    assert bell.naps == [1e-4]


def test_who_waits_for_what_nobody_is_at_wakes_the_thread() -> None:
    bell = Bell()
    queue = queue_without_thread(bell)
    first, second = queue.submit(int), queue.submit(int)
    for ticket in (first, second):
        with pytest.raises(TimedOutError, match="waiting"):
            ticket.wait(0)
    assert bell.num_rung == 2
    assert queue.take() is first
    queue._runner = -1  # some other thread
    with pytest.raises(TimedOutError, match="waiting"):
        second.wait(0)
    assert bell.num_rung == 2
    bell.acquire = lambda timeout=-1: True  # type: ignore[method-assign]
    queue._num_helped += 1
    assert queue.rest()


def test_a_ticket_is_not_run_before_its_turn() -> None:
    lane = Lane()
    gate, first = held(lane)
    seen: list[str] = []
    second = lane.submit(lambda: seen.append("second"))
    third = lane.submit(lambda: seen.append("third"))
    waiting = threading.Thread(target=third.result)
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive() and not seen
    assert [repr(t) for t in (first, third)] == ["Ticket(lane, running)", "Ticket(lane, waiting)"]
    gate.open()
    waiting.join(100)
    assert seen == ["second", "third"] and second.done() and first.result() == "through"


def test_a_wait_that_takes_too_long_says_what_for() -> None:
    lane = Lane("copies")
    gate, first = held(lane)
    ticket = lane.submit(int)
    with pytest.raises(TimedOutError, match=r"'copies'.*within 0.01 s, it is waiting, with 2 pend"):
        ticket.result(timeout=0.01)
    with pytest.raises(TimedOutError, match="it is running"):
        first.exception(timeout=0)
    gate.open()
    assert ticket.result(timeout=100) == 0


# ---------------------------------------------------------------- how much, and until when


def test_a_full_lane_lets_submitters_wait() -> None:
    lane = Lane("small", depth=2)
    gate, _ = held(lane)
    lane.submit(int)
    third: list[Ticket[int]] = []
    submitting = threading.Thread(target=lambda: third.append(lane.submit(int)))
    submitting.start()
    submitting.join(0.05)
    assert submitting.is_alive() and not third and lane.num_pending == 2
    gate.open()
    submitting.join(100)
    assert third[0].result() == 0


@pytest.mark.parametrize("depth", [0, -1])
def test_a_depth_is_at_least_one(depth: int) -> None:
    with pytest.raises(PlanError, match=f"depth must be at least 1, got {depth}"):
        Lane("x", depth)


def test_work_cannot_wait_for_what_comes_after_it() -> None:
    lane = Lane(depth=1)
    with pytest.raises(PlanError, match=r"is full .1 pending., and its own work cannot wait"):
        lane.submit(lambda: lane.submit(int)).result()
    wide = Lane()
    with pytest.raises(PlanError, match="cannot wait for what comes after it"):
        wide.submit(lambda: wide.submit(int).result()).result()


def test_a_closed_lane_does_what_it_was_given() -> None:
    lane = Lane("once")
    gate, first = held(lane)
    second = lane.submit(lambda: 2)
    lane.close()
    with pytest.raises(PlanError, match=r"'once'. is closed"):
        lane.submit(int)
    gate.open()
    assert first.result() == "through" and second.result() == 2


def test_a_lane_that_nobody_holds_ends_with_its_work() -> None:
    lane, ended = Lane(), threading.Event()
    gate, _ = held(lane)
    lane.submit(ended.set)
    queue = weakref.ref(lane._queue)
    del lane
    gate.open()
    assert ended.wait(100)
    for _ in range(2000):  # its thread is the last to hold the queue
        gc.collect()
        if queue() is None:
            return
        threading.Event().wait(0.005)
    raise AssertionError("the thread is still there")


def test_work_that_is_done_holds_nothing() -> None:
    class Large:
        pass

    def work(it: Large) -> Callable[[], int]:
        return lambda: id(it)

    lane, large = Lane(), Large()
    ticket = lane.submit(work(large))
    gone = weakref.ref(large)
    ticket.result()
    lane.submit(int).result(timeout=100)
    del large
    assert gone() is None


# ---------------------------------------------------------------- asyncio


def test_tickets_can_be_awaited() -> None:
    lane = Lane()

    async def main() -> list[int]:
        gate, first = held(lane)
        others = [lane.submit(partial(int, i)) for i in range(5)]
        asyncio.get_running_loop().call_later(0.01, gate.open)
        assert await first == "through"
        found = [await ticket for ticket in others]
        with pytest.raises(ZeroDivisionError, match="division"):
            await lane.submit(lambda: 1 // 0)
        return found

    assert asyncio.run(main()) == [0, 1, 2, 3, 4]


def test_an_awaiting_task_can_be_cancelled() -> None:
    lane = Lane()

    async def main() -> None:
        gate, first = held(lane)
        done, _ = await asyncio.wait([asyncio.ensure_future(first)], timeout=0.01)
        assert not done
        waiting = asyncio.ensure_future(first)
        await asyncio.sleep(0)
        waiting.cancel()
        gate.open()
        assert await first == "through"

    asyncio.run(main())


# ---------------------------------------------------------------- forks and the end


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_a_lane_of_its_own() -> None:
    lane = Lane()
    gate, first = held(lane)
    second = lane.submit(lambda: 2)

    def child() -> None:
        for ticket in (first, second):
            with pytest.raises(PlanError, match="forked before this was done"):
                ticket.result(timeout=100)
        assert lane.num_pending == 0
        assert lane.submit(lambda: 5).result(timeout=100) == 5

    in_child(child)
    gate.open()
    assert first.result() == "through" and second.result() == 2


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_work_that_forks_goes_on_on_both_sides() -> None:
    lane = Lane()
    lane.submit(int).result(timeout=100)

    def work() -> str:
        in_child(lambda: None)
        return "forked"

    assert lane.submit(work).result(timeout=100) == "forked"
    in_child(lambda: lane.submit(int).result(timeout=100))


_ENDING = """
import threading
from semel.runtime.lane import Lane
lane, begun = Lane(), threading.Event()
def work():
    begun.set()
    {work}
lane.submit(work)
lane.submit(lambda: print("never"))
begun.wait(100)
print("end")
"""


@pytest.mark.parametrize("work", ["threading.Event().wait()", "threading.Event().wait(0.1)"])
def test_the_interpreter_can_end_while_a_lane_works(work: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _ENDING.format(work=work)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "end\n", "")
