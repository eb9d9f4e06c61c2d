"""Records with token ids are the same whether a kernel parses the ids or the standard library."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampack.files.json_ids import parse_ids, record_with_ids
from streampack.files.json_records import record_of
from streampack.sources.records import BrokenDocumentError

ITEMS = ("0", "7", " 12 ", "65536", "4294967295", "4294967296", "9" * 25, "01", "-3", "1.5", "2e3",
         "+1", "true", "null", '"1"', "[5]", "{}", "", "1 2", "\t8", "\\u0031", "x")  # fmt: skip
IDS = st.integers(0, 2**32 - 1).map(str)
LISTS = (
    st.lists(IDS, min_size=1, max_size=6) | st.lists(IDS | st.sampled_from(ITEMS), max_size=6)
).map(",".join)
TEXTS = (
    '{"tokens": [%s], "more": [%s]}',
    '{"more":[%s],"tokens":[%s]}\n',
    '{"meta": {"tokens": [%s]}, "tokens" : [%s]}',
    '{"tokens": [%s], "tokens": [%s]}',
    '{"tokens": [%s], "to\\u006bens": [%s]}',
    '{"text": "\\"tokens\\": [%s]", "tokens":  [%s]}',
    '{"text": "\\\\"tokens": [%s], "tokens": [%s]}',
    '{"a": ["tokens", [%s]], "tokens": {"tokens": [%s]}}',
    '["tokens": [%s], [%s]]',
    '{"tokens": [%s, [%s]',
    '{"tokens"  [%s], "tokens": "[%s]"}',
    '\ufeff{"tokens":\n[%s], "ä": [%s]}',
)


def outcome(parse: Callable[[], dict[str, Any]]) -> Any:
    try:
        return parse()
    except BrokenDocumentError as error:
        return str(error)


@given(st.sampled_from(TEXTS), LISTS, LISTS)
def test_a_record_is_parsed_as_by_the_standard_library(text: str, first: str, second: str) -> None:
    data = (text % (first, second)).encode()
    record = outcome(lambda: record_with_ids(data, "tokens"))
    ids = record.get("tokens") if isinstance(record, dict) else None
    if isinstance(ids, np.ndarray):
        assert ids.dtype == np.uint32
        record["tokens"] = ids.tolist()
    assert record == outcome(lambda: record_of(data))


@pytest.mark.parametrize("text", ["[3, 0,4294967295 ]x", "[ 17]", "[0]"])
def test_plain_ids_are_parsed_by_the_kernel(text: str) -> None:
    ids = np.zeros(len(text) // 2 + 1, np.uint32)
    count, end = parse_ids(np.frombuffer(text.encode(), np.uint8), 1, ids)
    assert ids[:count].tolist() == json.loads(text[:end])
    assert text[end - 1] == "]"
