"""The machine that code is generated for, as plain data.

    host detection, or a table  --Target-->  lower, codegen, toolchain, cache key

A target says everything that generated code may depend on, and nothing else: two hosts
with equal targets run each other's code. `cpu` is a micro-architecture level rather than
the model of the host, because a level follows from the features alone; that keeps the
key the same whether the features come from the operating system or from LLVM.

A target has a name where people ask for one: a level (`x86-64-v3`, `aarch64`), and what it has
besides (`x86-64-v4+avx512vnni`). Code for a name is the same wherever it is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from semel.errors import UnsupportedError

#: Of every machine we generate code for.
CACHE_LINE_BYTES = 64

AVX512 = ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
AVX2 = ("avx2", "fma")

_X86_FEATURES = {
    "adx": "adx",
    "amx-int8": "amx_int8",
    "amx-tile": "amx_tile",
    "avx": "avx",
    "avx2": "avx2",
    "avx512bitalg": "avx512_bitalg",
    "avx512bw": "avx512bw",
    "avx512cd": "avx512cd",
    "avx512dq": "avx512dq",
    "avx512f": "avx512f",
    "avx512ifma": "avx512ifma",
    "avx512vbmi": "avx512vbmi",
    "avx512vbmi2": "avx512_vbmi2",
    "avx512vl": "avx512vl",
    "avx512vnni": "avx512_vnni",
    "avx512vpopcntdq": "avx512_vpopcntdq",
    "avxvnni": "avx_vnni",
    "bmi": "bmi1",
    "bmi2": "bmi2",
    "cx16": "cx16",
    "f16c": "f16c",
    "fma": "fma",
    "gfni": "gfni",
    "lzcnt": "abm",
    "movbe": "movbe",
    "popcnt": "popcnt",
    "sahf": "lahf_lm",
    "sse3": "pni",
    "sse4.1": "sse4_1",
    "sse4.2": "sse4_2",
    "ssse3": "ssse3",
    "xsave": "xsave",
}
_ARM_FEATURES = {
    "bf16": "bf16",
    "dotprod": "asimddp",
    "fullfp16": "asimdhp",
    "i8mm": "i8mm",
    "lse": "atomics",
    "neon": "asimd",
}

#: By architecture, the features that code may be made to depend on: LLVM's name, and the name
#: that the system's kernel lists where there is one.
FEATURES = MappingProxyType({"x86_64": _X86_FEATURES, "aarch64": _ARM_FEATURES})

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
    def name(self) -> str:
        """What `named_target` knows it by; its features come in their order."""
        level = "aarch64" if self.arch == "aarch64" else self.cpu
        _, usual = _named_levels()[level]
        return "+".join((level, *(f for f in self.features if f not in usual)))

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
    def multiplies_small_bytes(self) -> bool:
        """Whether products of bytes and of small bytes are added in pairs, in 16 bits."""
        return self.arch == "x86_64" and self.byte_dot == "pairs" and self.vector_bits >= 256

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


def named_target(name: str) -> Target:
    """The target of this name: a level, then the features it has besides, each after a `+`.

    Its cache sizes are usual ones: what it says must not depend on where it is asked.
    """
    level, *more = name.strip().lower().split("+")
    known = _named_levels()
    if level not in known:
        raise UnsupportedError(
            "target",
            f"must be one of {', '.join(known)}, or native, got {name!r}.",
            hint="Features are added by name, as in 'x86-64-v4+avx512vnni'.",
        )
    arch, features = known[level]
    unknown = [feature for feature in more if feature not in FEATURES[arch]]
    if unknown:
        raise UnsupportedError(
            "target",
            f"features of {arch} must be among {', '.join(FEATURES[arch])}, "
            f"got {', '.join(map(repr, unknown))}.",
        )
    return target_for(arch, tuple({*features, *more}))


def _named_levels() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Architecture and features by the name of a level; one includes those before it."""
    levels: dict[str, tuple[str, tuple[str, ...]]] = {"x86-64": ("x86_64", ())}
    features: tuple[str, ...] = ()
    for name, needs in _LEVELS:
        features = (*features, *needs)
        levels[name] = ("x86_64", features)
    return {**levels, "aarch64": ("aarch64", ("neon",))}


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
