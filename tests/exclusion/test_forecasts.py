"""Forecasts of runs that leave documents out: they count the others, and change no run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streampack import PackedDataset, PackedLoader, sources

COUNT = 6000
NAMES = ("first", "second")
OUT = [*range(0, COUNT, 2), *range(1, COUNT // 2, 4)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("forecasts"), np.random.default_rng(3)
    for number, name in enumerate(NAMES, start=1):
        ids = [np.full(int(rng.integers(5, 60)), number, dtype=np.int32) for _ in range(COUNT)]
        keys = [f"{name} {i}" for i in range(COUNT)]
        (folder / name).mkdir()
        for part in range(4):
            rows = slice(part * COUNT // 4, (part + 1) * COUNT // 4)
            table = pa.table({"input_ids": ids[rows], "key": keys[rows]})
            pq.write_table(table, folder / name / f"{part}.parquet", row_group_size=400)
    return folder


def mixed(folder: Path) -> PackedDataset:
    """Both sources, without most documents of the second one."""
    parts = {name: str(folder / name) for name in NAMES}
    source = sources.Mixture(parts, weights=dict.fromkeys(NAMES, 1))
    out = {"key": [f"second {i}" for i in OUT]}
    return PackedDataset(source, seq_len=256, batch_size=4, lanes=2, exclude=out)


def tokens_of(loader: PackedLoader) -> tuple[int, ...]:
    """Tokens of each source that are delivered, and the documents that are left out."""
    counts = np.zeros(3, np.int64)
    for batch in loader:
        ids = batch.input_ids.numpy()[batch.document_ids.numpy() >= 0]
        counts += np.bincount(ids, minlength=3)
    return (*counts[1:].tolist(), loader.metrics().excluded)


@pytest.mark.parametrize(
    "ask", [PackedLoader.estimate_steps, lambda loader: loader.dataset.explain()]
)
def test_a_forecast_takes_no_document_of_another_source_out(
    ask: Callable[[PackedLoader], Any], folder: Path
) -> None:
    loader = PackedLoader(mixed(folder))
    ask(loader)
    assert tokens_of(loader) == tokens_of(PackedLoader(mixed(folder)))
    assert loader.metrics().excluded == len(set(OUT))


def places(folder: Path, prefix: str) -> list[str]:
    """Places of most documents of the first source, which messages begin with a prefix."""
    size = COUNT // 4
    return [f"{prefix}{folder}/first/{i // size}.parquet, index {i % size}" for i in OUT]


@pytest.mark.parametrize("by_place", [False, True])
@pytest.mark.parametrize("is_mixed", [False, True])
def test_an_estimate_counts_the_documents_that_are_delivered(
    by_place: bool, is_mixed: bool, folder: Path
) -> None:
    parts = {name: str(folder / name) for name in NAMES}
    mixture = sources.Mixture(parts, weights=dict.fromkeys(NAMES, 1))
    source = mixture if is_mixed else parts["first"]
    keys = {"key": [f"first {i}" for i in OUT]}
    out = places(folder, "first, " * is_mixed) if by_place else keys
    loader = PackedLoader(PackedDataset(source, seq_len=256, batch_size=2, lanes=2, exclude=out))
    estimate = loader.estimate_steps()
    assert estimate is not None
    assert abs(estimate.steps - sum(1 for _ in loader)) <= estimate.error
    assert loader.metrics().excluded == len(set(OUT))
