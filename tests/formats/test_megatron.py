"""Indexed datasets of Megatron-LM: every document once, and nothing of an index is believed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from streampack.errors import ConfigError, ContentError
from streampack.formats.megatron import HEADER_BYTES
from streampack.sources import MegatronIndexed
from streampack.sources.reading import ReadOptions
from tests.support.flat_files import MEGATRON_CODES, write_megatron
from tests.support.source_contract import assert_source_contract, read_all

SMALL = ReadOptions(block_documents=3, block_bytes=200)


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
    assert_source_contract(source, joined(documents), restarts=3)
    assert source.estimate_tokens() == sum(map(len, joined(documents)))


def test_either_file_the_prefix_a_folder_and_a_pattern_name_a_dataset(tmp_path: Path) -> None:
    expected = []
    for name in "ab":
        write_megatron(tmp_path / name, sentences(ord(name)), "uint16")
        expected += [tuple(document) for document in joined(sentences(ord(name)))]
    several = [tmp_path, tmp_path / "*.idx", f"{tmp_path}/{{a,b}}.bin", tmp_path / "*.bin"]
    for paths in (*several, [tmp_path / "a", f"{tmp_path}/b.idx"], [tmp_path, tmp_path / "a.bin"]):
        assert read_all(MegatronIndexed(paths)) == expected


def test_a_file_without_its_partner_is_refused(tmp_path: Path) -> None:
    for gone, named in (("bin", "a.idx"), ("idx", "a.bin")):
        write_megatron(tmp_path / "a", sentences(), "uint16")
        (tmp_path / f"a.{gone}").unlink()
        for path in (tmp_path, tmp_path / named):
            with pytest.raises(ConfigError, match=rf"a\.{gone}"):
                MegatronIndexed(path).prepare()
    with pytest.raises(ConfigError):
        MegatronIndexed(__file__).prepare()


def test_a_dataset_that_a_link_leads_to_is_refused_beside_itself(tmp_path: Path) -> None:
    write_megatron(tmp_path / "a", sentences(), "uint16")
    for ending in ("bin", "idx"):
        (tmp_path / f"b.{ending}").symlink_to(f"a.{ending}")
    with pytest.raises(ConfigError) as caught:
        MegatronIndexed([tmp_path / "a", tmp_path / "b"]).prepare()
    assert caught.value.path == f"{tmp_path}/b.bin"


def test_multimodal_datasets_are_refused_by_name(tmp_path: Path) -> None:
    idx = write_megatron(tmp_path / "a", sentences(), "int32", modes=True)
    with pytest.raises(ConfigError):
        MegatronIndexed(idx).prepare()


def test_a_flipped_bit_of_a_length_or_a_pointer_is_named_or_changes_nothing(tmp_path: Path) -> None:
    idx = write_megatron(tmp_path / "a", sentences(), "uint16")
    whole, count = Path(idx).read_bytes(), sum(map(len, sentences()))
    expected = [tuple(document) for document in joined(sentences())]
    named = 0
    for bit in range(8 * HEADER_BYTES, 8 * (HEADER_BYTES + 12 * count), 7):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        Path(idx).write_bytes(damaged)
        try:
            assert read_all(MegatronIndexed(idx)) == expected
        except ContentError:
            named += 1
    assert named > 50
