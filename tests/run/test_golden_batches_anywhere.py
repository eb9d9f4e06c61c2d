"""Golden batches of other ways through a run: remote files, workers, other ranks, images."""

from __future__ import annotations

import hashlib
from pathlib import Path

from streampack import PackedDataset, PackedLoader, sources
from streampack.images import Images
from tests.run.test_golden_batches import GOLDEN, LANES, SEQ_LEN, Corpus, hashed, packed
from tests.support.servers import http_server
from tests.support.simulated_ranks import over_legs
from tests.support.vision import records
from tests.support.vision_runs import dataset

IMAGES = "45868a5f4a9c6527"


def test_a_remote_file_gives_the_same_batches(tmp_path: Path) -> None:
    Corpus(tmp_path).path("ids.parquet")
    with http_server(tmp_path) as server:
        source = sources.Parquet(
            f"{server.url}/ids.parquet", storage=sources.Storage(cache_dir=tmp_path / "cache")
        )
        remote = PackedDataset(source, seq_len=SEQ_LEN, batch_size=4, lanes=LANES)
        assert hashed(PackedLoader(remote)) == GOLDEN["parquet"]


def test_a_run_that_changes_its_ranks_and_workers_gives_the_same_batches(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path)
    batches = over_legs(
        lambda topology: packed(corpus, "ids.parquet", topology=topology),
        [(1, 2, 6), (3, 0, 4), (2, 1, 1000)],  # ranks, workers of each, steps
        lambda batch: batch,
    )
    assert hashed(batches) == GOLDEN["parquet"]


def test_images_give_the_batches_of_every_version() -> None:
    loader = PackedLoader(dataset(Images(records(40), text="text"), shuffle=True, lanes=2))
    digest = hashlib.blake2b(digest_size=8)
    for batch in loader:
        for values in (batch.input_ids, batch.labels, batch.cu_seqlens):
            digest.update(values.numpy().tobytes())
        digest.update(batch.media["image_grid_thw"].numpy().tobytes())
    assert digest.hexdigest() == IMAGES
