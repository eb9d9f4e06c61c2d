"""Arrow files of every form: each row once however they are cut, and damage is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streampack.errors import ConfigError, ContentError
from streampack.reading.options import Reading
from streampack.reading.skips import Skips
from streampack.sources import Arrow
from streampack.sources.infer import as_source
from tests.support.servers import s3_server
from tests.support.source_contract import check_source_contract, read_all, read_by_cuts

SMALL = Reading(block_documents=4, block_bytes=300)
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
    check_source_contract(Arrow(path, reading=SMALL), TEXTS, restarts=3)
    check_source_contract(Arrow(path, tokens="ids", reading=SMALL), IDS, restarts=3)


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_cuts_give_every_row_once(data: Any, tmp_path: Path) -> None:
    ids = [[n] * size for n, size in enumerate(data.draw(st.lists(st.integers(0, 9), min_size=1)))]
    form = data.draw(st.sampled_from(["file", "stream", "file-zstd"]))
    table = pa.table({"ids": pa.array(ids, type=pa.list_(pa.int32()))})
    path = written(tmp_path / "a.arrow", form, table, data.draw(st.integers(1, 9)))
    source = Arrow(path, tokens="ids", reading=Reading(block_documents=2))
    source.prepare()
    assert read_by_cuts(source, data) == ids


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
        with pytest.raises(ConfigError, match="holds the splits") as raised:
            as_source(path).prepare()
    told = raised.value.remedy.split('"')[1]
    assert read_all(as_source(told)) == TEXTS  # type: ignore[arg-type]


def test_files_are_known_by_their_names_and_read_from_buckets(tmp_path: Path) -> None:
    path = written(tmp_path / "a.feather", "feather")
    assert read_all(as_source(path)) == TEXTS  # type: ignore[arg-type]
    with s3_server() as server:
        url = server.put("arrow/a.feather", path.read_bytes())
        assert read_all(as_source(url)) == TEXTS  # type: ignore[arg-type]


def test_a_wrong_column_is_told_the_right_ones(tmp_path: Path) -> None:
    path = written(tmp_path / "a.arrow", "file")
    for options in ({"text": "body"}, {"text": "ids"}, {"tokens": "text"}, {"tokens": "n"}):
        with pytest.raises(ConfigError, match=r'"n".*"text".*"ids"'):
            Arrow(path, **options).prepare()  # type: ignore[arg-type]
    (tmp_path / "b.arrow").write_bytes(b"nothing of the kind")
    with pytest.raises(ConfigError, match="not an Arrow file"):
        Arrow(tmp_path / "b.arrow").prepare()


def test_rows_that_are_no_documents_break_alone(tmp_path: Path) -> None:
    texts = pa.array([b"a", None, b"\xff", b"d"], type=pa.binary()).view(pa.string())
    ids = pa.array([[1], None, [-1], [4, 5]], type=pa.list_(pa.int64()))
    path = written(tmp_path / "a.arrow", "stream", pa.table({"text": texts, "ids": ids}))
    with pytest.raises(ContentError, match=r"Row 1 of .* is null"):
        read_all(Arrow(path))
    assert read_all(Arrow(path), Skips("skip")) == ["a", "d"]
    assert read_all(Arrow(path, tokens="ids"), Skips("skip")) == [(1,), (4, 5)]


@pytest.mark.parametrize("form", ["file", "stream"])
def test_a_file_cut_short_anywhere_is_an_error(form: str, tmp_path: Path) -> None:
    whole = written(tmp_path / "a.arrow", form).read_bytes()
    step = 37
    for size in [*range(0, len(whole), step), len(whole) - 1, len(whole) - 8]:
        (tmp_path / "a.arrow").write_bytes(whole[:size])
        with pytest.raises((ContentError, ConfigError), match=r"a\.arrow"):
            read_all(Arrow(tmp_path / "a.arrow"))


@pytest.mark.parametrize("form", ["file", "stream", "file-zstd"])
def test_flipped_bits_are_an_error_or_other_documents_and_never_a_crash(
    form: str, tmp_path: Path
) -> None:
    whole = written(tmp_path / "a.arrow", form, TABLE.slice(0, 12), 6).read_bytes()
    flips = np.random.default_rng(1).integers(0, 8 * len(whole), 300)
    for column in ({"text": "text"}, {"tokens": "ids"}):
        for flip in flips.tolist():
            data = bytearray(whole)
            data[flip // 8] ^= 1 << flip % 8
            (tmp_path / "a.arrow").write_bytes(data)
            try:
                found = read_all(Arrow(tmp_path / "a.arrow", **column), Skips("skip"))  # type: ignore[arg-type]
            except ConfigError:
                continue
            assert len(found) <= 12


@pytest.mark.parametrize("form", ["file", "stream"])
def test_a_batch_whose_number_of_rows_is_damaged_is_never_lost_in_silence(
    form: str, tmp_path: Path
) -> None:
    whole = written(tmp_path / "a.arrow", form).read_bytes()
    eleven = np.int64(11).tobytes()
    places = [at for at in range(0, len(whole) - 7, 4) if whole[at : at + 8] == eleven]
    refused = 0
    for at in places:
        (tmp_path / "a.arrow").write_bytes(whole[:at] + bytes(8) + whole[at + 8 :])
        try:
            assert len(read_all(Arrow(tmp_path / "a.arrow"))) == 60
        except (ContentError, ConfigError):
            refused += 1
    assert refused >= 5  # batches of eleven rows


@pytest.mark.parametrize("form", ["file", "stream"])
def test_an_end_mark_or_another_message_in_place_of_a_batch_loses_nothing_in_silence(
    form: str, tmp_path: Path
) -> None:
    whole = written(tmp_path / "a.arrow", form).read_bytes()
    begins = [at for at in range(0, len(whole) - 8, 8) if whole[at : at + 4] == b"\xff" * 4]
    for at in begins[1:7]:  # six batches, after the schema
        (tmp_path / "a.arrow").write_bytes(whole[: at + 4] + bytes(4) + whole[at + 8 :])
        with pytest.raises(ContentError, match=r"end mark|footer"):
            read_all(Arrow(tmp_path / "a.arrow"))
        kind = at + 33  # of the message: 3 for a record batch
        assert whole[kind] == 3
        (tmp_path / "a.arrow").write_bytes(whole[:kind] + bytes(1) + whole[kind + 1 :])
        with pytest.raises(ContentError, match='of kind "'):
            read_all(Arrow(tmp_path / "a.arrow"))


def test_its_place_and_description_are_plain_json(tmp_path: Path) -> None:
    source = Arrow(written(tmp_path / "a.arrow", "stream"), tokens="ids")
    source.prepare()
    assert json.loads(json.dumps(source.describe()))["kind"] == "Arrow"
    assert sum(map(len, IDS)) <= source.estimate_tokens()
