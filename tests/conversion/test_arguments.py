"""Sources of a conversion are found, and raw files read, as the other commands do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import streampack
from streampack import sources
from streampack.errors import ConfigError
from tests.support.program import output_of

DOCUMENTS = [[1, 2, 0], [3, 4, 5, 0], [70_000, 0]]


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """A file of integers that declares neither their type nor the end of documents."""
    path = tmp_path / "a.bin"
    np.concatenate([np.array(d, np.uint32) for d in DOCUMENTS]).tofile(path)
    return path


def documents_of(folder: Path) -> list[list[int]]:
    ids: list[list[int]] = pq.read_table(folder / "part-00000-00000.parquet")["tokens"].to_pylist()
    return ids


def test_raw_files_are_read_by_the_dtype_of_the_shards_and_the_end_of_documents(
    raw: Path, tmp_path: Path
) -> None:
    output_of("convert", raw, tmp_path / "out", "--eos-id", 0, "--dtype", "uint32")
    assert documents_of(tmp_path / "out") == DOCUMENTS
    streampack.convert(str(raw), str(tmp_path / "other"), eos_id=0, dtype="uint32", workers=1)
    assert documents_of(tmp_path / "other") == DOCUMENTS
    with pytest.raises(ConfigError) as caught:
        streampack.convert(str(raw), str(tmp_path / "third"), eos_id=0)
    assert caught.value.setting == "dtype"


def test_the_command_takes_a_source_that_code_makes(raw: Path, tmp_path: Path) -> None:
    code = tmp_path / "made.py"
    code.write_text(
        "from streampack import sources\n\n\ndef make():\n"
        f"    return sources.Tokens({str(raw)!r}, dtype='uint32', eos_id=0)\n"
    )
    output_of("convert", f"{code}:make", tmp_path / "out")
    assert documents_of(tmp_path / "out") == DOCUMENTS


def test_names_of_fields_beside_a_source_are_refused(raw: Path, tmp_path: Path) -> None:
    source = sources.Tokens(str(raw), dtype="uint32", eos_id=0)
    with pytest.raises(ConfigError) as caught:
        streampack.convert(source, str(tmp_path / "out"), text="body")
    assert caught.value.setting == "text"
