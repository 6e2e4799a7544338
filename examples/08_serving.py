"""A small server: requests of all lengths, compiled by buckets, weights replaced while it runs.

Run it: python examples/08_serving.py
"""

import asyncio

import numpy as np

from semel import BucketedCompileCache, Graph, power_of_two_ladder

WIDE, WORDS = 64, 1000
rng = np.random.default_rng(0)
table, w = (rng.standard_normal(s, np.float32) * 0.1 for s in ((WORDS, WIDE), (WIDE, 3 * WIDE)))


def encoder(upper: int) -> Graph:
    """A sentence of up to `upper` tokens becomes one vector; no mask, since nothing is padded."""
    g = Graph("encoder")
    ids = g.input("ids", ("seq",), "int64")
    x = ids.embedding(g.param("table", table))
    q, k, v = (x @ g.param("w", w)).reshape(-1, 3, 4, WIDE // 4).permute(1, 2, 0, 3).unbind(0)
    mixed = q.scaled_dot_product_attention(k, v).permute(1, 0, 2).reshape(-1, WIDE)
    g.output("vector", (x + mixed).mean(0))
    return g


buckets = BucketedCompileCache(encoder, power_of_two_ladder(16, 128), dim="seq", max_bytes=1 << 24)
requests = [rng.integers(0, WORDS, n) for n in (5, 12, 100, 33, 16, 7, 128)]

# One after the other. A bucket is compiled when its first request comes.
vectors = [buckets.run_padded(len(ids), {"ids": ids})["vector"] for ids in requests]
print(buckets, "compiled", buckets.compile_count, "times")
print("too long:", buckets.run_padded(200, {"ids": np.zeros(200, np.int64)}))


async def serve(ids: np.ndarray) -> np.ndarray:
    """Many at a time: the loop goes on while a request is computed, in the order they came."""
    outputs = await buckets.bucket(len(ids)).commit_no_wait({"ids": ids})
    return outputs["vector"]


async def serve_all() -> list[np.ndarray]:
    """All of them, begun together."""
    return await asyncio.gather(*(serve(ids) for ids in requests))


again = asyncio.run(serve_all())
print("the same numbers:", all(np.array_equal(a, b) for a, b in zip(vectors, again, strict=True)))

# New weights reach every bucket, and those that are yet to be compiled; nothing is compiled for it.
buckets.set_param("w", w * 2)
changed = buckets.run_padded(len(requests[0]), {"ids": requests[0]})["vector"]
print("changed:", not np.array_equal(changed, vectors[0]), "- compiles:", buckets.compile_count)

# Memory is for the largest size of a range; time is that of the actual one.
held = sum(buckets.bucket(n).plan.memory.own_bytes for n in (16, 128))
print(f"two buckets hold {held / 1024:.0f} KiB beside one set of weights")
