"""Every format read by range gives the same documents as local files, and fetches little more."""

from __future__ import annotations

import io
import threading
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streampack import PackedDataset, PackedLoader, Topology, sources
from streampack.formats.parquet.chunks import Chunks
from streampack.remote.first_fetch import first_fetch
from streampack.sources.error_policy import ErrorPolicy
from streampack.storage.blocks import BLOCK_BYTES
from streampack.storage.storage import Storage
from tests.support.corpora import write_tar
from tests.support.every_source import SOURCES
from tests.support.read_ahead import WAIT_S, fetched_blocks, settle
from tests.support.servers import HTTPServer
from tests.support.small_blocks import small_blocks
from tests.support.source_contract import assert_source_contract, read_all

REMOTE: dict[str, Any] = {
    "mds-tokens": lambda url, **o: sources.MDS(f"{url}/mds", **o),
    "mds-text": lambda url, **o: sources.MDS(f"{url}/mds", **o),
    "mds-zstd": lambda url, **o: sources.MDS(f"{url}/mds", **o),
    "tar": lambda url, **o: sources.WebDataset(url + "/{0,1}.tar", tokens="npy", **o),
    "tar-gz": lambda url, **o: sources.WebDataset(url + "/{0,1}.tar.gz", tokens="npy", **o),
    "parquet-tokens": lambda url, **o: sources.Parquet(f"{url}/ids.parquet", tokens="ids", **o),
    "parquet-text": lambda url, **o: sources.Parquet(f"{url}/text.parquet", **o),
    "jsonl": lambda url, **o: sources.JSONL(f"{url}/texts.jsonl", **o),
    "jsonl-gz": lambda url, **o: sources.JSONL(url + "/{0,1}.jsonl.gz", **o),
    "megatron": lambda url, **o: sources.MegatronIndexed(f"{url}/a.bin", **o),
    "npy": lambda url, **o: sources.Tokens(url + "/{0,1}.npy", eos_id=250, **o),
    "datatrove": lambda url, **o: sources.Tokens(f"{url}/a.ds", **o),
    "arrow-stream": lambda url, **o: sources.Arrow(f"{url}/a.arrow", tokens="ids", **o),
    "arrow-file": lambda url, **o: sources.Arrow(f"{url}/a.arrow", **o),
}


@pytest.mark.sampled(7)
@pytest.mark.parametrize("kind", REMOTE)
def test_any_lanes_and_restarts_over_small_blocks_give_the_documents_of_the_folder(
    kind: str, http: HTTPServer, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = read_all(SOURCES[kind](http.folder))
    small_blocks(monkeypatch.setattr)
    reading = sources.ReadOptions(block_documents=9)
    source = REMOTE[kind](http.url, storage=storage, reading=reading)
    assert_source_contract(source, expected, lane_counts=(1, 3), restarts=2)  # type: ignore[arg-type]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("kind", REMOTE)
def test_a_store_that_sends_one_byte_at_a_time_changes_nothing(
    kind: str, http: HTTPServer, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = read_all(SOURCES[kind](http.folder))
    small_blocks(monkeypatch.setattr)
    http.one_by_one = True
    assert read_all(REMOTE[kind](http.url, storage=storage)) == expected


def batches(source: Any, workers: int) -> list[list[int]]:
    dataset = PackedDataset(source, seq_len=64, batch_size=2, lanes=3, topology=Topology())
    loader = PackedLoader(
        dataset, num_workers=workers, multiprocessing_context="fork" if workers else None
    )
    return [batch.input_ids.flatten().tolist() for batch in loader]


def test_workers_that_are_forked_after_the_parent_listed_give_the_batches_of_the_folder(
    http: HTTPServer, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = SOURCES["parquet-tokens"](http.folder)
    small_blocks(monkeypatch.setattr)
    remote = REMOTE["parquet-tokens"](http.url, storage=storage, reading=local.reading)
    assert batches(remote, workers=2) == batches(local, workers=0)


def fetched(http: HTTPServer) -> int:
    spans = [r.range.removeprefix("bytes=").split("-") for r in http.requests if r.range]
    return sum(int(last) + 1 - int(first) for first, last in spans)


def blocks_of(source: Any, lanes: int) -> int:
    """Documents of all lanes."""
    source.prepare()
    parts = source.lanes(lanes, seed=0, epoch=0, shuffle=True)
    return sum(len(block) for part in parts for block, _ in part.read(None, ErrorPolicy()))


def test_explain_counts_the_bytes_in_a_store(http: HTTPServer, storage: Storage) -> None:
    local = SOURCES["parquet-tokens"](http.folder)
    remote = REMOTE["parquet-tokens"](http.url, storage=storage)
    first_fetch._made.clear()
    explained = [PackedDataset(own, seq_len=64).explain() for own in (local, remote)]
    size = (http.folder / "ids.parquet").stat().st_size
    assert [own.as_dict()["remote_bytes"] for own in explained] == [0, size]
    none, some = (own.as_dict()["fetched_bytes"] for own in explained)
    assert none == 0 < some <= fetched(http)
    assert ["fetches" in str(own) for own in explained] == [False, True]


def test_few_bytes_of_a_tar_tell_its_columns_and_tokens(http: HTTPServer, storage: Storage) -> None:
    write_tar(http.folder / "a.tar", [np.ones(3000, np.uint16)] * 800)
    source = sources.WebDataset(f"{http.url}/a.tar", tokens="npy", storage=storage)
    source.prepare()
    tokens = source.estimate_tokens()
    assert tokens is not None
    assert abs(tokens - 800 * 3000) < 0.05 * 800 * 3000
    assert fetched(http) <= 512 << 10


@pytest.mark.parametrize("hosts", [1, 3])
def test_hosts_fetch_their_parts_of_lines_and_not_whole_files(
    hosts: int, http: HTTPServer, tmp_path: Path
) -> None:
    line = b'{"text": "' + b"x" * 2000 + b'"}\n'
    for name in ("a", "b", "c"):
        (http.folder / f"{name}.jsonl").write_bytes(line * 2000)
    url = http.url + "/{a,b,c}.jsonl"
    lanes, given = 6, 0
    for host in range(hosts):
        storage = Storage(cache_dir=tmp_path / str(host), read_ahead_bytes=1 << 30)
        source = sources.JSONL(url, storage=storage)
        source.prepare()
        for part in source.lanes(lanes, seed=0, epoch=0, shuffle=True)[host::hosts]:
            given += sum(len(block) for block, _ in part.read(None, ErrorPolicy()))
    assert given == 6000
    size = 3 * 2000 * len(line)
    beginnings = (1 << 20) * hosts  # which listing looks at
    assert fetched(http) <= size + beginnings + lanes * 2 * (256 << 10)


def wide_table(rows: int) -> pa.Table:
    rng = np.random.default_rng(0)
    ids = [rng.integers(0, 50_000, 300).astype(np.int32) for _ in range(rows)]
    others = {f"other_{n}": [rng.bytes(1200) for _ in range(rows)] for n in range(4)}
    return pa.table({"first": others["other_0"], "ids": ids, **others})


@pytest.mark.sampled(1)
@pytest.mark.parametrize("group", [500, 4000])
def test_columns_that_nobody_reads_are_not_fetched(
    group: int, http: HTTPServer, storage: Storage
) -> None:
    table = wide_table(4000)
    options: Any = {"use_dictionary": False, "compression": None}
    pq.write_table(table, http.folder / "a.parquet", row_group_size=group, **options)
    metadata = pq.read_metadata(http.folder / "a.parquet")
    groups = [metadata.row_group(n) for n in range(metadata.num_row_groups)]
    wanted = sum(own.column(1).total_compressed_size for own in groups)
    assert groups[0].column(1).path_in_schema.startswith("ids")
    assert blocks_of(sources.Parquet(f"{http.url}/a.parquet", tokens="ids", storage=storage), 1)
    # A chunk begins and ends inside of a block, and the footer is read twice.
    assert fetched(http) <= wanted + (2 * len(groups) + 4) * (256 << 10)
    assert http.count("GET") < wanted / (200 << 10)


def test_the_columns_of_a_file_are_looked_up_once_for_all_of_its_parts(
    http: HTTPServer, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        ids = pa.array([[number] * 9] * 200)
        pq.write_table(pa.table({"ids": ids}), http.folder / f"{number}.parquet", row_group_size=50)
    looked_up: list[int] = []
    of = Chunks.of

    def counted(footer: bytes, columns: Collection[str], num_bytes: int) -> Chunks:
        looked_up.append(num_bytes)
        return of(footer, columns, num_bytes)

    monkeypatch.setattr(Chunks, "of", counted)
    source = sources.Parquet(http.url + "/{0..19}.parquet", tokens="ids", storage=storage)
    source.prepare()
    for third in range(3):
        for shard, weight in enumerate(source.manifest.weights.tolist()):
            assert [*source.ranges(shard, weight * third // 3, weight * (third + 1) // 3)]
    assert len(looked_up) == 20


def test_the_first_rows_of_a_large_row_group_take_a_small_part_of_it(
    http: HTTPServer, tmp_path: Path
) -> None:
    table = wide_table(20_000).select(["ids"])
    options: Any = {"use_dictionary": False, "compression": None}
    pq.write_table(table, http.folder / "a.parquet", row_group_size=1 << 20, **options)
    storage = Storage(cache_dir=tmp_path / "cache", read_ahead_bytes=0)
    source = sources.Parquet(f"{http.url}/a.parquet", tokens="ids", storage=storage)
    source.prepare()
    part = source.lanes(1, seed=0, epoch=0, shuffle=False)[0]
    assert len(next(iter(part.read(None, ErrorPolicy())))[0])
    assert (http.folder / "a.parquet").stat().st_size > 20e6
    assert fetched(http) < 5e6


def is_read(path: Path) -> bool:
    """Whether a file of the cache goes before files that readers will come to."""
    status = path.stat()
    return status.st_atime_ns > status.st_mtime_ns


@pytest.mark.parametrize("kind", ["parquet", "arrow", "tar"])
def test_blocks_that_are_read_before_a_part_stay_for_the_part_that_has_them_and_no_others(
    kind: str, http: HTTPServer, tmp_path: Path
) -> None:
    ids = np.random.default_rng(0).integers(0, 50_000, (4000, 300), dtype=np.int32)
    table = pa.table({"ids": [*ids]})
    storage = Storage(cache_dir=tmp_path / "cache", read_ahead_bytes=0)
    if kind == "parquet":
        options: Any = {"use_dictionary": False, "compression": None, "data_page_size": 64 << 10}
        pq.write_table(table, http.folder / "a.parquet", **options)
        source: Any = sources.Parquet(f"{http.url}/a.parquet", storage=storage)
    elif kind == "arrow":  # the part begins in the third of five batches
        with pa.ipc.new_stream(http.folder / "a.arrow", table.schema) as writer:
            writer.write_table(table, max_chunksize=800)
        source = sources.Arrow(f"{http.url}/a.arrow", storage=storage)
    else:
        write_tar(http.folder / "a.tar", [*ids])
        source = sources.WebDataset(f"{http.url}/a.tar", tokens="npy", storage=storage)
    source.prepare()
    weight = source.manifest.weight
    assert [*source.read_shard(0, weight // 2, weight, None, ErrorPolicy())]
    files = {int(path.name.rpartition("-")[2]): path for path in tmp_path.glob("cache/*/??/*-*")}
    last = max(files)
    assert last >= 16
    assert not any(is_read(files[number]) for number in files if 0 < number < last // 2)
    assert all(is_read(files[number]) for number in files if last // 2 + 3 < number)


def test_a_compressed_file_is_fetched_in_full_until_it_is_decoded(
    http: HTTPServer, storage: Storage
) -> None:
    texts = np.random.default_rng(0).bytes(3_000_000).hex()
    with pa.output_stream(http.folder / "a.jsonl.zst", compression="zstd") as file:
        for at in range(0, len(texts), 6000):
            file.write(b'{"text": "' + texts[at : at + 6000].encode() + b'"}\n')
    size = (http.folder / "a.jsonl.zst").stat().st_size
    source = sources.JSONL(f"{http.url}/a.jsonl.zst", storage=storage)
    source.prepare()
    weight = source.manifest.weight
    third = weight // 3

    def planned(low: int, high: int) -> list[tuple[int, int]]:
        return [(part.start, part.stop) for part in source.ranges(0, low, high)]

    before = [planned(low, low + third) for low in (0, third)]
    assert [*source.read_shard(0, third, weight, None, ErrorPolicy())]
    after = [planned(low, low + third) for low in (0, third)]
    own = [(0, -(-third // 4))]  # a byte weighs four
    assert before == [own, [(0, size)]]
    assert after == [own, [(0, 0)]]
    assert fetched(http) <= size + (1 << 20)  # which listing looks at


def test_without_cached_blocks_only_the_process_that_decodes_lines_fetches_them_in_full(
    http: HTTPServer, tmp_path: Path
) -> None:
    with pa.output_stream(http.folder / "a.jsonl.zst", compression="zstd") as file:
        for part in range(500):
            text = np.random.default_rng(part).bytes(3000).hex()
            file.write(b'{"text": "' + text.encode() + b'"}\n')
    size = (http.folder / "a.jsonl.zst").stat().st_size
    assert size > 1 << 20
    storage = Storage(cache_dir=tmp_path / "cache", cache_blocks=False)
    source = sources.JSONL(f"{http.url}/a.jsonl.zst", storage=storage)
    weights = source.manifest.weight
    half = weights // 2
    assert [(part.start, part.stop) for part in source.ranges(0, half, weights)] == [(0, 0)]
    alone = [*source.read_shard(0, half, weights, None, ErrorPolicy())]
    assert sum(len(block) for block, *_ in alone) in range(1, 500)
    assert fetched(http) <= size + (1 << 20)  # which listing looks at


def arrow_stream(http: HTTPServer, storage: Storage, rows: int, of_batch: int) -> sources.Arrow:
    """Serve a stream of ids, in batches of some rows, and list it."""
    table = wide_table(rows).select(["ids"])
    with pa.ipc.new_stream(http.folder / "a.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=of_batch)
    source = sources.Arrow(f"{http.url}/a.arrow", storage=storage)
    source.prepare()
    return source


def test_a_part_of_an_arrow_stream_fetches_its_batches_and_the_heads_before(
    http: HTTPServer, storage: Storage
) -> None:
    source = arrow_stream(http, storage, 12_000, 2000)
    part = source.lanes(6, seed=0, epoch=0, shuffle=False)[5]
    assert sum(len(block) for block, _ in part.read(None, ErrorPolicy()))
    batch = (http.folder / "a.arrow").stat().st_size // 6
    assert fetched(http) < batch + 12 * (256 << 10) < 3 * batch


@pytest.mark.parametrize("form", ["file", "stream"])
def test_the_first_rows_of_an_arrow_file_take_no_head_behind_their_batch(
    form: str, http: HTTPServer, tmp_path: Path
) -> None:
    """The footer has the places of all batches, and a stream is read on."""
    table = wide_table(6000).select(["ids"])
    new = pa.ipc.new_file if form == "file" else pa.ipc.new_stream
    with new(http.folder / "a.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=500)
    storage = Storage(cache_dir=tmp_path / "cache", read_ahead_bytes=0)
    source = sources.Arrow(f"{http.url}/a.arrow", storage=storage)
    source.prepare()
    part = source.lanes(1, seed=0, epoch=0, shuffle=False)[0]
    assert len(next(iter(part.read(None, ErrorPolicy())))[0])
    blocks = -(-(http.folder / "a.arrow").stat().st_size // BLOCK_BYTES)
    footer = [blocks - 1] if form == "file" else []
    assert sorted({*fetched_blocks(http)} - {0, 1, 2, 3}) == footer


def test_heads_of_an_arrow_file_are_fetched_at_once(http: HTTPServer, storage: Storage) -> None:
    table = wide_table(6000).select(["ids"])
    with pa.ipc.new_file(http.folder / "a.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=1000)
    source = sources.Arrow(f"{http.url}/a.arrow", storage=storage)
    source.prepare()
    together = threading.Barrier(3)

    def hold(first: int, _: int) -> None:
        if 0 < first // BLOCK_BYTES < 19:  # behind the beginning, before the part and the footer
            together.wait(WAIT_S)
            http.hold = None

    http.hold = hold
    part = source.lanes(6, seed=0, epoch=0, shuffle=False)[5]
    assert sum(len(block) for block, _ in part.read(None, ErrorPolicy())) == 999
    assert not together.broken


def test_a_part_of_an_arrow_stream_is_fetched_while_the_heads_before_it_are_read(
    http: HTTPServer, storage: Storage
) -> None:
    source = arrow_stream(http, storage, 6000, 1000)
    weight, part_is_asked_for, waited = source.manifest.weight, threading.Event(), list[bool]()

    def hold(first: int, _: int) -> None:
        if first > weight * 5 // 6:
            part_is_asked_for.set()
        elif first:
            waited.append(part_is_asked_for.wait(WAIT_S))

    http.hold = hold
    for key in range(2):  # either may be the one that reads the heads
        source._plan(key, [(0, weight * 5 // 6 + (key + 1) * BLOCK_BYTES, weight)])
    settle()
    assert waited
    assert all(waited)


def test_footers_that_the_listing_has_read_are_fetched_once(
    http: HTTPServer, storage: Storage
) -> None:
    table = wide_table(3000).select(["ids"])
    pq.write_table(table, http.folder / "a.parquet", use_dictionary=False, compression=None)
    source = sources.Parquet(f"{http.url}/a.parquet", tokens="ids", storage=storage)
    source.prepare()
    part = source.lanes(2, seed=0, epoch=0, shuffle=False)[0]
    assert sum(len(block) for block, _ in part.read(None, ErrorPolicy())) == 1500
    settle()
    size = (http.folder / "a.parquet").stat().st_size
    assert fetched_blocks(http).count((size - 1) // BLOCK_BYTES) == 1


def test_an_index_in_a_store_takes_one_request(http: HTTPServer, storage: Storage) -> None:
    expected = read_all(SOURCES["mds-tokens"](http.folder))
    http.requests.clear()
    assert read_all(REMOTE["mds-tokens"](http.url, storage=storage)) == expected
    assert [one.method for one in http.requests if one.path.endswith("index.json")] == ["GET"]


def test_columns_of_an_arrow_file_that_nobody_reads_are_not_fetched(
    http: HTTPServer, storage: Storage
) -> None:
    table = wide_table(8000)
    with pa.ipc.new_file(http.folder / "a.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=4000)
    assert blocks_of(sources.Arrow(f"{http.url}/a.arrow", tokens="ids", storage=storage), 1)
    wanted = 8000 * 300 * 4
    assert fetched(http) <= wanted + 12 * (256 << 10)
    assert (http.folder / "a.arrow").stat().st_size > 5 * wanted


def test_a_part_of_token_ids_fetches_nothing_behind_the_document_that_crosses_its_end(
    http: HTTPServer, storage: Storage
) -> None:
    ids = np.ones(40 * BLOCK_BYTES // 2, dtype=np.uint16)
    ids[999::1000] = 0
    ids.tofile(http.folder / "a.bin")
    source = sources.Tokens(f"{http.url}/a.bin", eos_id=0, dtype="uint16", storage=storage)
    source.prepare()
    settle()
    http.requests.clear()
    span = source._span(
        source.manifest.weight // 4, source.manifest.weight // 2, seed=0, epoch=0, shuffle=False
    )
    assert sum(len(block) for block, _ in span.read(None, ErrorPolicy())) > 1000
    settle()
    # Beginning with the token before the part, which may end a document.
    assert {*fetched_blocks(http)} == {*range(9, 21)}


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "zstd"},
        {"use_dictionary": False, "compression": None},
        {"write_statistics": False, "data_page_version": "2.0", "version": "1.0"},
        {"store_schema": False, "write_page_index": True},
    ],
)
def test_columns_lie_where_pyarrow_finds_them(options: dict[str, Any]) -> None:
    nested = [{"a": [n], "b": {"c": str(n)}} for n in range(500)]
    table = wide_table(500).append_column("nested", pa.array(nested))
    file = io.BytesIO()
    pq.write_table(table, file, row_group_size=100, **options)
    data, metadata = file.getvalue(), pq.read_metadata(file)
    expected = []
    for group in range(metadata.num_row_groups):
        for number in range(metadata.num_columns):
            column = metadata.row_group(group).column(number)
            if column.path_in_schema.split(".")[0] in ("ids", "nested"):
                start = column.dictionary_page_offset or column.data_page_offset
                end = start + column.total_compressed_size
                expected.append((start, end, number, group))
    footer = data[-8 - int.from_bytes(data[-8:-4], "little") : -8]
    found = Chunks.of(footer, ["ids", "nested"], len(data))
    assert [*zip(found.starts, found.ends, found.columns, found.groups, strict=True)] == expected


def test_a_damaged_footer_has_columns_inside_of_the_file_or_none() -> None:
    file = io.BytesIO()
    pq.write_table(wide_table(60), file, row_group_size=10)
    data = file.getvalue()
    footer = data[-8 - int.from_bytes(data[-8:-4], "little") : -8]
    rng = np.random.default_rng(0)
    for _ in range(500):
        damaged = bytearray(footer)
        damaged[rng.integers(len(footer))] ^= 1 << int(rng.integers(8))
        found = Chunks.of(bytes(damaged[: rng.integers(len(footer) + 1)]), ["ids"], len(data))
        assert all(0 <= a <= b <= len(data) for a, b in zip(found.starts, found.ends, strict=True))


def test_a_footer_with_a_map_of_2_to_the_63_booleans_has_no_columns() -> None:
    size = b"\xff" * 8 + b"\x7f"
    assert not Chunks.of(b"\x5b" + size + b"\x11" + bytes(1000), ["ids"], 10_000).starts
