"""What a device offers to a plan, and the table of devices.

    find_device("cpu")  -->  Device

The table names the module of each device as text, so that this layer imports none of them and
a process pays only for the devices it uses. How a device is written says `semel.runtime.spec`. The
compiler half of each is found by `semel.devices.find_backend`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

from semel.config import settings
from semel.errors import DeviceError, PlanError, UnsupportedError
from semel.ir.target import Target
from semel.locks import make_lock
from semel.runtime.free import HOST_DEVICE
from semel.runtime.linked import Executable, FlatProgram
from semel.runtime.measured import MachineLimits
from semel.runtime.memory import Memory
from semel.runtime.plugins import find_plugins
from semel.runtime.spec import DISK_KIND, DeviceSpec

#: What computes nothing at all.
NULL_KIND = "null"
#: Where the `BACKEND` of each device is.
MODULES = {
    HOST_DEVICE: "semel.devices.cpu.backend",
    DISK_KIND: "semel.devices.disk.backend",
    NULL_KIND: "semel.devices.null.backend",
}

_open: dict[str, Device] = {}
_imported: dict[str, ModuleType] = {}  #: backends by module, all of each
_lock = make_lock()


@dataclass(frozen=True, slots=True)
class DeviceCode:
    """What a plan file keeps of a device: its target, and the runner's code for that target.

    `runner_key` is the hash of what the runner was compiled from: code under the same key
    is the same runner.
    """

    target: Target
    runner_key: str
    runner: bytes


class Device(Protocol):
    """A processor that runs plans. Opening it costs next to nothing; the first plan pays."""

    name: str
    #: Threads that work for it run on these CPUs of the host; on any, if there are none here.
    cpus: tuple[int, ...]

    def ensure_ready(self) -> None:
        """Load what every plan needs; the first plan would."""

    @property
    def is_host(self) -> bool:
        """Whether its memory is the host's: what lies there needs no copy."""

    def allocate(self, size_bytes: int, *, mapped: bool = False) -> Memory:
        """A zeroed block of its memory; one that is `mapped` can be given back in part."""

    def facts(self) -> Mapping[str, Any]:
        """What measured times depend on, besides the target: the model, how many cores."""

    def reaches(self, other: Device) -> bool:
        """Whether it reads and writes the other's memory where that lies."""

    def free_bytes(self) -> int | None:
        """Memory that can still be allocated; None if nobody knows."""

    def default_threads(self) -> int:
        """Participants of an execute if nobody says otherwise."""

    def link(self, program: FlatProgram) -> Executable:
        """The program, ready to run on the memory that its rows name."""

    def reset(self) -> None:
        """Let whatever hangs on it come back, with a DeviceError; then it takes work again.

        From any thread. Work that makes progress is ended by those who gave it.
        """

    def limits(self, threads: int) -> MachineLimits:
        """What this many threads reach at best; measured at the first call."""

    def device_code(self, target: Target | None = None) -> DeviceCode:
        """What a process without a compiler needs to make this device ready.

        For a `target`, if one is given: that of the kernels beside it, on another machine.
        """

    def offer_code(self, code: DeviceCode) -> None:
        """Use this code, of a file that is trusted, if it is what would be compiled."""


def find_spec(where: str, device: str | DeviceSpec) -> DeviceSpec:
    """The spec of a device as it is written, if there is such a kind; opens nothing."""
    spec = DeviceSpec.parse(device, where)
    if spec.kind not in MODULES and spec.kind not in known_kinds():
        misdeclared = find_plugins().broken.get(spec.kind)
        if misdeclared is not None:
            raise misdeclared
        known = ", ".join(sorted(MODULES))
        raise UnsupportedError(
            where,
            f"device must be one of {known}, got '{device}'.",
            hint="DeviceRegistry().register(kind, module) adds one.",
            device=str(device),
        )
    return spec


def check_device(where: str, device: str | DeviceSpec) -> str:
    """The name that a device goes by, if there is such a kind; opens nothing."""
    return str(find_spec(where, device))


def choose_device(where: str, device: str | DeviceSpec | None) -> str:
    """Like `check_device`; where the settings say, if no device is named."""
    named = settings().device if device is None else device
    return HOST_DEVICE if named is None else check_device(where, named)


def known_kinds() -> tuple[str, ...]:
    """All kinds of devices, with those that installed packages declare well by now."""
    for kind, module in find_plugins().modules.items():
        MODULES.setdefault(kind, module)
    return tuple(sorted(MODULES))


def list_kind(kind: str) -> tuple[DeviceSpec, ...]:
    """The devices of a kind that are here; opens none. A DeviceError if its package fails."""
    listed = import_backend(kind).BACKEND.listed
    try:
        return tuple(DeviceSpec(name) for name in ((kind,) if listed is None else listed()))
    except Exception as error:
        raise DeviceError(
            f"device {kind}",
            f"its module {MODULES[kind]} cannot list what is here: {error!r}.",
            device=kind,
        ) from error


def broken_kinds() -> dict[str, DeviceError]:
    """What is wrong with each kind that cannot be listed, or is declared wrongly."""
    broken = {kind: error for kind, error in find_plugins().broken.items() if kind not in MODULES}
    for kind in known_kinds():
        try:
            list_kind(kind)
        except DeviceError as error:
            broken[kind] = error
    return broken


def add_kind(kind: str, module: str | ModuleType) -> None:
    """Let devices of this kind be those of a module; one that is known stays what it is."""
    where = "DeviceRegistry.register"
    if DeviceSpec.parse(kind, where).kind != kind:
        raise PlanError(where, f"kind must be a name without an index, got {kind!r}.")
    name = module if isinstance(module, str) else getattr(module, "__name__", None)
    if not name or not (isinstance(module, str) or hasattr(module, "BACKEND")):
        raise PlanError(
            where, f"module must have a BACKEND, or be the name of one: {module!r:.60}."
        )
    with _lock:
        if MODULES.setdefault(kind, name) != name:
            raise PlanError(
                where, f"'{kind}' is {MODULES[kind]} already, and must stay so, got {name}."
            )
        if isinstance(module, ModuleType):
            _imported[name] = module


def import_backend(kind: str) -> ModuleType:
    """The module with a device's `BACKEND`.

    Imported with a lock that a fork waits for: a module that another thread is in the middle of
    importing would stay half imported in the child.
    """
    module = MODULES[kind]
    found = _imported.get(module)
    if found is None:
        with _lock:
            found = _imported[module] = _import(kind, module)
    return found


def _import(kind: str, module: str) -> ModuleType:
    try:
        found = importlib.import_module(module)
    except Exception as error:
        raise DeviceError(
            f"device {kind}", f"its module {module} cannot be imported: {error!r}.", device=kind
        ) from error
    if not hasattr(found, "BACKEND"):
        raise DeviceError(f"device {kind}", f"its module {module} has no BACKEND.", device=kind)
    return found


def find_device(device: str | DeviceSpec) -> Device:
    """The device of that name, opened at first use."""
    spec = find_spec("device", device)
    key = str(spec)
    with _lock:
        if key not in _open:
            # Opening takes a while, and a signal handler on this thread may have been quicker.
            opened: Device = import_backend(spec.kind).BACKEND.open(spec)
            _open.setdefault(key, opened)
        return _open[key]


def open_devices() -> tuple[DeviceSpec, ...]:
    """The devices that are open, in the order in which they were."""
    return tuple(DeviceSpec(name) for name in list(_open))
