"""Indexed datasets of Megatron-LM: every document once, and nothing of an index is believed."""

from __future__ import annotations

import struct
import tracemalloc
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streampack import PackedDataset, PackedLoader, Topology
from streampack.errors import ConfigError, ContentError, StateError
from streampack.reading.options import Reading
from streampack.reading.skips import Skips
from streampack.sources import MegatronIndexed, Storage
from tests.support.flat_files import MEGATRON_CODES, write_megatron
from tests.support.servers import http_server, s3_server
from tests.support.source_contract import check_source_contract, read_all, read_by_cuts

SMALL = Reading(block_documents=3, block_bytes=200)
HEADER = 34


def sentences(seed: int = 0, count: int = 23, high: int = 120) -> list[list[np.ndarray]]:
    """Documents of none to three sequences, some of them empty."""
    rng = np.random.default_rng(seed)
    return [
        [rng.integers(0, high, rng.integers(0, 40)) for _ in range(rng.integers(0, 4))]
        for _ in range(count)
    ]


def joined(documents: list[list[np.ndarray]]) -> list[list[int]]:
    return [[int(token) for part in document for token in part] for document in documents]


@pytest.mark.parametrize("dtype", [name for name in MEGATRON_CODES if "int" in name])
def test_every_integer_dtype_is_read_and_sequences_of_a_document_are_joined(
    dtype: str, tmp_path: Path
) -> None:
    documents = sentences()
    source = MegatronIndexed(write_megatron(tmp_path / "a", documents, dtype), reading=SMALL)
    check_source_contract(source, joined(documents), restarts=3)
    assert source.estimate_tokens() == sum(map(len, joined(documents)))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_cuts_give_every_document_once(data: Any, tmp_path: Path) -> None:
    lengths = data.draw(st.lists(st.lists(st.integers(0, 9), max_size=3), min_size=1, max_size=20))
    tokens = iter(range(10_000))
    documents = [[np.array([next(tokens) for _ in range(n)]) for n in d] for d in lengths]
    idx = write_megatron(tmp_path / "a", documents, data.draw(st.sampled_from(["uint16", "int64"])))
    source = MegatronIndexed(idx, reading=Reading(block_documents=2))
    if not any(map(sum, lengths)):
        with pytest.raises(ConfigError, match="no document") if not any(lengths) else nullcontext():
            source.prepare()
        return
    source.prepare()
    assert read_by_cuts(source, data) == joined(documents)


def test_either_file_the_prefix_a_folder_and_a_pattern_name_a_dataset(tmp_path: Path) -> None:
    expected = []
    for name in "ab":
        write_megatron(tmp_path / name, sentences(ord(name)), "uint16")
        expected += [tuple(document) for document in joined(sentences(ord(name)))]
    several = [tmp_path, tmp_path / "*.idx", f"{tmp_path}/{{a,b}}.bin", tmp_path / "*.bin"]
    for paths in (*several, [tmp_path / "a", f"{tmp_path}/b.idx"], [tmp_path, tmp_path / "a.bin"]):
        assert read_all(MegatronIndexed(paths)) == expected


def test_buckets_and_web_servers_are_read_through_the_cache(tmp_path: Path) -> None:
    documents = sentences()
    idx = write_megatron(tmp_path / "a", documents, "uint16")
    expected = [tuple(document) for document in joined(documents)]
    storage = Storage(cache_dir=tmp_path / "cache")
    with s3_server() as server:
        for ending in ("bin", "idx"):
            server.put(f"indexed/a.{ending}", idx.with_suffix(f".{ending}").read_bytes())
        for path in ("indexed/a.idx", "indexed/a", "indexed", "indexed/*.bin"):
            source = MegatronIndexed(f"s3://{server.bucket}/{path}", storage=storage)
            assert read_all(source) == expected
    with http_server(tmp_path) as web:
        source = MegatronIndexed(f"{web.url}/a.bin", storage=storage)
        assert read_all(source) == expected


def test_a_file_without_its_partner_is_refused(tmp_path: Path) -> None:
    for gone, named in (("bin", "a.idx"), ("idx", "a.bin")):
        write_megatron(tmp_path / "a", sentences(), "uint16")
        (tmp_path / f"a.{gone}").unlink()
        for path in (tmp_path, tmp_path / named):
            with pytest.raises(ConfigError, match=rf"a\.{gone}.*documents would be missing"):
                MegatronIndexed(path).prepare()
    with pytest.raises(ConfigError, match=r"neither a \.bin nor a \.idx"):
        MegatronIndexed(__file__).prepare()


def changed(path: Path, at: int, new: bytes) -> None:
    data = bytearray(path.read_bytes())
    data[at : at + len(new)] = new
    path.write_bytes(data)


BAD_HEADERS = {
    "magic": (0, b"MMIDIDY", "not an index"),
    "version": (9, struct.pack("<Q", 2), "version 2"),
    "unknown dtype": (17, b"\x63", r"code 99"),
    "float64": (17, b"\x06", "float64"),
    "float32": (17, b"\x07", "float32"),
    "too many sequences": (18, struct.pack("<Q", 1 << 30), "cut short"),
    "counts that overflow": (18, struct.pack("<QQ", (1 << 64) - 1, (1 << 64) - 1), "cut short"),
    "no ends": (26, struct.pack("<Q", 0), "cut short"),
}


@pytest.mark.parametrize("name", BAD_HEADERS)
def test_a_wrong_header_is_refused_by_name(name: str, tmp_path: Path) -> None:
    idx = write_megatron(tmp_path / "a", sentences(), "uint16")
    at, new, match = BAD_HEADERS[name]
    changed(idx, at, new)
    with pytest.raises(ConfigError, match=match) as raised:
        MegatronIndexed(idx).prepare()
    assert "a.idx" in str(raised.value)


def test_multimodal_datasets_are_refused_by_name(tmp_path: Path) -> None:
    idx = write_megatron(tmp_path / "a", sentences(), "int32", modes=True)
    with pytest.raises(ConfigError, match="multimodal"):
        MegatronIndexed(idx).prepare()


def test_an_index_cut_short_at_any_byte_is_refused(tmp_path: Path) -> None:
    idx = write_megatron(tmp_path / "a", sentences(count=3), "uint16")
    whole = idx.read_bytes()
    for size in range(len(whole)):
        idx.write_bytes(whole[:size])
        with pytest.raises(ConfigError, match=r"a\.idx"):
            MegatronIndexed(idx).prepare()


@pytest.mark.parametrize("change", [-7, -2, 2, "all"])
def test_a_bin_of_another_size_is_an_error_before_its_first_document(
    change: Any, tmp_path: Path
) -> None:
    idx = write_megatron(tmp_path / "a", sentences(), "uint16")
    data = (tmp_path / "a.bin").read_bytes()
    size = 0 if change == "all" else len(data) + change
    (tmp_path / "a.bin").write_bytes((data + b"??")[:size])
    source = MegatronIndexed(idx)
    with pytest.raises(ContentError, match=r"a\.bin is broken.*None of it"):
        read_all(source)
    skips = Skips("skip")
    assert read_all(source, skips) == []
    assert skips.count == 1


def test_every_wrong_number_of_an_index_is_noticed_and_nothing_is_lost_silently(
    tmp_path: Path,
) -> None:
    documents = [[np.arange(5)], [np.arange(3), np.arange(4)], [np.arange(2)]] * 2
    idx = write_megatron(tmp_path / "a", documents, "uint16")
    whole, sequences = idx.read_bytes(), 8
    tracemalloc.start()
    for wrong in (-1, 1, 2, 7, 1 << 30, -(1 << 31)):
        for field in range(3 * sequences - 1):
            size = 4 if field < sequences else 8
            at = HEADER + (4 * field if field < sequences else 4 * sequences + 8 * (field - 8))
            number = int.from_bytes(whole[at : at + size], "little", signed=True) + wrong
            idx.write_bytes(whole)
            changed(idx, at, (number % (1 << 8 * size)).to_bytes(size, "little"))
            if idx.read_bytes() == whole:
                continue
            try:
                found = read_all(MegatronIndexed(idx, reading=Reading(block_documents=2)))
            except ContentError as error:
                assert "a.bin" in str(error)  # noqa: PT017
            else:  # a document may be divided otherwise: all tokens are still there, in order
                flat = [token for document in found for token in document]
                assert flat == [token for d in joined(documents) for token in d]
    assert tracemalloc.get_traced_memory()[1] < 20e6
    tracemalloc.stop()


def test_ids_that_are_negative_and_documents_that_are_too_long_break_alone(tmp_path: Path) -> None:
    documents = [[np.array([1, 2])], [np.array([3, -4])], [np.arange(99)], [np.array([5])]]
    idx = write_megatron(tmp_path / "a", documents, "int32")
    source = MegatronIndexed(idx, reading=Reading(max_document_bytes=100))
    with pytest.raises(ContentError, match=r"Document 1 of .*a\.bin has an id that is negative"):
        read_all(source)
    skips = Skips("skip")
    assert read_all(source, skips) == [(1, 2), (5,)]
    assert [record[1] for record in skips.records] == [1, 2]


def test_an_index_that_is_replaced_during_a_run_is_noticed(tmp_path: Path) -> None:
    idx = write_megatron(tmp_path / "a", sentences(), "uint16")
    source = MegatronIndexed(idx)
    source.prepare()
    idx.write_bytes(idx.read_bytes() + bytes(8))
    with pytest.raises(StateError, match=r"a\.idx has .* when it was listed"):
        read_all(source)


def test_a_path_is_enough_for_batches(tmp_path: Path) -> None:
    documents = [document for document in sentences() if any(map(len, document))]
    idx = write_megatron(tmp_path / "a", documents, "uint16")
    loader = PackedLoader(PackedDataset(MegatronIndexed(idx), seq_len=64, topology=Topology()))
    assert sum(int(batch.num_tokens) for batch in loader) == sum(map(len, joined(documents)))
