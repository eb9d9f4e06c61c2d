"""Links, headings and files named on the pages exist; their code fits the page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "AGENTS.md", "llms.txt")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "skills").rglob("*.md")),
]
COLUMNS = 88


def anchors_of(page: Path) -> set[str]:
    """Return a heading's name in links."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    names = (heading.lower().replace("`", "") for heading in re.findall(r"^#+ (.*)", text, re.M))
    return {re.sub(r"[^\w\- ]", "", name).strip().replace(" ", "-") for name in names}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        path, _, anchor = target.partition("#")
        if "://" in target:
            continue
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        assert not anchor or anchor in anchors_of(file), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_boxes_of_code_fit_the_page(page: Path) -> None:
    for box in re.findall(r"^```.*?^```", page.read_text(), flags=re.DOTALL | re.MULTILINE):
        if not box.startswith("```text"):  # a program's output is shown as it is
            assert max(map(len, box.splitlines())) <= COLUMNS, box


def test_the_files_that_design_names_exist() -> None:
    text = (ROOT / "docs" / "design.md").read_text()
    named = set(re.findall(r"[\w./]*\w+\.py\b|\b[\w/]+/(?=[\s,`|])", text))
    found = {str(path.relative_to(ROOT)) for path in ROOT.glob("streampack/**/*")}
    found |= {"tests", "docs", *(str(p.relative_to(ROOT)) for p in (ROOT / "tests").rglob("*.py"))}
    missing = {
        name
        for name in named
        if not any(f"/{path}".endswith("/" + name.rstrip("/")) for path in found)
    }
    assert not missing
