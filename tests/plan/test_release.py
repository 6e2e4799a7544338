"""Memory of plans built by hand: what goes back, what stays because it is seen or shared."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.plan.build import Sketch
from tests.plan.kernels import kernel
from tests.plan.resident import resident_bytes

import semel
from semel import Tensor, Variable
from semel.errors import ReleasedError
from semel.plan.plan import ExecutionPlan
from semel.plan.release import passing_ranges
from semel.plan.rows import PreparedCopy, PreparedCustomFunction, PreparedKernel
from semel.runtime.allocator import counters
from semel.runtime.buffer import Buffer
from semel.runtime.kernel import CachedKernel

BIG = 1 << 18  #: elements of a buffer whose memory is a mapping of its own


def _passing(s: Sketch, plan: ExecutionPlan) -> set[str]:
    found = passing_ranges(plan.engine.parts)
    return {name for name, buffer in s.buffers.items() if buffer.byte_range in found}


def _resident_bytes(buffer: Buffer) -> int:
    return resident_bytes(buffer.memory.address, buffer.memory.size_bytes)


# ---------------------------------------------------------------- intermediates


def test_intermediates_of_a_plan_made_by_hand_are_given_back() -> None:
    s = Sketch(BIG * 16)
    s.op("increment", "x", "between")
    s.op("double", "between", "out")
    plan = s.build("out")
    s.buffers["x"].copyin(np.ones(BIG * 16, np.float32))
    plan.execute()
    before = _resident_bytes(s.buffers["between"])
    plan.release_intermediate_buffers()
    assert before - _resident_bytes(s.buffers["between"]) >= 15 * BIG * 4
    assert not s.buffers["between"].numpy().any()
    assert (s.buffers["out"].numpy() == 4).all()  # results stay, and inputs
    plan.execute()
    assert (s.buffers["out"].numpy() == 4).all()


def test_what_a_run_hands_on_to_the_next_is_no_intermediate() -> None:
    s = Sketch(16)
    s.op("add", "x", "state", "next")
    s.builder.add_op(PreparedCopy(7, (s.buffer("state"), s.buffer("next"))))
    s.op("double", "next", "out")
    assert _passing(s, s.build("out")) == {"next"}


def test_what_is_written_in_part_is_an_intermediate_if_no_more_is_read() -> None:
    for sizes, expected in (((8, 8), {"between"}), ((8, 4), {"between"}), ((8, 16), set[str]())):
        s = Sketch(16, fixed=False)
        s.op("increment", "x", "between", fixedvars={"n": sizes[0]})
        s.op("double", "between", "out", fixedvars={"n": sizes[1]})
        assert _passing(s, s.build("out")) == expected
    s = Sketch(16, fixed=False)
    s.op("increment", "x", "between")
    s.op("double", "between", "out")
    assert _passing(s, s.build("out")) == {"between"}  # both at the same n


@pytest.mark.parametrize("reads_across", [False, True])
def test_what_overlaps_bytes_that_are_seen_stays(reads_across: bool) -> None:
    whole = Buffer.empty((32,), "float32")
    s = Sketch(16)
    s.buffer("left", whole.view(0, 64))
    s.buffer("right", whole.view(64, 64))
    s.buffer("middle", whole.view(32, 64))
    s.op("increment", "x", "left")
    s.op("increment", "x", "right")
    if reads_across:  # no one write covers it
        s.op("double", "middle", "more")
    s.op("add", "left", "right", "out")
    plan = s.build("out")
    assert _passing(s, plan) == ({"more"} if reads_across else {"left", "right"})


def test_a_loop_that_may_not_run_writes_nothing_for_sure() -> None:
    for is_inside, expected in ((True, {"between"}), (False, set[str]())):
        s = Sketch(16)
        s.begin(Variable("t", 0, 4), "step")
        s.op("increment", "x", "between")
        if is_inside:
            s.op("double", "between", "out")
        s.end()
        if not is_inside:
            s.op("double", "between", "out")
        assert _passing(s, s.build("out")) == expected


@pytest.mark.parametrize("is_fixed", [False, True])
def test_what_a_counter_selects_is_not_written_whole(is_fixed: bool) -> None:
    s = Sketch(16, fixed=False)
    s.begin(4, "step")
    plain = kernel("increment", Variable("n", 0, 16))
    both = (Variable("step", 0, 16), Variable("n", 0, 16))
    specs = tuple(replace(spec, size=16) for spec in plain.signature.buffers)
    signature = replace(plain.signature, variables=both, tiles=1, buffers=specs)
    s.builder.add_kernel(
        PreparedKernel(
            3,
            None,
            CachedKernel(signature, plain.address, "increment"),
            "",
            (s.buffer("x"), s.buffer("between")),
            (1,),
            fixedvars={"step": 1, "n": 4} if is_fixed else {"n": 4},
        )
    )
    s.op("double", "between", "out", fixedvars={"n": 16})
    s.end()
    assert _passing(s, s.build("out")) == set()


def test_a_custom_function_may_leave_what_was_there() -> None:
    semel.custom_function("release.part", reads=(0,), writes=(1,))(lambda *arguments: None)
    try:
        s = Sketch(16)
        indices = (s.buffer("x"), s.buffer("between"))
        s.builder.add_op(PreparedCustomFunction(1, "release.part", None, indices))
        s.op("double", "between", "out")
        assert _passing(s, s.build("out")) == set()
    finally:
        semel.unregister_custom_function("release.part")


def test_an_intermediate_that_another_plan_holds_stays() -> None:
    s = Sketch(BIG)
    s.op("increment", "x", "between")
    s.op("double", "between", "out")
    plan = s.build("out")
    other = Sketch(BIG)
    other.buffer("between", s.buffers["between"])
    other.op("double", "between", "out")
    reader = other.build("out")
    plan.execute()
    plan.release_intermediate_buffers()
    reader.execute()
    assert (reader.output_buffer.numpy() == 2).all()
    del reader, other  # now nobody else does
    plan.release_intermediate_buffers()
    assert not s.buffers["between"].numpy().any()


def test_pages_around_an_intermediate_stay() -> None:
    whole = Buffer(np.ones(3 * BIG, np.float32))
    s = Sketch(BIG)
    s.buffer("between", whole.view(4 * BIG - 8, 4 * BIG))  # neither end on a page
    s.op("increment", "x", "between")
    s.op("double", "between", "out")
    plan = s.build("out")
    plan.execute()
    plan.release_intermediate_buffers()
    found = whole.numpy()
    assert (found[: BIG - 2] == 1).all()
    assert (found[2 * BIG - 2 :] == 1).all()
    assert not found[BIG + 1024 : 2 * BIG - 1024].any()


# ---------------------------------------------------------------- everything


def _pair() -> tuple[Sketch, ExecutionPlan, ExecutionPlan]:
    """Two plans: the output of the first is the input of the second."""
    first, second = Sketch(BIG), Sketch(BIG)
    first.op("increment", "x", "out")
    second.buffer("x", first.buffers["out"])
    second.op("double", "x", "out")
    return first, first.build("out"), second.build("out")


@pytest.mark.usefixtures("settled")
def test_the_last_plan_that_shares_a_buffer_gives_it_back() -> None:
    before = counters().live_bytes
    first, maker, reader = _pair()
    maker.execute()
    maker.release_all_buffers()
    shared = first.buffers["out"]
    assert (shared.numpy() == 1).all()  # in use: the other plan answers for it now
    shared.copyin(np.full(BIG, 3, np.float32))
    reader.execute()
    assert (reader.output_buffer.numpy() == 6).all()
    with pytest.raises(ReleasedError, match="released"):
        first.buffers["x"].numpy()
    with pytest.raises(ReleasedError, match="released"):
        maker.execute()
    reader.release_all_buffers()
    with pytest.raises(ReleasedError, match="released"):
        shared.numpy()
    assert counters().live_bytes - before < BIG


def test_a_dropped_plan_holds_nothing() -> None:
    first, maker, reader = _pair()
    del reader
    maker.release_all_buffers()
    with pytest.raises(ReleasedError, match="released"):
        first.buffers["out"].numpy()


def test_a_clone_leaves_the_constants_to_the_plan_it_was_made_of() -> None:
    s = Sketch(BIG)
    s.op("increment", "x", "out")
    plan = s.build("out")
    plan.clone().release_all_buffers()
    plan.execute()
    assert (plan.output_buffer.numpy() == 1).all()
    plan.clone().execute()


ROW = BIG // 4


@pytest.mark.parametrize("how", ["fixed", "bound"])
def test_a_kernel_that_writes_a_row_of_its_choice_covers_no_later_read(how: str) -> None:
    """The kernel is from the body of a loop, where the step says which row it writes."""
    x = Tensor.input("x", (4, ROW), "float32")
    _, (rows,) = Tensor.loop(4, [Tensor(0.0)], lambda i, h: ([h[0]], [x[i] * 3]))
    plan = semel.prepare(rows, threads=1)
    (call,) = (k for k in plan.prepared_kernels if 4 * ROW in _written_sizes(k))
    builder = semel.ExecutionPlanBuilder()
    for i, spec in enumerate(call.kernel.signature.buffers):
        builder.add_buffer(i, Buffer.empty((spec.size,), "float32"))
    state = _written_sizes(call).index(4 * ROW)
    out = builder.add_buffer(9, Buffer.empty((4 * ROW,), "float32"))
    (variable,) = call.runtime_vars
    builder.add_kernel(
        replace(
            call,
            id=1,
            vals=(),
            buffer_indices=tuple(range(len(call.buffer_indices))),
            fixedvars={variable.name: 2} if how == "fixed" else {},
        )
    )
    builder.add_op(PreparedCopy(2, (out, state)))
    builder.set_output_buffer(out)
    made = builder.build(threads=1)
    if how == "bound":
        made.execute_with_vars({variable.name: 2})
    made.buffers[state].copyin(np.full(4 * ROW, 7, np.float32))
    for _ in range(2):
        made.execute()
        assert made.output_buffer.numpy().reshape(4, ROW)[:, 0].tolist() == [7, 7, 0, 7]
        made.release_intermediate_buffers()


def _written_sizes(call: PreparedKernel) -> list[Any]:
    specs = call.kernel.signature.buffers
    return [spec.size if "w" in spec.access else 0 for spec in specs]
