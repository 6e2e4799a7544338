"""Files that say something else than what was saved, with all checksums right.

forged(data, change_header, change_kernel)  -->  bytes of a file
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from semel.plan.file.format import PAGE_BYTES, Prefix

Change = Callable[[Any], None]


def forged(
    data: bytes, header: Change = lambda record: None, kernel: Change = lambda form: None
) -> bytes:
    """The file with its header changed in place, and the forms of its kernels too."""
    _, *values, _ = Prefix.LAYOUT.unpack_from(data)
    prefix = dict(zip([f.name for f in fields(Prefix)], values, strict=True))
    front_end = prefix["constants_offset"]
    record = json.loads(data[64 : 64 + prefix["header_bytes"]])
    blobs = data[64 + prefix["header_bytes"] : front_end]
    for entry in record.get("kernels", []):
        start, size = entry["form"]
        form = json.loads(blobs[start : start + size])
        kernel(form)
        text = json.dumps(form).encode()
        entry["form"] = [len(blobs), len(text)]
        blobs += text
    header(record)
    text = json.dumps(record).encode()
    front = text + blobs
    front += bytes(-(64 + len(front)) % PAGE_BYTES)
    constants = data[front_end:]
    prefix |= {
        "header_bytes": len(text),
        "constants_offset": 64 + len(front),
        "file_bytes": 64 + len(front) + len(constants),
        "front_checksum": zlib.crc32(front),
    }
    return Prefix(**prefix).pack(data[:8]) + front + constants
