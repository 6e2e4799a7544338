"""`semel doctor`: what Semel sees of this machine, and whether it works here.

    machine, versions, cache, limits, devices and links, one small plan  -->  rows; 0 if it ran

The first thing to ask for in a bug report, so it names what code generation depends on.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

import semel
from semel.cache.kernels import default_cache
from semel.cli.cache import CacheInfo, describe, inspect_cache
from semel.cli.links import DeviceInfo, Link, choose_devices, list_devices, measure_links
from semel.cli.report import Section, format_bytes, format_seconds, show
from semel.config import settings
from semel.devices import choose_target
from semel.devices.cpu.toolchain import available_cores, host_target
from semel.devices.cpu.yardstick import Limits, measure_limits
from semel.errors import DeviceError
from semel.ir.target import Target
from semel.runtime.free import HOST_DEVICE
from semel.tensor.tensor import Tensor

_LIBRARIES = ("llvmlite", "numpy", "ml_dtypes", "onnx", "onnxruntime", "pillow", "rich")


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All that the command found; `works` is whether a small plan gave the right numbers."""

    versions: dict[str, str]
    machine: dict[str, Any]
    target: dict[str, Any]
    cores: int
    threads: int
    cache: CacheInfo
    limits: tuple[Limits, ...]
    devices: tuple[DeviceInfo, ...]
    links: tuple[Link, ...]
    prepare_seconds: float
    execute_seconds: float
    works: bool


def run(arguments: argparse.Namespace) -> int:
    """The command: diagnose and show; 0 if a plan works here."""
    found = diagnose()
    if arguments.json:
        print(json.dumps(asdict(found), indent=2))
    else:
        show(sections(found))
    return 0 if found.works else 1


def diagnose() -> Diagnosis:
    """Look at the machine, measure its limits and run one plan."""
    cores = available_cores()
    threads = settings().threads or cores
    prepare_s, execute_s, works = try_plan()
    devices = list_devices()
    return Diagnosis(
        versions=find_versions(),
        machine=_describe(host_target()),
        target=_describe(choose_target(HOST_DEVICE)),
        cores=cores,
        threads=threads,
        cache=inspect_cache(default_cache()),
        devices=devices,
        links=find_links(devices),
        limits=tuple(measure_limits(n) for n in sorted({1, threads})),
        prepare_seconds=prepare_s,
        execute_seconds=execute_s,
        works=works,
    )


def find_links(devices: Sequence[DeviceInfo]) -> tuple[Link, ...]:
    """Between parts of the machine, other devices and a file; none where nothing can be written."""
    try:
        return measure_links(choose_devices(devices))
    except (DeviceError, OSError):
        return ()


def _describe(target: Target) -> dict[str, Any]:
    return {"name": target.name, **asdict(target)}


def find_versions() -> dict[str, str]:
    """Versions of Semel, Python and what we build on; empty for what is not installed."""
    found = {"semel": semel.__version__, "python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = ""
    return found


def try_plan(executes: int = 1000) -> tuple[float, float, bool]:
    """Seconds to prepare and to execute a softmax, and whether it is right."""
    data = np.linspace(-4, 4, 7 * 33, dtype=np.float32).reshape(7, 33)
    start = time.perf_counter()
    plan = Tensor.input("x", data.shape).softmax(-1).prepare()
    prepared = time.perf_counter()
    result = plan(x=data)
    begin = time.perf_counter()
    for _ in range(executes):
        plan.execute()
    execute_s = (time.perf_counter() - begin) / executes
    weights = np.exp(data - data.max(-1, keepdims=True))
    right = np.allclose(result, weights / weights.sum(-1, keepdims=True), atol=1e-6)
    return prepared - start, execute_s, bool(right)


def sections(found: Diagnosis) -> list[Section]:
    """The diagnosis as tables for people."""
    target, host = found.target, found.machine
    is_native = settings().target.lower() == "native"
    caches = " / ".join(format_bytes(target[f"l{level}_bytes"]) for level in (1, 2, 3))
    asked = (
        "native" if is_native else f"SEMEL_TARGET={settings().target}, the machine is {host['cpu']}"
    )
    width = f"{target['vector_bits']}-bit vectors"
    machine = (
        ("target", f"{target['triple']}, {target['cpu']}, {width} ({asked})"),
        ("features", " ".join(target["features"])),
        ("caches", f"{caches} (L1, L2, L3)"),
        ("cores", f"{found.cores} usable, {found.threads} used"),
    )
    versions = tuple((name, text or "not installed") for name, text in found.versions.items())
    limits = tuple(
        (
            str(limit.threads),
            f"{limit.flops_per_s / 1e9:.0f}",
            f"{limit.read_bytes_per_s / 1e9:.1f}",
            f"{limit.copy_bytes_per_s / 1e9:.1f}",
        )
        for limit in found.limits
    )
    devices = tuple(
        (
            each.name,
            str(each.threads),
            "host" if each.is_host else "its own",
            "-" if each.free_bytes is None else format_bytes(each.free_bytes),
        )
        for each in found.devices
        if not each.problem
    )
    broken = tuple((each.name, each.problem) for each in found.devices if each.problem)
    links = tuple(
        (link.source, link.target, link.strategy, f"{link.bytes_per_s / 1e9:.1f}")
        for link in found.links
    )
    state = "works" if found.works else "GIVES WRONG NUMBERS"
    plan = (
        ("softmax [7, 33]", state),
        ("prepare", format_seconds(found.prepare_seconds)),
        ("execute", format_seconds(found.execute_seconds)),
    )
    return [
        Section("machine", machine),
        Section("versions", versions),
        Section("cache", describe(found.cache)),
        Section("measured limits", limits, ("threads", "GFLOP/s", "read GB/s", "copy GB/s")),
        Section("devices", devices, ("device", "threads", "memory", "free")),
        *([Section("devices that cannot be used", broken)] if broken else []),
        Section("links", links, ("from", "to", "how", "GB/s")),
        Section("a plan", plan),
    ]
