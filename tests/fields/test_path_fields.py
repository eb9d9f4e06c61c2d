"""Fields that stand in the names of folders, as Spark, Hive and DuckDB write them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from streampack import PackedDataset, PackedLoader, convert, sources
from streampack.documents.fields import FieldSpec
from streampack.documents.text_keys import TextKeys
from streampack.errors import ConfigError, ContentError
from streampack.sources.error_policy import ErrorPolicy
from tests.support.columns import write_arrow, write_lines, write_parquet

WRITERS: dict[str, Callable[..., str]] = {
    "parquet": write_parquet,
    "arrow": write_arrow,
    "json": write_lines,
}


def write(folder: Path, ending: str, **columns: Any) -> Path:
    """A file in this folder."""
    folder.mkdir(parents=True)
    WRITERS[ending](columns, str(folder / f"part-0.{ending}"))
    return folder


def fields_by_document(path: Path, **fields: Any) -> dict[int, tuple[Any, ...]]:
    """The fields' values by the only id of a document."""
    source = sources.open(path, tokens="ids")
    loader = PackedLoader(
        PackedDataset(source, seq_len=64, batch_size=1, document_fields=fields, lanes=1)
    )
    (batch,) = list(loader)
    ids = batch.input_ids[0][batch.document_ids[0] >= 0].tolist()
    values = [batch.document_fields[name].tolist() for name in fields]
    return dict(zip(ids, zip(*values, strict=True), strict=True))


@pytest.mark.parametrize("ending", WRITERS)
def test_folders_name_texts_and_numbers(ending: str, tmp_path: Path) -> None:
    write(tmp_path / "lang=en/year=2024", ending, ids=[[1], [2]])
    write(tmp_path / "lang=de%20AT/year=2025", ending, ids=[[3]])
    key = TextKeys()
    en, de = key("en"), key("de AT")
    found = fields_by_document(tmp_path, lang="text", year="int32")
    assert found == {1: (en, 2024), 2: (en, 2024), 3: (de, 2025)}


@pytest.mark.parametrize("ending", WRITERS)
def test_a_column_of_the_file_is_read_before_the_name_of_its_folder(
    ending: str, tmp_path: Path
) -> None:
    write(tmp_path / "year=1", ending, ids=[[1]], year=[7])
    write(tmp_path / "year=2", ending, ids=[[2]])
    assert fields_by_document(tmp_path, year="float32") == {1: (7.0,), 2: (2.0,)}


@pytest.mark.parametrize("ending", WRITERS)
def test_a_folder_without_a_number_is_refused_by_name(ending: str, tmp_path: Path) -> None:
    write(tmp_path / "year=old", ending, ids=[[1]])
    with pytest.raises((ConfigError, ContentError), match='"year"'):
        fields_by_document(tmp_path, year="int32")


@pytest.mark.parametrize("ending", WRITERS)
def test_documents_in_hives_folder_of_nulls_have_no_value(ending: str, tmp_path: Path) -> None:
    write(tmp_path / "lang=__HIVE_DEFAULT_PARTITION__", ending, ids=[[1]])
    with pytest.raises(ContentError, match='"lang"'):
        fields_by_document(tmp_path, lang="text")


def test_convert_keeps_values_of_folders(tmp_path: Path) -> None:
    for lang in ("de", "en"):
        write(tmp_path / f"in/lang={lang}", "parquet", text=["a", "b"])
    convert(str(tmp_path / "in"), str(tmp_path / "out"), keep=["lang"], workers=1)
    table = pq.read_table(str(tmp_path / "out"), partitioning=None)
    assert table["lang"].to_pylist() == ["de", "de", "en", "en"]


@pytest.mark.parametrize("ending", ["parquet", "json"])
def test_conversations_have_the_fields_of_their_folders(ending: str, tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    for year in (1, 2):
        write(tmp_path / f"year={year}", ending, messages=[chat])
    types = FieldSpec(document={"year": np.dtype("int16")})
    source = sources.Chat(tmp_path)._with_fields(types)
    source.prepare()
    (lane,) = source.lanes(1, seed=0, epoch=0, shuffle=False)
    blocks = [block for block, _ in lane.read(None, ErrorPolicy("raise"))]
    assert [block.document_fields["year"].tolist() for block in blocks] == [[1], [2]]  # type: ignore[union-attr]
