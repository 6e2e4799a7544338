"""Devices by name, and the compiler half of each: what caches and files keep, and what loads."""

from __future__ import annotations

import subprocess
import sys

import pytest

from semel.devices import find_backend
from semel.devices.cpu.compiler import CpuCompiler
from semel.errors import CompileError, UnsupportedError
from semel.ir.expr import Index
from semel.ir.target import target_for
from semel.ir.types import FLOAT32
from semel.kernel import ir
from semel.runtime.device import check_device, find_device
from semel.runtime.spec import DeviceSpec

OTHER = {"x86_64": "aarch64", "aarch64": "x86_64"}


def _kernel() -> ir.Kernel:
    out = ir.Buffer("b0", FLOAT32, 4, "w")
    column, tile = Index("i", 4), Index("tile", 1)
    body = (ir.Loop(column, 0, 4, (ir.Store(out, column, ir.const(FLOAT32, 2.0)),)),)
    return ir.Kernel("twos", (out,), (), (), tile, 1, body)


def test_a_name_without_an_index_is_the_first_device_but_of_the_cpu() -> None:
    assert check_device("test", "null:0") == check_device("test", "null") == "null"
    assert find_device("null:0") is find_device("null")
    assert check_device("test", "cpu:0") == "cpu:0"
    assert find_device("cpu:0") is not find_device("cpu")
    assert find_backend("cpu:0") is find_backend("cpu:1") is find_backend("cpu")


def test_a_spec_serves_as_its_text() -> None:
    assert find_device(DeviceSpec("cpu:1")) is find_device("cpu:1")
    assert check_device("test", DeviceSpec("null:0")) == "null"


@pytest.mark.parametrize("name", ["gpu", "cuda:0", "disk2"])
def test_a_device_of_an_unknown_kind_is_refused(name: str) -> None:
    with pytest.raises(UnsupportedError, match=r"\[here\] device must be one of cpu.*, got"):
        check_device("here", name)


@pytest.mark.parametrize("name", ["", "cpu:", "cpu:01", "cpu:-1", "cpu:x", "CPU", 0, None])
def test_what_names_no_device_is_refused(name: str) -> None:
    with pytest.raises(UnsupportedError, match=r"\[here\] device must be written kind, kind:index"):
        check_device("here", name)


def test_an_index_past_the_last_device_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"\[null\] there is one device, null:0, got null:1"):
        find_device("null:1")


def test_the_compiler_half_needs_no_hardware_of_its_target() -> None:
    backend = find_backend("cpu")
    other = target_for(OTHER[backend.target().arch], ())
    compiler = backend.compiler(other)
    code = compiler.compile(_kernel(), "twos")
    assert code == compiler.compile(_kernel(), "twos")
    with pytest.raises(CompileError, match=r"object must be for this"):
        compiler.load(code, "twos")


def test_code_is_loaded_once_and_found_by_its_entry() -> None:
    compiler = CpuCompiler(find_backend("cpu").target())
    code = compiler.compile(_kernel(), "twos")
    first, second = compiler.load(code, "twos"), compiler.load(code, "twos")
    assert first.address > 0
    assert (first.address, first.owner) == (second.address, second.owner)
    with pytest.raises(CompileError, match=r"symbol must be one of \['twos'\], got 'threes'"):
        compiler.load(code, "threes")


def test_what_a_target_lacks_is_named() -> None:
    wide, narrow = target_for("x86_64", ("avx2", "fma")), target_for("x86_64", ("fma",))
    assert CpuCompiler(narrow).missing(wide) == ("avx2",)
    assert CpuCompiler(wide).missing(narrow) == ()
    assert CpuCompiler(wide).missing(target_for("aarch64", ())) == ("aarch64",)


_UNUSED = """
import sys
import semel
from semel.runtime.device import check_device
check_device("test", "cpu")
loaded = [name for name in sys.modules if name.startswith("semel.devices.")]
assert not loaded, loaded
semel.Buffer([1.0])
from semel.runtime.device import find_device
assert find_device("cpu").name == "cpu"
assert find_device("cpu")._runner is None, "opening a device loads no code"
"""


def test_nothing_of_a_device_is_imported_before_its_use() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _UNUSED], capture_output=True, text=True, timeout=240, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
