from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from streampack.errors import ContentError
from streampack.formats.jsonl import JSONL
from streampack.sources.error_policy import ErrorPolicy
from streampack.sources.reading import ReadOptions
from tests.support.drawn import drawn
from tests.support.recorded_skips import RecordedSkips
from tests.support.source_contract import assert_source_contract, read_all, read_lane


def write(path: Path, data: bytes) -> Path:
    kind = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}.get(path.suffix)
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind is None:
        path.write_bytes(data)
    else:
        with pa.output_stream(str(path), compression=kind) as file:
            file.write(data)
    return path


def lines(texts: list[str], field: str = "text") -> bytes:
    return b"".join(json.dumps({"id": i, field: t}).encode() + b"\n" for i, t in enumerate(texts))


def some_texts(rng: np.random.Generator, n: int) -> list[str]:
    words = np.array(["alpha", "beta", "gämma", "δ", '"quoted"', "line\nbreak", "😀", "tab\t"])
    return [" ".join(rng.choice(words, int(rng.integers(0, 40)))) for _ in range(n)]


@drawn(60, suppress_health_check=list(HealthCheck))
@given(
    documents=st.lists(st.text(max_size=30), min_size=1, max_size=30),
    separator=st.sampled_from([b"\n", b"\r\n", b"\n\n", b"\n \t\r\n"]),
    end=st.booleans(),
    bom=st.booleans(),
    lanes=st.integers(1, 9),
    block_documents=st.integers(1, 9),
    block_bytes=st.integers(1, 200),
)
def test_any_cut_of_any_lines_gives_each_document_once(
    tmp_path_factory: pytest.TempPathFactory,
    documents: list[str],
    separator: bytes,
    end: bool,
    bom: bool,
    lanes: int,
    block_documents: int,
    block_bytes: int,
) -> None:
    folder = tmp_path_factory.mktemp("lines")
    documents = [d.encode(errors="replace").decode() for d in documents]
    stored = [json.dumps({"text": d}, ensure_ascii=i % 2 == 0) for i, d in enumerate(documents)]
    data = separator.join(line.encode() for line in stored) + (separator if end else b"")
    write(folder / "a.jsonl", b"\xef\xbb\xbf" * bom + data)
    write(folder / "b.jsonl", data)
    source = JSONL(
        folder, reading=ReadOptions(block_documents=block_documents, block_bytes=block_bytes)
    )
    assert_source_contract(source, documents * 2, lane_counts=(lanes,), restarts=3)


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz", ".jsonl.zst", ".jsonl.bz2"])
def test_origins_are_the_bytes_of_the_content_at_which_lines_begin(
    tmp_path: Path, ending: str
) -> None:
    data = b'\xef\xbb\xbf{"text": "a"}\r\n\r\n{"text": "b"}\n   \n{"text": "c"}'
    path = write(tmp_path / f"x{ending}", data)
    source = JSONL(path)
    ((block, _),) = read_lane(source.lanes(1, seed=0, epoch=0, shuffle=False)[0])
    assert [text for _, text in block] == ["a", "b", "c"]
    assert [index for (_, index), _ in block] == [0, data.index(b'{"text": "b"'), data.rindex(b"{")]


BROKEN = [
    b'{"text": "cut',
    b"null",
    b'["text"]',
    b'{"text": "\xff"}',
    b'{"text": "\\ud800"}',
    b'{"text": "a"} {"text": "b"}',
    b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b', "text": "x"}',
    b'{"text": "' + b"x" * 300_000 + b'"}',
]


@pytest.mark.parametrize("line", BROKEN)
@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.zst"])
def test_a_broken_line_is_named_and_skipped(tmp_path: Path, line: bytes, ending: str) -> None:
    good = b'{"text": "good"}\n'
    path = write(tmp_path / f"x{ending}", good * 3 + line + b"\n" + good)
    source = JSONL(path, reading=ReadOptions(max_document_bytes=250_000))
    content = "" if ending == ".jsonl" else "the content of "
    where = rf"The line at byte 51 of {content}{re.escape(str(path))} "
    with pytest.raises(ContentError, match=where):
        read_all(source)
    skips = RecordedSkips()
    assert read_all(source, skips) == ["good"] * 4
    assert [record[:3] for record in skips.records] == [[0, 51, False]]


def test_plain_and_compressed_files_are_one_source(tmp_path: Path) -> None:
    everything = []
    for i, ending in enumerate(
        (
            ".jsonl",
            ".jsonl.zst",
            ".jsonl.gz",
            ".json",
            ".ndjson.bz2",
            ".jl",
            ".jsonlines.gz",
            ".ldjson",
        )
    ):
        texts = some_texts(np.random.default_rng(i), 40)
        write(tmp_path / f"{i}{ending}", lines(texts))
        everything += texts
    source = JSONL(tmp_path, reading=ReadOptions(block_documents=7))
    assert_source_contract(source, everything, lane_counts=(1, 2, 9))
    plain = [name.endswith((".jsonl", ".json", ".jl", ".ldjson")) for name in source.manifest.paths]
    sizes, weights = source.manifest.num_bytes, source.manifest.weights
    assert weights.tolist() == np.where(plain, sizes, 4 * sizes).tolist()


def test_a_decompression_bomb_is_one_broken_line(tmp_path: Path) -> None:
    bomb = b'{"text": "' + b"0" * (40 << 20) + b'"}\n'
    path = write(tmp_path / "x.jsonl.zst", lines(["a"]) + bomb + lines(["b"]))
    assert path.stat().st_size < 100_000
    source = JSONL(path, reading=ReadOptions(max_document_bytes=1 << 20))
    assert read_all(source, ErrorPolicy("skip")) == ["a", "b"]
