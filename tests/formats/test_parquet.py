from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streampack.documents.blocks import Documents
from streampack.errors import ContentError
from streampack.files import file_source
from streampack.formats.parquet.source import Parquet
from streampack.sources.error_policy import ErrorPolicy
from streampack.sources.reading import ReadOptions
from streampack.storage.blocks import BLOCK_BYTES
from streampack.storage.storage import Storage
from tests.support.recorded_skips import RecordedSkips
from tests.support.servers import HTTPServer, S3Server
from tests.support.source_contract import assert_source_contract, read_all, read_lane

LIST_TYPES = {
    "list": pa.list_,
    "large_list": pa.large_list,
    "fixed_size_list": lambda kind: pa.list_(kind, 5),
}


def write(path: Path, columns: dict[str, Any], rows_per_group: int = 50, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, row_group_size=rows_per_group, **options)
    return path


def text_corpus(folder: Path, shards: int = 3, n: int = 130) -> list[str]:
    everything = []
    for shard in range(shards):
        texts = [f"{shard}-{i} " + "wörd " * (i * 7 % 40) for i in range(n + shard)]
        write(folder / f"{shard:02d}.parquet", {"id": list(range(len(texts))), "text": texts})
        everything += texts
    return everything


def _whole(source: Parquet, shard: int, skips: ErrorPolicy | None = None) -> Iterator[Any]:
    """Return the documents that `read_shard` yields for a whole file."""
    weight = int(source.manifest.weights[shard])
    return source.read_shard(shard, 0, weight, None, skips or ErrorPolicy())


def ids_of(rng: np.random.Generator, n: int, high: int, width: int | None) -> list[list[int]]:
    sizes = [width if width is not None else int(rng.integers(0, 30)) for _ in range(n)]
    return [rng.integers(0, high, size).tolist() for size in sizes]


@pytest.mark.parametrize("rows_per_group", [50, 7])
def test_files_too_many_for_their_footers_weigh_their_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_per_group: int
) -> None:
    monkeypatch.setattr(file_source, "SAMPLED_FILES", 2)
    expected: list[Any] = []
    for shard, count in enumerate((90, 1, 40, 3, 160)):
        rows = [list(range(i, i + i % 7)) for i in range(count)]
        write(
            tmp_path / f"{shard}.parquet",
            {"ids": pa.array(rows, pa.list_(pa.int64()))},
            rows_per_group,
        )
        expected += rows
    source = Parquet(
        tmp_path, tokens="ids", reading=ReadOptions(block_documents=9, block_bytes=200)
    )
    assert_source_contract(source, expected, lane_counts=(1, 3, 40), restarts=4)
    assert source.manifest.weights.tolist() == source.manifest.num_bytes.tolist()
    assert source.manifest.details["documents"] is None


def test_a_file_without_row_groups_is_read_as_the_empty_one_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_source, "SAMPLED_FILES", 1)
    schema = pa.schema({"ids": pa.list_(pa.int64())})
    with pq.ParquetWriter(tmp_path / "b.parquet", schema):
        pass
    assert pq.read_metadata(tmp_path / "b.parquet").num_row_groups == 0
    for name in "ac":
        write(tmp_path / f"{name}.parquet", {"ids": pa.array([[1], [2]], schema.field(0).type)})
    source = Parquet(tmp_path, tokens="ids")
    assert_source_contract(source, [[1], [2]] * 2, lane_counts=(1, 2, 40))


def test_a_file_with_an_unread_footer_is_checked_when_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_source, "SAMPLED_FILES", 2)
    good = {"ids": pa.array([[1, 2], [3]], pa.list_(pa.uint16()))}
    wide = {"ids": pa.array([[70000]], pa.list_(pa.uint32()))}
    for name in "acd":
        write(tmp_path / f"{name}.parquet", good)
    write(tmp_path / "b.parquet", {"other": [1]})
    with pytest.raises(ContentError) as caught:
        read_all(Parquet(tmp_path, tokens="ids"))
    assert caught.value.path == str(tmp_path / "b.parquet")
    assert read_all(Parquet(tmp_path, tokens="ids"), ErrorPolicy("skip")) == [(1, 2), (3,)] * 3
    write(tmp_path / "b.parquet", wide)
    wide_ids = read_all(Parquet(tmp_path, tokens="ids"))
    assert wide_ids == [(1, 2), (3,), (70000,), *[(1, 2), (3,)] * 2]
    (tmp_path / "b.parquet").write_bytes(b"")
    assert read_all(Parquet(tmp_path, tokens="ids")) == [(1, 2), (3,)] * 3


@pytest.mark.sampled(8)
@pytest.mark.parametrize("nested", LIST_TYPES)
@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        (pa.uint8(), "uint16"),
        (pa.int8(), "uint32"),
        (pa.uint64(), "uint32"),
        (pa.uint16(), "uint16"),
        (pa.int16(), "uint32"),
        (pa.int32(), "uint32"),
        (pa.uint32(), "uint32"),
        (pa.int64(), "uint32"),
    ],
)
def test_every_list_and_integer_type_is_read(
    tmp_path: Path, nested: str, kind: pa.DataType, dtype: str
) -> None:
    rng = np.random.default_rng(1)
    everything = []
    for shard in range(2):
        rows = ids_of(rng, 90, 120, 5 if nested == "fixed_size_list" else None)
        ids = pa.array(rows, LIST_TYPES[nested](kind))
        write(tmp_path / f"{shard}.parquet", {"ids": ids}, 40)
        everything += rows
    source = Parquet(
        tmp_path, tokens="ids", reading=ReadOptions(block_documents=9, block_bytes=200)
    )
    assert_source_contract(source, everything, lane_counts=(1, 3), restarts=4)
    block, _, _ = next(_whole(source, 0))
    assert isinstance(block, Documents)
    assert block.tokens.dtype == dtype


@pytest.mark.parametrize("dictionary", [True, False])
def test_the_estimate_is_half_to_twice_the_tokens(tmp_path: Path, dictionary: bool) -> None:
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, 50_000, n).tolist() for n in rng.integers(0, 600, 1000)]
    texts = ["eight ch" * len(row) for row in rows]  # of two tokens each
    ids = pa.array(rows, pa.list_(pa.int32()))
    for name, column in (("ids", ids), ("text", pa.array(texts))):
        write(tmp_path / f"{name}.parquet", {name: column}, 400, use_dictionary=dictionary)
    tokens = sum(map(len, rows))
    found = Parquet(tmp_path / "ids.parquet", tokens="ids").estimate_tokens()
    assert tokens / 2 < found < 2.1 * tokens
    assert tokens < Parquet(tmp_path / "text.parquet").estimate_tokens() < 4 * tokens


@pytest.mark.parametrize("kind", [pa.bool_(), pa.uint8()])
def test_masks_stay_with_their_tokens(tmp_path: Path, kind: pa.DataType) -> None:
    ids = [[1, 2], [3], None, [], [4, 5, 6], [7], [8, 9]]
    masks = [[True, False], [True, True], [True], [], [False, True, True], None, [False, None]]
    columns = {
        "ids": pa.array(ids, pa.list_(pa.uint16())),
        "m": pa.array(masks, pa.list_(pa.bool_())).cast(pa.list_(kind)),
    }
    path = write(tmp_path / "x.parquet", columns)
    source = Parquet(path, tokens="ids", loss_mask="m")
    skips = RecordedSkips()
    source.prepare()
    block, end, reached = next(_whole(source, 0, skips))
    assert isinstance(block, Documents)
    assert block.loss_mask is not None
    assert end == len(ids)
    assert reached == source.manifest.weights[0]
    found = [
        (
            block.document(i).tolist(),
            block.loss_mask[block.offsets[i] : block.offsets[i + 1]].tolist(),
        )
        for i in range(len(block))
    ]
    assert found == [([1, 2], [True, False]), ([], []), ([4, 5, 6], [False, True, True])]
    assert [record[1] for record in skips.records] == [1, 2, 5, 6]


def test_texts_of_every_string_type_are_read(tmp_path: Path) -> None:
    texts = ["a", "ä", "", "a", "😀"]
    for i, kind in enumerate(
        (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string()))
    ):
        path = write(tmp_path / f"{i}.parquet", {"text": pa.array(texts).cast(kind)}, 2)
        assert read_all(Parquet(path)) == texts


@pytest.mark.parametrize("lanes", [1, 2, 3, 7, 20])
def test_damage_inside_a_file_that_is_cut_loses_nothing_before_it(
    tmp_path: Path, lanes: int
) -> None:
    texts = [f"{i} " + "word " * (i % 50) for i in range(400)]
    path = write(tmp_path / "x.parquet", {"text": texts}, 100, compression="zstd")
    chunk = pq.read_metadata(path).row_group(2).column(0)
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    data = bytearray(path.read_bytes())
    data[start : start + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    path.write_bytes(bytes(data))
    source = Parquet(path, reading=ReadOptions(block_documents=16))
    found: list[str] = []
    reports = []
    for lane in source.lanes(lanes, seed=0, epoch=0, shuffle=False):
        skips = RecordedSkips()
        found += [text for block, _ in read_lane(lane, None, skips) for _, text in block]
        assert len(skips.records) <= 1
        reports += skips.records
    # A lane that begins behind the damaged group reads the documents there.
    assert found[:200] == texts[:200]
    assert found[200:] == texts[400 - len(found[200:]) :]
    assert all(str(path) in message for _, _, _, message in reports)
    assert {index for _, index, *_ in reports} <= set(range(200, 301))


def test_the_ids_of_each_file_come_in_the_dtype_that_holds_them(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"ids": pa.array([[1]], pa.list_(pa.uint16()))})
    write(tmp_path / "b.parquet", {"ids": pa.array([[70_000]], pa.list_(pa.int64()))})
    source = Parquet(tmp_path, tokens="ids")
    source.prepare()
    for shard in (0, 1):
        block, _, _ = next(_whole(source, shard))
        assert isinstance(block, Documents)
        assert block.tokens.dtype == (np.uint32 if shard else np.uint16)
    assert read_all(source) == [(1,), (70_000,)]


def test_an_object_store_is_listed_and_read_as_the_folder(
    tmp_path: Path, s3: S3Server, storage: Storage
) -> None:
    expected = text_corpus(tmp_path / "local", shards=4, n=30)
    s3.put_folder(tmp_path / "local", "corpus")
    source = Parquet(
        "s3://bucket/corpus/*.parquet", storage=storage, reading=ReadOptions(block_documents=8)
    )
    assert_source_contract(source, expected, lane_counts=(1, 3), restarts=2)
    assert (
        source.describe()
        == Parquet(tmp_path / "local", reading=ReadOptions(block_documents=8)).describe()
    )


@pytest.mark.parametrize("ranges", [True, False])
def test_listing_reads_footers_only_where_the_server_sends_ranges(
    http: HTTPServer, storage: Storage, ranges: bool
) -> None:
    texts = [str(i) * 100 for i in range(5000)]
    path = write(http.folder / "x.parquet", {"text": texts}, compression="none")
    size = path.stat().st_size
    assert size > BLOCK_BYTES
    http.ranges = ranges
    source = Parquet(f"{http.url}/x.parquet", storage=storage)
    source.prepare()
    blocks = (storage.cache_dir or Path()).rglob("*-[0-9]*")
    assert (sum(block.stat().st_size for block in blocks) < size) == ranges
    assert read_all(source) == texts


def test_the_bytes_of_a_row_group_are_marked_as_read_by_the_part_with_its_first_rows(
    http: HTTPServer, storage: Storage
) -> None:
    """Another part decodes them too, and a full cache keeps them in between."""
    texts = [str(i) * 100 for i in range(5000)]
    write(http.folder / "x.parquet", {"text": texts}, len(texts), compression="none")
    source = Parquet(f"{http.url}/x.parquet", storage=storage)
    weight = source.manifest.weight
    marked, read = [], []
    for low, high in ((weight // 2, weight), (0, weight // 2)):
        blocks = source.read_shard(0, low, high, None, ErrorPolicy())
        read.append([text for block, _, _ in blocks for text in block.texts])
        files = (storage.cache_dir or Path()).rglob("*-[0-9]*")
        marked.append([file for file in files if file.stat().st_atime_ns > file.stat().st_mtime_ns])
    assert read[1] + read[0] == texts
    assert len(marked[0]) < len(marked[1])
