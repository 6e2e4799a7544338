"""How devices are written, and the one form that each goes by."""

from __future__ import annotations

import copy
import os
import pickle
from typing import Any

import pytest

from semel.errors import UnsupportedError
from semel.runtime.spec import DeviceSpec

HERE = os.path.abspath("weights.bin")


@pytest.mark.parametrize(
    ("text", "kind", "index", "path", "canonical"),
    [
        ("cpu", "cpu", None, None, "cpu"),
        ("cpu:0", "cpu", 0, None, "cpu:0"),
        ("cpu:1", "cpu", 1, None, "cpu:1"),
        ("cuda", "cuda", 0, None, "cuda"),
        ("cuda:0", "cuda", 0, None, "cuda"),
        ("cuda:12", "cuda", 12, None, "cuda:12"),
        ("disk:weights.bin", "disk", None, HERE, f"disk:{HERE}"),
        ("disk:./a/../weights.bin", "disk", None, HERE, f"disk:{HERE}"),
        ("disk:/Data/w:1.bin", "disk", None, "/Data/w:1.bin", "disk:/Data/w:1.bin"),
    ],
)
def test_parts_and_canonical_form(
    text: str, kind: str, index: int | None, path: str | None, canonical: str
) -> None:
    spec = DeviceSpec(text)
    assert (spec.kind, spec.index, spec.path, str(spec)) == (kind, index, path, canonical)
    assert DeviceSpec(canonical) == spec == DeviceSpec(spec) == DeviceSpec.parse(text)
    assert hash(DeviceSpec(canonical)) == hash(spec)
    assert repr(spec) == f"DeviceSpec({canonical!r})"


def test_all_of_the_cpu_is_not_a_part_of_it() -> None:
    assert len({DeviceSpec("cpu"), DeviceSpec("cpu:0"), DeviceSpec("cpu:1")}) == 3
    assert DeviceSpec("cpu:1") != "cpu:1"  # two ways to write one device are not equal texts


@pytest.mark.parametrize(
    "text", ["", ":", "cpu:", "cpu:01", "cpu:-1", "cpu:x", "cpu: 1", "CPU", "c-p", "cpu:10000"]
)
def test_what_names_no_device_is_refused(text: str) -> None:
    with pytest.raises(UnsupportedError, match=r"\[DeviceSpec\] device must be written kind") as c:
        DeviceSpec(text)
    assert c.value.device == text  # type: ignore[attr-defined]


@pytest.mark.parametrize("text", ["disk", "disk:", "disk:a\0b"])
def test_a_disk_needs_a_path(text: str) -> None:
    with pytest.raises(UnsupportedError, match=r"a disk needs the path of a file, disk:path"):
        DeviceSpec(text)


@pytest.mark.parametrize("value", [None, 0, b"cpu", ["cpu"]])
def test_what_is_no_text_is_refused(value: Any) -> None:
    with pytest.raises(UnsupportedError, match=r"\[here\] device must be written kind"):
        DeviceSpec.parse(value, "here")


def test_a_spec_never_changes() -> None:
    spec = DeviceSpec("cpu:1")
    with pytest.raises(AttributeError, match="a spec never changes"):
        spec.index = 2
    with pytest.raises(AttributeError, match="a spec never changes"):
        del spec.kind
    assert pickle.loads(pickle.dumps(spec)) == copy.deepcopy(spec) == spec
