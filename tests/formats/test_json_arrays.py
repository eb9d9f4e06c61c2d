"""A `.json` file that is one array is read as if its elements were lines."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampack import sources
from streampack.errors import ConfigError, ContentError
from streampack.formats import json_arrays
from streampack.sources.error_policy import ErrorPolicy
from streampack.storage.decompression import DamagedError
from tests.support.drawn import drawn
from tests.support.source_contract import assert_source_contract, read_all

TEXTS = [f'{i} "quoted" \\ [{{,}}] größer\n' + "x" * (i % 7) for i in range(300)]
RECORDS = [{"id": i, "text": text, "more": {"list": [i, [], {}]}} for i, text in enumerate(TEXTS)]
LAYOUTS: dict[str, Any] = {
    "one line": {"separators": (",", ":")},
    "a record a line": {},
    "indented": {"indent": 2, "ensure_ascii": False},
}


def write(path: Path, data: bytes) -> Path:
    kind = {".gz": "gzip", ".zst": "zstd"}.get(path.suffix)
    with pa.output_stream(str(path), compression=kind) as file:
        file.write(data)
    return path


def array(layout: str, records: Any = RECORDS) -> bytes:
    if layout == "a record a line":
        return ("[\n" + ",\n".join(map(json.dumps, records)) + "\n]\n").encode()
    return json.dumps(records, **LAYOUTS[layout]).encode()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("ending", ["json", "json.gz", "json.zst"])
def test_an_array_is_read_like_lines_in_any_number_of_lanes(
    layout: str, ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streampack.storage.decompression._PART", 1000)  # many chunks
    monkeypatch.setattr("streampack.storage.decoded.LEAST_BYTES", 1)  # written into the cache
    path = write(tmp_path / f"a.{ending}", array(layout))
    storage = sources.Storage(cache_dir=tmp_path / "cache")
    source = sources.JSONL(path, text="text", storage=storage)
    assert_source_contract(source, TEXTS, lane_counts=[1, 3])
    if ending == "json":
        reader = source.lanes(1, seed=0, epoch=0, shuffle=False)[0]
        places = [o for block, _ in reader.read(None, ErrorPolicy()) for o in block.origin["index"]]
        content = path.read_bytes().decode("latin-1")
        decoded = [json.JSONDecoder().raw_decode(content, int(place))[0] for place in places]
        assert [record["id"] for record in decoded] == [*range(len(TEXTS))]


@drawn(60)
@given(
    records=st.lists(
        st.recursive(
            st.text(max_size=9) | st.integers() | st.booleans() | st.none(),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner),
            max_leaves=9,
        ),
        max_size=5,
    ),
    layout=st.sampled_from([*LAYOUTS]),
    size=st.integers(1, 40),
)
def test_elements_of_any_array_are_lines_at_their_offsets(
    records: list[Any], layout: str, size: int
) -> None:
    text = array(layout, [{"value": record} for record in records])
    chunks = [(at, text[at : at + size]) for at in range(0, len(text) + size, size)]
    lines = b"".join(bytes(chunk) for _, chunk in json_arrays.as_lines(chunks))
    assert len(lines) == len(text)
    assert [json.loads(line)["value"] for line in lines.split(b"\n") if line.strip()] == records


@pytest.mark.parametrize(
    ("damage", "read"),
    [
        (lambda text: text[:-2], 300),  # without the end
        (lambda text: text[: text.index(b'"id": 150')], 150),
        (lambda text: text + b'{"text": "more"}', 300),
        (lambda text: text.replace(b'"id": 200', b'"id: 200'), 200),  # a lost quote
        (lambda text: text.replace(b'"id": 200', b'"id": two'), 200),
    ],
)
def test_a_damaged_array_is_named_and_read_up_to_the_damage(
    damage: Any, read: int, tmp_path: Path
) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(damage(array("a record a line")))
    with pytest.raises(ContentError) as caught:
        read_all(sources.open(path, text="text"))
    assert caught.value.path == str(path)
    skips = ErrorPolicy("skip")
    assert read_all(sources.open(path, text="text"), skips) == TEXTS[:read]
    assert skips.counts.skipped >= 1


def test_a_broken_element_is_named_and_skipped_alone(tmp_path: Path) -> None:
    path, text = tmp_path / "a.json", array("a record a line").replace(b'"id": 7,', b'"id": 7.,')
    path.write_bytes(text)
    with pytest.raises(ContentError) as caught:
        read_all(sources.open(path, text="text"))
    assert str(text.index(b'{"id": 7')) in str(caught.value.document)
    skips = ErrorPolicy("skip")
    assert read_all(sources.open(path, text="text"), skips) == [*TEXTS[:7], *TEXTS[8:]]
    assert skips.counts.skipped == 1


@pytest.mark.parametrize("content", [b"[1, 2]", b'["a text"]', b"[[1, 2]]"])
def test_an_array_without_records_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises((ConfigError, ContentError)):
        assert read_all(sources.open(tmp_path / "a.json"))


@pytest.mark.parametrize("name", ["a.json", "a.json.gz", "a.jsonl"])
def test_a_corpus_of_empty_arrays_or_blank_lines_is_refused_like_empty_files(
    name: str, tmp_path: Path
) -> None:
    write(tmp_path / name, b"\n \n" if name.endswith("l") else b"[ ]\n")
    with pytest.raises(ConfigError) as refused:
        _ = sources.JSONL(tmp_path / name, tokens="ids").manifest
    assert refused.value.setting == "paths"
    content = b'{"ids": [1]}\n' if name.endswith("l") else b'[{"ids": [1]}]'
    write(tmp_path / f"b{name[1:]}", content)
    assert len(sources.JSONL(str(tmp_path / f"*{name[1:]}"), tokens="ids").manifest) == 2


def test_a_flipped_bit_of_an_array_loses_no_record_unnoticed() -> None:
    text = array("indented", RECORDS[:4])
    for at in range(len(text) * 8):
        flipped = bytearray(text)
        flipped[at // 8] ^= 1 << at % 8
        try:
            lines = b"".join(c for _, c in json_arrays.as_lines([(0, bytes(flipped)), (0, b"")]))
        except DamagedError:
            continue
        assert len([line for line in lines.split(b"\n") if line.strip()]) >= 4


def test_memory_does_not_grow_with_an_array(tmp_path: Path) -> None:
    with open(tmp_path / "a.json", "w", encoding="utf-8") as file:
        record = json.dumps({"text": "a text of some words " * 500})
        file.write("[" + ",".join([record] * 2_000) + "]")  # 21 MB
    source = sources.open(tmp_path / "a.json")
    reader = source.lanes(1, seed=0, epoch=0, shuffle=False)[0]
    tracemalloc.start()
    count = sum(len(block) for block, _ in reader.read(None, ErrorPolicy()))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 2_000
    assert peak < 12 << 20
