"""Arrow files of every form: each row once however they are cut, and damage is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pytest

from streampack.errors import ConfigError
from streampack.sources import Arrow
from streampack.sources.reading import ReadOptions
from streampack.sources.resolve import as_source
from tests.support.source_contract import assert_source_contract, read_all

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
