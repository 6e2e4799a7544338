"""Random damage to a folder of cache entries: bytes, kinds of file, rights, the folder itself.

Random, folder  --forge-->  the folder, in some other state
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

from tests.odd_files import ODD_FILES

#: As in cache/kernels.py: magic, version, key, payload bytes, digest of the payload.
HEADER = struct.Struct("<8sI32sQ32s")

Damage = Callable[[Random, Path], None]


def forge(rng: Random, folder: Path) -> str:
    """Do one thing to the folder or to something in it; what was done."""
    name = rng.choice([*(list(_CONTENTS | _ENTRIES) * 3), *_FOLDERS])
    with suppress(OSError):  # what an earlier damage left may stand in the way
        if name in _FOLDERS:
            _FOLDERS[name](rng, folder)
        else:
            damage = _CONTENTS.get(name) or _ENTRIES[name]
            files = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
            if name in _CONTENTS:
                files = [path for path in files if _is_entry(path)]
            if files:
                damage(rng, rng.choice(files))
    return name


def _is_entry(path: Path) -> bool:
    """Whether it is a plain file and not a huge one: the others hang or fill our memory."""
    info = os.lstat(path)
    return stat.S_ISREG(info.st_mode) and info.st_size <= 1 << 20


def _rewrite(path: Path, change: Callable[[bytearray], object]) -> None:
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)


def _flip(rng: Random, path: Path) -> None:
    def flip(data: bytearray) -> None:
        for _ in range(rng.randint(1, 3)):
            if data:
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)

    _rewrite(path, flip)


def _cut(rng: Random, path: Path) -> None:
    os.truncate(path, rng.randrange(path.stat().st_size + 1))


def _extend(rng: Random, path: Path) -> None:
    with path.open("ab") as file:
        file.write(rng.randbytes(rng.choice([1, 100])))


def _junk(rng: Random, path: Path) -> None:
    path.write_bytes(rng.randbytes(rng.choice([0, 1, HEADER.size, 1000])))


def _header(rng: Random, path: Path) -> None:
    """One field of the header takes an extreme value."""

    def change(data: bytearray) -> None:
        at, kind = rng.choice([(8, "<I"), (44, "<Q"), (44, "<Q")])
        value = rng.choice([0, 1, (1 << 31) - 1, (1 << 32) - 1])
        struct.pack_into(kind, data, at, value if kind == "<I" else value << rng.choice([0, 31]))

    with suppress(struct.error):
        _rewrite(path, change)


def _signed(rng: Random, path: Path) -> None:
    """A payload that is no code, or another's, under a header that says all is well."""
    data = path.read_bytes()
    if len(data) < HEADER.size:
        return
    own = data[HEADER.size :]
    other = rng.choice([p for p in sorted(path.parent.iterdir()) if _is_entry(p)]).read_bytes()
    payload = rng.choice(
        [b"", rng.randbytes(300), own[: rng.randrange(len(own) + 1)], other[HEADER.size :]]
    )
    magic, version, name, _, _ = HEADER.unpack_from(data)
    checksum = hashlib.sha256(payload).digest()
    path.write_bytes(HEADER.pack(magic, version, name, len(payload), checksum) + payload)


def _swap(rng: Random, path: Path) -> None:
    other = rng.choice(sorted(path.parent.iterdir()))
    aside = path.with_name(".aside")
    path.rename(aside)
    if other.exists():
        other.rename(path)
    aside.rename(other)


def _odd(rng: Random, path: Path) -> None:
    _remove(rng, path)
    ODD_FILES[rng.choice(sorted(ODD_FILES))](path)


def _remove(rng: Random, path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _rights(rng: Random, path: Path) -> None:
    path.chmod(rng.choice([0o000, 0o400, 0o644, 0o666, 0o777, 0o4755]))


def _stray(rng: Random, path: Path) -> None:
    """Names that are nobody's."""
    for name in ("x", "x.kernel", ".x.tmp", "ü.kernel", "-rf.kernel"):
        stray = path.with_name(name)
        if stray.exists() and not _is_entry(stray):
            _remove(rng, stray)  # a FIFO that stands there would wait for a reader
        stray.write_bytes(rng.randbytes(100))
    os.utime(path.with_name(".x.tmp"), (0, 0))


_CONTENTS: dict[str, Damage] = {
    "flip": _flip,
    "cut": _cut,
    "extend": _extend,
    "junk": _junk,
    "header": _header,
    "signed": _signed,
}
_ENTRIES: dict[str, Damage] = {
    "swap": _swap,
    "odd": _odd,
    "remove": _remove,
    "rights": _rights,
    "stray": _stray,
}


def _move(rng: Random, folder: Path) -> None:
    shutil.move(folder, folder.with_name(f"moved-{rng.random()}"))


def _exchange(rng: Random, folder: Path) -> None:
    """A copy with other contents takes the folder's place."""
    aside = folder.with_name(f"moved-{rng.random()}")
    folder.rename(aside)
    folder.mkdir(0o700)
    for path in sorted(aside.iterdir()):
        if _is_entry(path):
            shutil.copy(path, folder)
            _flip(rng, folder / path.name)


def _link(rng: Random, folder: Path) -> None:
    aside = folder.with_name(f"moved-{rng.random()}")
    folder.rename(aside)
    folder.symlink_to(rng.choice([aside, Path(folder.name), Path("nowhere")]))


def _file(rng: Random, folder: Path) -> None:
    _move(rng, folder)
    ODD_FILES[rng.choice(sorted(set(ODD_FILES) - {"folder"}))](folder)


def _open(rng: Random, folder: Path) -> None:
    rng.choice([folder, folder.parent]).chmod(rng.choice([0o777, 0o770, 0o1777, 0o755, 0o500]))


_FOLDERS: dict[str, Damage] = {
    "move": _move,
    "exchange": _exchange,
    "link": _link,
    "file": _file,
    "open": _open,
}
