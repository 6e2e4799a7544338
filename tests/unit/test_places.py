"""Places of plans in the loaded runner: each is one plan's at a time."""

from __future__ import annotations

from typing import Any

from tests.fuzz.interrupts import find_places, interrupt, where

from semel.devices.cpu.runtime import CpuDevice, CpuEntry


def _address(entry: Any) -> int:
    code, index = entry._place
    return int(code.symbols[f"entry_{index}"])


def test_a_handler_that_opens_a_plan_while_the_runner_is_loaded_gets_a_place_of_its_own() -> None:
    device = CpuDevice()

    entries: list[CpuEntry] = []

    def add() -> None:
        device._free.clear()
        open_one()

    def open_one() -> None:
        entries.append(device.open_entry())

    for place in find_places(add):
        if place[0].co_name not in ("open_entry", "_add", "<listcomp>"):
            continue
        entries.clear()
        interrupt(add, place, open_one)
        while device._free:
            open_one()
        taken = [_address(entry) for entry in entries]
        assert len(set(taken)) == len(taken), where(place)
