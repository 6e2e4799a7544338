"""Other processes that write and compile kernels beside this one, while a large graph is compiled.

    Target x how many kernels --open_crew--> Crew
    kernels, one after the other  --Crew.compile_all-->  their code, in order

Python writes one text at a time in a process, however many cores there are, and of a cold prepare
that is the longer part. So kernels go, in the form that plan files keep, to processes that import
what writes and compiles (`crew_member`), and come back as code; what finds all of them busy is
compiled here. Nothing of this has a thread: two would hand Python's lock to and fro. Processes are
started by the first kernel of a graph that has many to compile, and are gone when these are
compiled. They have the parent's `sys.path`, are out of reach of a terminal's Ctrl-C, and end with
their input: with the parent, however that ends.

Invariant: who compiles a kernel changes nothing about its code. A member that runs other sources
than this process is not used; whatever fails there, a start, an answer, a kernel, is done again
here, where errors are raised as they always were. Why: docs/decisions/0245-a-crew-of-processes.md.
"""

from __future__ import annotations

import json
import os
import select
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import IO, cast

from semel.cache.key import sources_key
from semel.config import environment_of_child, settings
from semel.devices.cpu.toolchain import available_cores, toolchain_version
from semel.ir.target import Target
from semel.kernel.encode import encode_kernel
from semel.kernel.ir import Kernel
from semel.topics import Topic

#: Fewer kernels are compiled before a process has imported what it needs.
LEAST_KERNELS = 24
MOST_MEMBERS = 7
#: What a member has at hand: what it works on, and what it goes on with while one is made here.
_AT_HAND = 3
#: Of kernels that a member may not have read: less than a pipe holds, so that no write waits.
_MOST_BYTES = 48 << 10
_PATIENCE_S = 120.0
_BEGIN = (
    "import sys, json; sys.path[:] = json.loads(sys.stdin.buffer.readline());"
    "from semel.devices.cpu.crew_member import serve; serve()"
)
LENGTH = struct.Struct("<Q")
_COMPILE = Topic("compile")


@dataclass(slots=True, eq=False)
class _Job:
    """A kernel on its way, and its code once that is there."""

    kernel: Kernel
    entry: str
    form: bytes = b""
    code: bytes | None = None
    is_lost: bool = False  # whoever had it will not answer


class Crew:
    """The processes; the first kernel starts them."""

    def __init__(self, target: Target, members: int, here: Callable[[Kernel, str], bytes]) -> None:
        self._target, self._here = target, here
        self._count = members
        self._members: list[_Member] = []
        self._made_in = os.getpid()

    def compile_all(self, kernels: Iterable[tuple[Kernel, str]]) -> Generator[bytes]:
        """The code of each of them, in their order."""
        waiting: deque[_Job] = deque()
        try:
            for kernel, entry in kernels:
                job = _Job(kernel, entry)
                waiting.append(job)
                if not self._give(job):
                    job.code = self._here(kernel, entry)
                yield from self._done(waiting)
            while waiting:
                self._go_on(waiting)
                yield from self._done(waiting)
        finally:
            if self._is_ours:
                for member in self._members:
                    member.end()

    @property
    def _is_ours(self) -> bool:
        """Not in the child of a fork: the processes are the parent's."""
        return self._made_in == os.getpid()

    def _give(self, job: _Job) -> bool:
        """Whether a member has taken the kernel."""
        if not self._is_ours:
            return False
        if not self._members:
            who = who_compiles()
            for _ in range(self._count):
                self._members.append(_Member(who))  # known before there is a process to be ended
                self._members[-1].start(self._target)
        for member in self._members:
            member.listen()
        member = min(self._members, key=lambda each: len(each.jobs))
        return member.takes_more and member.give(job)

    def _done(self, waiting: deque[_Job]) -> Generator[bytes]:
        """What is done of those that wait, as far as nobody before them is waited for."""
        while waiting:
            job = waiting[0]
            if job.code is None and (job.is_lost or not self._is_ours):
                job.code = self._here(job.kernel, job.entry)
            if job.code is None:
                return
            yield waiting.popleft().code or b""

    def _go_on(self, waiting: deque[_Job]) -> None:
        """No kernel is left to be given: compile one that no member has begun, or wait."""
        for member in self._members:
            member.listen()
        behind = [member.jobs[-1] for member in self._members if len(member.jobs) > 1]
        left = [job for job in behind if job.code is None]
        if left:
            job = left[0]
            job.code = self._here(job.kernel, job.entry)  # its member may answer, too
        elif waiting[0].code is None and not waiting[0].is_lost:
            next(m for m in self._members if waiting[0] in m.jobs).listen(_PATIENCE_S)


class _Member:
    """One process, and what it was given and has not answered."""

    def __init__(self, who: str) -> None:
        self.jobs: deque[_Job] = deque()
        self._is_known = False  # whether it said who it is
        self._who = who.encode()
        self._heard = bytearray()
        self._look = select.poll()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, target: Target) -> None:
        """Have a process, and tell it where to import from and what to compile for."""
        try:
            self._process = process = _start()
            there = _pipe(process.stdin)
            there.write(json.dumps(_places()).encode() + b"\n")
            write_frame(there, json.dumps(asdict(target)).encode())
            self._look.register(_pipe(process.stdout), select.POLLIN)
        except (OSError, ValueError) as error:
            self._lose(str(error))

    @property
    def takes_more(self) -> bool:
        """Whether it has not enough to go on with."""
        return self._process is not None and len(self.jobs) < _AT_HAND

    def give(self, job: _Job) -> bool:
        """Whether it has the kernel now; not if this process would have to wait for it."""
        assert self._process is not None
        job.form = encode_kernel(job.kernel)
        if self.jobs and sum(len(each.form) for each in (*self.jobs, job)) > _MOST_BYTES:
            return False
        try:
            write_frame(_pipe(self._process.stdin), job.entry.encode() + b"\0" + job.form)
        except OSError as error:
            self._lose(str(error))
            return False
        self.jobs.append(job)
        return True

    def listen(self, seconds: float = 0.0) -> None:
        """Take in what it has said; with `seconds`, until it has answered something."""
        end = time.monotonic() + seconds
        while self._process is not None:
            if not self._look.poll(max(0.0, end - time.monotonic()) * 1e3):
                if seconds:
                    self._lose("it does not answer")
                return
            part = os.read(_pipe(self._process.stdout).fileno(), 1 << 20)
            if not part:
                self._lose("it has ended")
                return
            self._heard += part
            if self._take_frames() and seconds:
                return

    def _take_frames(self) -> bool:
        """Whether what was heard had answers."""
        count = len(self.jobs)
        while self._process is not None and len(self._heard) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._heard)
            end = LENGTH.size + length
            if len(self._heard) < end:
                break
            frame = bytes(self._heard[LENGTH.size : end])
            del self._heard[:end]
            self._take(frame)
        return len(self.jobs) < count

    def _take(self, frame: bytes) -> None:
        if not self._is_known:
            self._is_known = frame == self._who
            if not self._is_known:
                self._lose("it runs other sources")
            return
        job = self.jobs.popleft()
        if frame[:1] != b"+":
            job.is_lost = True
        elif job.code is None:
            job.code = frame[1:]

    def _lose(self, reason: str) -> None:
        """Ask it nothing more; what it has is done again."""
        _COMPILE("a process that compiles is lost: %s", reason)
        for job in self.jobs:
            job.is_lost = True
        self.jobs.clear()
        self.end()

    def end(self) -> None:
        """The process is gone when this returns. Nobody waits for what it works on."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()  # not by the end of its input, which the child of a fork may hold open
        process.wait()
        with suppress(OSError):
            _pipe(process.stdin).close()
        _pipe(process.stdout).close()


def open_crew(target: Target, kernels: int, here: Callable[[Kernel, str], bytes]) -> Crew | None:
    """As many processes as so many kernels are worth, or as the settings say; None: none."""
    wanted = settings().compile_processes
    most = min(available_cores() - 1, MOST_MEMBERS) if wanted is None else wanted
    members = min(most, kernels // (LEAST_KERNELS // 2) - 1)
    return Crew(target, members, here) if members > 0 and _is_python() else None


def who_compiles() -> str:
    """What must be the same on both sides for code to be the same."""
    from semel.devices.cpu.compiler import SOURCES

    return f"{sources_key(SOURCES)} {toolchain_version()}"


def _is_python() -> bool:
    """Whether there is a program to start: a program with Python inside is another one."""
    name = os.path.basename(sys.executable or "")
    return name.startswith("python") and not hasattr(sys, "frozen")


def _start() -> subprocess.Popen[bytes]:
    command = [sys.executable, "-I", *(["-B"] if sys.dont_write_bytecode else []), "-c", _BEGIN]
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        # It multiplies no matrices, and threads that wait to would only be started.
        env=environment_of_child(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1"),
    )


def _places() -> list[str]:
    """Where modules are imported from. What is no text is passed over, as imports do, and what is
    relative to a directory that is gone."""
    found, places = [], cast("list[object]", sys.path)
    for place in places:
        with suppress(OSError):
            found += [os.path.abspath(place)] if isinstance(place, str) else []
    return found


def _pipe(end: IO[bytes] | None) -> IO[bytes]:
    assert end is not None, "a process is started with pipes"
    return end


def write_frame(there: IO[bytes], data: bytes) -> None:
    """The length, and so many bytes."""
    there.write(LENGTH.pack(len(data)) + data)
    there.flush()
