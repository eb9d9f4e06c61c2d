"""Every format can be cut anywhere: nothing is lost, lanes are equal, damage stays where it is."""

from __future__ import annotations

import bz2
import gzip
import json
import tarfile
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from streampack.errors import ContentError
from streampack.sources import JSONL, MDS, Arrow, MegatronIndexed, Parquet, Tokens, WebDataset
from streampack.sources.error_policy import ErrorPolicy
from streampack.sources.reading import ReadOptions
from streampack.sources.sharded import ShardedSource
from streampack.storage import decompression
from tests.support.corpora import write_mds, write_tar
from tests.support.drawn import drawn
from tests.support.flat_files import write_datatrove, write_megatron
from tests.support.recorded_skips import RecordedSkips
from tests.support.source_contract import assert_source_contract, read_by_cuts, read_lane

Ids = list[np.ndarray]
END = 65_535
Maker = Callable[..., ShardedSource]


def ids_of(lengths: list[int], seed: int = 0) -> Ids:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 60_000, n).astype(np.uint16) for n in lengths]


def packed(data: bytes, kind: str) -> bytes:
    """Compressed in two parts, as programs that append do; zstd in one."""
    half = len(data) // 2
    if kind == "gz":
        return gzip.compress(data[:half]) + gzip.compress(data[half:])
    if kind == "bz2":
        return bz2.compress(data[:half]) + bz2.compress(data[half:])
    return pa.compress(data, "zstd", asbytes=True) if kind == "zst" else data


def _lines(kind: str) -> Maker:
    def make(folder: Path, shards: list[Ids], **options: Any) -> JSONL:
        for i, documents in enumerate(shards):
            data = b"".join(json.dumps({"t": d.tolist()}).encode() + b"\n" for d in documents)
            (folder / f"{i}.jsonl{kind and '.'}{kind}").write_bytes(packed(data, kind))
        return JSONL(folder, tokens="t", **options)

    return make


def _tar(kind: str) -> Maker:
    def make(folder: Path, shards: list[Ids], **options: Any) -> WebDataset:
        for i, documents in enumerate(shards):
            path = write_tar(folder / f"{i}.tar", documents)
            if kind:
                data = path.read_bytes()
                path.unlink()
                (folder / f"{i}.tar.{kind}").write_bytes(packed(data, kind))
        return WebDataset(folder, tokens="npy", **options)

    return make


class _SmallBatches(Parquet):
    """Row groups of a test are too small to have several batches of the usual size."""

    def _batch_rows(self, *args: Any) -> int:
        return 3


def _parquet(rows_per_group: int, kind: type[Parquet] = Parquet) -> Maker:
    def make(folder: Path, shards: list[Ids], **options: Any) -> Parquet:
        for i, documents in enumerate(shards):
            values = pa.array([d.tolist() for d in documents], pa.list_(pa.int32()))
            pq.write_table(
                pa.table({"ids": values}),
                folder / f"{i}.parquet",
                row_group_size=rows_per_group,
                use_dictionary=False,
                compression="none",
                write_statistics=False,
            )
        return kind(folder, tokens="ids", **options)

    return make


def _arrow(form: str) -> Maker:
    def make(folder: Path, shards: list[Ids], **options: Any) -> Arrow:
        new = pa.ipc.new_stream if form == "stream" else pa.ipc.new_file
        codec = pa.ipc.IpcWriteOptions(compression="zstd" if form == "zstd" else None)
        for i, documents in enumerate(shards):
            table = pa.table({"ids": pa.array([d.tolist() for d in documents])})
            with new(folder / f"{i}.arrow", table.schema, options=codec) as writer:
                writer.write_table(table, max_chunksize=7)
        return Arrow(folder, tokens="ids", **options)

    return make


def _megatron(folder: Path, shards: list[Ids], **options: Any) -> MegatronIndexed:
    for i, documents in enumerate(shards):
        write_megatron(folder / str(i), [np.array_split(d, 2) for d in documents], "int32")
    return MegatronIndexed(folder, **options)


def _flat(kind: str) -> Maker:
    """The end token is the last id of each document."""

    def make(folder: Path, shards: list[Ids], **options: Any) -> Tokens:
        for i, documents in enumerate(shards):
            for document in documents:
                document[-1] = END
            ids = np.concatenate(documents)
            np.save(folder / f"{i}.npy", ids) if kind == "npy" else ids.tofile(folder / f"{i}.bin")
        dtype = None if kind == "npy" else "uint16"
        return Tokens(folder, eos_id=END, dtype=dtype, **options)

    return make


def _datatrove(folder: Path, shards: list[Ids], **options: Any) -> Tokens:
    for i, documents in enumerate(shards):
        write_datatrove(folder / f"{i}.ds", documents)
    return Tokens(folder, **options)


def _mds(folder: Path, shards: list[Ids], size_limit: int = 2000, **options: Any) -> MDS:
    folders = [folder / str(i) for i in range(len(shards))]
    for own, documents in zip(folders, shards, strict=True):
        own.mkdir()
        write_mds(own, documents, size_limit=size_limit)
    return MDS([own / "mds" for own in folders], **options)


EVERY: dict[str, Maker] = {
    "mds": _mds,
    "tar": _tar(""),
    "tar.gz": _tar("gz"),
    "tar.zst": _tar("zst"),
    "jsonl": _lines(""),
    "jsonl.gz": _lines("gz"),
    "jsonl.zst": _lines("zst"),
    "jsonl.bz2": _lines("bz2"),
    "parquet-groups": _parquet(7),
    "parquet-one-group": _parquet(1000),
    "parquet-small-batches": _parquet(10, _SmallBatches),
    "arrow-file": _arrow("file"),
    "arrow-stream": _arrow("stream"),
    "arrow-zstd": _arrow("zstd"),
    "megatron": _megatron,
    "npy": _flat("npy"),
    "bin": _flat("bin"),
    "datatrove": _datatrove,
}


# ------------------------------------------------------------------ nothing is lost


@pytest.mark.parametrize("kind", EVERY)
def test_any_lanes_and_any_cuts_give_each_document_once_and_go_on_behind_every_block(
    kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    @drawn(8, least=3, suppress_health_check=list(HealthCheck))
    @given(
        lengths=st.lists(st.sampled_from([1, 2, 30, 400]), min_size=1, max_size=40),
        cut=st.integers(0, 40),
        lanes=st.integers(1, 25),
        block_documents=st.integers(1, 9),
        block_bytes=st.sampled_from([1, 900, 1 << 20]),
        feed=st.sampled_from([1, 20, 500]),
        part=st.sampled_from([50, 3000]),
        data=st.data(),
    )
    def check(
        lengths: list[int],
        cut: int,
        lanes: int,
        block_documents: int,
        block_bytes: int,
        feed: int,
        part: int,
        data: st.DataObject,
    ) -> None:
        documents = ids_of(lengths)
        shards = [own for own in (documents[:cut], documents[cut:]) if own]
        reading = ReadOptions(block_documents=block_documents, block_bytes=block_bytes)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(decompression, "_FEED", feed)
            patch.setattr(decompression, "_PART", part)
            patch.setattr(decompression, "_CHUNK", part)
            source = EVERY[kind](tmp_path_factory.mktemp("cuts"), shards, reading=reading)
            expected = [d.tolist() for d in documents]
            assert_source_contract(source, expected, lane_counts=(lanes,), restarts=4)
            assert sorted(read_by_cuts(source, data)) == sorted(expected)

    check()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["jsonl.gz", "jsonl.zst", "jsonl.bz2"])
def test_compressed_lines_are_cut_into_lanes_that_all_have_some(kind: str, tmp_path: Path) -> None:
    documents = ids_of([200] * 3000)
    source = EVERY[kind](tmp_path, [documents], reading=ReadOptions(block_documents=300))
    lanes = source.lanes(4, seed=0, epoch=0, shuffle=False)
    counts = [sum(len(block) for block, _ in lane.read(None, ErrorPolicy())) for lane in lanes]
    assert sum(counts) == 3000
    # bz2 packs 900 kB at a time, of which there are two here in each half.
    assert (min(counts) > 600) or (kind == "jsonl.bz2" and min(counts) > 0)


# ------------------------------------------------------------------ lanes are equal


def _large_mds(folder: Path, shards: list[Ids]) -> MDS:
    return _mds(folder, shards, size_limit=1 << 19)


def _line_sizes(documents: Ids) -> list[int]:
    return [len(json.dumps({"t": d.tolist()})) + 1 for d in documents]


def _tar_sizes(documents: Ids) -> list[int]:
    return [512 + -(-(128 + 2 * len(d)) // 512) * 512 for d in documents]


def _row_sizes(rows_per_group: int) -> Callable[[Ids], Any]:
    """Return sizes of rows, as if all rows of a row group were equal."""

    def sizes_of(documents: Ids) -> Any:
        sizes = np.array([1 + len(d) for d in documents])
        groups = np.arange(len(sizes)) // rows_per_group
        return (np.bincount(groups, sizes) / np.bincount(groups))[groups]

    return sizes_of


#: Maker of a source, and weights of its documents (for Parquet as shares of a file's weight).
WEIGHED: dict[str, tuple[Maker, Callable[[Ids], Any]]] = {
    "mds": (_large_mds, lambda documents: [24 + 2 * len(d) for d in documents]),
    "tar": (_tar(""), _tar_sizes),
    "jsonl": (_lines(""), _line_sizes),
    "parquet": (_parquet(1000), _row_sizes(1000)),
    "parquet-groups": (_parquet(50), _row_sizes(50)),
}


@pytest.mark.sampled("each")
@pytest.mark.parametrize("shuffle", [False, True], ids=["in order", "shuffled"])
@pytest.mark.parametrize("kind", WEIGHED)
def test_lanes_weigh_the_same_within_a_document(kind: str, shuffle: bool, tmp_path: Path) -> None:
    make, sizes_of = WEIGHED[kind]
    rng = np.random.default_rng(5)
    lengths = np.minimum(np.exp(rng.normal(5.0, 1.5, 600)).astype(int) + 1, 9000).tolist()
    documents = ids_of(lengths)
    shards = [documents[:50], documents[50:110], documents[110:]]
    source = make(tmp_path, shards)
    weights = source.manifest.weights.tolist()
    if kind == "mds":  # which makes several shards of each
        sizes = np.array(sizes_of(documents), dtype=np.float64)
    else:
        parts = [np.array(sizes_of(own), dtype=np.float64) for own in shards]
        if kind.startswith("parquet"):
            parts = [own * w / own.sum() for own, w in zip(parts, weights, strict=True)]
        sizes = np.concatenate(parts)
    numbers = {tuple(d.tolist()): i for i, d in enumerate(documents)}
    # Heads and padding of a file, and the metadata of row groups, weigh as well.
    besides = abs(source.manifest.weight - sizes.sum()) + (
        0.01 * source.manifest.weight if "groups" in kind else 0
    )
    assert besides < 0.05 * source.manifest.weight
    for lanes in (2, 3, 7, 19):
        found = []
        for lane in source.lanes(lanes, seed=1, epoch=0, shuffle=shuffle):
            own = [document for block, _ in read_lane(lane) for _, document in block]
            found.append(sum(sizes[numbers[d]] for d in own))
        share = source.manifest.weight / lanes
        for weight in found:
            assert abs(weight - share) <= sizes.max() + besides


# ------------------------------------------------------------------ damage


def _truncated(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 7 // 10])


def _overwritten(path: Path, count: int = 100_000) -> None:
    data = bytearray(path.read_bytes())
    at = len(data) * 7 // 10
    data[at : at + count] = b"\xff" * len(data[at : at + count])
    path.write_bytes(bytes(data))


def _header_broken(path: Path) -> None:
    with tarfile.open(path) as archive:
        members = archive.getmembers()
    data = bytearray(path.read_bytes())
    at = members[len(members) * 7 // 10].offset
    data[at + 148] ^= 255
    path.write_bytes(bytes(data))


DAMAGE: dict[str, tuple[Maker, Callable[[Path], None]]] = {
    "jsonl.gz, cut short": (_lines("gz"), _truncated),
    "jsonl.zst, overwritten": (_lines("zst"), _overwritten),
    "tar, a broken header": (_tar(""), _header_broken),
}


def _outcome(
    lanes: Any, cursors: bool = False
) -> Iterator[tuple[list[tuple[Any, Any]], list[list[Any]]]]:
    """Yield each lane's documents and skips; a resume from any cursor must give the same."""
    for lane in lanes:
        skips = RecordedSkips()
        blocks, recorded = [], []
        for block, cursor in lane.read(None, skips):
            blocks.append((block, json.loads(json.dumps(cursor))))
            recorded.append(len(skips.records))
        for k in range(0, len(blocks), max(1, len(blocks) // 4)) if cursors else ():
            again = RecordedSkips()
            again.counts.skipped = recorded[k]
            rest = read_lane(lane, blocks[k][1], again)
            assert [cursor for _, cursor in rest] == [cursor for _, cursor in blocks[k + 1 :]]
            assert again.counts.skipped == skips.counts.skipped
            assert again.records == skips.records[recorded[k] :]
        yield (
            [
                (int(o["index"]), tuple(block.document(i).tolist()))
                for block, _ in blocks
                for i, o in enumerate(block.origin)
            ],
            skips.records,
        )


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", DAMAGE)
def test_documents_before_damage_are_read_by_their_lanes(kind: str, tmp_path: Path) -> None:
    make, damage = DAMAGE[kind]
    documents = ids_of(np.random.default_rng(1).integers(100, 400, 2000).tolist())
    source = make(tmp_path, [documents], reading=ReadOptions(block_documents=60))
    (path,) = tmp_path.iterdir()
    damage(path)
    source = type(source)(tmp_path, **_arguments(source), reading=source.reading)
    ((before, reports),) = _outcome(source.lanes(1, seed=2, epoch=0, shuffle=False))
    found = [ids for _, ids in before]
    assert found == [tuple(d.tolist()) for d in documents[: len(found)]]
    assert 0.6 < len(found) / len(documents) < 0.8
    ((_, index, rest, message),) = reports
    assert rest
    assert index > before[-1][0]
    assert str(path) in message
    for lanes, shuffle in ((2, False), (9, True)):
        parts = list(_outcome(source.lanes(lanes, seed=2, epoch=0, shuffle=shuffle), cursors=True))
        assert sorted(pair for own, _ in parts for pair in own) == before
        told = [records for _, records in parts]
        assert all(len(records) <= 1 for records in told)
        assert all(str(path) in records[0][3] for records in told if records)
        # Lanes before the damage do not notice it; lanes behind it have no documents.
        flags = [bool(records) for records in told]
        assert flags == sorted(flags)
        assert flags[-1]
        assert not flags[0]
        assert not any(own for own, _ in parts[flags.index(True) + 1 :])
        with pytest.raises(ContentError, match=str(path)):
            read_lane(source.lanes(lanes, seed=2, epoch=0, shuffle=shuffle)[lanes - 1])
        read_lane(source.lanes(lanes, seed=2, epoch=0, shuffle=shuffle)[0])


def _arguments(source: ShardedSource) -> dict[str, Any]:
    return {"tokens": "npy"} if isinstance(source, WebDataset) else {"tokens": "t"}


def test_lanes_of_a_damaged_archive_meet_at_every_cut(tmp_path: Path) -> None:
    """A header is broken, and lanes are cut at the bytes around it."""
    documents = ids_of([200] * 12)
    _tar("")(tmp_path, [documents])
    path = tmp_path / "0.tar"
    _header_broken(path)
    source = WebDataset(tmp_path, tokens="npy", reading=ReadOptions(block_documents=2))
    at = 8 * sum(_tar_sizes(documents[:1]))
    for place in [*range(at - 3000, at + 3000, 97), *range(at - 3, at + 4)]:
        ends = [0, place, source.manifest.weight]
        spans = [
            source._span(low, high, seed=0, epoch=0, shuffle=False) for low, high in pairwise(ends)
        ]
        parts = list(_outcome(spans, cursors=True))
        assert [ids for own, _ in parts for _, ids in own] == [
            tuple(d.tolist()) for d in documents[: len(documents) * 7 // 10]
        ]
        assert [len(records) for _, records in parts] == [place > at, 1]
