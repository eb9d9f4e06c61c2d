"""Arrow files of every form: each row once however they are cut, and damage is named."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pytest

from streampack.errors import ConfigError, ContentError
from streampack.sources import Arrow
from streampack.sources.reading import ReadOptions
from streampack.sources.resolve import as_source
from tests.support.source_contract import assert_source_contract, read_all, read_lane

SMALL = ReadOptions(block_documents=4, block_bytes=300)
rng = np.random.default_rng(0)
IDS = [rng.integers(0, 60_000, n).tolist() for n in rng.integers(0, 40, 60)]
TEXTS = [f"document {n}: " + "größer " * (n % 7) for n in range(60)]
TABLE = pa.table({"n": range(60), "text": TEXTS, "ids": IDS})


def written(path: Path, form: str, table: pa.Table = TABLE, rows: int = 11) -> Path:
    """The table as a file of this form."""
    if form == "feather":
        feather.write_feather(table, path, chunksize=rows)  # compressed by lz4
        return path
    kind, _, codec = form.partition("-")
    options = pa.ipc.IpcWriteOptions(compression=codec or None)
    new = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
    with new(path, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=rows)
    return path


@pytest.mark.parametrize("form", ["file", "stream", "file-zstd", "stream-lz4", "feather"])
def test_texts_and_ids_of_every_form_come_once(form: str, tmp_path: Path) -> None:
    path = written(tmp_path / "a.arrow", form)
    assert_source_contract(Arrow(path, reading=SMALL), TEXTS, restarts=3)
    assert_source_contract(Arrow(path, tokens="ids", reading=SMALL), IDS, restarts=3)


@pytest.mark.parametrize("form", ["file", "stream"])
def test_batches_without_rows_are_passed_wherever_a_part_ends(form: str, tmp_path: Path) -> None:
    new = pa.ipc.new_file if form == "file" else pa.ipc.new_stream
    with new(tmp_path / "a.arrow", TABLE.schema) as writer:
        for begin, rows in ((0, 0), (0, 20), (20, 0), (20, 0), (20, 25), (45, 15), (60, 0)):
            writer.write_table(TABLE.slice(begin, rows))
            if not rows:
                writer.write_batch(TABLE.slice(0, 1).to_batches()[0].slice(0, 0))
    source = Arrow(tmp_path / "a.arrow", reading=SMALL)
    assert_source_contract(source, TEXTS, lane_counts=(1, 5, 23), restarts=3)


def test_dictionaries_between_the_batches_of_a_stream_are_read(tmp_path: Path) -> None:
    """Each batch replaces the dictionary, so it is read after all before it."""
    schema = pa.schema({"text": pa.dictionary(pa.int32(), pa.string())})
    with pa.ipc.new_stream(tmp_path / "a.arrow", schema) as writer:
        for begin in range(0, 60, 11):
            column = pa.array(TEXTS[begin : begin + 11]).dictionary_encode()
            writer.write_batch(pa.record_batch([column], schema=schema))
    assert_source_contract(Arrow(tmp_path / "a.arrow", reading=SMALL), TEXTS, restarts=3)


BLOCK = struct.Struct("<qi4xq")  # of a footer: offset, bytes of the head and of the body


def footer_blocks(content: bytes) -> int:
    """The byte of the first of several batches that a file's footer lists."""
    end = len(content) - 10
    for at in range(end - int.from_bytes(content[end : end + 4], "little"), end - 2 * BLOCK.size):
        (begin, head, body), (after, *_) = BLOCK.iter_unpack(content[at : at + 2 * BLOCK.size])
        if 0 < begin < after == begin + head + body < end:
            return at
    raise AssertionError("no batches found")


@pytest.mark.parametrize(
    "damage", ["swapped", "left out", "merged", "repeated", "moved", "shorter", "many", "no end"]
)
def test_a_footer_that_lies_is_named_and_gives_no_row(damage: str, tmp_path: Path) -> None:
    path = written(tmp_path / "a.arrow", "file", pa.table({"text": ["word"] * 66}))
    content = bytearray(path.read_bytes())
    at = footer_blocks(content)
    blocks = [*BLOCK.iter_unpack(content[at : at + 6 * BLOCK.size])]
    if damage == "swapped":
        blocks[1], blocks[2] = blocks[2], blocks[1]
    elif damage == "left out":
        content[at - 4 : at] = struct.pack("<I", 5)
    elif damage == "merged":
        blocks[1] = (*blocks[1][:2], blocks[1][2] + sum(blocks[2][1:]))
        blocks[2:] = blocks[3:] + blocks[5:]
        content[at - 4 : at] = struct.pack("<I", 5)
    elif damage == "repeated":
        blocks[3] = blocks[2]
    elif damage == "moved":
        blocks[4] = (blocks[4][0] + 8, *blocks[4][1:])
    elif damage == "shorter":
        blocks[5] = (*blocks[5][:2], blocks[5][2] - 8)
    elif damage == "many":
        content[at - 4 : at] = struct.pack("<I", (1 << 32) - 1)
    else:
        content[-6:] = b"ARROW2"
    content[at : at + 6 * BLOCK.size] = b"".join(BLOCK.pack(*block) for block in blocks)
    path.write_bytes(content)
    source = Arrow(path, reading=SMALL)
    source.prepare()
    for part in source.lanes(3, seed=0, epoch=0, shuffle=False):
        with pytest.raises(ContentError) as raised:
            read_lane(part)
        assert raised.value.path == str(path)


@pytest.mark.parametrize("writer", ["arrow-rs", "Polars"])
def test_files_of_other_writers_are_read(writer: str, tmp_path: Path) -> None:
    """arrow-rs begins at byte 64, and Polars writes the schema without a mark."""
    path = written(tmp_path / "a.arrow", "file", pa.table({"text": TEXTS}))
    content = bytearray(path.read_bytes())
    if writer == "arrow-rs":
        at = footer_blocks(content)
        count = struct.unpack_from("<I", content, at - 4)[0]
        for block in range(at, at + count * BLOCK.size, BLOCK.size):
            content[block : block + 8] = struct.pack(
                "<q", struct.unpack_from("<q", content, block)[0] + 56
            )
        content[8:8] = bytes(56)
    else:
        content[8:12] = struct.pack("<I", 4)
    path.write_bytes(content)
    assert pa.ipc.open_file(path).read_all().num_rows == len(TEXTS)
    assert_source_contract(Arrow(path, reading=SMALL), TEXTS, restarts=3)


@pytest.mark.parametrize(
    "kind", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
)
@pytest.mark.parametrize("form", ["file", "stream"])
def test_every_kind_of_text_is_read_beside_columns_that_are_not(
    kind: pa.DataType, form: str, tmp_path: Path
) -> None:
    labels = pa.array(["a", "b"] * 30).dictionary_encode()
    table = pa.table({"label": labels, "text": pa.array(TEXTS).cast(kind)})
    path = written(tmp_path / "a.arrow", form, table.unify_dictionaries())
    assert read_all(Arrow(path)) == TEXTS


def test_a_saved_dataset_is_read_by_its_folder(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    dataset = datasets.Dataset.from_dict({"text": TEXTS})
    dataset.save_to_disk(str(tmp_path / "disk"), num_shards=3)
    source: Any = as_source(tmp_path / "disk")
    assert isinstance(source, Arrow)
    assert read_all(source) == TEXTS
    dataset.select(range(0, 60, 2)).save_to_disk(str(tmp_path / "half"))
    assert read_all(Arrow(tmp_path / "half")) == TEXTS[::2]
    datasets.DatasetDict({"train": dataset}).save_to_disk(str(tmp_path / "splits"))
    for path in (tmp_path / "splits", str(tmp_path / "splits")):
        with pytest.raises(ConfigError) as raised:
            as_source(path).prepare()
    told = raised.value.remedy.split('"')[1]
    assert read_all(as_source(told)) == TEXTS  # type: ignore[arg-type]
