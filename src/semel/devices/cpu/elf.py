"""Load relocatable ELF objects into this process, without a linker and without LLVM.

    object code (bytes)  --load_object-->  LoadedCode: symbol -> address

An object is either refused with a `CompileError` or loaded whole: every offset, size and
index in it is checked before use, so a truncated or corrupted file cannot crash the
process at load. Code pages are never writable and executable at once; data has its own
pages. The memory lives as long as its `LoadedCode`: whoever keeps an address keeps that too.

An image has two page groups: code, call stubs, constants and the table of far addresses
(RX), then data (RW). They lie side by side, so the small code model always reaches; functions
of libc may lie anywhere and are called through a stub. Only names on an allow-list may be left
for us to resolve. Constants share the pages of code so that neighbours in a slab are one
mapping (`semel.devices.cpu.codespace`).

Importing llvmlite takes longer than everything here together, so a warm start loads its
kernels from the cache through this file alone.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import NamedTuple, NoReturn

from semel.devices.cpu.codespace import CodeRange, code_space, round_to_pages
from semel.errors import CompileError

ALLOWED_SYMBOLS = ("memcpy", "memmove", "memset")
MAX_IMAGE_BYTES = 64 << 20

_MACHINES = {"x86_64": 62, "aarch64": 183}
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELA = struct.Struct("<QQq")
_MAGIC = b"\x7fELF\x02\x01\x01"  # 64 bit, little endian, version 1

_SHT_SYMTAB, _SHT_RELA, _SHT_NOBITS, _SHT_REL = 2, 4, 8, 9
_SHF_WRITE, _SHF_ALLOC, _SHF_EXEC, _SHF_TLS = 1, 2, 4, 0x400
_SHN_UNDEF = 0
_STB_LOCAL = 0

_PAGE = mmap.PAGESIZE
_LINE = 64  # code and constants share pages, not cache lines
# Nothing unwinds through generated code: it raises no exceptions.
_IGNORED_SECTIONS = frozenset({".eh_frame"})
_STUB_BYTES = 16


class LoadedCode:
    """One object in memory: addresses of its global symbols, functions and data alike.

    They are valid while this is held. Then the memory is used for other code.
    """

    __slots__ = ("__weakref__", "_place", "symbols")

    def __init__(self, symbols: dict[str, int], place: CodeRange) -> None:
        self.symbols = symbols
        self._place = place

    @property
    def base(self) -> int:
        return self._place.address

    @property
    def nbytes(self) -> int:
        return self._place.nbytes

    def __reduce__(self) -> NoReturn:
        raise TypeError("loaded code is an address in this process; pickle the object code")

    def address(self, name: str) -> int:
        """The address of `name`; a name that the object lacks is a `CompileError`."""
        try:
            return self.symbols[name]
        except KeyError:
            raise CompileError(
                "elf", f"symbol must be one of {sorted(self.symbols)}, got {name!r}."
            ) from None


class _Section(NamedTuple):
    number: int
    name: str
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    align: int

    @property
    def group(self) -> int:
        """0: code, 1: constants, 2: data; the order in memory."""
        if self.flags & _SHF_EXEC:
            return 0
        return 2 if self.flags & _SHF_WRITE else 1


class _Symbol(NamedTuple):
    name: str
    binding: int
    section: int
    value: int


class _Relocation(NamedTuple):
    section: int  # the section it patches
    offset: int
    kind: int
    symbol: int
    addend: int


class _Object(NamedTuple):
    """A checked object: every index and range in it is valid."""

    machine: int
    data: bytes
    sections: tuple[_Section, ...]  # those that get memory
    symbols: tuple[_Symbol, ...]
    relocations: tuple[_Relocation, ...]


def _refuse(message: str) -> CompileError:
    return CompileError("elf", message)


# ---------------------------------------------------------------------------- reading


def _slice(data: bytes, offset: int, size: int, what: str) -> bytes:
    if offset < 0 or size < 0 or offset + size > len(data):
        raise _refuse(
            f"{what} must lie inside the object of {len(data)} bytes, "
            f"got offset {offset} and size {size}."
        )
    return data[offset : offset + size]


def _string(table: bytes, offset: int) -> str:
    end = table.find(b"\0", offset)
    if offset >= len(table) or end < 0:
        raise _refuse(f"a name must lie inside its string table, got offset {offset}.")
    return table[offset:end].decode("utf-8", "backslashreplace")


def _parse(data: bytes) -> _Object:
    machine, sections = _read_sections(data)
    loaded = tuple(section for section in sections if _needs_memory(section))
    symbols = _read_symbols(data, sections, loaded)
    relocations = tuple(_read_relocations(data, sections, loaded, len(symbols)))
    return _Object(machine, data, loaded, symbols, relocations)


def _read_sections(data: bytes) -> tuple[int, list[_Section]]:
    if len(data) < _HEADER.size or not data.startswith(_MAGIC):
        raise _refuse(f"object must be ELF64 little endian, got {data[:8]!r} ({len(data)} bytes).")
    header = _HEADER.unpack_from(data)
    kind, machine, table, entry, count, names_at = (header[i] for i in (1, 2, 6, 11, 12, 13))
    if kind != 1 or entry != _SECTION.size:
        raise _refuse(f"object must be relocatable, got type {kind}, section entry {entry} bytes.")
    raw = list(_SECTION.iter_unpack(_slice(data, table, count * entry, "the section table")))
    if not 0 < names_at < count:
        raise _refuse(f"section name table must be in [1, {count}), got {names_at}.")
    names = _slice(data, raw[names_at][4], raw[names_at][5], "the section names")
    return machine, [
        _check_section(data, _Section(i, _string(names, s[0]), s[1], s[2], *s[4:9]))
        for i, s in enumerate(raw)
    ]


def _check_section(data: bytes, section: _Section) -> _Section:
    if section.kind != _SHT_NOBITS and section.number:
        _slice(data, section.offset, section.size, f"section {section.name}")
    if section.flags & _SHF_TLS and section.flags & _SHF_ALLOC:
        raise _refuse(f"thread-local data is not supported, got section {section.name}.")
    if section.flags & _SHF_ALLOC and section.name.startswith((".init_array", ".ctors")):
        raise _refuse(f"constructors are not supported, got section {section.name}.")
    align = section.align
    if section.flags & _SHF_ALLOC and (align & (align - 1) or align > _PAGE):
        raise _refuse(
            f"alignment of section {section.name} must be a power of two up to {_PAGE}, "
            f"got {align}."
        )
    return section


def _needs_memory(section: _Section) -> bool:
    return bool(section.flags & _SHF_ALLOC) and section.name not in _IGNORED_SECTIONS


def _read_symbols(
    data: bytes, sections: list[_Section], loaded: tuple[_Section, ...]
) -> tuple[_Symbol, ...]:
    tables = [section for section in sections if section.kind == _SHT_SYMTAB]
    if len(tables) != 1 or not 0 < tables[0].link < len(sections):
        raise _refuse(f"object must have one symbol table with names, got {len(tables)}.")
    strings = sections[tables[0].link]
    names = _slice(data, strings.offset, strings.size, "the symbol names")
    raw = _slice(data, tables[0].offset, tables[0].size, "the symbol table")
    if len(raw) % _SYMBOL.size:
        raise _refuse(f"symbol table must hold whole entries, got {len(raw)} bytes.")
    sizes = {section.number: section.size for section in loaded}
    symbols = tuple(
        _Symbol(_string(names, name), info >> 4, section, value)
        for name, info, _, section, value, _ in _SYMBOL.iter_unpack(raw)
    )
    for symbol in symbols:
        if symbol.section in sizes and symbol.value > sizes[symbol.section]:
            raise _refuse(f"symbol {symbol.name!r} must lie in its section, got {symbol.value}.")
    return symbols


def _read_relocations(
    data: bytes, sections: list[_Section], loaded: tuple[_Section, ...], num_symbols: int
) -> Iterator[_Relocation]:
    patched = {section.number: section for section in loaded}
    for section in sections:
        if section.kind not in (_SHT_RELA, _SHT_REL) or section.info not in patched:
            continue
        where = patched[section.info]
        if section.kind == _SHT_REL or where.kind == _SHT_NOBITS:
            raise _refuse(f"section {section.name} has a kind of relocation we do not know.")
        raw = _slice(data, section.offset, section.size, section.name)
        if len(raw) % _RELA.size:
            raise _refuse(f"{section.name} must hold whole entries, got {len(raw)} bytes.")
        for offset, info, addend in _RELA.iter_unpack(raw):
            if info >> 32 >= num_symbols:
                raise _refuse(f"{section.name} names symbol {info >> 32} of {num_symbols}.")
            yield _Relocation(section.info, offset, info & 0xFFFFFFFF, info >> 32, addend)


def _undefined(symbols: tuple[_Symbol, ...]) -> list[str]:
    return sorted({s.name for s in symbols if s.section == _SHN_UNDEF and s.name})


def undefined_symbols(code: bytes) -> list[str]:
    """Names that `code` expects someone else to define, sorted."""
    return _undefined(_parse(code).symbols)


# ---------------------------------------------------------------------------- placing


class _Layout(NamedTuple):
    """Where everything lies in the image of one object; from the object alone."""

    places: dict[int, int]  # section -> offset
    stubs_at: int
    slots_at: int
    code_bytes: int  # whole pages; data follows
    nbytes: int


class _Image(NamedTuple):
    """The bytes of one object while they are being filled, and where they will lie."""

    memory: bytearray
    base: int
    places: dict[int, int]
    stubs: dict[str, int]  # external -> offset of its call stub
    slots: dict[int, int]  # symbol -> offset of its address

    def address(self, section: int) -> int:
        return self.base + self.places[section]


def _align(offset: int, to: int) -> int:
    return -(-offset // to) * to


def _lay_out(obj: _Object) -> _Layout:
    # One stub and one slot per symbol used is an upper bound, and small.
    extra = len({relocation.symbol for relocation in obj.relocations})
    places: dict[int, int] = {}
    stubs_at = _place(obj, 0, 0, places)
    slots_at = _place(obj, 1, stubs_at + extra * _STUB_BYTES, places)
    code_bytes = round_to_pages(slots_at + extra * 8)
    end = _place(obj, 2, code_bytes, places)
    if end > MAX_IMAGE_BYTES:
        raise _refuse(f"sections must fit in {MAX_IMAGE_BYTES} bytes, got {end}.")
    return _Layout(places, stubs_at, slots_at, code_bytes, end)


def _place(obj: _Object, group: int, start: int, places: dict[int, int]) -> int:
    """Give the sections of one group their offsets from `start` on; the offset after them."""
    end = _align(start, _LINE)
    for section in obj.sections:
        if section.group == group:
            end = _align(end, max(section.align, 16))
            places[section.number] = end
            end += section.size
    return _align(end, 16)


def _copy_sections(obj: _Object, layout: _Layout) -> bytearray:
    memory = bytearray(layout.nbytes)
    for section in obj.sections:
        if section.kind != _SHT_NOBITS:
            at = layout.places[section.number]
            memory[at : at + section.size] = obj.data[
                section.offset : section.offset + section.size
            ]
    return memory


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _libc_address(name: str) -> int:
    return ctypes.cast(getattr(_libc(), name), ctypes.c_void_p).value or 0


# ------------------------------------------------------------------------- relocating


class _Linker:
    """Resolves symbols and applies the relocations of one object to its image."""

    def __init__(
        self, obj: _Object, layout: _Layout, base: int, externals: Mapping[str, int]
    ) -> None:
        self.obj = obj
        self.externals = externals
        self.image = _Image(_copy_sections(obj, layout), base, layout.places, {}, {})
        self._next_stub, self._next_slot = layout.stubs_at, layout.slots_at
        self.sizes = {section.number: section.size for section in obj.sections}

    def target(self, index: int) -> int:
        """The address of a symbol: our section, or somebody else's function."""
        symbol = self.obj.symbols[index]
        if symbol.section in self.image.places:
            return self.image.address(symbol.section) + symbol.value
        if symbol.section == _SHN_UNDEF and symbol.name in self.externals:
            return self.externals[symbol.name]
        raise _refuse(
            f"symbol {symbol.name!r} must be defined in a loaded section, "
            f"got section {symbol.section}."
        )

    def near_target(self, index: int) -> int:
        """An address within reach of a direct call: an external gets a stub."""
        symbol = self.obj.symbols[index]
        if symbol.section != _SHN_UNDEF:
            return self.target(index)
        if symbol.name not in self.image.stubs:
            stub = _STUBS[self.obj.machine](self.target(index))
            self.image.memory[self._next_stub : self._next_stub + len(stub)] = stub
            self.image.stubs[symbol.name] = self._next_stub
            self._next_stub += _STUB_BYTES
        return self.image.base + self.image.stubs[symbol.name]

    def slot(self, index: int) -> int:
        """The address of a word that holds the symbol's address (a GOT entry)."""
        if index not in self.image.slots:
            struct.pack_into("<Q", self.image.memory, self._next_slot, self.target(index))
            self.image.slots[index] = self._next_slot
            self._next_slot += 8
        return self.image.base + self.image.slots[index]

    def relocate(self) -> None:
        rules = _RULES[self.obj.machine]
        for relocation in self.obj.relocations:
            rule = rules.get(relocation.kind)
            if rule is None:
                raise _refuse(f"relocation of type {relocation.kind} is not supported.")
            if relocation.offset > self.sizes[relocation.section] - rule.width:
                raise _refuse(
                    f"a relocation must patch its section of {self.sizes[relocation.section]} "
                    f"bytes, got offset {relocation.offset}."
                )
            at = self.image.places[relocation.section] + relocation.offset
            value = getattr(self, rule.resolve)(relocation.symbol) + relocation.addend
            rule.patch(self.image.memory, at, value, self.image.base + at)


def _fit(value: int, bits: int, what: str) -> int:
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise _refuse(f"{what} must fit in {bits} bits, got {value:#x}.")
    return value


_Patch = Callable[[bytearray, int, int, int], None]


class _Rule(NamedTuple):
    """How one relocation type patches `width` bytes.

    `resolve` names the method of the linker that gives the address meant;
    `patch(memory, at, value, here)` writes it.
    """

    width: int
    patch: _Patch
    resolve: str = "target"


def _abs64(memory: bytearray, at: int, value: int, here: int) -> None:
    struct.pack_into("<Q", memory, at, value & (1 << 64) - 1)


def _abs32s(memory: bytearray, at: int, value: int, here: int) -> None:
    struct.pack_into("<i", memory, at, _fit(value, 32, "an absolute address"))


def _abs32u(memory: bytearray, at: int, value: int, here: int) -> None:
    if not 0 <= value < 1 << 32:
        raise _refuse(f"an absolute address must fit in 32 bits, got {value:#x}.")
    struct.pack_into("<I", memory, at, value)


def _rel64(memory: bytearray, at: int, value: int, here: int) -> None:
    struct.pack_into("<q", memory, at, _fit(value - here, 64, "a distance"))


def _rel32(memory: bytearray, at: int, value: int, here: int) -> None:
    struct.pack_into("<i", memory, at, _fit(value - here, 32, "a distance"))


def _set_bits(memory: bytearray, at: int, mask: int, bits: int) -> None:
    (word,) = struct.unpack_from("<I", memory, at)
    struct.pack_into("<I", memory, at, word & ~mask | bits & mask)


def _branch26(memory: bytearray, at: int, value: int, here: int) -> None:
    distance = _fit(value - here, 28, "a branch distance")
    if distance % 4:
        raise _refuse(f"a branch distance must be a multiple of 4, got {distance}.")
    _set_bits(memory, at, 0x03FFFFFF, distance >> 2)


def _page21(memory: bytearray, at: int, value: int, here: int) -> None:
    pages = _fit((value >> 12) - (here >> 12), 21, "a page distance")
    _set_bits(memory, at, 0x60FFFFE0, (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5)


def _low12(shift: int) -> _Patch:
    """The low 12 bits of an address, in units of the access size 1 << shift."""

    def patch(memory: bytearray, at: int, value: int, here: int) -> None:
        low = value & 0xFFF
        if low & (1 << shift) - 1:
            raise _refuse(f"address {value:#x} must be aligned to {1 << shift} bytes.")
        _set_bits(memory, at, 0xFFF << 10, low >> shift << 10)

    return patch


_RULES: dict[int, dict[int, _Rule]] = {
    _MACHINES["x86_64"]: {
        1: _Rule(8, _abs64),  # 64
        2: _Rule(4, _rel32, "near_target"),  # PC32
        4: _Rule(4, _rel32, "near_target"),  # PLT32
        9: _Rule(4, _rel32, "slot"),  # GOTPCREL
        10: _Rule(4, _abs32u),  # 32
        11: _Rule(4, _abs32s),  # 32S
        24: _Rule(8, _rel64),  # PC64
        41: _Rule(4, _rel32, "slot"),  # GOTPCRELX
        42: _Rule(4, _rel32, "slot"),  # REX_GOTPCRELX
    },
    _MACHINES["aarch64"]: {
        257: _Rule(8, _abs64),  # ABS64
        260: _Rule(8, _rel64),  # PREL64
        261: _Rule(4, _rel32),  # PREL32
        275: _Rule(4, _page21),  # ADR_PREL_PG_HI21
        277: _Rule(4, _low12(0)),  # ADD_ABS_LO12_NC
        278: _Rule(4, _low12(0)),  # LDST8_ABS_LO12_NC
        282: _Rule(4, _branch26, "near_target"),  # JUMP26
        283: _Rule(4, _branch26, "near_target"),  # CALL26
        284: _Rule(4, _low12(1)),  # LDST16_ABS_LO12_NC
        285: _Rule(4, _low12(2)),  # LDST32_ABS_LO12_NC
        286: _Rule(4, _low12(3)),  # LDST64_ABS_LO12_NC
        299: _Rule(4, _low12(4)),  # LDST128_ABS_LO12_NC
        311: _Rule(4, _page21, "slot"),  # ADR_GOT_PAGE
        312: _Rule(4, _low12(3), "slot"),  # LD64_GOT_LO12_NC
    },
}


def _stub_x86_64(address: int) -> bytes:
    return b"\xff\x25\x00\x00\x00\x00" + struct.pack("<Q", address)  # jmp [rip]; address


def _stub_aarch64(address: int) -> bytes:
    return struct.pack("<IIQ", 0x58000050, 0xD61F0200, address)  # ldr x16, [pc+8]; br x16


_STUBS = {_MACHINES["x86_64"]: _stub_x86_64, _MACHINES["aarch64"]: _stub_aarch64}


def load_object(code: bytes, externals: Mapping[str, int] | None = None) -> LoadedCode:
    """Map and relocate `code`; the addresses are valid as long as the result is held.

    `externals` adds names and addresses to the allow-list of libc functions.
    """
    obj = _parse(code)
    host = platform.machine()
    if obj.machine != _MACHINES.get(host):
        raise _refuse(f"object must be for this {host} machine, got ELF machine {obj.machine}.")
    layout, addresses = _lay_out(obj), _resolve_externals(obj, externals or {})
    place = code_space.take(layout.nbytes)
    image, exports = _link(obj, layout, place.address, addresses)
    place.fill(image, layout.code_bytes)
    return LoadedCode(exports, place)


def link_image(code: bytes, base: int) -> tuple[bytes, dict[str, int]]:
    """What `code` would be in memory at `base`, and where its symbols would lie.

    For any machine; nothing may be left undefined.
    """
    obj = _parse(code)
    return _link(obj, _lay_out(obj), base, {})


def _link(
    obj: _Object, layout: _Layout, base: int, externals: Mapping[str, int]
) -> tuple[bytes, dict[str, int]]:
    linker = _Linker(obj, layout, base, externals)
    linker.relocate()
    return bytes(linker.image.memory), _exports(obj, linker.image)


def _resolve_externals(obj: _Object, externals: Mapping[str, int]) -> dict[str, int]:
    names = _undefined(obj.symbols)
    stray = [name for name in names if name not in externals and name not in ALLOWED_SYMBOLS]
    if stray:
        raise CompileError(
            "elf",
            f"generated code may call only {', '.join(ALLOWED_SYMBOLS)}, "
            f"got calls to {', '.join(stray)}.",
            symbols=stray,
        )
    return {name: externals[name] if name in externals else _libc_address(name) for name in names}


def _exports(obj: _Object, image: _Image) -> dict[str, int]:
    exports: dict[str, int] = {}
    for symbol in obj.symbols:
        if symbol.binding == _STB_LOCAL or symbol.section not in image.places:
            continue
        if symbol.name in exports:
            raise _refuse(f"symbol {symbol.name!r} must be defined once.")
        exports[symbol.name] = image.address(symbol.section) + symbol.value
    return exports
