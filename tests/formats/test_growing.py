"""Compressed shards are read while they come, up to any damage, with the same documents."""

from __future__ import annotations

import gzip
import io
import itertools
import tarfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streampack import PackedDataset, PackedLoader
from streampack.errors import ContentError
from streampack.sources import MDS, WebDataset
from streampack.sources.error_policy import ErrorPolicy
from streampack.storage.blocks import BLOCK_BYTES
from streampack.storage.storage import Storage
from tests.support.corpora import write_mds, write_tar
from tests.support.servers import HTTPServer
from tests.support.source_contract import read_all, read_lane
from tests.support.whole_files import small_files_count

WAIT_S = 60.0
HELD = 4 << 20  # bytes of a shard that come at once


def documents(count: int, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 60_000, n).astype(np.uint16) for n in rng.integers(2000, 4000, count)]


def written(kind: str, folder: Path, ids: list[Any]) -> Any:
    """The shard, its source over the paths that are passed to it, and the part of its URL."""
    if kind == "tar":
        write_tar(folder / "a.tar.gz", ids)
        return folder / "a.tar.gz", lambda at, storage: WebDataset(
            f"{at}/a.tar.gz", tokens="npy", storage=storage
        )
    write_mds(folder, ids, size_limit=None, compression="zstd")
    (shard,) = (folder / "mds").glob("*.zstd")
    return shard, lambda at, storage: MDS(f"{at}/mds", tokens="t", storage=storage)


@pytest.mark.parametrize("kind", ["tar", "mds"])
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
        is_end = stop == size and stop - start <= BLOCK_BYTES  # with the declared size of a gz file
        if start >= HELD and not is_end:
            released.wait(WAIT_S)

    http.hold = hold
    reader = source.lanes(1, seed=0, epoch=0, shuffle=False)[0].read(None, ErrorPolicy())
    first, _ = next(reader)
    assert not released.is_set()
    released.set()
    read = [first, *(block for block, _ in reader)]
    found = [block.document(i).tolist() for block in read for i in range(len(block))]
    assert found == [each.tolist() for each in ids]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("kind", "damage"), [("tar", "cut"), ("tar", "flipped"), ("mds", "zeros")])
def test_a_damaged_shard_gives_the_same_documents_up_to_the_damage_each_time(
    kind: str, damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_files_count(monkeypatch.setattr)
    ids = documents(300 if kind == "tar" else 900)  # a block has 256
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


def test_a_state_from_before_sizes_were_declared_continues_with_its_parts(
    tmp_path: Path, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_files_count(monkeypatch.setattr)
    write_tar(tmp_path / "a.tar.gz", documents(300))

    def loader(waits: bool) -> PackedLoader:
        source = WebDataset(tmp_path / "a.tar.gz", tokens="npy", storage=storage)
        source._waits = waits
        return PackedLoader(PackedDataset(source, seq_len=512, batch_size=4, lanes=3))

    monkeypatch.setattr("streampack.formats.tar.archives._declared_size", lambda file: 1 << 30)
    before = loader(waits=True)
    batches = iter(before)
    next(batches)
    state = before.state_dict()
    assert "sizes" not in state["fingerprint"]["source"]
    expected = [batch.input_ids.tolist() for batch in batches]
    resumed = loader(waits=False)
    resumed.load_state_dict(state)
    assert [batch.input_ids.tolist() for batch in resumed] == expected
