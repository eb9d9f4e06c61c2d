"""PackedBatch.numpy in JAX: the loss of a jitted step equals the loss of each document alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streampack import PackedBatch, PackedDataset, PackedLoader, TokenRules, Topology

jax = pytest.importorskip("jax", reason="not in the development environment")
jnp = jax.numpy

WIDTH, VOCAB, SEQ_LEN = 8, 64, 32
DOCUMENTS = [[1 + (i * 5 + k) % (VOCAB - 1) for k in range(1 + i * 7 % 29)] for i in range(40)]


def parameters() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    shapes = {"ids": (VOCAB, WIDTH), "places": (SEQ_LEN, WIDTH), "qkv": (3, WIDTH, WIDTH)}
    return {name: jnp.asarray(rng.normal(0, 0.3, shape)) for name, shape in shapes.items()}


def summed_loss(weights: dict[str, Any], arrays: dict[str, Any]) -> Any:
    """One layer of attention inside segments, tied embeddings."""
    segment = arrays["inputs_segmentation"]
    x = weights["ids"][arrays["inputs"]] + weights["places"][arrays["inputs_position"]]
    q, k, v = (x @ matrix for matrix in weights["qkv"])
    slots = jnp.arange(segment.shape[1])
    mask = (segment[:, :, None] == segment[:, None, :]) & (slots[:, None] >= slots[None, :])
    scores = jnp.where(mask, q @ k.swapaxes(1, 2), -1e30)
    logits = (x + jax.nn.softmax(scores) @ v) @ weights["ids"].T
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), arrays["targets"][..., None], -1)
    return -(picked[..., 0] * (arrays["targets_segmentation"] != 0)).sum()


def alone(document: list[int]) -> dict[str, Any]:
    row = np.array([document], np.int32)
    one = np.ones_like(row[:, 1:])
    position = np.arange(one.size, dtype=np.int32)[None]
    return {
        "inputs": row[:, :-1], "inputs_position": position, "inputs_segmentation": one,
        "targets": row[:, 1:], "targets_position": position, "targets_segmentation": one,
    }  # fmt: skip


def test_losses_and_gradients_match_each_document_by_itself() -> None:
    dataset = PackedDataset(
        DOCUMENTS, seq_len=SEQ_LEN, batch_size=2, lanes=1, topology=Topology(),
        token_rules=TokenRules(pad_id=0),
    )  # fmt: skip
    weights = parameters()
    step = jax.jit(jax.value_and_grad(summed_loss))
    found = [
        step(weights, jax.device_put(a)) for a in PackedLoader(dataset, transform=PackedBatch.numpy)
    ]
    assert step._cache_size() == 1  # all batches have one shape
    several = [document for document in DOCUMENTS if len(document) > 1]
    expected = [jax.value_and_grad(summed_loss)(weights, alone(d)) for d in several]
    ours, theirs = (
        jax.tree.map(lambda *leaves: sum(leaves), *parts) for parts in (found, expected)
    )
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-5)
    for name in weights:
        np.testing.assert_allclose(ours[1][name], theirs[1][name], rtol=1e-3, atol=1e-4)


def test_the_loop_of_the_documentation_runs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "loops.md").read_text()
    found = re.findall(r"```python\n(import jax\n.*?)```", page, flags=re.DOTALL)
    assert len(found) == 1
    names: dict[str, Any] = {}
    exec(compile(found[0], "loops.md", "exec"), names)
    assert np.isfinite(names["weights"]).all()
    assert float(jnp.abs(names["weights"]).sum()) > 0
