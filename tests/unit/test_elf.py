"""The loader: real objects run, damaged ones are refused and never crash."""

from __future__ import annotations

import ctypes
import platform
import random
import struct
from typing import Any

import pytest

from semel.devices.cpu import elf
from semel.devices.cpu.elf import load_object, undefined_symbols
from semel.devices.cpu.toolchain import compile_ir, host_target
from semel.errors import CompileError
from semel.ir.target import target_for

I64 = ctypes.c_int64

PROGRAM = """
@counters = global [4 x i64] zeroinitializer, align 64
@start = global i64 40
@pointer = global ptr @start
@table = private constant [4 x float] [float 1.0, float 2.0, float 3.0, float 4.5]
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

define float @look_up(i64 %i) nounwind {
  %p = getelementptr float, ptr @table, i64 %i
  %v = load float, ptr %p
  ret float %v
}
define i64 @bump(i64 %i) nounwind {
  %p = getelementptr i64, ptr @counters, i64 %i
  %v = load i64, ptr %p
  %w = add i64 %v, 1
  store i64 %w, ptr %p
  ret i64 %w
}
define i64 @through_pointer() nounwind {
  %p = load ptr, ptr @pointer
  %v = load i64, ptr %p
  %r = call i64 @bump(i64 0)
  %s = add i64 %v, %r
  ret i64 %s
}
define void @copy(ptr %a, ptr %b, i64 %n) nounwind {
  call void @llvm.memcpy.p0.p0.i64(ptr %a, ptr %b, i64 %n, i1 false)
  ret void
}
define void @fill(ptr %a, i64 %n) nounwind {
  call void @llvm.memset.p0.i64(ptr %a, i8 7, i64 %n, i1 false)
  ret void
}
define i64 @pick(i64 %i) nounwind {
  switch i64 %i, label %other [
    i64 0, label %c0  i64 1, label %c1  i64 2, label %c2  i64 3, label %c3  i64 4, label %c4
    i64 5, label %c5  i64 6, label %c6
  ]
c0:
  %r0 = call i64 @bump(i64 1)
  ret i64 %r0
c1:
  ret i64 11
c2:
  %r2 = call i64 @through_pointer()
  ret i64 %r2
c3:
  ret i64 -13
c4:
  %r4 = call i64 @bump(i64 2)
  ret i64 %r4
c5:
  ret i64 1000
c6:
  ret i64 6
other:
  ret i64 -1
}
"""


@pytest.fixture(scope="module")
def code() -> bytes:
    return compile_ir(PROGRAM, host_target())


def _call(loaded: elf.LoadedCode, name: str, result: Any, *arguments: Any) -> Any:
    types = [ctypes.c_void_p if hasattr(a, "_length_") else I64 for a in arguments]
    return ctypes.CFUNCTYPE(result, *types)(loaded.address(name))(*arguments)


def test_constants_are_found(code: bytes) -> None:
    loaded = load_object(code)
    assert [_call(loaded, "look_up", ctypes.c_float, i) for i in range(4)] == [1.0, 2.0, 3.0, 4.5]


def test_data_is_writable_zeroed_and_exported(code: bytes) -> None:
    loaded = load_object(code)
    assert [_call(loaded, "bump", I64, 3) for _ in range(2)] == [1, 2]
    assert list((I64 * 4).from_address(loaded.address("counters"))) == [0, 0, 0, 2]
    assert loaded.address("counters") % 64 == 0


def test_each_load_has_its_own_data(code: bytes) -> None:
    first, second = load_object(code), load_object(code)
    _call(first, "bump", I64, 0)
    assert _call(second, "bump", I64, 0) == 1


def test_pointers_in_data_and_calls_between_functions(code: bytes) -> None:
    assert _call(load_object(code), "through_pointer", I64) == 41


def test_jump_tables(code: bytes) -> None:
    loaded = load_object(code)
    assert [_call(loaded, "pick", I64, i) for i in (1, 3, 5, 6, 99)] == [11, -13, 1000, 6, -1]


def test_libc_is_reached_however_far(code: bytes) -> None:
    loaded = load_object(code)
    source = ctypes.create_string_buffer(b"x" * 1000, 1000)
    target = ctypes.create_string_buffer(1000)
    _call(loaded, "copy", None, target, source, 1000)
    assert target.raw == source.raw
    _call(loaded, "fill", None, target, 999)
    assert target.raw == b"\x07" * 999 + b"x"


def test_undefined_symbols_are_listed(code: bytes) -> None:
    assert undefined_symbols(code) == ["memcpy", "memset"]


def test_stray_symbols_are_refused_and_named() -> None:
    text = "declare i64 @evil(i64)\ndefine i64 @f(i64 %x) nounwind {\n"
    text += "  %r = call i64 @evil(i64 %x)\n  ret i64 %r\n}"
    code = compile_ir(text, host_target(), externals=("evil",))
    with pytest.raises(CompileError, match=r"may call only memcpy.*got calls to evil"):
        load_object(code)
    callback = ctypes.CFUNCTYPE(I64, I64)(lambda x: x * 2)
    address = ctypes.cast(callback, ctypes.c_void_p).value
    assert address is not None
    assert _call(load_object(code, {"evil": address}), "f", I64, 21) == 42


def test_the_address_of_an_external_goes_through_a_table() -> None:
    text = "declare i64 @far(i64)\n@data = external global i64\n"
    text += "define ptr @where() nounwind {\n  ret ptr @far\n}\n"
    text += "define i64 @read() nounwind {\n  %v = load i64, ptr @data\n  ret i64 %v\n}"
    code = compile_ir(text, host_target(), externals=("far", "data"))
    word = I64(1234)
    loaded = load_object(code, {"far": 0x1122334455667788, "data": ctypes.addressof(word)})
    assert _call(loaded, "where", I64) == 0x1122334455667788
    assert _call(loaded, "read", I64) == 1234


def test_an_absent_symbol_is_named(code: bytes) -> None:
    with pytest.raises(CompileError, match=r"symbol must be one of .*got 'absent'"):
        load_object(code).address("absent")


@pytest.mark.skipif(platform.system() != "Linux", reason="reads /proc/self/maps")
def test_no_page_is_writable_and_executable(code: bytes) -> None:
    loaded = load_object(code)
    found = {}
    with open("/proc/self/maps") as maps:
        for line in maps:
            span, mode = line.split()[:2]
            begin, end = (int(word, 16) for word in span.split("-"))
            for name, address in loaded.symbols.items():
                if begin <= address < end:
                    found[name] = mode
    assert found["bump"].startswith("r-x")
    assert found["counters"].startswith("rw-")
    assert found["start"].startswith("rw-")


def test_code_for_another_machine_is_refused() -> None:
    other = "aarch64" if platform.machine() == "x86_64" else "x86_64"
    with pytest.raises(CompileError, match="must be for this"):
        load_object(compile_ir(PROGRAM, target_for(other, ())))


@pytest.mark.parametrize("junk", [b"", b"\x7fELF", b"x" * 200, b"\x7fELF\x02\x01\x01" + b"\0" * 57])
def test_junk_is_refused(junk: bytes) -> None:
    with pytest.raises(CompileError, match=r"^\[elf\]"):
        load_object(junk)


def test_every_truncation_is_refused(code: bytes) -> None:
    # The section table comes last, so nothing can be cut off unseen.
    for length in range(0, len(code), 7):
        with pytest.raises(CompileError, match=r"^\[elf\]"):
            load_object(code[:length])


def test_damage_is_refused_or_harmless_to_load(code: bytes) -> None:
    chance = random.Random(1)
    refused = 0
    for _ in range(3000):
        damaged = bytearray(code)
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(len(code))] = chance.choice([0, 1, 0x7F, 0xFF, 0x80])
        try:
            load_object(bytes(damaged))
        except CompileError:
            refused += 1
    assert refused > 300


def _sections(code: bytes) -> tuple[int, int]:
    (table,) = struct.unpack_from("<Q", code, 40)
    (count,) = struct.unpack_from("<H", code, 60)
    return table, count


def _patched_sections(code: bytes, field: int, size: str, value: int) -> list[bytes]:
    """One copy of the object per section, with one field of its header replaced."""
    table, count = _sections(code)
    copies = []
    for index in range(1, count):
        damaged = bytearray(code)
        struct.pack_into(size, damaged, table + 64 * index + field, value)
        copies.append(bytes(damaged))
    return copies


@pytest.mark.parametrize(
    ("field", "size"),
    [(0, "<I"), (4, "<I"), (8, "<Q"), (24, "<Q"), (32, "<Q"), (40, "<I"), (44, "<I"), (48, "<Q")],
    ids=["name", "type", "flags", "offset", "size", "link", "info", "align"],
)
@pytest.mark.parametrize("value", [0, 1, 3, 8, 0x7FFFFFFF, 0xFFFFFFFF])
def test_wild_section_headers_do_not_crash(code: bytes, field: int, size: str, value: int) -> None:
    for damaged in _patched_sections(code, field, size, value):
        try:
            load_object(damaged)
        except CompileError:
            continue


def test_a_section_larger_than_memory_is_refused(code: bytes) -> None:
    table, count = _sections(code)
    damaged = bytearray(code)
    for index in range(count):
        kind = struct.unpack_from("<I", code, table + 64 * index + 4)[0]
        if kind == 8:
            struct.pack_into("<Q", damaged, table + 64 * index + 32, 1 << 62)
    with pytest.raises(CompileError, match="sections must fit in"):
        load_object(bytes(damaged))


def _first_relocation(code: bytes, kind: int) -> tuple[int, int, int]:
    """Where the first relocation of a type lies in the file, its section's size and its width."""
    obj = elf._parse(code)
    sizes = {section.number: section.size for section in obj.sections}
    at = 0
    for relocation in obj.relocations:
        entry = elf._RELA.pack(
            relocation.offset, relocation.symbol << 32 | relocation.kind, relocation.addend
        )
        at = code.index(entry)
        if relocation.kind == kind:
            break
    assert relocation.kind == kind
    return at, sizes[relocation.section], elf._RULES[obj.machine][kind].width


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_a_relocation_patches_its_section_and_not_a_byte_more(machine: str) -> None:
    code = compile_ir(PROGRAM, target_for(machine, ()))
    (absolute,) = {"x86_64": [1], "aarch64": [257]}[machine]
    at, size, width = _first_relocation(code, absolute)
    assert (width, size >= 8) == (8, True)
    for offset in (0, size - width):
        _relocate(_with_offset(code, at, offset))
    for offset in (size - width + 1, size - 1, size, size + 1, 1 << 32, (1 << 64) - 1):
        with pytest.raises(CompileError, match=rf"must patch its section of {size} bytes, got off"):
            _relocate(_with_offset(code, at, offset))


def _with_offset(code: bytes, at: int, offset: int) -> bytes:
    patched = bytearray(code)
    struct.pack_into("<Q", patched, at, offset)
    return bytes(patched)


def _relocate(code: bytes) -> None:
    """All of loading but for the right to execute, for any machine's code."""
    obj = elf._parse(code)
    externals = {"memcpy": 0x1000, "memset": 0x2000}
    elf._Linker(obj, elf._lay_out(obj), 0x10000, externals).relocate()


class TestArmRelocations:
    """Checked on the patched instruction words: they need no such machine."""

    def _word(self, kind: int, word: int, value: int, here: int = 0x10000) -> int:
        memory: Any = bytearray(struct.pack("<Q", word))
        elf._RULES[183][kind].patch(memory, 0, value, here)
        return int(struct.unpack_from("<I", memory)[0])

    def test_call(self) -> None:
        assert self._word(283, 0x94000000, 0x10100) == 0x94000040
        assert self._word(282, 0x14000000, 0x0FFFC) == 0x17FFFFFF

    def test_page(self) -> None:
        assert self._word(275, 0x90000000, 0x13456) == 0xF0000000
        assert self._word(275, 0x90000000, 0x0F000) == 0xF0FFFFE0

    def test_low_bits(self) -> None:
        assert self._word(277, 0x91000000, 0x12345) == 0x91000000 | 0x345 << 10
        assert self._word(286, 0xF9400000, 0x12348) == 0xF9400000 | (0x348 >> 3) << 10
        assert self._word(299, 0x3DC00000, 0x12340) == 0x3DC00000 | (0x340 >> 4) << 10

    def test_data(self) -> None:
        memory: Any = bytearray(8)
        elf._RULES[183][257].patch(memory, 0, 0x1122334455667788, 0)
        assert struct.unpack("<Q", memory) == (0x1122334455667788,)
        assert self._word(261, 0, 0x10010) == 0x10

    @pytest.mark.parametrize(
        ("kind", "value"), [(283, 1 << 30), (283, 0x10002), (275, 1 << 40), (286, 0x12344)]
    )
    def test_what_does_not_fit_is_refused(self, kind: int, value: int) -> None:
        with pytest.raises(CompileError, match="must"):
            self._word(kind, 0, value)

    def test_every_relocation_of_a_real_object_is_known(self) -> None:
        code = compile_ir(PROGRAM, target_for("aarch64", ("neon",)))
        kinds = {relocation.kind for relocation in elf._parse(code).relocations}
        assert len(kinds) >= 5
        assert kinds <= set(elf._RULES[183])
