"""MDS: written by mosaicml-streaming, read in bulk, and never trusted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streampack import PackedDataset, PackedLoader
from streampack.documents.blocks import Documents
from streampack.errors import ConfigError, ContentError
from streampack.files.integer_arrays import UngatheredDocuments
from streampack.formats.mds.index import new_hash
from streampack.formats.mds.source import MDS
from streampack.mixtures.source import Mixture
from streampack.sources.error_policy import ErrorPolicy
from streampack.sources.indexed import Items
from streampack.sources.reading import ReadOptions
from streampack.storage.storage import Storage
from tests.support.corpora import write_mds
from tests.support.mosaic import streaming_module
from tests.support.source_contract import assert_source_contract, read_all

pytest.importorskip("xxhash", reason="mosaicml-streaming, which writes the shards, brings it")

CODECS = ["br", "bz2", "gz", "snappy", "zstd"]


def write(folder: Path, columns: dict[str, str], samples: Sequence[dict[str, Any]], **kwargs: Any):
    with streaming_module("base.format.mds") as mds:
        with mds.MDSWriter(columns=columns, out=str(folder), **kwargs) as writer:
            for sample in samples:
                writer.write(sample)


def arrays(count: int, dtype: str = "uint16", seed: int = 0) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 60, count)
    return [rng.integers(0, 250, length).astype(dtype) for length in lengths]


def corpus(folder: Path, count: int = 300, **kwargs: Any) -> list[list[int]]:
    """Several shards of uint16 tokens beside columns that are not read; returns the ids."""
    documents = arrays(count)
    samples = [
        {"tokens": tokens, "a": i, "z": {"n": i}, "b": b"x" * (i % 7)}
        for i, tokens in enumerate(documents)
    ]
    columns = {"tokens": "ndarray:uint16", "a": "int", "z": "json", "b": "bytes"}
    write(folder, columns, samples, **{"size_limit": 6000, **kwargs})
    return [tokens.tolist() for tokens in documents]


def mosaic_samples(folder: Path) -> list[dict[str, Any]]:
    """Return every sample as mosaicml-streaming's own reader decodes it."""
    index = json.loads((folder / "index.json").read_text())
    with streaming_module("base.format") as formats:
        readers = [formats.reader_from_json(str(folder), None, s) for s in index["shards"]]
        return [reader[i] for reader in readers for i in range(reader.samples)]


def edit_index(folder: Path, change: Any) -> None:
    path = folder / "index.json"
    index = json.loads(path.read_text())
    change(index)
    path.write_text(json.dumps(index))


def test_tokens_match_mosaicmls_own_reader(tmp_path: Path) -> None:
    corpus(tmp_path / "c")
    theirs = [tuple(sample["tokens"].tolist()) for sample in mosaic_samples(tmp_path / "c")]
    assert read_all(MDS(tmp_path / "c", tokens="tokens")) == theirs


@pytest.mark.parametrize("encoding", ["ndarray:{}", "ndarray", "bytes", "ndarray:{}:5"])
@pytest.mark.parametrize(
    "dtype", ["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"]
)
def test_every_integer_dtype_comes_back_in_every_encoding(
    tmp_path: Path, dtype: str, encoding: str
) -> None:
    info = np.iinfo(dtype)
    top = min(int(info.max), 2**32 - 1 if info.min == 0 or dtype == "int64" else 2**31 - 1)
    documents = [np.array([0, 1, top, 7, top - 1], dtype=dtype) for _ in range(9)]
    if encoding.endswith("{}") or encoding == "ndarray":
        documents = [document[: 1 + i % 5] for i, document in enumerate(documents)]
    values = [d.tobytes() if encoding == "bytes" else d for d in documents]
    name = encoding.format(dtype)
    write(tmp_path / "c", {"tokens": name, "odd": "str"}, [
        {"tokens": value, "odd": "x" * i} for i, value in enumerate(values)
    ])  # fmt: skip
    source = MDS(tmp_path / "c", tokens="tokens", dtype=dtype if encoding == "bytes" else None)
    assert_source_contract(source, [d.tolist() for d in documents], lane_counts=(1,))
    block, _ = next(
        iter(source.lanes(1, seed=0, epoch=0, shuffle=False)[0].read(None, ErrorPolicy()))
    )
    kept = dtype in ("uint16", "uint32", "int32")
    assert isinstance(block, Documents)
    assert block.tokens.dtype == (dtype if kept else "uint32")


def test_arrays_of_different_dtypes_and_lengths_in_one_column_become_uint32(tmp_path: Path) -> None:
    dtypes = ["uint8", "int64", "uint16", "int32", "uint32", "int16"]
    lengths = [1, 255, 256, 300, 66_000, 2]
    documents = [np.arange(n).astype(dtype) for n, dtype in zip(lengths, dtypes, strict=True)]
    write(tmp_path / "c", {"t": "ndarray"}, [{"t": document} for document in documents])
    assert_source_contract(MDS(tmp_path / "c", tokens="t"), [d.tolist() for d in documents])


def test_text_is_decoded_as_utf8(tmp_path: Path) -> None:
    texts = ["", "plain", "größer", "漢字\0\n", "𝄞" * 50] * 5
    write(tmp_path / "c", {"text": "str", "n": "int"}, [{"text": t, "n": 1} for t in texts])
    source = MDS(tmp_path / "c", text="text", reading=ReadOptions(block_documents=3))
    assert_source_contract(source, texts)
    assert read_all(source) == [sample["text"] for sample in mosaic_samples(tmp_path / "c")]


@pytest.mark.parametrize("encoding", ["bytes", "ndarray:uint8", "ndarray"])
def test_a_loss_mask_stays_with_its_tokens(tmp_path: Path, encoding: str) -> None:
    documents = arrays(40)
    masks = [(tokens % 3 == 0).astype(np.uint8) for tokens in documents]
    write(tmp_path / "c", {"t": "ndarray:uint16", "m": encoding}, [
        {"t": t, "m": m.tobytes() if encoding == "bytes" else m}
        for t, m in zip(documents, masks, strict=True)
    ])  # fmt: skip
    source = MDS(tmp_path / "c", tokens="t", loss_mask="m", reading=ReadOptions(block_documents=6))
    lane = source.lanes(1, seed=1, epoch=0, shuffle=True)[0]
    seen = 0
    for block, _ in lane.read(None, ErrorPolicy()):
        assert isinstance(block, Documents)
        assert block.loss_mask is not None
        np.testing.assert_array_equal(block.loss_mask, block.tokens % 3 == 0)
        seen += len(block)
    assert seen == 40


@pytest.mark.sampled(2)
@pytest.mark.parametrize("codec", CODECS)
def test_compressed_shards_are_read_like_plain_ones(tmp_path: Path, codec: str) -> None:
    expected = corpus(tmp_path / "c", compression=codec, hashes=["sha1", "xxh64"])
    for algorithm in ("sha1", "xxh64", None):
        source = MDS(
            tmp_path / "c",
            tokens="tokens",
            validate_hash=algorithm,
            reading=ReadOptions(block_documents=9),
        )
        assert read_all(source) == [tuple(document) for document in expected]
    assert_source_contract(source, expected, lane_counts=(2, len(source.manifest) + 1), restarts=2)


@pytest.mark.parametrize(
    "name",
    [
        "../shard.00000.mds",
        "/etc/passwd",
        "a/../../shard.00000.mds",
        "a\\..\\shard.mds",
        "file:///etc/passwd",
        "x::s3://other/key",
        "",
        ".",
        "a//b",
        "a\0b.mds",
        "\ud800.mds",
    ],
)
@pytest.mark.parametrize("field", ["raw_data", "zip_data"])
def test_an_index_that_names_files_elsewhere_is_refused(
    tmp_path: Path, name: str, field: str
) -> None:
    corpus(tmp_path / "c", 20, compression="gz")
    edit_index(tmp_path / "c", lambda index: index["shards"][0][field].update(basename=name))
    with pytest.raises(ConfigError):
        MDS(tmp_path / "c", tokens="tokens").prepare()


def test_a_merged_index_with_folders_is_read(tmp_path: Path) -> None:
    expected = corpus(tmp_path / "c" / "part", 60)
    shutil.move(tmp_path / "c" / "part" / "index.json", tmp_path / "c" / "index.json")

    def into_folder(index: Any) -> None:
        for shard in index["shards"]:
            shard["raw_data"]["basename"] = "part/" + shard["raw_data"]["basename"]

    edit_index(tmp_path / "c", into_folder)
    assert_source_contract(MDS(tmp_path / "c", tokens="tokens"), expected)


def test_a_shard_that_is_reached_twice_is_refused(tmp_path: Path) -> None:
    corpus(tmp_path / "c" / "part", 60)
    index = json.loads((tmp_path / "c" / "part" / "index.json").read_text())
    for shard in index["shards"]:
        shard["raw_data"]["basename"] = "part/" + shard["raw_data"]["basename"]
    (tmp_path / "c" / "index.json").write_text(json.dumps(index))
    (tmp_path / "link").symlink_to("c/part")
    for twice in (["c", "c/part"], ["c/part", "link"]):
        with pytest.raises(ConfigError) as caught:
            MDS([tmp_path / folder for folder in twice], tokens="tokens").prepare()
        assert caught.value.path == f"{tmp_path}/{twice[1]}/shard.00000.mds"
    edit_index(tmp_path / "c", lambda index: index["shards"].append(index["shards"][0]))
    with pytest.raises(ConfigError) as caught:
        MDS(tmp_path / "c", tokens="tokens").prepare()
    assert caught.value.path == f"{tmp_path}/c/part/shard.00000.mds"


def pickled_columns() -> dict[str, str]:
    return {"t": "pkl", "u": "ndarray:uint16"}


class Trap:
    """Unpickling this is an error; the readers must never do it."""

    def __reduce__(self) -> Any:
        return (exec, ("raise SystemExit('unpickled')",))


def test_pickled_columns_are_refused_and_never_decoded(tmp_path: Path) -> None:
    samples = [{"t": Trap(), "u": np.arange(3, dtype=np.uint16)} for _ in range(4)]
    write(tmp_path / "c", pickled_columns(), samples)
    for arguments in ({"tokens": "t"}, {"tokens": "u", "loss_mask": "t"}):
        with pytest.raises(ConfigError):
            MDS(tmp_path / "c", **arguments).prepare()  # type: ignore[arg-type]
    assert read_all(MDS(tmp_path / "c", tokens="u")) == [(0, 1, 2)] * 4


@pytest.mark.parametrize("version", [None, 1, 3, "2"])
@pytest.mark.parametrize("of_all", [False, True])
def test_a_version_that_is_not_known_is_refused(
    tmp_path: Path, version: object, of_all: bool
) -> None:
    corpus(tmp_path / "c", 5)
    path = tmp_path / "c" / "index.json"
    index = json.loads(path.read_text())
    (index if of_all else index["shards"][-1])["version"] = version
    path.write_text(json.dumps(index))
    with pytest.raises(ConfigError) as caught:
        MDS(tmp_path / "c", tokens="tokens").prepare()
    assert caught.value.path == str(path)


def test_a_changed_byte_is_found_by_the_digest(tmp_path: Path) -> None:
    corpus(tmp_path / "c", 50, hashes=["md5"], size_limit=None)
    shard = tmp_path / "c" / "shard.00000.mds"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    assert len(read_all(MDS(tmp_path / "c", tokens="tokens"))) == 50
    with pytest.raises(ContentError, match="md5") as caught:
        read_all(MDS(tmp_path / "c", tokens="tokens", validate_hash="md5"))
    assert caught.value.rest_of_shard


def test_an_index_with_another_size_is_refused_also_if_the_content_is_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streampack.storage.decoded.LEAST_BYTES", 1)  # written into the cache
    expected = corpus(tmp_path / "c", 50, compression="zstd", size_limit=None)
    storage = Storage(cache_dir=tmp_path / "cache")

    def read() -> list[tuple[int, ...]]:
        return read_all(MDS(tmp_path / "c", tokens="tokens", storage=storage))

    assert read() == [tuple(document) for document in expected]
    for difference in (-1, 2):

        def change(index: Any, difference: int = difference) -> None:
            index["shards"][0]["raw_data"]["bytes"] += difference

        edit_index(tmp_path / "c", change)
        with pytest.raises(ContentError):
            read()


def test_a_shard_is_hashed_once_on_a_host_however_many_parts_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus(tmp_path / "c", 50, hashes=["md5"], size_limit=None)
    hashed: list[str] = []

    def counted(algorithm: str) -> Any:
        hashed.append(algorithm)
        return new_hash(algorithm)

    settings: Any = {"tokens": "tokens", "validate_hash": "md5"}
    sources = [
        MDS(tmp_path / "c", storage=Storage(cache_dir=tmp_path / "cache"), **settings)
        for _ in range(2)
    ]
    for source in sources:
        source.prepare()
    monkeypatch.setattr("streampack.formats.mds.source.new_hash", counted)
    for source in sources:
        lanes = source.lanes(4, seed=0, epoch=0, shuffle=False)
        blocks = [block for lane in lanes for block, _ in lane.read(None, ErrorPolicy())]
        assert sum(map(len, blocks)) == 50
    assert hashed == ["md5"]


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_a_block_left_in_place_is_taken_in_any_order(tmp_path: Path, dtype: str) -> None:
    rng = np.random.default_rng(0)
    ids = [rng.integers(0, 60_000, n).astype(dtype) for n in rng.integers(1, 50, 40)]
    source = MDS(write_mds(tmp_path, ids), tokens="t", reading=ReadOptions(block_documents=16))
    source.prepare()
    count = 0
    for shard in range(len(source.manifest)):
        whole_shard = (shard, 0, int(source.manifest.weights[shard]), None, ErrorPolicy("raise", 0))
        lying, eager = source.read_shard(*whole_shard), source.read_shard(*whole_shard)
        for (block, end, _), (same, same_end, _) in zip(lying, eager, strict=True):
            assert isinstance(same, UngatheredDocuments)
            whole = same.gathered()
            order = rng.permutation(len(block))[: len(block) - 3]
            taken, expected = block.take(order), whole.take(order)
            assert isinstance(block, UngatheredDocuments)
            assert isinstance(taken, Documents)
            assert end == same_end
            assert taken.tokens.dtype == dtype
            assert taken.tokens.tolist() == expected.tokens.tolist()
            assert taken.offsets.tolist() == expected.offsets.tolist()
            assert taken.origin.tolist() == expected.origin.tolist()
            for i in range(len(whole)):
                assert whole.document(i).tolist() == ids[count + i].tolist()
            count += len(whole)
    assert count == 40


def test_names_do_not_count_as_tokens_so_a_mixture_keeps_its_shares_when_they_take_documents_out(
    tmp_path: Path,
) -> None:
    samples = [{"tokens": ids, "name": f"{i}"} for i, ids in enumerate(arrays(50))]
    write(tmp_path, {"tokens": "ndarray:uint16", "name": "str"}, samples)

    def loader(exclude: Any) -> PackedLoader:
        named = MDS(str(tmp_path), tokens="tokens")
        mixture = Mixture({"named": named, "listed": Items(samples, tokens="tokens")})
        return PackedLoader(PackedDataset(mixture, seq_len=64, exclude=exclude))

    first = loader(None)
    next(iter(first))
    later = loader({"name": ["3"]})
    later.load_state_dict(first.state_dict())
    assert len(list(later)) > 1


@pytest.mark.parametrize(("encoding", "convert"), [("int", int), ("uint8", np.uint8), ("str", str)])
def test_keys_of_integers_and_of_names_take_documents_out(
    tmp_path: Path, encoding: str, convert: Any
) -> None:
    samples = [{"tokens": np.full(3, i, np.uint16), "key": convert(i)} for i in range(50)]
    write(tmp_path, {"tokens": "ndarray:uint16", "key": encoding}, samples, size_limit=500)
    source = MDS(str(tmp_path), tokens="tokens")
    dataset = PackedDataset(source, seq_len=16, exclude={"key": [3, 49]})
    ids = {token for batch in dataset for token in batch.input_ids.flatten().tolist()}
    assert ids == set(range(50)) - {3, 49}
