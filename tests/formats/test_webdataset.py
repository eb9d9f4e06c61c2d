"""WebDataset: written by webdataset and tarfile, scanned in bulk, and never trusted."""

from __future__ import annotations

import io
import json
import pickle
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampack.documents.blocks import Documents
from streampack.errors import ConfigError, ContentError, StorageError
from streampack.formats.tar.source import WebDataset
from streampack.sources.error_policy import ErrorPolicy
from streampack.sources.reading import ReadOptions
from tests.support.drawn import drawn
from tests.support.recorded_skips import RecordedSkips
from tests.support.source_contract import assert_source_contract, read_all

wds = pytest.importorskip("webdataset")

Members = Sequence[tuple[str, bytes]]


def npy(array: Any, version: tuple[int, int] | None = None) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.asarray(array), version=version, allow_pickle=True)
    return stream.getvalue()


def archive(members: Members, format: int = tarfile.GNU_FORMAT, mode: str = "w") -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode, format=format) as tar:  # type: ignore[call-overload]
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def documents(count: int, dtype: str = "uint16", seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 60_000, n).astype(dtype) for n in rng.integers(0, 90, count)]


def shards(folder: Path, count: int = 200, per_shard: int = 40) -> list[list[int]]:
    """Shards by webdataset's own writer, with files that are not read; returns the ids."""
    folder.mkdir(parents=True, exist_ok=True)
    made = documents(count)
    pattern = str(folder / "shard-%03d.tar")
    with wds.ShardWriter(pattern, maxcount=per_shard, verbose=0) as writer:
        for i, tokens in enumerate(made):
            writer.write({"__key__": f"d/{i:05d}", "cls": i, "npy": tokens, "txt": "x" * (i % 40)})
    return [tokens.tolist() for tokens in made]


def one(folder: Path, content: bytes, name: str = "a.tar", **arguments: Any) -> WebDataset:
    path = folder / name
    path.write_bytes(content)
    named = {} if {"text", "tokens"} & {*arguments} else {"tokens": "npy"}
    return WebDataset(path, **{**named, **arguments})


def theirs(path: Path, key: str) -> list[Any]:
    """Return the samples of a shard as webdataset itself decodes them."""
    return [sample[key] for sample in wds.WebDataset(str(path), shardshuffle=False).decode()]


@pytest.mark.parametrize(("key", "form"), [("npy", list), ("txt", str)])
def test_documents_equal_the_ones_of_webdatasets_reader(
    tmp_path: Path, key: str, form: type
) -> None:
    shards(tmp_path, 60, 60)
    found = read_all(WebDataset(tmp_path, **{"text" if key == "txt" else "tokens": key}))
    expected = theirs(tmp_path / "shard-000.tar", key)
    assert found == [d if form is str else tuple(d.tolist()) for d in expected]


@pytest.mark.parametrize(
    "dtype", ["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"]
)
@pytest.mark.parametrize("form", ["npy 1.0", "npy 2.0", "raw"])
def test_every_integer_dtype_comes_back(tmp_path: Path, dtype: str, form: str) -> None:
    top = min(int(np.iinfo(dtype).max), 2**31)
    made = [np.array([0, 5, top, 7])[:n].astype(dtype) for n in (0, 1, 2, 3, 4)] * 2
    version = {"npy 1.0": (1, 0), "npy 2.0": (2, 0)}.get(form)
    members = [
        (f"{i}.bin", d.tobytes() if version is None else npy(d, version))
        for i, d in enumerate(made)
    ]
    if version is None:
        source = one(tmp_path, archive(members), tokens="bin", dtype=dtype)
    else:
        members = [(name.replace("bin", "npy"), content) for name, content in members]
        source = one(tmp_path, archive(members), tokens=".NPY")
    assert_source_contract(source, [d.tolist() for d in made], lane_counts=(1,))
    block, _ = next(
        iter(source.lanes(1, seed=0, epoch=0, shuffle=False)[0].read(None, ErrorPolicy()))
    )
    assert isinstance(block, Documents)
    assert block.tokens.dtype == (dtype if dtype in ("uint16", "uint32", "int32") else "uint32")


@drawn(40)
@given(
    lengths=st.lists(st.sampled_from([0, 1, 191, 192, 193, 500]), min_size=1, max_size=15),
    format=st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
    prefix=st.sampled_from(["", "./", "a.b/c/", "x" * 90 + "/" + "y" * 80 + "/", "größe/"]),
    block_documents=st.integers(1, 6),
    block_bytes=st.sampled_from([1, 700, 1 << 20]),
)
def test_names_and_sizes_of_every_kind_are_understood(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[int],
    format: int,
    prefix: str,
    block_documents: int,
    block_bytes: int,
) -> None:
    folder = tmp_path_factory.mktemp("wds")
    made = [np.arange(n, dtype=np.uint16) for n in lengths]
    members = []
    for i, tokens in enumerate(made):
        members += [(f"{prefix}{i}.json", b"{}"), (f"{prefix}{i}.tokens.npy", npy(tokens))]
    content = archive(members, format)
    source = one(
        folder,
        content,
        tokens="tokens.npy",
        reading=ReadOptions(block_documents=block_documents, block_bytes=block_bytes),
    )
    assert_source_contract(source, [d.tolist() for d in made], lane_counts=(1, 4), restarts=4)
    assert [d.tolist() for d in theirs(folder / "a.tar", "tokens.npy")] == [
        d.tolist() for d in made
    ]


def test_members_that_are_not_samples_are_passed_over(tmp_path: Path) -> None:
    stream = io.BytesIO()
    content = npy(np.arange(3, dtype=np.uint16))
    with tarfile.open(fileobj=stream, mode="w") as tar:
        folder = tarfile.TarInfo("sub.npy")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        link = tarfile.TarInfo("link.npy")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
        for name in ("__meta__", "__x__/1.npy", "README", ".hidden.npy", "0.npy", "s/1.NPY"):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    source = one(tmp_path, stream.getvalue())
    assert_source_contract(source, [[0, 1, 2]] * 2)


def test_text_is_decoded_as_utf8_and_json_by_field(tmp_path: Path) -> None:
    texts = ["", "größer", "漢字\n", "x" * 3000] * 3
    members: list[tuple[str, bytes]] = []
    for i, text in enumerate(texts):
        value = {"text": text, "ids": list(range(i)), "n": 1}
        members += [(f"{i}.txt", text.encode()), (f"{i}.json", json.dumps(value).encode())]
    content = archive(members)
    assert_source_contract(
        one(tmp_path, content, text="txt", reading=ReadOptions(block_documents=4)), texts
    )
    assert_source_contract(
        one(tmp_path, content, text="json:text", reading=ReadOptions(block_documents=4)), texts
    )
    source = one(tmp_path, content, tokens="json:ids", reading=ReadOptions(block_bytes=20))
    assert source.tokenized
    assert_source_contract(source, [list(range(i)) for i in range(len(texts))])


GOOD = npy(np.arange(3, dtype=np.uint16))


@pytest.mark.parametrize(
    "content",
    [
        npy(np.array([None, {}], dtype=object)),
        npy(np.arange(4).reshape(2, 2)),
        npy(np.array(5)),
        npy(np.array([1.5])),
        npy(np.array([1, -1])),
        npy(np.array([2**32])),
        npy(np.array([-7], dtype=np.int32)),
        npy(np.arange(3, dtype=">u2")),
        GOOD[:-1],
        GOOD + b"\0",
        GOOD[:20],
        GOOD.replace(b"(3,)", b"(3**9,)"),
        b"",
        b"\x93NUMPY\x03\x00" + GOOD[8:],
        pickle.dumps([1, 2]),
    ],
)
def test_a_value_other_than_an_array_of_ids_is_a_broken_document(
    tmp_path: Path, content: bytes
) -> None:
    source = one(tmp_path, archive([("0.npy", GOOD), ("1.npy", content), ("2.npy", GOOD)]))
    with pytest.raises(ContentError, match="Document 1 "):
        read_all(source)
    skips = RecordedSkips()
    assert read_all(source, skips) in ([(0, 1, 2)] * 2, [(0, 1, 2), (0, 1, 2), (0, 1, 2)])
    assert [record[:3] for record in skips.records] == [[0, 1, False]]


def test_samples_without_the_file_or_with_two_are_broken_documents(tmp_path: Path) -> None:
    content = archive(
        [("0.npy", GOOD), ("1.txt", b""), ("2.npy", GOOD), ("2.NPY", GOOD), ("3.npy", GOOD)]
    )
    source = one(tmp_path, content, reading=ReadOptions(block_documents=1))
    skips = RecordedSkips()
    assert read_all(source, skips) == [(0, 1, 2)] * 2
    assert [record[:3] for record in skips.records] == [[0, 1, False], [0, 2, False]]
    with pytest.raises(ContentError, match=r"Document 1 .*no file \.npy"):
        read_all(source)


def test_sparse_files_are_refused(tmp_path: Path) -> None:
    data = bytearray(archive([("0.npy", GOOD), ("1.npy", GOOD)]))
    at = 512 + (len(GOOD) + 511) // 512 * 512
    data[at + 156 : at + 157] = b"S"
    data[at + 148 : at + 156] = b" " * 8
    data[at + 148 : at + 156] = b"%06o\0 " % sum(data[at : at + 512])
    with pytest.raises(ContentError, match="sparse") as caught:
        read_all(one(tmp_path, bytes(data)))
    assert (caught.value.index, caught.value.rest_of_shard) == (1, True)


@pytest.mark.parametrize("key", ["GNU.sparse.major", "GNU.sparse.map", "GNU.sparse.size"])
def test_sparse_files_of_pax_are_refused_and_not_read_with_their_map(
    tmp_path: Path, key: str
) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, headers in (("0.npy", {"comment": "GNU.sparse."}), ("1.npy", {key: "1"})):
            member = tarfile.TarInfo(name)
            member.size, member.pax_headers = len(GOOD), headers
            tar.addfile(member, io.BytesIO(GOOD))
    with pytest.raises(ContentError, match="sparse") as caught:
        read_all(one(tmp_path, out.getvalue()))
    assert (caught.value.index, caught.value.rest_of_shard) == (1, True)


def test_pipes_are_refused_unless_allowed(tmp_path: Path) -> None:
    expected = shards(tmp_path, 40, 20)
    pipe = f"pipe:cat {tmp_path}/shard-{{000..001}}.tar"
    with pytest.raises(ConfigError):
        WebDataset(pipe, tokens="npy")
    with pytest.raises(ConfigError):
        WebDataset([tmp_path / "shard-000.tar", pipe], tokens="npy")
    assert_source_contract(WebDataset(pipe, tokens="npy", allow_pipe=True), expected, restarts=2)
    broken = WebDataset("pipe:cat /nowhere/at/all 2>/dev/null", tokens="npy", allow_pipe=True)
    with pytest.raises(StorageError):
        read_all(broken)
