"""Flat files of token ids: documents are found by their end token or by an index, each once."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streampack import PackedDataset, PackedLoader, Topology
from streampack.errors import ConfigError, ContentError, StateError, StreampackError
from streampack.reading.options import Reading
from streampack.reading.skips import Skips
from streampack.sources import Storage, Tokens
from tests.support.flat_files import write_datatrove
from tests.support.servers import s3_server
from tests.support.source_contract import check_source_contract, read_all, read_by_cuts

SMALL = Reading(block_documents=3, block_bytes=200)
EOS = 7
DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")


def ended(seed: int = 0, count: int = 30) -> list[list[int]]:
    """Documents of other tokens than EOS, and EOS after each; some are nothing else."""
    rng = np.random.default_rng(seed)
    return [[*rng.integers(8, 100, rng.integers(0, 50)).tolist(), EOS] for _ in range(count)]


def flat(documents: list[list[int]], dtype: str) -> np.ndarray:
    return np.array([token for document in documents for token in document], dtype=dtype)


def tuples(documents: list[list[int]]) -> list[Any]:
    return [tuple(document) for document in documents]


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
        check_source_contract(source, documents, lane_counts=(1, 3, 8), restarts=2)


@pytest.mark.parametrize(
    ("magic", "version", "dtype"), [(20240520, 1, "uint16"), (20240801, 7, "uint32")]
)
def test_the_header_of_llmc_is_no_tokens(
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
        check_source_contract(source, documents, lane_counts=(1, 3), restarts=2)
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(ContentError, match=f"header says {len(ids)} ids of {dtype}"):
        read_all(Tokens(path, eos_id=EOS))


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_cuts_give_every_document_once(data: Any, tmp_path: Path) -> None:
    lengths = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=30))
    numbers = iter(range(8, 10_000))
    documents = [[*(next(numbers) for _ in range(n)), EOS] for n in lengths]
    if data.draw(st.booleans()):
        documents.append([next(numbers)])  # the file ends without an end token
    kind = data.draw(st.sampled_from(["npy", "bin", "ds"]))
    path = tmp_path / f"a.{kind}"
    if kind == "npy":
        np.save(path, flat(documents, "int64"))
    elif kind == "bin":
        flat(documents, "uint32").tofile(path)
    else:
        write_datatrove(path, [np.array(document, dtype=np.uint16) for document in documents])
    options = {"npy": {"eos_id": EOS}, "bin": {"eos_id": EOS, "dtype": "uint32"}, "ds": {}}[kind]
    source = Tokens(path, reading=Reading(block_documents=2), **options)  # type: ignore[arg-type]
    source.prepare()
    assert read_by_cuts(source, data) == documents


def test_documents_that_are_longer_than_what_is_looked_at_at_once_come_whole(
    tmp_path: Path,
) -> None:
    documents = [[1] * 200_000 + [EOS], [EOS], [2] * 65_535 + [EOS], [3] * 70_000]
    flat(documents, "uint16").tofile(tmp_path / "a.bin")
    source = Tokens(tmp_path / "a.bin", dtype="uint16", eos_id=EOS)
    check_source_contract(source, documents, lane_counts=(1, 5))


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
        check_source_contract(source, documents, restarts=2)


def test_buckets_are_read_through_the_cache(tmp_path: Path) -> None:
    documents = ended()
    write_datatrove(tmp_path / "a.ds", [np.array(d, dtype=np.uint16) for d in documents])
    np.save(tmp_path / "a.npy", flat(documents, "uint16"))
    storage = Storage(cache_dir=tmp_path / "cache")
    with s3_server() as server:
        for name in ("a.ds", "a.ds.index", "a.npy"):
            server.put(f"flat/{name}", (tmp_path / name).read_bytes())
        for path, eos in (("a.ds", None), ("*.ds", None), ("a.npy", EOS)):
            source = Tokens(f"s3://{server.bucket}/flat/{path}", eos_id=eos, storage=storage)
            assert read_all(source) == tuples(documents)


def test_a_missing_argument_is_asked_for_by_its_name(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", flat(ended(), "uint16"))
    flat(ended(), "uint16").tofile(tmp_path / "a.bin")
    for name, options, match in (
        ("a.npy", {}, "eos_id is not given"),
        ("a.bin", {"dtype": "uint16"}, "eos_id is not given"),
        ("a.bin", {"eos_id": EOS}, "dtype is not given"),
        ("a.bin", {"dtype": "float32", "eos_id": EOS}, "dtype is 'float32'"),
        ("a.npy", {"eos_id": -1}, "eos_id"),
        ("a.npy", {"eos_id": "x"}, "eos_id"),
    ):
        with pytest.raises(ConfigError, match=match):
            Tokens(tmp_path / name, **options).prepare()  # type: ignore[arg-type]
    write_datatrove(tmp_path / "a.ds", [np.arange(3, dtype=np.uint16)])
    with pytest.raises(ConfigError, match="Leave eos_id out"):
        Tokens(tmp_path / "a.ds", eos_id=EOS).prepare()
    with pytest.raises(ConfigError, match="two kinds"):
        Tokens(tmp_path, eos_id=EOS).prepare()


def test_an_end_token_that_does_not_occur_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    np.save(tmp_path / "a.npy", flat(ended(), "uint16"))
    Tokens(tmp_path / "a.npy", eos_id=70_000).prepare()
    assert "eos_id=70000" in caplog.text


BROKEN: dict[str, Any] = {
    "odd bytes": ("b.bin", b"\1\2\3", "no whole number of uint16"),
    "header cut short": ("b.npy", b"\x93NUMPY\1\0\x76\0{'descr'", "not a .npy file"),
    "another dtype": ("b.npy", np.arange(3, dtype="<u4"), "are uint32, and dtype is uint16"),
    "floats": ("b.npy", np.arange(3.0), "float64"),
    "big-endian": ("b.npy", np.arange(3, dtype=">u2"), "little-endian"),
    "two dimensions": ("b.npy", np.zeros((2, 3), dtype="<u2"), "one dimension"),
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("first", ["a", "c"])
def test_a_broken_file_is_an_error_that_names_it_and_the_others_are_read(
    first: str, name: str, tmp_path: Path
) -> None:
    path, content, match = BROKEN[name]
    np.save(tmp_path / f"{first}.npy", np.array([1, EOS], dtype=np.uint16))
    if isinstance(content, bytes):
        (tmp_path / path).write_bytes(content)
    else:
        np.save(tmp_path / path, content)
    source = Tokens(tmp_path, dtype="uint16", eos_id=EOS)
    with pytest.raises(ContentError, match=rf"{path} is broken.*{match}"):
        read_all(source)
    skips = Skips("skip")
    assert read_all(source, skips) == [(1, EOS)]
    assert skips.count == 1


def test_a_header_that_promises_more_than_there_is_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", flat(ended(), "uint16"))
    whole = (tmp_path / "a.npy").read_bytes()
    for size in (len(whole) - 2, len(whole) - 1, 200, 130):
        (tmp_path / "a.npy").write_bytes(whole[:size])
        with pytest.raises(ContentError, match="bytes follow its header"):
            read_all(Tokens(tmp_path / "a.npy", eos_id=EOS))


def test_every_wrong_number_of_an_index_is_noticed(tmp_path: Path) -> None:
    documents = [[1, 2, 3], [4], [5, 6], [7, 8, 9, 10], [11]]
    path = write_datatrove(tmp_path / "a.ds", [np.array(d, dtype=np.uint16) for d in documents])
    index = Path(f"{path}.index")
    whole = struct.unpack("<5Q", index.read_bytes())
    for number in range(5):
        for wrong in (0, 1, 5, 12, 1 << 40, 1 << 63, (1 << 64) - 1):
            changed = list(whole)
            changed[number] = wrong
            index.write_bytes(struct.pack("<5Q", *changed))
            try:
                found = read_all(Tokens(path, reading=Reading(block_documents=2)))
            except ContentError as error:
                assert "a.ds" in str(error)  # noqa: PT017
            else:  # documents may be divided otherwise: all tokens are still there, in order
                assert [token for d in found for token in d] == list(range(1, 12))
    for size in (0, 7, 39):
        index.write_bytes(struct.pack("<5Q", *whole)[:size])
        with pytest.raises(ContentError, match="index"):
            read_all(Tokens(path))
    index.unlink()
    with pytest.raises(ConfigError, match=r"a\.ds\.index"):
        Tokens(path).prepare()


def test_files_that_change_during_a_run_are_noticed(tmp_path: Path) -> None:
    path = write_datatrove(tmp_path / "a.ds", [np.arange(9, dtype=np.uint16)])
    source = Tokens(path)
    source.prepare()
    with open(f"{path}.index", "ab") as file:
        file.write(bytes(8))
    with pytest.raises(StateError, match="when it was listed"):
        read_all(source)


def test_a_document_that_is_too_long_breaks_alone(tmp_path: Path) -> None:
    flat([[1, EOS], [2] * 100 + [EOS], [3, EOS]], "uint16").tofile(tmp_path / "a.bin")
    reading = Reading(max_document_bytes=100)
    source = Tokens(tmp_path / "a.bin", dtype="uint16", eos_id=EOS, reading=reading)
    with pytest.raises(ContentError, match=r"The document at token 2 of .* longer than"):
        read_all(source)
    assert read_all(source, Skips("skip")) == [(1, EOS), (3, EOS)]


def test_a_file_gives_batches_with_all_of_its_tokens(tmp_path: Path) -> None:
    documents = ended()
    np.save(tmp_path / "a.npy", flat(documents, "uint16"))
    source = Tokens(tmp_path / "a.npy", eos_id=EOS)
    loader = PackedLoader(PackedDataset(source, seq_len=64, topology=Topology()))
    assert sum(int(batch.num_tokens) for batch in loader) == sum(map(len, documents))


@pytest.mark.parametrize("num_bytes", [4, 11, 12, 1023])
def test_a_file_shorter_than_its_header_is_named(num_bytes: int, tmp_path: Path) -> None:
    head = np.array([20240520, 1, 0, *[0] * 253], dtype="<i4").tobytes()
    (tmp_path / "a.bin").write_bytes(head[:num_bytes])
    with pytest.raises(StreampackError, match=r"a\.bin.*its header"):
        read_all(Tokens(tmp_path / "a.bin", dtype="uint16", eos_id=0))
