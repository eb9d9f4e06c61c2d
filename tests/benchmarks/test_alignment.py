"""The page's slots used by alignment equal the benchmark's measurements."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.alignment import ALIGN, lognormal, slots_used

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks" / "records.md"


@pytest.mark.slow
def test_slots_used_by_alignment_match_the_page() -> None:
    lengths = lognormal(700, 100_000)
    (section,) = re.findall(r"\n## Alignment\n(.*?)\n## ", PAGE.read_text(), re.DOTALL)
    written = dict(re.findall(r"^\| (\d+) \| ([\d.]+) % \|$", section, re.MULTILINE))
    assert {*written} == {f"{align}" for align in ALIGN}
    for align in ALIGN:
        assert f"{100 * slots_used(lengths, 4096, align):.1f}" == written[f"{align}"]
