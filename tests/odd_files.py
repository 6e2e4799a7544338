"""Things that may lie where a file of ours belongs, and must neither hang, leak nor be believed."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

SPARSE_BYTES = 8 << 30


def _folder(path: Path) -> None:
    path.mkdir()


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _link(path: Path) -> None:
    path.with_name(".target").write_bytes(b"data")
    path.symlink_to(".target")


def _circle(path: Path) -> None:
    path.symlink_to(path.name)


def _socket(path: Path) -> None:
    here = os.open(path.parent, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(f"/proc/self/fd/{here}/{path.name}")  # an address must be short
    finally:
        os.close(here)


def _sparse(path: Path) -> None:
    path.touch(0o600)
    os.truncate(path, SPARSE_BYTES)


def _writable(path: Path) -> None:
    path.write_bytes(b"data")
    path.chmod(0o666)


#: How to make each at a path where nothing is.
ODD_FILES: dict[str, Callable[[Path], None]] = {
    "folder": _folder,
    "fifo": _fifo,
    "link": _link,
    "circle": _circle,
    "socket": _socket,
    "sparse": _sparse,
    "writable": _writable,
}
