"""The pictures of the pages are what `scripts/pictures.py` draws today."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from scripts.pictures import PICTURES

DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.parametrize("name", PICTURES)
def test_a_committed_picture_is_drawn_from_todays_plans(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == PICTURES[name]()


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_has_a_text_alternative_and_a_page(name: str) -> None:
    picture = ElementTree.parse(DOCS / name).getroot()
    assert len(picture.attrib["aria-label"]) > 40
    pages = [DOCS.parent / "README.md", *DOCS.glob("*.md")]
    assert any(f"{name})" in page.read_text() for page in pages)
