"""MDS: written by mosaicml-streaming, read in bulk, and never trusted."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streampack.documents.blocks import Documents
from streampack.errors import ConfigError, ContentError, StorageError
from streampack.reading.integer_arrays import Spans
from streampack.reading.options import Reading
from streampack.reading.skips import Skips
from streampack.sources.mds.source import MDS
from streampack.storage.storage import Storage
from tests.support.corpora import write_mds
from tests.support.mosaic import streaming_module
from tests.support.servers import HTTPServer, S3Server
from tests.support.source_contract import check_source_contract, read_all

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
    """What mosaicml-streaming's own reader returns for every sample."""
    index = json.loads((folder / "index.json").read_text())
    with streaming_module("base.format") as formats:
        readers = [formats.reader_from_json(str(folder), None, s) for s in index["shards"]]
        return [reader[i] for reader in readers for i in range(reader.samples)]


def edit_index(folder: Path, change: Any) -> None:
    path = folder / "index.json"
    index = json.loads(path.read_text())
    change(index)
    path.write_text(json.dumps(index))


def test_a_corpus_keeps_the_contract_of_sources(tmp_path: Path) -> None:
    expected = corpus(tmp_path / "c")
    source = MDS(
        tmp_path / "c", tokens="tokens", reading=Reading(block_documents=7, block_bytes=400)
    )
    assert len(source.manifest) > 3
    check_source_contract(source, expected)


def test_tokens_are_those_of_mosaicmls_own_reader(tmp_path: Path) -> None:
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
    check_source_contract(source, [d.tolist() for d in documents], lane_counts=(1,))
    block, _ = next(iter(source.lanes(1, seed=0, epoch=0, shuffle=False)[0].read(None, Skips())))
    kept = dtype in ("uint16", "uint32", "int32")
    assert isinstance(block, Documents)
    assert block.tokens.dtype == (dtype if kept else "uint32")


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    lengths=st.lists(st.sampled_from([0, 1, 2, 3, 255, 256, 300, 66000]), min_size=1, max_size=12),
    block_documents=st.integers(1, 5),
    block_bytes=st.sampled_from([1, 600, 1 << 20]),
    dynamic=st.booleans(),
)
def test_documents_of_any_length_come_back(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[int],
    block_documents: int,
    block_bytes: int,
    dynamic: bool,
) -> None:
    folder = tmp_path_factory.mktemp("mds")
    # mosaicml-streaming refuses to write an array without elements, but bytes may be empty.
    if dynamic:
        lengths = [max(1, length) for length in lengths]
    documents = [np.arange(length, dtype=np.uint16) for length in lengths]
    values = [d if dynamic else d.tobytes() for d in documents]
    encoding = "ndarray" if dynamic else "bytes"
    write(folder / "c", {"t": encoding}, [{"t": value} for value in values])
    source = MDS(
        folder / "c",
        tokens="t",
        dtype=None if dynamic else "uint16",
        reading=Reading(block_documents=block_documents, block_bytes=block_bytes),
    )
    check_source_contract(source, [d.tolist() for d in documents], lane_counts=(1, 2), restarts=3)


def test_arrays_of_different_dtypes_in_one_column_become_uint32(tmp_path: Path) -> None:
    dtypes = ["uint8", "int64", "uint16", "int32", "uint32", "int16"]
    documents = [np.arange(3 + i).astype(dtype) for i, dtype in enumerate(dtypes)]
    write(tmp_path / "c", {"t": "ndarray"}, [{"t": document} for document in documents])
    check_source_contract(MDS(tmp_path / "c", tokens="t"), [d.tolist() for d in documents])


def test_text_is_decoded_as_utf8(tmp_path: Path) -> None:
    texts = ["", "plain", "größer", "漢字\0\n", "𝄞" * 50] * 5
    write(tmp_path / "c", {"text": "str", "n": "int"}, [{"text": t, "n": 1} for t in texts])
    source = MDS(tmp_path / "c", text="text", reading=Reading(block_documents=3))
    check_source_contract(source, texts)
    assert read_all(source) == [sample["text"] for sample in mosaic_samples(tmp_path / "c")]


@pytest.mark.parametrize("encoding", ["bytes", "ndarray:uint8", "ndarray"])
def test_a_loss_mask_stays_with_its_tokens(tmp_path: Path, encoding: str) -> None:
    documents = arrays(40)
    masks = [(tokens % 3 == 0).astype(np.uint8) for tokens in documents]
    write(tmp_path / "c", {"t": "ndarray:uint16", "m": encoding}, [
        {"t": t, "m": m.tobytes() if encoding == "bytes" else m}
        for t, m in zip(documents, masks, strict=True)
    ])  # fmt: skip
    source = MDS(tmp_path / "c", tokens="t", loss_mask="m", reading=Reading(block_documents=6))
    lane = source.lanes(1, seed=1, epoch=0, shuffle=True)[0]
    seen = 0
    for block, _ in lane.read(None, Skips()):
        assert isinstance(block, Documents)
        assert block.loss_mask is not None
        np.testing.assert_array_equal(block.loss_mask, block.tokens % 3 == 0)
        seen += len(block)
    assert seen == 40


def test_a_mask_of_another_length_is_a_broken_document(tmp_path: Path) -> None:
    write(tmp_path / "c", {"t": "ndarray:uint16", "m": "bytes"}, [
        {"t": np.arange(4, dtype=np.uint16), "m": b"\1" * (3 if i == 2 else 4)} for i in range(5)
    ])  # fmt: skip
    source = MDS(tmp_path / "c", tokens="t", loss_mask="m")
    skips = Skips("skip")
    assert len(read_all(source, skips)) == 4
    assert [record[:3] for record in skips.records] == [[0, 2, False]]
    with pytest.raises(ContentError, match=r"Document 2 .*mask"):
        read_all(source)


@pytest.mark.parametrize("codec", CODECS)
def test_compressed_shards_are_read_like_plain_ones(tmp_path: Path, codec: str) -> None:
    expected = corpus(tmp_path / "c", compression=codec, hashes=["sha1", "xxh64"])
    for algorithm in ("sha1", "xxh64", None):
        source = MDS(
            tmp_path / "c",
            tokens="tokens",
            validate_hash=algorithm,
            reading=Reading(block_documents=9),
        )
        assert read_all(source) == [tuple(document) for document in expected]
    check_source_contract(source, expected, lane_counts=(2, len(source.manifest) + 1), restarts=2)


def test_a_cache_that_holds_compressed_shards_uncompressed_is_read(tmp_path: Path) -> None:
    expected = corpus(tmp_path / "plain")
    corpus(tmp_path / "zipped", compression="zstd")
    (tmp_path / "cache").mkdir()
    shutil.copy(tmp_path / "zipped" / "index.json", tmp_path / "cache")
    for path in (tmp_path / "plain").glob("*.mds"):
        data = bytearray(path.read_bytes())
        # The config inside the shard says how it is compressed, so sizes differ by a few bytes.
        zipped = json.loads((tmp_path / "zipped" / "index.json").read_text())["shards"]
        assert len(data) < next(s for s in zipped if s["raw_data"]["basename"] == path.name)[
            "raw_data"
        ]["bytes"]  # fmt: skip
    import pyarrow

    for shard in zipped:
        packed = (tmp_path / "zipped" / shard["zip_data"]["basename"]).read_bytes()
        with pyarrow.CompressedInputStream(pyarrow.BufferReader(packed), "zstd") as stream:
            (tmp_path / "cache" / shard["raw_data"]["basename"]).write_bytes(stream.read())
    assert read_all(MDS(tmp_path / "cache", tokens="tokens")) == [tuple(d) for d in expected]


def test_several_directories_are_one_corpus(tmp_path: Path) -> None:
    first = corpus(tmp_path / "a", 50)
    second = corpus(tmp_path / "b", 80, compression="gz")
    source = MDS([tmp_path / "a", tmp_path / "b"], tokens="tokens")
    check_source_contract(source, first + second)


def test_an_object_store_gives_the_same_documents(
    tmp_path: Path, s3: S3Server, storage: Storage
) -> None:
    expected = corpus(tmp_path / "c", 100, compression="zstd")
    url = s3.put_folder(tmp_path / "c", "deep/corpus")
    check_source_contract(
        MDS(url + "/", tokens="tokens", storage=storage), expected, lane_counts=(1, 3), restarts=3
    )


def test_http_gives_the_same_documents_although_connections_break(
    tmp_path: Path, http: HTTPServer, storage: Storage
) -> None:
    expected = corpus(http.folder / "c", 100)
    http.cut_next = 1
    source = MDS(f"{http.url}/c", tokens="tokens", storage=storage)
    check_source_contract(source, expected, lane_counts=(1, 3), restarts=3)


def test_a_missing_index_or_shard_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"index\.json"):
        MDS(tmp_path, tokens="t").prepare()
    corpus(tmp_path / "c")
    (tmp_path / "c" / "shard.00001.mds").unlink()
    with pytest.raises(StorageError, match=r"shard\.00001\.mds"):
        read_all(MDS(tmp_path / "c", tokens="tokens"))


@pytest.mark.parametrize(
    "name",
    [
        "../shard.00000.mds",
        "/etc/passwd",
        "a/../../shard.00000.mds",
        "a\\..\\shard.mds",
        "file:///etc/passwd",
        "x::s3://other/key",
        "%2e%2e/shard.mds",
        "",
        ".",
        "a//b",
        "~/shard.mds",
        "shard\0.mds",
        17,
    ],
)
@pytest.mark.parametrize("field", ["raw_data", "zip_data"])
def test_an_index_that_names_files_elsewhere_is_refused(
    tmp_path: Path, name: object, field: str
) -> None:
    corpus(tmp_path / "c", 20, compression="gz")
    edit_index(tmp_path / "c", lambda index: index["shards"][0][field].update(basename=name))
    with pytest.raises(ConfigError, match="refused"):
        MDS(tmp_path / "c", tokens="tokens").prepare()


@pytest.mark.parametrize("level", ["file", "folder"])
def test_a_shard_that_links_outside_of_its_directory_is_refused(tmp_path: Path, level: str) -> None:
    corpus(tmp_path / "real", 20)
    corpus(tmp_path / "c", 20)
    shard = tmp_path / "c" / "shard.00000.mds"
    shard.unlink()
    if level == "file":
        shard.symlink_to(tmp_path / "real" / "shard.00000.mds")
    else:
        (tmp_path / "c" / "sub").symlink_to(tmp_path / "real")
        edit_index(
            tmp_path / "c",
            lambda i: i["shards"][0]["raw_data"].update(basename="sub/shard.00000.mds"),
        )
    with pytest.raises(ConfigError, match="link"):
        MDS(tmp_path / "c", tokens="tokens").prepare()


def test_a_merged_index_with_folders_is_read(tmp_path: Path) -> None:
    expected = corpus(tmp_path / "c" / "part", 60)
    shutil.move(tmp_path / "c" / "part" / "index.json", tmp_path / "c" / "index.json")

    def into_folder(index: Any) -> None:
        for shard in index["shards"]:
            shard["raw_data"]["basename"] = "part/" + shard["raw_data"]["basename"]

    edit_index(tmp_path / "c", into_folder)
    check_source_contract(MDS(tmp_path / "c", tokens="tokens"), expected)


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
        with pytest.raises(ConfigError, match="pkl"):
            MDS(tmp_path / "c", **arguments).prepare()  # type: ignore[arg-type]
    assert read_all(MDS(tmp_path / "c", tokens="u")) == [(0, 1, 2)] * 4


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"tokens": "nothing"}, "columns are: a, b, tokens, z"),
        ({"tokens": "a"}, "encoding 'int'"),
        ({"tokens": "z"}, "encoding 'json'"),
        ({"tokens": "b"}, "Pass dtype"),
        ({"tokens": "tokens", "dtype": "uint32"}, "Leave dtype out"),
        ({"tokens": "tokens", "dtype": "float32"}, "integers"),
        ({"tokens": "tokens", "validate_hash": "sha1"}, "sha1"),
        ({"tokens": "tokens", "validate_hash": "rot13"}, "rot13"),
        ({"tokens": "tokens", "validate_hash": "xxh0"}, "xxh0"),
        ({"tokens": "tokens", "loss_mask": "a"}, "loss_mask|integers"),
        ({"tokens": "tokens", "loss_mask": "z"}, "encoding 'json'"),
    ],
)
def test_arguments_that_cannot_work_are_explained(
    tmp_path: Path, arguments: dict[str, Any], words: str
) -> None:
    corpus(tmp_path / "c", 5)
    with pytest.raises(ConfigError, match=words):
        MDS(tmp_path / "c", **arguments).prepare()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"shards": 3}',
        '{"shards": [{}]}',
        '{"shards": [{"version": 1, "format": "mds"}]}',
        '{"shards": [{"version": 2, "format": "csv"}]}',
        "[" * 100_000,
        "\0",
    ],
)
def test_an_index_that_is_none_is_a_config_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "index.json").write_text(text)
    with pytest.raises(ConfigError, match=r"index\.json"):
        MDS(tmp_path, tokens="t").prepare()


@pytest.mark.parametrize("version", [None, 0, 1, 3, "2", 2.5, True, [2]])
@pytest.mark.parametrize("of_all", [False, True])
def test_a_version_that_is_not_known_is_refused(
    tmp_path: Path, version: object, of_all: bool
) -> None:
    corpus(tmp_path / "c", 5)
    path = tmp_path / "c" / "index.json"
    index = json.loads(path.read_text())
    (index if of_all else index["shards"][-1])["version"] = version
    path.write_text(json.dumps(index))
    with pytest.raises(ConfigError, match=r"index\.json.* version.*Only MDS version 2"):
        MDS(tmp_path / "c", tokens="tokens").prepare()


def test_a_shard_without_a_version_is_refused_and_an_index_without_one_is_read(
    tmp_path: Path,
) -> None:
    corpus(tmp_path / "c", 5)
    path = tmp_path / "c" / "index.json"
    index = json.loads(path.read_text())
    del index["version"]  # as in one that was put together by hand: its shards say it
    path.write_text(json.dumps(index))
    assert len(read_all(MDS(tmp_path / "c", tokens="tokens"))) == 5
    del index["shards"][0]["version"]
    path.write_text(json.dumps(index))
    with pytest.raises(ConfigError, match="names no version"):
        MDS(tmp_path / "c", tokens="tokens").prepare()


@pytest.mark.parametrize("value", [-1, 2**70, 1.5, "12", None, True])
@pytest.mark.parametrize("field", ["samples", "bytes", "column_sizes"])
def test_sizes_in_an_index_are_checked(tmp_path: Path, field: str, value: object) -> None:
    corpus(tmp_path / "c", 5)
    if field == "column_sizes" and value is None:
        return

    def change(index: Any) -> None:
        shard = index["shards"][0]
        if field == "bytes":
            shard["raw_data"]["bytes"] = value
        elif field == "samples":
            shard["samples"] = value
        else:
            shard["column_sizes"][0] = value

    edit_index(tmp_path / "c", change)
    with pytest.raises(ConfigError, match=r"index\.json"):
        MDS(tmp_path / "c", tokens="tokens").prepare()


@pytest.mark.parametrize("place", ["k", "z"])
def test_an_index_with_sizes_that_overflow_is_refused(tmp_path: Path, place: str) -> None:
    names = [f"k{i}" for i in range(5)] + ["t"] + [f"z{i}" for i in range(5)]
    samples = [{name: np.arange(3, dtype=np.uint16) for name in names}] * 5
    write(tmp_path, dict.fromkeys(names, "ndarray:uint16:3"), samples)

    def claim(index: Any) -> None:
        for i, size in enumerate([2**62 - 1] * 4 + [34]):  # 30 in 64 bits, as five columns have
            column = names.index(f"{place}{i}")
            index["shards"][0]["column_sizes"][column] = size
            index["shards"][0]["column_encodings"][column] = f"ndarray:uint8:{size}"

    edit_index(tmp_path, claim)
    with pytest.raises(ConfigError, match=r"index\.json.*not a size"):
        read_all(MDS(tmp_path, tokens="t"))


@pytest.mark.parametrize("column", ["k", "t", "z"])
@pytest.mark.parametrize("size", [2**33, 2**32 - 2, 8])
def test_columns_larger_than_their_samples_break_them(
    tmp_path: Path, column: str, size: int
) -> None:
    names = ["k", "t", "z"]
    samples = [{name: np.arange(3, dtype=np.uint16) for name in names}] * 5
    write(tmp_path, dict.fromkeys(names, "ndarray:uint16:3"), samples)

    def claim(index: Any) -> None:
        index["shards"][0]["column_sizes"][names.index(column)] = size
        index["shards"][0]["column_encodings"][names.index(column)] = f"ndarray:uint16:{size // 2}"

    edit_index(tmp_path, claim)
    skips = Skips("skip")
    assert read_all(MDS(tmp_path, tokens="t"), skips) == []
    assert [record[1] for record in skips.records] == list(range(5))


def test_an_encoding_that_contradicts_its_size_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {"t": "ndarray:uint16:3"}, [{"t": np.arange(3, dtype=np.uint16)}])
    for length in ("4", "9" * 5000, "-3", "x"):
        encoding = f"ndarray:uint16:{length}"
        edit_index(tmp_path, lambda i, e=encoding: i["shards"][0].update(column_encodings=[e]))
        with pytest.raises(ConfigError, match="index"):
            MDS(tmp_path, tokens="t").prepare()


def test_a_document_above_the_limit_is_a_broken_one(tmp_path: Path) -> None:
    write(tmp_path, {"t": "str"}, [{"t": "x" * n} for n in (5, 2000, 7)])
    source = MDS(tmp_path, text="t", reading=Reading(max_document_bytes=100))
    skips = Skips("skip")
    assert read_all(source, skips) == ["x" * 5, "x" * 7]
    assert [record[:3] for record in skips.records] == [[0, 1, False]]
    assert "max_document_bytes" in skips.records[0][3]


@pytest.mark.parametrize("codec", ["gz", "snappy", "zstd"])
def test_a_shard_that_claims_to_unfold_to_hundreds_of_times_its_size_is_refused(
    tmp_path: Path, codec: str
) -> None:
    corpus(tmp_path, 5, compression=codec)
    claimed = 1 << 32
    edit_index(tmp_path, lambda i: i["shards"][0]["raw_data"].update(bytes=claimed))
    shard = tmp_path / f"shard.00000.mds.{codec}"
    if codec == "snappy":  # its content says so as well
        data = b"\x80\x80\x80\x80\x10" + shard.read_bytes()[2:]
        shard.write_bytes(data)
        size = len(data)
        edit_index(tmp_path, lambda i: i["shards"][0]["zip_data"].update(bytes=size))
    with pytest.raises(ContentError, match=r"shard\.00000.* (unfolds|decompresses) to"):
        read_all(MDS(tmp_path, tokens="tokens"))
    reading = Reading(max_document_bytes=1 << 33)
    with pytest.raises(ContentError, match=r"shard\.00000.* decompresses? to"):
        read_all(MDS(tmp_path, tokens="tokens", reading=reading))


def small(folder: Path) -> Path:
    """One shard with three documents of 1, 2 and 3 tokens."""
    samples = [{"t": np.arange(n, dtype=np.uint16), "k": n} for n in (1, 2, 3)]
    write(folder, {"t": "ndarray:uint16", "k": "int"}, samples)
    return folder / "shard.00000.mds"


def fit_index(shard: Path) -> None:
    """Let the index say the size that the shard has, as an attacker would."""
    size = shard.stat().st_size
    edit_index(shard.parent, lambda i: i["shards"][0]["raw_data"].update(bytes=size))


def test_a_shard_cut_anywhere_is_refused_by_name(tmp_path: Path) -> None:
    shard = small(tmp_path)
    whole = shard.read_bytes()
    honest = MDS(tmp_path, tokens="t")
    honest.prepare()
    for cut in range(len(whole)):
        shard.write_bytes(whole[:cut])
        with pytest.raises(ContentError, match=r"shard\.00000\.mds") as caught:
            read_all(honest)
        assert caught.value.rest_of_shard
        fit_index(shard)
        skips = Skips("skip")
        assert read_all(MDS(tmp_path, tokens="t"), skips) == []
        assert [record[:3] for record in skips.records] == [[0, 0, True]]


@pytest.mark.parametrize("codec", CODECS)
def test_a_compressed_shard_cut_short_or_too_long_is_refused(tmp_path: Path, codec: str) -> None:
    corpus(tmp_path / "c", 40, compression=codec, size_limit=None)
    shard = next((tmp_path / "c").glob("*.mds.*"))
    whole = shard.read_bytes()

    def refused() -> None:
        size = shard.stat().st_size
        edit_index(tmp_path / "c", lambda i: i["shards"][0]["zip_data"].update(bytes=size))
        with pytest.raises(ContentError, match=shard.name) as caught:
            read_all(MDS(tmp_path / "c", tokens="tokens"))
        assert caught.value.rest_of_shard

    for cut in (0, 1, 10, len(whole) // 2, len(whole) - 1):
        shard.write_bytes(whole[:cut])
        refused()
    shard.write_bytes(whole)
    for more in (1, -2):  # one more than there is, then one less
        edit_index(
            tmp_path / "c",
            lambda i, more=more: i["shards"][0]["raw_data"].update(
                bytes=i["shards"][0]["raw_data"]["bytes"] + more
            ),
        )
        refused()


@pytest.mark.parametrize(
    ("place", "value"),
    [(0, 2), (0, 2**32 - 1), (1, 0), (1, 19), (2, 0), (2, 2**32 - 1), (4, 2**32 - 1), (4, 5)],
)
def test_a_table_that_leads_astray_is_refused(tmp_path: Path, place: int, value: int) -> None:
    shard = small(tmp_path)
    data = bytearray(shard.read_bytes())
    data[4 * place : 4 * place + 4] = struct.pack("<I", value)
    shard.write_bytes(data)
    with pytest.raises(ContentError, match=r"shard\.00000\.mds") as caught:
        read_all(MDS(tmp_path, tokens="t"))
    assert caught.value.rest_of_shard


@settings(max_examples=150, deadline=None)
@given(
    edits=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=4),
    encoding=st.sampled_from(["ndarray", "ndarray:int64", "bytes", "str"]),
)
def test_no_damage_crashes_or_reads_outside_of_the_shard(
    tmp_path_factory: pytest.TempPathFactory, edits: list[tuple[int, int]], encoding: str
) -> None:
    folder = tmp_path_factory.mktemp("mds") / "c"
    values: dict[str, Any] = {"bytes": b"\1\0" * 9, "str": "héllo"}
    array = np.arange(9, dtype=np.int64)
    write(folder, {"t": encoding, "k": "bytes"}, [
        {"t": values.get(encoding, array), "k": b"x" * i} for i in range(4)
    ])  # fmt: skip
    shard = folder / "shard.00000.mds"
    data = bytearray(shard.read_bytes())
    for at, value in edits:
        data[at % len(data)] = value
    shard.write_bytes(data)
    source = (
        MDS(folder, text="t")
        if encoding == "str"
        else MDS(folder, tokens="t", dtype="uint16" if encoding == "bytes" else None)
    )
    skips = Skips("skip")
    found = read_all(source, skips)
    ends = any(record[2] for record in skips.records)
    assert len(found) == (0 if ends else 4 - len(skips.records))
    assert sum(len(document) for document in found) <= len(data)


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


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.array([1, -1], dtype=np.int64), "negative"),
        (np.array([1, 2**32], dtype=np.int64), "32 bits"),
        (np.array([-5], dtype=np.int32), "negative"),
        (np.array([2**63], dtype=np.uint64), "32 bits"),
        (np.array([[1, 2]], dtype=np.int64), "dimension"),
        (np.array([1.5], dtype=np.float32), "integers"),
    ],
)
def test_what_is_no_list_of_ids_is_a_broken_document(
    tmp_path: Path, value: np.ndarray[Any, Any], words: str
) -> None:
    good = np.arange(3).astype("int32" if value.dtype == np.int32 else "int64")
    write(tmp_path / "c", {"t": "ndarray"}, [{"t": v} for v in (good, value, good)])
    source = MDS(tmp_path / "c", tokens="t")
    with pytest.raises(ContentError, match=rf"Document 1 .*{words}"):
        read_all(source)
    skips = Skips("skip")
    assert read_all(source, skips) == [(0, 1, 2)] * 2
    assert [record[:3] for record in skips.records] == [[0, 1, False]]


def test_text_that_is_not_utf8_is_a_broken_document(tmp_path: Path) -> None:
    write(tmp_path / "c", {"t": "str"}, [{"t": "a"}, {"t": b"\xff\xfe"}, {"t": "b"}])
    with pytest.raises(ContentError, match=r"Document 1 .*UTF-8"):
        read_all(MDS(tmp_path / "c", text="t"))
    assert read_all(MDS(tmp_path / "c", text="t"), Skips("skip")) == ["a", "b"]


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


def test_reading_plain_and_compressed_shards_imports_no_mosaicml_streaming(tmp_path: Path) -> None:
    corpus(tmp_path / "c", 10, compression="zstd", hashes=["sha256"])
    out = run_python(f"""
import sys
from streampack.sources.mds.source import MDS
from streampack.reading.skips import Skips
source = MDS({str(tmp_path / "c")!r}, tokens="tokens", validate_hash="sha256")
lane = source.lanes(1, seed=0, epoch=0, shuffle=False)[0]
print(sum(len(block) for block, _ in lane.read(None, Skips())))
print("streaming" in sys.modules, "torch" in sys.modules)
""")
    assert out.split() == ["10", "False", "False"]


def test_a_mask_or_dtype_for_text_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "c", {"t": "str", "m": "bytes"}, [{"t": "abc", "m": b"111"}])
    for arguments in ({"dtype": "uint16"}, {"loss_mask": "m"}):
        with pytest.raises(ConfigError, match=r"describes token ids|no token ids yet"):
            MDS(tmp_path / "c", text="t", **arguments).prepare()  # type: ignore[arg-type]


def test_a_column_that_is_text_here_and_ids_there_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a", {"t": "str"}, [{"t": "abc"}])
    write(tmp_path / "b", {"t": "ndarray:uint16"}, [{"t": np.arange(3, dtype=np.uint16)}])
    for named in ({"text": "t"}, {"tokens": "t"}, {}):
        with pytest.raises(ConfigError, match="has the encoding"):
            MDS([tmp_path / "a", tmp_path / "b"], **named).prepare()


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_a_block_left_where_it_lies_is_taken_in_any_order(tmp_path: Path, dtype: str) -> None:
    rng = np.random.default_rng(0)
    ids = [rng.integers(0, 60_000, n).astype(dtype) for n in rng.integers(1, 50, 40)]
    source = MDS(write_mds(tmp_path, ids), tokens="t", reading=Reading(block_documents=16))
    source.prepare()
    count = 0
    for shard in range(len(source.manifest)):
        whole_shard = (shard, 0, int(source.manifest.weights[shard]), None, Skips("raise", 0))
        lying, eager = source.read_shard(*whole_shard), source.read_shard(*whole_shard)
        for (block, end, _), (same, same_end, _) in zip(lying, eager, strict=True):
            assert isinstance(same, Spans)
            whole = same.gathered()
            order = rng.permutation(len(block))[: len(block) - 3]
            taken, expected = block.take(order), whole.take(order)
            assert isinstance(block, Spans)
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
