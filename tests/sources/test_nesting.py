"""The limit of nesting in records is the same for all readers."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampack.files.json_records import MOST_NESTED, parse_json
from streampack.sources import JSONL, Chat, WebDataset
from streampack.sources.records import BrokenDocumentError
from streampack.sources.sharded import ShardedSource
from tests.support.corpora import write_samples
from tests.support.recorded_skips import RecordedSkips
from tests.support.source_contract import read_all

VALUES = st.recursive(
    st.text(st.sampled_from('[]{}"\\ab')) | st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=30,
)


def _depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return isinstance(value, dict | list) + max(map(_depth, inner), default=0)


@given(value=VALUES, pad=st.integers(0, 110))
def test_only_values_nested_deeper_than_the_limit_are_refused(value: Any, pad: int) -> None:
    depth = _depth(value) + pad
    data = b'{"[":' * pad + json.dumps(value).encode() + b"}" * pad
    if depth > MOST_NESTED:
        with pytest.raises(BrokenDocumentError):
            parse_json(data)
    else:
        assert parse_json(data) == json.loads(data)


def _on_a_deep_stack(frames: int, function: Callable[[], Any]) -> Any:
    return _on_a_deep_stack(frames - 1, function) if frames else function()


def _records(folder: Path, depth: int, kind: str) -> ShardedSource:
    nested = "[" * depth + "]" * depth
    messages = '[{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "m": %s}]'
    record = f'{{"text": "x", "m": {nested}, "messages": {messages % nested}}}'
    path = folder / f"{depth}.jsonl"
    path.write_text(record + '\n{"text": "y", "messages": ' + messages % 1 + "}\n")
    if kind != "tar":
        return {"lines": JSONL, "chat": Chat}[kind](path)
    lines = path.read_bytes().splitlines()
    tar = write_samples(folder / "a.tar", [{"json": line} for line in lines])
    return WebDataset(tar, text="json:text")


@pytest.mark.parametrize("kind", ["lines", "tar", "chat"])
@pytest.mark.parametrize("depth", [90, 400, 600, 3000])
def test_a_deep_record_is_read_or_skipped_however_deep_the_callers_stack_is(
    tmp_path: Path, depth: int, kind: str
) -> None:
    def read() -> tuple[int, list[list[Any]]]:
        skips = RecordedSkips()
        return len(read_all(_records(tmp_path, depth, kind), skips)), skips.records

    count, records = read()
    assert count == (2 if depth < MOST_NESTED else 1)
    assert [record[:2] for record in records] == ([] if count == 2 else [[0, 0]])
    assert _on_a_deep_stack(sys.getrecursionlimit() // 2, read) == (count, records)
