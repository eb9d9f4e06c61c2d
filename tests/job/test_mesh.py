"""A job of several processes: places from a device mesh, and one process that lists for all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streampack import PackedDataset, PackedLoader, Topology, sources
from streampack.errors import ConfigError, RankError
from streampack.job import listed_once as listed_once_module
from streampack.job.listed_once import listed_once
from tests.support.chats import messages, write_lines
from tests.support.corpora import write_mds, write_tar
from tests.support.forked import Host
from tests.support.runs import in_order
from tests.support.servers import http_server

SEQ_LEN = 32

JOB = """
import json, os, sys
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from streampack import PackedDataset, PackedLoader, Topology, sources
from tests.job.test_mesh import identity, dataset_of

url, folder = sys.argv[1], sys.argv[2]
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
rank = dist.get_rank()
topology = Topology.from_mesh(mesh, "dp")
assert topology == Topology(rank // 2, 2)
assert Topology.from_mesh(mesh, ("dp", "tp")) == Topology(rank, 4)
assert Topology.from_mesh(mesh["tp"], "tp") == Topology(rank % 2, 2)
flat = mesh["dp", "tp"]._flatten("all")
assert Topology.from_mesh(mesh, "all") == Topology(rank, 4)
try:
    Topology.from_mesh(mesh, "pp")
except Exception as error:
    refusal = [type(error).__name__, str(error)]
storage = sources.Storage(cache_dir=f"{folder}/cache-{rank}", retries=0)
dataset = dataset_of(url, storage, topology)
batches = [identity(batch) for batch in PackedLoader(dataset, num_workers=rank % 2)]
chats = sources.Chat(f"{folder}/chat.jsonl", storage=storage)
assert chats.tokenized is False
# A rank alone may build a dataset that the others do not.
if rank == 3:
    sources.WebDataset(f"{url}/0.tar", tokens="npy", storage=storage).prepare()
# What cannot be listed fails on every rank.
try:
    sources.MDS(f"{url}/nowhere", storage=storage).prepare()
except Exception as error:
    missing = [type(error).__name__, str(error)]
with open(f"{folder}/{rank}.json", "w") as file:
    json.dump({"batches": batches, "refusal": refusal, "missing": missing}, file)
dist.barrier()
dist.destroy_process_group()
"""


def identity(batch: Any) -> list[Any]:
    return [batch.step, batch.lane, batch.input_ids.tolist(), batch.cu_seqlens.tolist()]


def dataset_of(url: str, storage: Any, topology: Topology) -> PackedDataset:
    source = sources.MDS(f"{url}/mds", storage=storage)
    return PackedDataset(source, seq_len=SEQ_LEN, lanes=4, topology=topology)


def test_two_by_two_processes_share_batches_by_their_mesh_and_one_of_them_lists(
    host: Host, tmp_path: Path
) -> None:
    rng = np.random.default_rng(1)
    documents = [rng.integers(0, 250, n).astype(np.uint16) for n in rng.integers(1, 60, 90)]
    served = tmp_path / "served"
    served.mkdir()
    write_mds(served, documents)
    write_tar(served / "0.tar", documents)
    write_lines(tmp_path / "chat.jsonl", [{"messages": messages("a", "b")}] * 3)
    (tmp_path / "job.py").write_text(JOB)
    with http_server(served) as server:
        statuses, output = host.run_job(tmp_path / "job.py", server.url, tmp_path, processes=4)
        assert statuses == [0] * 4, output[-3000:]
        assert server.count("GET", "mds/index.json") == 1
        storage = sources.Storage(cache_dir=tmp_path / "cache")
        alone = PackedLoader(dataset_of(server.url, storage, Topology()))
        expected = [identity(batch) for batch in alone]
    results = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(4)]
    batches = [result["batches"] for result in results]
    assert batches[0] == batches[1] != batches[2] == batches[3]
    found = in_order([batches[0], batches[2]])
    assert [batch for batch in found if np.any(batch[2])] == expected
    for result in results:
        assert result["refusal"][0] == "ConfigError"
        assert "('dp', 'tp'), got 'pp'" in result["refusal"][1]
        assert result["missing"][0] == "ConfigError"
        assert "nowhere" in result["missing"][1]


def test_a_process_that_dies_while_it_lists_fails_the_others_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torch.distributed import HashStore

    store = HashStore()
    monkeypatch.setattr(listed_once_module, "job_store", lambda: store)
    store.add("streampack/manifest/" + _key({"paths": "a"}) + "/claims", 1)  # and died
    with pytest.raises(RankError, match=r"did not answer within 0.2 s"):
        listed_once({"paths": "a"}, lambda: pytest.fail("it must wait"), timeout_s=0.2)


def _key(described: dict[str, Any]) -> str:
    import hashlib

    return hashlib.blake2b(json.dumps(described).encode(), digest_size=16).hexdigest()


def test_a_large_listing_is_handed_round_in_pieces_and_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torch.distributed import HashStore

    from streampack.sources.manifest import Manifest

    store = HashStore()
    monkeypatch.setattr(listed_once_module, "job_store", lambda: store)
    monkeypatch.setattr(listed_once_module, "PIECE_BYTES", 1000)
    sizes = np.random.default_rng(0).integers(1, 1 << 40, 5000)
    listing = Manifest([f"s3://b/{i}" for i in range(5000)], sizes, sizes)
    assert listed_once({"paths": "a"}, lambda: listing) is listing
    other = listed_once({"paths": "a"}, lambda: pytest.fail("it was listed twice"))
    assert other.digest == listing.digest
    assert list(other.paths) == list(listing.paths)
    assert (other.weights == listing.weights).all()

    def fails() -> Manifest:
        raise ConfigError("no", "no")

    for _ in range(2):  # the first and whoever comes later
        with pytest.raises(ConfigError):
            listed_once({"paths": "b"}, fails)
    assert listed_once({"paths": "b"}, lambda: listing) is listing
