"""Compressed shards are read while they come, up to any damage, with the same documents."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import multiprocessing
import os
import shutil
import signal
import tarfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from streampack import PackedDataset, PackedLoader
from streampack.errors import ContentError
from streampack.sources import JSONL, MDS, ReadOptions, WebDataset
from streampack.sources.error_policy import ErrorPolicy
from streampack.storage.blocks import BLOCK_BYTES
from streampack.storage.storage import Storage
from tests.support.corpora import write_mds, write_tar
from tests.support.read_ahead import settle
from tests.support.servers import HTTPServer
from tests.support.source_contract import read_all, read_lane
from tests.support.whole_files import small_files_count

FORK = multiprocessing.get_context("fork")
WAIT_S = 60.0
HELD = 4 << 20  # bytes of a shard that come at once


def documents(count: int, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 60_000, n).astype(np.uint16) for n in rng.integers(2000, 4000, count)]


CODECS = {"gz": "gzip", "zst": "zstd", "bz2": "bz2"}


def written(kind: str, folder: Path, ids: list[Any]) -> Any:
    """The shard, its source over the paths that are passed to it, and the part of its URL."""
    name, _, codec = kind.partition(".")
    if name == "mds":
        write_mds(folder, ids, size_limit=None, compression="zstd")
        (shard,) = (folder / "mds").glob("*.zstd")
        return shard, lambda at, storage: MDS(f"{at}/mds", tokens="t", storage=storage)
    shard = folder / f"a.{kind}"
    with pa.output_stream(str(shard), compression=CODECS[codec]) as out:
        if name == "tar":
            write_tar(folder / "a.tar", ids)
            out.write((folder / "a.tar").read_bytes())
        else:
            out.writelines(json.dumps({"tokens": each.tolist()}).encode() + b"\n" for each in ids)
    source, field = (WebDataset, "npy") if name == "tar" else (JSONL, "tokens")
    return shard, lambda at, storage: source(f"{at}/a.{kind}", tokens=field, storage=storage)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["tar.gz", "mds", "tar.zst"])
def test_the_first_documents_come_before_the_end_of_the_shard(
    kind: str, http: HTTPServer, storage: Storage
) -> None:
    ids = documents(1200)
    shard, source_of = written(kind, http.folder, ids)
    size = shard.stat().st_size
    assert size > HELD + 2 * BLOCK_BYTES
    source = source_of(http.url, storage)
    source.prepare()
    released = threading.Event()

    def hold(start: int, stop: int) -> None:
        if start >= HELD:
            released.wait(WAIT_S)

    http.hold = hold
    reader = source.lanes(1, seed=0, epoch=0, shuffle=False)[0].read(None, ErrorPolicy())
    first, _ = next(reader)
    assert not released.is_set()
    released.set()
    read = [first, *(block for block, _ in reader)]
    found = [block.document(i).tolist() for block in read for i in range(len(block))]
    assert found == [each.tolist() for each in ids]


KINDS = ["tar.gz", "tar.zst", "tar.bz2", "jsonl.gz", "jsonl.zst", "jsonl.bz2"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", KINDS)
def test_parts_are_read_while_a_server_without_ranges_sends_their_file(
    kind: str, http: HTTPServer, storage: Storage, tmp_path: Path
) -> None:
    ids = documents(1200 if kind.startswith("tar") else 800)
    source = written(kind, http.folder, ids)[1](http.url, Storage(cache_dir=tmp_path / "other"))
    source.prepare()  # which may look at more than half
    source._storage, source.reading = storage, ReadOptions(block_documents=32)
    http.ranges = False
    released = threading.Event()
    http.halfway = lambda _: released.wait(WAIT_S)
    lanes = source.lanes(8, seed=0, epoch=0, shuffle=False)
    readers = [lane.read(None, ErrorPolicy()) for lane in lanes]
    first = [next(readers[0]), next(readers[1])]
    assert not released.is_set()
    released.set()
    blocks = [block for block, _ in [first[0], *readers[0], first[1], *readers[1]]]
    blocks += [block for reader in readers[2:] for block, _ in reader]
    found = [block.document(i).tolist() for block in blocks for i in range(len(block))]
    assert found == [each.tolist() for each in ids]


def read_in(source: Any, answers: Any) -> None:
    answers.put(read_all(source))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", ["cut", "killed", "silent"])
def test_three_processes_read_a_file_that_comes_whole_once_whatever_happens(
    fault: str, kind: str, http: HTTPServer, tmp_path: Path
) -> None:
    ids = documents(400)
    source_of = written(kind, http.folder, ids)[1]
    http.ranges = False
    storage = Storage(cache_dir=tmp_path / "cache", timeout_s=1.0)
    source = source_of(http.url, storage)
    source.prepare()
    settle()
    shutil.rmtree(tmp_path / "cache")
    sent, released = threading.Event(), threading.Event()

    def halfway(_: str) -> None:
        if not sent.is_set():
            sent.set()
            if fault != "cut":
                released.wait(WAIT_S)

    http.halfway, http.cut_next = halfway, 2 * (fault == "cut")
    answers = FORK.SimpleQueue()
    children = [FORK.Process(target=read_in, args=(source, answers)) for _ in range(4)]
    for child in children:
        child.start()
        assert sent.wait(WAIT_S)  # by the first
    if fault == "killed":
        os.kill(children[0].pid or 0, signal.SIGKILL)
    found = [answers.get() for _ in children[fault == "killed" :]]
    released.set()
    for child in children:
        child.join(WAIT_S)
    assert found == [[tuple(each.tolist()) for each in ids]] * len(found)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("kind", "damage"),
    [("tar.gz", "cut"), ("tar.gz", "flipped"), ("tar.zst", "cut"), ("mds", "zeros")],
)
def test_a_damaged_shard_gives_the_same_documents_up_to_the_damage_each_time(
    kind: str, damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_files_count(monkeypatch.setattr)
    ids = documents(900 if kind == "mds" else 300)  # a block has 256
    shard, source_of = written(kind, tmp_path, ids)
    data = bytearray(shard.read_bytes())
    if damage == "flipped":
        data[len(data) // 2] ^= 1
    else:  # an index of MDS has the size of a shard
        kept = len(data) * 2 // 3
        data[kept:] = bytes(len(data) - kept) if damage == "zeros" else b""
    shard.write_bytes(data)
    whole = [tuple(each.tolist()) for each in ids]
    found = []
    for turn in range(3):
        source = source_of(tmp_path, Storage(cache_dir=tmp_path / f"cache-{turn // 2}"))
        with pytest.raises(ContentError) as caught:
            read_all(source)
        assert caught.value.rest_of_shard
        skips = ErrorPolicy("skip")
        found.append(read_all(source, skips))
        assert skips.counts.skipped >= 1
    assert found[0] == found[1] == found[2]
    if damage != "flipped":  # of which gz knows at its end
        assert 0 < len(found[0]) < len(ids)
        assert found[0] == whole[: len(found[0])]


def test_parts_of_an_archive_of_several_gz_members_have_each_sample_once(
    tmp_path: Path, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_files_count(monkeypatch.setattr)
    ids = documents(200)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for i, each in enumerate(ids):
            content = io.BytesIO()
            np.save(content, each)
            member = tarfile.TarInfo(f"{i:04d}.npy")
            member.size = content.tell()
            content.seek(0)
            archive.addfile(member, content)
    data = out.getvalue()
    for cuts in ([len(data) // 3], [len(data) - 1024], [700, len(data) // 2]):
        bounds = [0, *cuts, len(data)]
        parts = [gzip.compress(data[a:b]) for a, b in itertools.pairwise(bounds)]
        (tmp_path / "a.tar.gz").write_bytes(b"".join(parts))
        source = WebDataset(tmp_path / "a.tar.gz", tokens="npy", storage=storage)
        source.prepare()
        for lanes in (1, 2, 7):
            readers: Any = source.lanes(lanes, seed=0, epoch=0, shuffle=False)
            named = [pair for lane in readers for block, _ in read_lane(lane) for pair in block]
            assert [each for _, each in sorted(named)] == [tuple(each.tolist()) for each in ids]


def test_a_state_from_before_sizes_were_expected_continues_with_its_parts(
    tmp_path: Path, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_files_count(monkeypatch.setattr)
    write_tar(tmp_path / "a.tar.gz", documents(300))

    def loader(waits: bool) -> PackedLoader:
        source = WebDataset(tmp_path / "a.tar.gz", tokens="npy", storage=storage)
        source._waits = waits
        return PackedLoader(PackedDataset(source, seq_len=512, batch_size=4, lanes=3))

    monkeypatch.setattr("streampack.formats.tar.archives._expected_bytes", lambda *_: 1 << 30)
    before = loader(waits=True)
    batches = iter(before)
    next(batches)
    state = before.state_dict()
    assert "sizes" not in state["fingerprint"]["source"]
    expected = [batch.input_ids.tolist() for batch in batches]
    resumed = loader(waits=False)
    resumed.load_state_dict(state)
    assert [batch.input_ids.tolist() for batch in resumed] == expected
