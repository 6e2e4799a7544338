"""MiniLM with its trained weights: the numbers of NumPy and PyTorch, and what sentences mean."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import numpy as np
import pytest
from tests.models import reference
from tests.models.checkpoints import INSTALL, minilm_folder, trained_minilm

from semel import Tensor, Variable
from semel.models.minilm import MINILM, build_minilm, minilm_weights, sentence_embedding
from semel.plan.plan import ExecutionPlan

Array = np.ndarray[Any, Any]

pytestmark = pytest.mark.skipif(
    minilm_folder() is None, reason=f"the trained weights are not installed: {INSTALL}"
)


def weights() -> dict[str, Array]:
    found = trained_minilm()
    assert found is not None
    return found


@cache
def plans() -> tuple[ExecutionPlan, ExecutionPlan]:
    """Hidden states, and embeddings of sentences, for any batch and length."""
    batch, length = Variable("batch", 1, 8), Variable("length", 1, 512)
    ids, mask = (Tensor.input(name, (batch, length), "int64") for name in ("ids", "mask"))
    hidden = build_minilm(ids, mask, weights())
    return hidden.prepare(), sentence_embedding(hidden, mask).prepare()


def tokens(*sentences: str) -> tuple[Array, Array]:
    """Ids and masks of sentences made of words that the vocabulary has."""
    folder = minilm_folder()
    assert folder is not None
    number = {w: i for i, w in enumerate((folder / "vocab.txt").read_text().splitlines())}
    rows = [
        [
            number["[CLS]"],
            *(number[w] for w in re.findall(r"\w+|[^\w\s]", s.lower())),
            number["[SEP]"],
        ]
        for s in sentences
    ]
    ids = np.zeros((len(rows), max(map(len, rows))), np.int64)
    mask = np.zeros_like(ids)
    for i, row in enumerate(rows):
        ids[i, : len(row)], mask[i, : len(row)] = row, 1
    return ids, mask


def test_the_checkpoint_has_the_names_and_shapes_of_the_builder() -> None:
    trained = weights()
    for name, array in minilm_weights().items():
        assert trained[name].shape == array.shape
        assert trained[name].dtype == array.dtype


def test_hidden_states_are_those_of_numpy() -> None:
    wide = {name: array.astype(np.float64) for name, array in weights().items()}
    rng = np.random.default_rng(8)
    for shape in ((1, 1), (2, 7), (1, 40)):
        ids = rng.integers(0, MINILM.vocabulary, shape)
        mask = (np.arange(shape[1]) < rng.integers(1, shape[1] + 1, (shape[0], 1))).astype(np.int64)
        want = reference.minilm(ids, mask, np.zeros_like(ids), wide, MINILM)
        np.testing.assert_allclose(plans()[0](ids=ids, mask=mask), want, atol=2e-5)
    assert plans()[0].compile_count == 1


def test_hidden_states_are_those_of_pytorch() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    ids, mask = tokens("the quick brown fox jumps over the lazy dog.", "hello world")
    w = {name: torch.from_numpy(np.array(array)) for name, array in weights().items()}
    x = w["embeddings.word_embeddings.weight"][ids]
    x = x + w["embeddings.position_embeddings.weight"][: ids.shape[1]]
    x = x + w["embeddings.token_type_embeddings.weight"][0]
    names = (f"embeddings.LayerNorm.{part}" for part in ("weight", "bias"))
    x = torch.nn.functional.layer_norm(x, (MINILM.width,), *(w[n] for n in names), 1e-12)
    with torch.no_grad():
        for layer in range(MINILM.layers):
            block = _torch_layer(torch, w, f"encoder.layer.{layer}")
            x = block(x, src_key_padding_mask=torch.from_numpy(mask == 0))
    kept = mask.astype(bool)
    got = plans()[0](ids=ids, mask=mask)
    np.testing.assert_allclose(got[kept], x.numpy()[kept], atol=2e-5)


def _torch_layer(torch: Any, w: dict[str, Any], name: str) -> Any:
    """PyTorch's own encoder layer with the weights of one of BERT's."""
    layer = torch.nn.TransformerEncoderLayer(
        MINILM.width, MINILM.heads, MINILM.hidden, 0.0, "gelu", 1e-12, batch_first=True
    )
    joined = {
        part: torch.cat([w[f"{name}.attention.self.{p}.{part}"] for p in ("query", "key", "value")])
        for part in ("weight", "bias")
    }
    places = {
        "self_attn.out_proj": "attention.output.dense",
        "linear1": "intermediate.dense",
        "linear2": "output.dense",
        "norm1": "attention.output.LayerNorm",
        "norm2": "output.LayerNorm",
    }
    state = {f"self_attn.in_proj_{part}": joined[part] for part in joined}
    for theirs, ours in places.items():
        state |= {f"{theirs}.{part}": w[f"{name}.{ours}.{part}"] for part in ("weight", "bias")}
    layer.load_state_dict(state)
    return layer.eval()


def test_sentences_are_as_alike_as_the_model_says() -> None:
    """A known example, with the numbers that other implementations give."""
    ids, mask = tokens(
        "That is a happy person",
        "That is a happy dog",
        "That is a very happy person",
        "Today is a sunny day",
    )
    vectors = plans()[1](ids=ids, mask=mask)
    np.testing.assert_allclose(vectors[1:] @ vectors[0], [0.6946, 0.9429, 0.2569], atol=2e-4)
