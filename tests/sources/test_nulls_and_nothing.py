"""Files with null or empty columns, without documents, or without a readable column."""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as encryption
import pytest

from streampack import sources
from streampack.errors import ConfigError, ContentError
from streampack.sources.base import Source
from streampack.sources.error_policy import ErrorPolicy
from tests.support.source_contract import read_all

Write = Callable[[pa.Table, Path], None]


def write_feather(table: pa.Table, path: Path) -> None:
    feather.write_feather(table, str(path))


@pytest.fixture(params=["parquet", "arrow"])
def write(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Path]:
    """Writes a folder of files with these columns; bytes are a file as it is."""
    one: Write = pq.write_table if request.param == "parquet" else write_feather

    def files(*contents: dict[str, Any] | bytes) -> Path:
        for i, content in enumerate(contents):
            path = tmp_path / f"{i}.{request.param}"
            if isinstance(content, bytes):
                path.write_bytes(content)
            else:
                one(pa.table(content), path)
        return tmp_path

    return files


def read_and_skipped(source: Source) -> tuple[list[Any], int]:
    skips = ErrorPolicy("skip")
    return read_all(source, skips), skips.counts.skipped


IDS = [[1, 2], [3], []]
NO_IDS = pa.array([[]] * 4, pa.list_(pa.null()))


@pytest.mark.parametrize("nulls_first", [True, False])
def test_rows_of_a_column_of_nulls_are_broken_one_by_one(
    write: Callable[..., Path], nulls_first: bool
) -> None:
    files: list[Any] = [{"ids": pa.nulls(5)}, {"ids": IDS}]
    folder = write(*files[:: 1 if nulls_first else -1])
    assert read_and_skipped(sources.open(folder)) == ([(1, 2), (3,), ()], 5)
    with pytest.raises(ContentError) as caught:
        read_all(sources.open(folder))
    assert caught.value.document is not None
    assert caught.value.document.startswith("row 0 of")


def test_columns_of_nulls_that_are_not_read_break_nothing(write: Callable[..., Path]) -> None:
    folder = write(
        {"text": ["a", "b"], "n": [1, 2]},
        {"text": pa.nulls(2), "n": pa.nulls(2)},
        {"text": ["c"], "n": pa.nulls(1)},
    )
    assert read_and_skipped(sources.open(folder)) == (["a", "b", "c"], 2)


def test_a_loss_mask_of_nulls_breaks_its_documents_only(write: Callable[..., Path]) -> None:
    folder = write(
        {"ids": [[1, 2]], "loss_mask": [[0, 1]]}, {"ids": [[3, 4]] * 2, "loss_mask": pa.nulls(2)}
    )
    found, skipped = read_and_skipped(sources.open(folder, tokens="ids"))
    assert len(found) == 1
    assert skipped == 2


def test_lists_that_are_all_empty_are_empty_documents(write: Callable[..., Path]) -> None:
    narrow = pa.array(IDS, pa.list_(pa.uint16()))
    source = sources.open(write({"ids": NO_IDS}, {"ids": narrow}), tokens="ids")
    assert read_all(source) == [()] * 4 + [(1, 2), (3,), ()]


def test_a_file_without_bytes_or_rows_gives_nothing(
    write: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    folder = write(b"", {"ids": IDS}, b"")
    with caplog.at_level(logging.WARNING):
        assert read_all(sources.open(folder, tokens="ids")) == [(1, 2), (3,), ()]
    assert f"0{next(folder.iterdir()).suffix}" in caplog.text


@pytest.mark.parametrize("kind", [pa.float64(), pa.null(), pa.string()])
def test_a_parquet_file_without_rows_may_have_columns_of_any_type(
    kind: pa.DataType, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"ids": pa.array([], kind)}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"ids": IDS}), tmp_path / "b.parquet")
    assert read_all(sources.Parquet(tmp_path)) == [(1, 2), (3,), ()]


class Keys(encryption.KmsClient):  # type: ignore[misc]
    """Keys that are not kept anywhere."""

    def wrap_key(self, key: bytes, name: str) -> bytes:
        return base64.b64encode(name.encode() + key)

    def unwrap_key(self, wrapped: bytes, name: str) -> bytes:
        return base64.b64decode(wrapped)[len(name) :]


@pytest.mark.parametrize("plain_footer", [False, True])
def test_encrypted_parquet_is_named(plain_footer: bool, tmp_path: Path) -> None:
    table = pa.table({"ids": IDS})
    factory = encryption.CryptoFactory(lambda _: Keys())
    how = encryption.EncryptionConfiguration(
        footer_key="one", column_keys={"two": ["ids.list.element"]}, plaintext_footer=plain_footer
    )
    properties = factory.file_encryption_properties(encryption.KmsConnectionConfig(), how)
    path = tmp_path / "a.parquet"
    with pq.ParquetWriter(path, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)
    with pytest.raises((ConfigError, ContentError), match="it is encrypted") as caught:
        read_all(sources.Parquet(path, tokens="ids"))
    assert caught.value.path == str(path)
    pq.write_table(table, tmp_path / "b.parquet")
    assert read_and_skipped(sources.Parquet(tmp_path, tokens="ids")) == ([(1, 2), (3,), ()], 1)
