"""The machine that code is generated for, as plain data.

    host detection, or a table  --Target-->  lower, codegen, toolchain, cache key

A target says everything that generated code may depend on, and nothing else: two hosts
with equal targets run each other's code. `cpu` is a micro-architecture level rather than
the model of the host, because a level follows from the features alone; that keeps the
key the same whether the features come from the operating system or from LLVM.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Of every machine we generate code for.
CACHE_LINE_BYTES = 64

AVX512 = ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
AVX2 = ("avx2", "fma")

_LEVELS = (
    ("x86-64-v2", ("cx16", "popcnt", "sahf", "sse3", "ssse3", "sse4.1", "sse4.2")),
    ("x86-64-v3", ("avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave")),
    ("x86-64-v4", AVX512),
)


@dataclass(frozen=True, slots=True)
class Target:
    """Triple, CPU level, sorted LLVM feature names, vector width and cache sizes.

    The cache sizes guide tiling and thereby change kernels, not the meaning of a
    kernel's text, so they are not part of `key`.
    """

    triple: str
    cpu: str
    features: tuple[str, ...]
    vector_bits: int
    arch: str  # x86_64 or aarch64
    l1_bytes: int = 32 << 10
    l2_bytes: int = 1 << 20
    l3_bytes: int = 8 << 20

    @property
    def key(self) -> str:
        """One line that names all that machine code depends on, for cache keys."""
        return f"{self.triple}/{self.cpu}/{self.vector_bits}/{','.join(self.features)}"

    @property
    def has_fma(self) -> bool:
        """Whether `llvm.fma` on float32 and float64 is one instruction and not a call."""
        return self.arch == "aarch64" or "fma" in self.features

    @property
    def has_f16_casts(self) -> bool:
        """Whether float16 <-> float32 casts are instructions and not calls."""
        return self.arch == "aarch64" or "f16c" in self.features

    @property
    def has_masks(self) -> bool:
        """Whether masked vector loads and stores cost no more than plain ones."""
        return self.vector_bits == 512

    @property
    def byte_dot(self) -> str:
        """What adds four products of bytes to an int32: an instruction's name, or `pairs`.

        `vpdpbusd` and `usdot` take unsigned left and signed right bytes, `sdot` signed ones;
        `pairs` multiplies 16-bit halves of any sign; empty where there are only scalar widths.
        """
        if self.arch == "aarch64":
            names = {"i8mm": "usdot", "dotprod": "sdot"}
            return next((ours for name, ours in names.items() if name in self.features), "")
        wide = "avx512vnni" if self.vector_bits == 512 else "avxvnni"
        return "vpdpbusd" if wide in self.features else "pairs"

    @property
    def word_lanes(self) -> int:
        """Columns of a panel of words, the packed right operand of products of bytes."""
        return 2 * self.vector_bits // 32

    @property
    def has_byte_tiles(self) -> bool:
        """Whether registers hold 16 x 16 sums and multiply blocks of bytes at once (AMX)."""
        return self.vector_bits == 512 and {"amx-int8", "amx-tile"} <= set(self.features)

    @property
    def vector_bytes(self) -> int:
        """Bytes of one vector register."""
        return self.vector_bits // 8

    @property
    def vector_registers(self) -> int:
        """How many vector registers a tile may live in."""
        return 32 if self.arch == "aarch64" or self.vector_bits == 512 else 16

    def lanes(self, element_bits: int) -> int:
        """How many elements of `element_bits` fill one vector register."""
        return self.vector_bits // element_bits


def target_for(arch: str, features: tuple[str, ...], **cache_bytes: int) -> Target:
    """The target with these LLVM features; level and vector width follow from them."""
    features = tuple(sorted(features))
    triple = f"{arch}-unknown-linux-gnu"
    if arch == "aarch64":
        return Target(triple, "generic", features, 128, arch, **cache_bytes)
    return Target(triple, _level(features), features, _width(features), arch, **cache_bytes)


def _level(features: tuple[str, ...]) -> str:
    level = "x86-64"
    for name, needs in _LEVELS:
        if not set(needs) <= set(features):
            break
        level = name
    return level


def _width(features: tuple[str, ...]) -> int:
    if set(AVX512) <= set(features):
        return 512
    return 256 if set(AVX2) <= set(features) else 128
