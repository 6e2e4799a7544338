"""Targets: what follows from features, and what this host is."""

from __future__ import annotations

import ctypes
import math
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from semel.devices.cpu import toolchain
from semel.devices.cpu.elf import load_object
from semel.devices.cpu.toolchain import (
    assembly,
    available_cores,
    compile_ir,
    features_from_cpuinfo,
    features_from_llvm,
    host_target,
    undefined_symbols,
)
from semel.devices.cpu.yardstick import measure_limits
from semel.errors import CompileError, InternalError, UnsupportedError
from semel.ir.target import Target, named_target, target_for

V2 = ("cx16", "popcnt", "sahf", "sse3", "ssse3", "sse4.1", "sse4.2")
V3 = (*V2, "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave")
V4 = (*V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")

ADD = """
define void @add(ptr %a, ptr %b) nounwind {
  %x = load <32 x float>, ptr %a, align 4
  %y = load <32 x float>, ptr %b, align 4
  %z = fadd <32 x float> %x, %y
  store <32 x float> %z, ptr %a, align 4
  ret void
}
"""


@pytest.fixture(autouse=True)
def _own_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.mark.parametrize(
    ("features", "cpu", "bits", "registers"),
    [
        ((), "x86-64", 128, 16),
        (V2, "x86-64-v2", 128, 16),
        (V3, "x86-64-v3", 256, 16),
        (V4, "x86-64-v4", 512, 32),
        (("avx2", "fma"), "x86-64", 256, 16),
        (tuple(f for f in V4 if f != "avx512vl"), "x86-64-v3", 256, 16),
    ],
)
def test_level_and_width_follow_from_features(
    features: tuple[str, ...], cpu: str, bits: int, registers: int
) -> None:
    target = target_for("x86_64", features)
    assert (target.cpu, target.vector_bits, target.vector_registers) == (cpu, bits, registers)
    assert target.has_fma == ("fma" in features)
    assert target.lanes(32) == bits // 32


def test_arm_has_neon_and_fma() -> None:
    target = target_for("aarch64", ("neon",))
    assert (target.vector_bits, target.vector_registers, target.has_fma) == (128, 32, True)


def test_the_key_depends_on_features_but_not_on_their_order_or_on_caches() -> None:
    one = target_for("x86_64", V3)
    assert one.key == target_for("x86_64", tuple(reversed(V3)), l2_bytes=77).key
    assert one.key != target_for("x86_64", V4).key
    assert one.key != target_for("aarch64", V3).key


def test_the_system_and_llvm_name_the_same_features() -> None:
    arch = host_target().arch
    found = features_from_cpuinfo(arch, Path("/proc/cpuinfo").read_text())
    assert found is not None
    by_llvm = features_from_llvm(arch)
    assert target_for(arch, found).key == target_for(arch, by_llvm).key


def test_the_host_falls_back_to_llvm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    key = host_target().key
    monkeypatch.setattr(toolchain, "_CPUINFO", tmp_path / "absent")
    assert host_target.__wrapped__().key == key


def test_finding_the_host_does_not_import_llvmlite() -> None:
    program = (
        "import sys; from semel.devices.cpu.toolchain import host_target, available_cores;"
        "import semel.devices.cpu.elf;"
        "host_target(), available_cores(); assert 'llvmlite' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=240)


def test_cpuinfo_without_flags_says_nothing() -> None:
    assert features_from_cpuinfo("x86_64", "processor : 0\n") is None
    assert features_from_cpuinfo("aarch64", "Features : fp asimd atomics\n") == ("lse", "neon")


def test_cache_sizes_come_from_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "_SYSCONF_CACHES", {})
    for index, (level, kind, size) in enumerate(
        [("1", "Data", "48K"), ("1", "Instruction", "32K"), ("2", "Unified", "2M"), ("3", "", "x")]
    ):
        folder = tmp_path / f"index{index}"
        folder.mkdir()
        for name, text in (("level", level), ("type", kind), ("size", size)):
            (folder / name).write_text(text + "\n")
    assert toolchain._cache_sizes(tmp_path) == {"l1_bytes": 48 << 10, "l2_bytes": 2 << 20}
    assert toolchain._cache_sizes(tmp_path / "absent") == {}


def test_cache_sizes_that_the_system_hides_come_from_the_c_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {"SC_LEVEL1_DCACHE_SIZE": 32 << 10, "SC_LEVEL2_CACHE_SIZE": 0}

    def sysconf(name: str) -> int:
        if name not in known:
            raise ValueError(f"unrecognized configuration name {name}")
        return known[name]

    monkeypatch.setattr("os.sysconf", sysconf)
    assert toolchain._cache_sizes(tmp_path) == {"l1_bytes": 32 << 10}


def test_the_host_has_caches_that_grow_outwards() -> None:
    host = host_target()
    assert 8 << 10 <= host.l1_bytes <= host.l2_bytes <= max(host.l3_bytes, host.l2_bytes)
    assert toolchain.host_model()


@pytest.mark.parametrize(
    ("files", "own", "quota"),
    [
        ({}, "0::/\n", None),
        ({"cpu.max": "max 100000"}, "0::/\n", None),
        ({"cpu.max": "250000 100000"}, "0::/\n", 2.5),
        ({"cpu.max": "max 100000", "a/cpu.max": "150000 100000"}, "0::/a/b\n", 1.5),
        ({"a/cpu.max": "400000 100000", "a/b/cpu.max": "max 100000"}, "0::/a/b\n", 4.0),
        (
            {"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"},
            "1:cpu:/\n0::/\n",
            3.0,
        ),
        (
            {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"},
            "1:cpu,cpuacct:/x\n",
            None,
        ),
        ({"cpu.max": "garbage"}, "nonsense\n0::/\n", None),
    ],
)
def test_cgroup_quota(tmp_path: Path, files: dict[str, str], own: str, quota: float | None) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert toolchain._cgroup_quota(tmp_path, own) == quota


def test_cores_are_cut_by_affinity_and_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)), raising=False)
    for quota, cores in ((None, 8), (2.5, 2), (0.3, 1), (64.0, 8)):
        monkeypatch.setattr(toolchain, "_quota_now", lambda quota=quota: quota)
        assert available_cores() == cores


def test_a_quota_is_looked_up_again_after_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    quotas, clock = iter([2.0, 3.0]), [0.0]
    monkeypatch.setattr(toolchain, "_quota_seen", (-math.inf, None))
    monkeypatch.setattr(toolchain, "_cgroup_quota", lambda root, own: next(quotas))
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    assert toolchain._quota_now() == toolchain._quota_now() == 2.0
    clock[0] = 1.5
    assert toolchain._quota_now() == toolchain._quota_now() == 3.0


@pytest.mark.parametrize(
    ("features", "register"), [(V4, "zmm"), (V3, "ymm"), (V2, "xmm")], ids=["v4", "v3", "v2"]
)
def test_code_uses_the_full_vector_width(features: tuple[str, ...], register: str) -> None:
    text = assembly(ADD, target_for("x86_64", features))
    wider = {"zmm": [], "ymm": ["zmm"], "xmm": ["ymm", "zmm"]}[register]
    assert text.count(f"%{register}") >= 4
    assert not any(name in text for name in wider)


def test_code_for_another_processor_can_be_made_anywhere() -> None:
    text = assembly(ADD, target_for("aarch64", ("neon",)))
    assert ".4s" in text
    assert compile_ir(ADD, target_for("aarch64", ("neon",)))[18] == 183


def test_compiling_is_deterministic() -> None:
    assert compile_ir(ADD, host_target()) == compile_ir(ADD, host_target())


def test_light_passes_inline_and_remove_allocas() -> None:
    text = """
define internal i64 @inner(i64 %x) alwaysinline nounwind {
  %p = alloca i64
  store i64 %x, ptr %p
  %v = load i64, ptr %p
  %w = add i64 %v, 1
  ret i64 %w
}
define i64 @outer(i64 %x) nounwind {
  %a = call i64 @inner(i64 %x)
  %b = call i64 @inner(i64 %a)
  ret i64 %b
}
"""
    target = host_target()
    assert "call" in assembly(text, target)
    assert "call" not in assembly(text, target, passes="light")
    code = load_object(compile_ir(text, target, passes="light"))
    assert ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(code.address("outer"))(5) == 7


def test_unknown_passes_are_our_bug() -> None:
    with pytest.raises(InternalError, match="passes must be none or light, got 'all'"):
        compile_ir(ADD, host_target(), passes="all")


def test_refused_code_is_kept_for_a_look() -> None:
    bad = "define i64 @f() {\n  ret float 1.0\n}"
    with pytest.raises(CompileError, match=r"^\[llvm\] generated code must be valid") as caught:
        compile_ir(bad, host_target())
    path = Path(caught.value.path)  # type: ignore[attr-defined]
    assert str(path) in str(caught.value)
    assert bad in path.read_text()


def test_code_that_breaks_ssa_is_refused() -> None:
    bad = "define i64 @f(i1 %c) {\n  br i1 %c, label %a, label %b\na:\n  %x = add i64 1, 1\n"
    bad += "  br label %b\nb:\n  ret i64 %x\n}"
    with pytest.raises(CompileError, match="dominate"):
        compile_ir(bad, host_target())


def test_calls_outside_the_allow_list_are_refused() -> None:
    text = """
define double @f(double %x, double %y) nounwind {
  %r = frem double %x, %y
  ret double %r
}
"""
    with pytest.raises(CompileError, match="it calls fmod, and only memcpy, memmove, memset"):
        compile_ir(text, host_target())
    code = compile_ir(text, host_target(), externals=("fmod",))
    assert undefined_symbols(code) == ["fmod"]


def test_limits_are_plausible() -> None:
    limits = measure_limits(1)
    assert 1e9 < limits.flops_per_s < 1e12
    assert 1e8 < limits.read_bytes_per_s < 2e12
    assert 1e8 < limits.copy_bytes_per_s < 2e12
    assert measure_limits(1) is limits


def test_targets_are_values() -> None:
    assert target_for("x86_64", V3) == target_for("x86_64", V3)
    assert len({target_for("x86_64", V3), target_for("x86_64", V3)}) == 1
    assert isinstance(host_target(), Target)


@pytest.mark.parametrize(
    ("name", "arch", "bits", "fma"),
    [
        ("x86-64", "x86_64", 128, False),
        ("x86-64-v2", "x86_64", 128, False),
        ("x86-64-v3", "x86_64", 256, True),
        ("X86-64-V4", "x86_64", 512, True),
        ("aarch64", "aarch64", 128, True),
    ],
)
def test_levels_have_names(name: str, arch: str, bits: int, fma: bool) -> None:
    target = named_target(name)
    assert (target.arch, target.vector_bits, target.has_fma) == (arch, bits, fma)
    assert target.name == name.lower()


def test_features_are_added_by_name() -> None:
    plain, more = named_target("x86-64-v4"), named_target("x86-64-v4+avx512vnni+amx-tile+amx-int8")
    assert set(more.features) - set(plain.features) == {"avx512vnni", "amx-tile", "amx-int8"}
    assert (plain.byte_dot, more.byte_dot) == ("pairs", "vpdpbusd")
    assert not plain.has_byte_tiles
    assert more.has_byte_tiles
    assert named_target("aarch64+i8mm").byte_dot == "usdot"
    assert named_target(more.name) == more
    assert named_target("x86-64-v3+avx2") == named_target("x86-64-v3")


def test_a_target_that_nobody_knows_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"x86-64-v2, .*aarch64, or native, got 'x86-64-v5'"):
        named_target("x86-64-v5")
    with pytest.raises(UnsupportedError, match=r"features of aarch64 .*neon, got 'avx2'"):
        named_target("aarch64+avx2")
    with pytest.raises(UnsupportedError, match="got ''"):
        named_target("")
