"""What users of other runtimes are bitten by, with plans."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest

import semel
from semel import InputError, PlanError, SemelError, Tensor, Variable, config


def of(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_results_of_earlier_runs_are_not_overwritten() -> None:
    plan = (Tensor.input("x", (2,)) + 1).prepare()
    first = plan(x=of(1, 2))
    second = plan(x=of(10, 20))
    assert first.tolist() == [2, 3] and second.tolist() == [11, 21]
    first[:] = 0
    assert plan.output_buffer.numpy().tolist() == [11, 21]


def test_changing_the_array_after_the_call_changes_nothing() -> None:
    plan = (Tensor.input("x", (2,)) * 2).prepare()
    x = of(1, 2)
    result = plan(x=x)
    x[:] = 9
    plan.execute()
    assert result.tolist() == [2, 4]
    assert plan.output_buffer.numpy().tolist() == [2, 4]


def test_an_output_that_is_an_input_is_a_copy() -> None:
    x = Tensor.input("x", (2,))
    plan = semel.prepare([x, x.reshape(2, 1), x])
    a, b, c = plan(x=of(1, 2))
    a[:] = 7
    assert b.ravel().tolist() == [1, 2] and c.tolist() == [1, 2]
    plan.execute()
    assert plan.output_buffers[0].numpy().tolist() == [1, 2]


def test_one_tensor_twice_among_the_outputs() -> None:
    y = Tensor.input("x", (2,)) + 1
    first, second = semel.prepare([y, y])(x=of(1, 2))
    first[:] = 0
    assert second.tolist() == [2, 3]


def test_a_python_number_is_frozen_when_the_graph_is_made_and_says_so_by_its_value() -> None:
    scale = 2.0
    plan = (Tensor.input("x", (2,)) * scale).prepare()
    scale = 5.0
    assert plan(x=of(1, 2)).tolist() == [2, 4] and scale == 5


def test_smaller_inputs_do_not_see_rows_of_larger_ones() -> None:
    n = Variable("n", 0, 10)
    x = Tensor.input("x", (n, 2))
    plan = semel.prepare([x.sum(0), x.max(), x.softmax(0), x.sort(0)])
    large = np.full((10, 2), 99, np.float32)
    plan(x=large)
    total, top, soft, ordered = plan(x=np.ones((3, 2), np.float32))
    assert total.tolist() == [3, 3] and top == 1
    np.testing.assert_allclose(soft, 1 / 3, rtol=1e-6)
    assert ordered.tolist() == [[1, 1]] * 3


def test_writing_one_input_only_keeps_the_other() -> None:
    x, y = Tensor.input("x", (2,)), Tensor.input("y", (2,))
    plan = (x - y).prepare()
    plan(x=of(5, 5), y=of(1, 2))
    buffer = plan.buffer(x)
    assert buffer is not None
    buffer.copyin(of(7, 7))
    plan.execute()
    assert plan.output_buffer.numpy().tolist() == [6, 5]


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype=np.float32).reshape(3, 4).T,
        np.arange(24, dtype=np.float32).reshape(4, 6)[:, ::2],
        np.arange(12, dtype=np.float32).reshape(4, 3)[::-1],
        np.asfortranarray(np.arange(12, dtype=np.float32).reshape(4, 3)),
        np.frombuffer(b"\0" + np.arange(12, dtype=np.float32).tobytes(), np.uint8)[1:]
        .view(np.float32)
        .reshape(4, 3),
    ],
    ids=["transposed", "strided", "reversed", "fortran", "unaligned"],
)
def test_layout_of_the_array_does_not_matter(array: np.ndarray) -> None:
    plan = (Tensor.input("x", (4, 3)) * 2).prepare()
    for _ in range(2):  # the second call takes the fast path
        np.testing.assert_array_equal(plan(x=array), array.astype(np.float32) * 2)


def test_a_read_only_array_is_an_input() -> None:
    x = of(1, 2)
    x.flags.writeable = False
    assert ((Tensor.input("x", (2,)) + 1).prepare())(x=x).tolist() == [2, 3]


def test_the_result_of_one_plan_feeds_another() -> None:
    first = (Tensor.input("x", (2,)) + 1).prepare()
    second = (Tensor.input("x", (2,)) * 10).prepare()
    assert second(x=first(x=of(1, 2))).tolist() == [20, 30]
    assert first(x=second(x=first(x=of(1, 2)))).tolist() == [21, 31]


def test_calling_with_a_scalar_dtype_conversion_is_an_error_not_a_guess() -> None:
    plan = (Tensor.input("x", (2,)) + 1).prepare()
    with pytest.raises(InputError, match="float32"):
        plan(x=np.array([1.0, 2.0]))  # float64: precision would be lost silently


def test_the_same_plan_serves_threads_one_at_a_time() -> None:
    n = Variable("n", 1, 400)
    plan = (Tensor.input("x", (n,)) * 2 + 1).prepare()
    wrong: list[int] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(150):
            x = rng.random(int(rng.integers(1, 400)), dtype=np.float32)
            if not np.array_equal(plan(x=x), x * 2 + 1):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_an_error_in_one_thread_does_not_disturb_another() -> None:
    x, i = Tensor.input("x", (64,)), Tensor.input("i", (2000,), "int64")
    plan = x.take(i).prepare()
    data = np.arange(64, dtype=np.float32)
    outcomes: list[str] = []

    def work(bad: bool) -> None:
        index = np.arange(2000) % 64
        if bad:
            index[1234] = 64
        for _ in range(100):
            try:
                right = np.array_equal(plan(x=data, i=index), data[index])
                outcomes.append("bad" if bad or not right else "fine")
            except semel.IndexRangeError:
                outcomes.append("fine" if bad else "bad")

    threads = [threading.Thread(target=work, args=(k % 2 == 1,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert outcomes.count("fine") == 400


def test_preparing_in_many_threads_is_safe() -> None:
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            x = Tensor.input("x", (17,))
            plan = (x * (seed % 3) + 1).softmax().prepare()
            assert abs(plan(x=np.ones(17, np.float32)).sum() - 1) < 1e-5
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures


def test_a_dropped_plan_gives_its_memory_back() -> None:
    plan = (Tensor.input("x", (1 << 16,)) + 1).prepare()
    plan(x=np.zeros(1 << 16, np.float32))
    gone = weakref.ref(plan)
    result = plan.output_buffer
    del plan, result
    gc.collect()
    assert gone() is None


def test_results_outlive_the_plan() -> None:
    plan = (Tensor.input("x", (3,)) + 1).prepare()
    result = plan(x=of(1, 2, 3))
    del plan
    gc.collect()
    junk = [np.full(3, 7, np.float32) for _ in range(100)]
    assert result.tolist() == [2, 3, 4] and len(junk) == 100


def test_a_released_plan_says_so() -> None:
    plan = (Tensor.input("x", (3,)) + 1).prepare()
    plan(x=of(1, 2, 3))
    plan.release_all_buffers()
    for use in (plan.execute, lambda: plan(x=of(1, 2, 3)), plan.output_buffer.numpy):
        with pytest.raises(PlanError, match="its buffers were released"):
            use()


def test_random_numbers_repeat_unless_the_key_is_an_input() -> None:
    plan = Tensor.rand(100, key=Tensor.key(1)).prepare()
    plan.execute()
    first = plan.output_buffer.numpy()
    plan.execute()
    np.testing.assert_array_equal(plan.output_buffer.numpy(), first)


@pytest.mark.parametrize("threads", [1, 2])
def test_poisoned_memory_never_shows(threads: int) -> None:
    n = Variable("n", 0, 50)
    x = Tensor.input("x", (n, 8))
    with config.override(debug=frozenset({"poison"})):
        plan = semel.prepare([(x @ x.T).softmax(-1) @ x, x.cumsum(0)], threads=threads)
    for rows in (50, 3, 0, 17):
        data = np.random.default_rng(rows).normal(size=(rows, 8)).astype(np.float32)
        for array in plan(x=data):
            assert np.isfinite(array).all()


def test_failures_leave_no_half_bound_variables() -> None:
    n, m = Variable("n", 1, 9), Variable("m", 1, 9)
    plan = semel.prepare([Tensor.input("x", (n,)) + 1, Tensor.input("y", (m,)) * 2])
    plan(x=of(1, 2), y=of(1, 2, 3))
    with pytest.raises(SemelError, match=r"must lie in \[1, 9\], got 99"):
        plan.execute_with_vars(n=3, m=99)
    assert plan.variables == {"n": 2, "m": 3}
    plan.execute()
    assert plan.output_buffers[1].numpy().tolist() == [2, 4, 6]
