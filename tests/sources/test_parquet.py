from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streampack.documents.blocks import Documents
from streampack.errors import ConfigError, ContentError, StateError
from streampack.reading.options import Reading
from streampack.reading.skips import Skips
from streampack.sources.parquet import source as parquet
from streampack.sources.parquet.source import Parquet
from streampack.storage.storage import Storage
from tests.support.servers import HTTPServer, S3Server
from tests.support.source_contract import check_source_contract, read_all, read_lane

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


def _whole(source: Parquet, shard: int, skips: Skips | None = None) -> Iterator[Any]:
    """What `read_shard` yields for all of a file."""
    weight = int(source.manifest.weights[shard])
    return source.read_shard(shard, 0, weight, None, skips or Skips())


def ids_of(rng: np.random.Generator, n: int, high: int, width: int | None) -> list[list[int]]:
    sizes = [width if width is not None else int(rng.integers(0, 30)) for _ in range(n)]
    return [rng.integers(0, high, size).tolist() for size in sizes]


def test_every_text_comes_once_and_restarts_are_exact(tmp_path: Path) -> None:
    expected = text_corpus(tmp_path)
    check_source_contract(
        Parquet(tmp_path, reading=Reading(block_documents=16, block_bytes=1000)), expected
    )


@pytest.mark.parametrize("rows_per_group", [50, 7])
def test_files_too_many_for_their_footers_weigh_what_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_per_group: int
) -> None:
    monkeypatch.setattr(parquet, "MOST_FOOTERS", 2)
    expected: list[Any] = []
    for shard, count in enumerate((90, 1, 40, 3, 160)):
        rows = [list(range(i, i + i % 7)) for i in range(count)]
        write(
            tmp_path / f"{shard}.parquet",
            {"ids": pa.array(rows, pa.list_(pa.int64()))},
            rows_per_group,
        )
        expected += rows
    source = Parquet(tmp_path, tokens="ids", reading=Reading(block_documents=9, block_bytes=200))
    check_source_contract(source, expected, lane_counts=(1, 3, 40), restarts=4)
    assert source.manifest.weights.tolist() == source.manifest.num_bytes.tolist()
    assert source.manifest.details["documents"] is None


def test_a_first_row_group_that_weighs_nothing_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a file that weighs its stored bytes, one row is less than one of them."""
    monkeypatch.setattr(parquet, "MOST_FOOTERS", 1)
    rows = [[7], [7] * 200_000]
    for name in "ab":
        columns = {"ids": pa.array(rows, pa.list_(pa.int64()))}
        write(tmp_path / f"{name}.parquet", columns, 1, use_dictionary=False, compression="zstd")
    source = Parquet(tmp_path, tokens="ids")
    groups = pq.read_metadata(tmp_path / "a.parquet")
    sizes = [groups.row_group(i).total_byte_size for i in range(2)]
    if sizes[0] * int(source.manifest.weights[0]) >= sum(sizes):
        pytest.skip("this pyarrow stores both row groups in nearly as many bytes")
    check_source_contract(source, rows * 2, lane_counts=(1, 2, 3))


def test_a_file_without_row_groups_is_read_as_the_empty_one_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "MOST_FOOTERS", 1)
    schema = pa.schema({"ids": pa.list_(pa.int64())})
    with pq.ParquetWriter(tmp_path / "b.parquet", schema):
        pass
    assert pq.read_metadata(tmp_path / "b.parquet").num_row_groups == 0
    for name in "ac":
        write(tmp_path / f"{name}.parquet", {"ids": pa.array([[1], [2]], schema.field(0).type)})
    source = Parquet(tmp_path, tokens="ids")
    check_source_contract(source, [[1], [2]] * 2, lane_counts=(1, 2, 40))


def test_a_file_of_more_rows_than_bytes_is_cut_among_lanes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "MOST_FOOTERS", 1)
    rows = [[i] if i % 100 == 0 else [] for i in range(10_000)]
    for name in "ab":
        columns = {"ids": pa.array(rows, pa.list_(pa.uint16()))}
        write(tmp_path / f"{name}.parquet", columns, 10_000)
    source = Parquet(tmp_path, tokens="ids")
    assert source.weight < 10_000
    check_source_contract(source, rows * 2, lane_counts=(1, 5), restarts=2)
    for lane in source.lanes(4, seed=0, epoch=0, shuffle=False):
        assert sum(len(block) for block, _ in lane.read(None, Skips())) in range(4500, 5500)


def test_a_file_whose_footer_nobody_looked_at_is_checked_when_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "MOST_FOOTERS", 2)
    good = {"ids": pa.array([[1, 2], [3]], pa.list_(pa.uint16()))}
    for bad, words in (
        ({"other": [1]}, "no column"),
        ({"ids": pa.array([[70000]], pa.list_(pa.uint32()))}, "wider type"),
        (None, "Parquet"),
    ):
        for name in "acd":
            write(tmp_path / f"{name}.parquet", good)
        if bad is None:
            (tmp_path / "b.parquet").write_bytes(b"")
        else:
            write(tmp_path / "b.parquet", bad)
        with pytest.raises(ContentError, match=words):
            read_all(Parquet(tmp_path, tokens="ids"))
        found = read_all(Parquet(tmp_path, tokens="ids"), Skips("skip"))
        assert found == [(1, 2), (3,)] * 3


@pytest.mark.parametrize("nested", LIST_TYPES)
@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        (pa.uint8(), "uint16"),
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
    source = Parquet(tmp_path, tokens="ids", reading=Reading(block_documents=9, block_bytes=200))
    check_source_contract(source, everything, lane_counts=(1, 3), restarts=4)
    block, _, _ = next(_whole(source, 0))
    assert isinstance(block, Documents)
    assert block.tokens.dtype == dtype == source.describe()["dtype"]


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


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    rows=st.lists(st.lists(st.integers(0, 2**32 - 1), max_size=8), min_size=1, max_size=60),
    rows_per_group=st.integers(1, 70),
    lanes=st.integers(1, 9),
    block_documents=st.integers(1, 70),
    block_bytes=st.integers(1, 200),
    batch_size=st.integers(1, 70),
)
def test_any_cut_of_any_row_groups_gives_each_document_once(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[list[int]],
    rows_per_group: int,
    lanes: int,
    block_documents: int,
    block_bytes: int,
    batch_size: int,
) -> None:
    folder = tmp_path_factory.mktemp("parquet")
    table = {"ids": pa.array(rows, pa.list_(pa.int64()))}
    write(folder / "a.parquet", table, rows_per_group)
    write(folder / "b.parquet", table, rows_per_group)
    source = _SmallBatches(
        folder,
        tokens="ids",
        reading=Reading(block_documents=block_documents, block_bytes=block_bytes),
    )
    source.batch_size = batch_size
    check_source_contract(source, rows * 2, lane_counts=(lanes,), restarts=3)


class _SmallBatches(Parquet):
    """Row groups of a test are too small to have several batches of the usual size."""

    batch_size = 3

    def _batch_rows(self, *args: Any) -> int:
        return self.batch_size


def test_nulls_break_their_document_and_nothing_else(tmp_path: Path) -> None:
    write(tmp_path / "t.parquet", {"text": ["a", None, "", "b", None]}, 2)
    source = Parquet(tmp_path / "t.parquet")
    with pytest.raises(ContentError, match=r"Row 1 of .*t\.parquet is null"):
        read_all(source)
    skips = Skips("skip")
    assert read_all(source, skips) == ["a", "", "b"]
    assert [record[1] for record in skips.records] == [1, 4]

    rows = [[1, 2], None, [3, None], [], [4]]
    write(tmp_path / "i.parquet", {"ids": pa.array(rows, pa.list_(pa.uint16()))}, 3)
    skips = Skips("skip")
    assert read_all(Parquet(tmp_path / "i.parquet", tokens="ids"), skips) == [(1, 2), (), (4,)]
    assert [record[1] for record in skips.records] == [1, 2]


@pytest.mark.parametrize(
    ("kind", "wrong"), [(pa.int32(), -1), (pa.int64(), 2**32), (pa.int8(), -1)]
)
def test_ids_that_do_not_fit_break_their_document(
    tmp_path: Path, kind: pa.DataType, wrong: int
) -> None:
    rows = [[1, 2], [3, wrong], [], [wrong], [4]]
    path = write(tmp_path / "i.parquet", {"ids": pa.array(rows, pa.list_(kind))})
    source = Parquet(path, tokens="ids")
    with pytest.raises(ContentError, match=r"Row 1 of .* has an id outside of uint32"):
        read_all(source)
    skips = Skips("skip")
    assert read_all(source, skips) == [(1, 2), (), (4,)]
    assert [record[1] for record in skips.records] == [1, 3]


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
    skips = Skips("skip")
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


def test_masks_come_as_views_when_everything_fits(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    ids = ids_of(rng, 200, 60_000, None)
    masks = [[token % 3 == 0 for token in row] for row in ids]
    write(tmp_path / "x.parquet", {"ids": pa.array(ids, pa.list_(pa.uint16())), "m": masks})
    source = Parquet(tmp_path, tokens="ids", loss_mask="m", reading=Reading(block_documents=16))
    source.prepare()
    weight, read = source.weight, 0
    for block, _, _ in source.read_shard(0, weight // 6, weight - weight // 9, None, Skips()):
        read += len(block)
        assert isinstance(block, Documents)
        assert block.loss_mask is not None
        inside = slice(int(block.offsets[0]), int(block.offsets[-1]))
        assert (block.loss_mask[inside] == (block.tokens[inside] % 3 == 0)).all()
    assert 100 < read < 180


def test_texts_of_every_string_type_are_read(tmp_path: Path) -> None:
    texts = ["a", "ä", "", "a", "😀"]
    for i, kind in enumerate(
        (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string()))
    ):
        path = write(tmp_path / f"{i}.parquet", {"text": pa.array(texts).cast(kind)}, 2)
        assert read_all(Parquet(path)) == texts


def test_text_that_is_not_utf8_breaks_its_document(tmp_path: Path) -> None:
    raw = pa.array([b"good", b"\xff\xfe", "ä".encode()], pa.binary())
    texts = pa.Array.from_buffers(pa.string(), 3, raw.buffers())
    path = write(tmp_path / "x.parquet", {"text": texts})
    skips = Skips("skip")
    assert read_all(Parquet(path), skips) == ["good", "ä"]
    assert [record[1] for record in skips.records] == [1]


@pytest.mark.parametrize("keep", [0, 3, 11, 100, -1, -9, -200])
def test_a_truncated_parquet_file_is_named_and_skipped(tmp_path: Path, keep: int) -> None:
    expected = text_corpus(tmp_path, shards=3, n=20)
    broken = tmp_path / "01.parquet"
    broken.write_bytes(broken.read_bytes()[:keep])
    source = Parquet(tmp_path)
    with pytest.raises(ContentError, match=r"01\.parquet") as caught:
        read_all(source)
    assert caught.value.rest_of_shard
    skips = Skips("skip")
    assert read_all(source, skips) == expected[:20] + expected[41:]
    assert [record[:3] for record in skips.records] == [[1, 0, True]]


@pytest.mark.parametrize("footers", [1, 8192], ids=["footer-unseen", "footer-listed"])
def test_a_file_whose_column_names_are_no_utf8_is_named_and_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, footers: int
) -> None:
    monkeypatch.setattr(parquet, "MOST_FOOTERS", footers)
    for name in "ab":
        values = pa.array([[1, 2], [3]], pa.list_(pa.int64()))
        pq.write_table(pa.table({"ids": values}), tmp_path / f"{name}.parquet", store_schema=False)
    broken = tmp_path / "b.parquet"
    data = broken.read_bytes()
    at = data.index(b"ids")  # in the schema; the names in chunks are not looked at
    broken.write_bytes(data[:at] + b"i\xe4s" + data[at + 3 :])
    with pytest.raises(ContentError, match=r"b\.parquet"):
        read_all(Parquet(tmp_path, tokens="ids"))
    assert read_all(Parquet(tmp_path, tokens="ids"), Skips("skip")) == [(1, 2), (3,)]


def test_damage_inside_a_file_loses_what_lies_behind_it_only(tmp_path: Path) -> None:
    texts = [f"{i} " + "word " * (i % 50) for i in range(400)]
    path = write(tmp_path / "x.parquet", {"text": texts}, 100, compression="zstd")
    metadata = pq.read_metadata(path)
    chunk = metadata.row_group(2).column(0)
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    data = bytearray(path.read_bytes())
    data[start : start + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    path.write_bytes(bytes(data))
    source = Parquet(path)
    skips = Skips("skip")
    assert read_all(source, skips) == texts[:200]
    assert [record[:3] for record in skips.records] == [[0, 200, True]]


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
    source = Parquet(path, reading=Reading(block_documents=16))
    found: list[str] = []
    reports = []
    for lane in source.lanes(lanes, seed=0, epoch=0, shuffle=False):
        skips = Skips("skip")
        found += [text for block, _ in read_lane(lane, None, skips) for _, text in block]
        assert len(skips.records) <= 1
        reports += skips.records
    # A lane that begins behind the damaged group reads what lies there.
    assert found[:200] == texts[:200]
    assert found[200:] == texts[400 - len(found[200:]) :]
    assert all(str(path) in message for _, _, _, message in reports)
    assert {index for _, index, *_ in reports} <= set(range(200, 301))


def test_a_column_that_is_absent_is_refused_with_those_that_exist(tmp_path: Path) -> None:
    write(tmp_path / "x.parquet", {"content": ["a"], "n": [1]})
    for arguments in ({}, {"text": "body"}, {"tokens": "ids"}):
        with pytest.raises(ConfigError, match=r'"content".*"n"'):
            Parquet(tmp_path, **arguments).prepare()
    with pytest.raises(ConfigError, match="should hold lists of integers"):
        Parquet(tmp_path, tokens="content").prepare()
    with pytest.raises(ConfigError, match="should hold strings"):
        Parquet(tmp_path, text="n").prepare()


def test_files_with_and_without_wide_ids_come_in_one_dtype(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"ids": pa.array([[1]], pa.list_(pa.uint16()))})
    write(tmp_path / "b.parquet", {"ids": pa.array([[70_000]], pa.list_(pa.int64()))})
    source = Parquet(tmp_path, tokens="ids")
    source.prepare()
    for shard in (0, 1):
        block, _, _ = next(_whole(source, shard))
        assert isinstance(block, Documents)
        assert block.tokens.dtype == np.uint32
    assert read_all(source) == [(1,), (70_000,)]


def test_nothing_but_broken_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"not parquet at all")
    with pytest.raises(ConfigError, match="not a Parquet file"):
        Parquet(tmp_path).prepare()


def test_a_footer_that_claims_too_much_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet", {"text": ["a"]})
    data = path.read_bytes()
    path.write_bytes(data[:-8] + (2**31 - 1).to_bytes(4, "little") + b"PAR1")
    with pytest.raises(ConfigError, match="its footer would have 2147483647"):
        Parquet(path).prepare()


def test_a_file_that_changed_since_it_was_listed_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet", {"text": ["a"]})
    source = Parquet(path)
    source.prepare()
    write(path, {"text": ["a", "b"] * 100})
    with pytest.raises(StateError, match="when it was listed"):
        read_all(source)


def test_listing_an_object_store_reads_footers_only(
    tmp_path: Path, s3: S3Server, storage: Storage
) -> None:
    expected = text_corpus(tmp_path / "local", shards=4, n=30)
    s3.put_folder(tmp_path / "local", "corpus")
    source = Parquet(
        "s3://bucket/corpus/*.parquet", storage=storage, reading=Reading(block_documents=8)
    )
    source.prepare()
    assert not (tmp_path / "cache").exists()
    check_source_contract(source, expected, lane_counts=(1, 3), restarts=2)
    assert (
        source.describe()
        == Parquet(tmp_path / "local", reading=Reading(block_documents=8)).describe()
    )


@pytest.mark.parametrize("ranges", [True, False])
def test_listing_works_with_and_without_range_requests(
    http: HTTPServer, storage: Storage, ranges: bool
) -> None:
    texts = [str(i) * 100 for i in range(5000)]
    path = write(http.folder / "x.parquet", {"text": texts}, compression="none")
    assert path.stat().st_size > 200_000
    http.ranges = ranges
    source = Parquet(f"{http.url}/x.parquet", storage=storage)
    source.prepare()
    cached = list((storage.cache_dir or Path()).glob("*"))
    assert bool(cached) != ranges
    assert read_all(source) == texts


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"text": "a", "tokens": "b"}, "Both"),
        ({"text": "a", "loss_mask": "m"}, "without tokens"),
    ],
)
def test_settings_that_cannot_work_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Parquet("x.parquet", **arguments)
