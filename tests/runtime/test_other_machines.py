"""The runner for other machines does what it does here: an op table under an emulator."""

from __future__ import annotations

import pytest
from tests.codegen.emulate import EmulatedRunner, can_emulate, emulator
from tests.runtime.tables import KERNELS, functions, noted
from tests.runtime.test_control_fuzz import Line, Model, build

from semel.ir.abi import Code, Header
from semel.ir.target import target_for

ARM = target_for("aarch64", ("neon", "lse"))

PROGRAM: list[Line] = [
    ("put", (2, [])),
    ("loop", (3, []), [
        ("note", (0, [(10, 0), (1, 1)])),
        ("while", (7, [(1, 1)]), [("add", (1, [(1, 2)])), ("note", (100, [(1, 2), (10, 1)]))]),
        ("late",),
        ("tiles", (0, [(1, 2)])),
        ("loop", (0, [(1, 1)]), [("note", (0, [(1, 2), (1, 3)]))]),
        ("if", (9, []), [("note", (-1, []))], [("note", (-2, [(1, 1)])), ("add", (0, [(5, 0)]))]),
    ]),
    ("late",),
    ("note", (0, [(1, 1)])),
]  # fmt: skip


@pytest.mark.skipif(not can_emulate(ARM), reason=emulator(ARM))
def test_control_steps_on_aarch64() -> None:
    runner = EmulatedRunner(KERNELS, ARM)
    sheet, arrays = build(PROGRAM)
    table = sheet.table()
    table.words[Header.SLICE_TICKS] = 1 << 60
    own = (*table._space.blocks, table.lanes)
    words = {array.ctypes.data: array for array in (*own, *arrays.values())}
    codes = []
    for n in (0, 1, 2, 9):
        model = Model()
        code = model.run(PROGRAM, n)
        table.pending[0], table.words[Header.DIRTY] = n, 1
        arrays["array"][:] = 0
        assert runner.run(table.header, list(words.values()), functions()) == code
        assert noted(arrays["log"]) == model.noted
        assert arrays["array"].tolist() == model.array
        codes.append(code)
    assert codes == [Code.OK, Code.OK, Code.OK, Code.VARIABLE]
