"""The table of formats, against the lists that tests of all formats go through."""

from __future__ import annotations

from pathlib import Path

from streampack.sources.formats import FORMATS
from tests.support.every_source import SOURCES


def test_every_format_is_read_by_the_tests_of_all_sources(tmp_path: Path) -> None:
    made = set()
    for kind, make in SOURCES.items():
        (tmp_path / kind).mkdir()
        made.add(type(make(tmp_path / kind)).__name__)
    assert {*FORMATS} - {"Iceberg"} <= made  # it needs pyiceberg: tests/tables/test_iceberg.py
