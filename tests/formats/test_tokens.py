"""Flat files of token ids: documents are found by their end token or by an index, each once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from streampack.errors import ContentError
from streampack.sources import Tokens
from streampack.sources.reading import ReadOptions
from tests.support.flat_files import write_datatrove
from tests.support.source_contract import assert_source_contract, read_all

SMALL = ReadOptions(block_documents=3, block_bytes=200)
EOS = 7
DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")


def ended(seed: int = 0, count: int = 30) -> list[list[int]]:
    """Documents of other tokens than EOS, and EOS after each; some are nothing else."""
    rng = np.random.default_rng(seed)
    return [[*rng.integers(8, 100, rng.integers(0, 50)).tolist(), EOS] for _ in range(count)]


def flat(documents: list[list[int]], dtype: str) -> np.ndarray:
    return np.array([token for document in documents for token in document], dtype=dtype)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_integer_dtype_is_read_raw_and_with_a_header(dtype: str, tmp_path: Path) -> None:
    documents = ended()
    np.save(tmp_path / "a.npy", flat(documents, dtype))
    flat(documents, dtype).tofile(tmp_path / "a.bin")
    flat(documents, dtype).tofile(tmp_path / "raw.npy")  # as OLMo's are
    for path, given_dtype in (
        ("a.npy", None),
        ("a.npy", dtype),
        ("a.bin", dtype),
        ("raw.npy", dtype),
    ):
        source = Tokens(tmp_path / path, dtype=given_dtype, eos_id=EOS, reading=SMALL)
        assert source.estimate_tokens() == sum(map(len, documents))
        assert_source_contract(source, documents, lane_counts=(1, 3, 8), restarts=2)


@pytest.mark.parametrize(
    ("magic", "version", "dtype"), [(20240520, 1, "uint16"), (20240801, 7, "uint32")]
)
def test_the_header_of_llmc_is_not_read_as_tokens(
    magic: int, version: int, dtype: str, tmp_path: Path
) -> None:
    documents = ended()
    ids = flat(documents, dtype)
    header = np.zeros(256, dtype="<i4")
    header[:3] = magic, version, len(ids)
    path = tmp_path / "fineweb_train_000001.bin"
    path.write_bytes(header.tobytes() + ids.tobytes())
    for given_dtype in (None, dtype):
        source = Tokens(path, dtype=given_dtype, eos_id=EOS, reading=SMALL)
        assert source.estimate_tokens() == len(ids)
        assert_source_contract(source, documents, lane_counts=(1, 3), restarts=2)
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(ContentError):
        read_all(Tokens(path, eos_id=EOS))


def test_documents_longer_than_a_search_step_come_whole(
    tmp_path: Path,
) -> None:
    documents = [[1] * 200_000 + [EOS], [EOS], [2] * 65_535 + [EOS], [3] * 70_000]
    flat(documents, "uint16").tofile(tmp_path / "a.bin")
    source = Tokens(tmp_path / "a.bin", dtype="uint16", eos_id=EOS)
    assert_source_contract(source, documents, lane_counts=(1, 5))


def test_a_document_that_crosses_two_files_is_two(tmp_path: Path) -> None:
    np.save(tmp_path / "0.npy", np.array([1, 2, EOS, 3], dtype=np.uint16))
    np.save(tmp_path / "1.npy", np.array([4, EOS, 5, EOS], dtype=np.uint16))
    found = read_all(Tokens(tmp_path, eos_id=EOS))
    assert found == [(1, 2, EOS), (3,), (4, EOS), (5, EOS)]


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_files_of_datatrove_are_read_by_their_index(dtype: str, tmp_path: Path) -> None:
    documents = [document[:-1] for document in ended()]
    arrays = [np.array(document, dtype=dtype) for document in documents]
    write_datatrove(tmp_path / "a.ds", arrays)
    for given_dtype in (None, dtype):
        source = Tokens(tmp_path, dtype=given_dtype, reading=SMALL)
        assert source.estimate_tokens() == sum(map(len, documents))
        assert_source_contract(source, documents, restarts=2)
