"""Random index keys, with ellipses, masks, arrays and new axes: as in NumPy."""

from __future__ import annotations

from tests.fuzz.long import long, search
from tests.unit.test_tensor_indexing import check_random_keys


@long
def test_new_keys_mean_what_they_mean_in_numpy() -> None:
    search(check_random_keys)
