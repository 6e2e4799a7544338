"""Control groups: where the limits of this process are written, in version 1 and 2.

    cgroup_folders(root, own, "memory")  -->  our group's folder and its parents', innermost first

A limit of any of them holds for us. `own` is the text of /proc/self/cgroup. A container often shows
the path that the host knows while only the group itself is mounted: folders that are not there
are given too, and say nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


def cgroup_folders(root: Path, own: str, controller: str) -> Iterator[Path]:
    """The folders whose limits for `controller` hold for this process."""
    for line in own.splitlines():
        fields = line.split(":", 2)
        if len(fields) != 3:
            continue
        _, controllers, path = fields
        if not controllers:
            folder = root
        elif controller in controllers.split(","):
            folder = root / controllers if (root / controllers).is_dir() else root / controller
        else:
            continue
        inside = folder / path.strip("/")
        for place in (inside, *inside.parents):
            if not place.is_relative_to(folder):
                break
            yield place


def read_text(path: Path, limit: int = 16384) -> str:
    """The first bytes of a file of the system, or nothing."""
    try:
        with path.open("rb") as file:
            return file.read(limit).decode("ascii", "replace")
    except OSError:
        return ""


def read_numbers(path: Path) -> dict[str, int]:
    """A file with a name and a number on each line, such as memory.stat or /proc/meminfo."""
    lines = (line.split() for line in read_text(path).splitlines())
    return {
        words[0].rstrip(":"): int(words[1])
        for words in lines
        if len(words) >= 2 and words[1].isdecimal()
    }


def read_number(path: Path) -> int | None:
    """A file with one number; None for `max`, for anything else, and if it is not there."""
    text = read_text(path).strip()
    return int(text) if text.isdecimal() else None
