"""The documentation site: every public name, every page and every link has its place.

`scripts/docs.sh` builds it; `test_readme.py` runs its snippets.
"""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest

import streampack
from scripts.home import home
from streampack import ordering, packing, rollouts, sources, trainers

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").rglob("*.md"))
REFERENCE = sorted((ROOT / "docs" / "reference").glob("*.md"))
OBJECTS = [
    name for page in REFERENCE for name in re.findall(r"^::: (\S+)$", page.read_text(), re.M)
]
MODULES = (ordering, packing, rollouts, sources, trainers)


def place_of(name: str) -> object:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def prose(page: Path) -> str:
    return re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)


def anchor(heading: str) -> str:
    """Return a heading's anchor as mkdocs makes it."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())


@pytest.mark.parametrize("module", [streampack, *MODULES], ids=lambda module: module.__name__)
def test_every_public_name_is_in_the_reference_once(module: object) -> None:
    described = [id(place_of(name)) for name in OBJECTS]
    public = [getattr(module, name) for name in module.__all__]  # type: ignore[attr-defined]
    assert len(public) > 1
    for name, value in zip(module.__all__, public, strict=True):  # type: ignore[attr-defined]
        if not inspect.ismodule(value):
            assert described.count(id(value)) == 1, name


def test_every_page_is_in_the_navigation_once() -> None:
    named = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)
    pages = [str(page.relative_to(ROOT / "docs")) for page in PAGES]
    assert sorted(named) == sorted(["index.md", *pages])


def test_the_home_page_is_the_readme_with_links_of_the_site() -> None:
    page = "![A\nrow](docs/rows.svg) [docs/a.md](docs/a.md#b) [examples/](examples) [c](https://d)"
    assert home(page, None) == "![A\nrow](rows.svg) [a.md](a.md#b) examples/ [c](https://d)"
    assert "[examples/](https://e/f/blob/HEAD/examples)" in home(page, "https://e/f")
    for link in re.findall(r"\]\(([^)\s#]+)", home((ROOT / "README.md").read_text(), None)):
        assert "://" in link or (ROOT / "docs" / link).exists(), link


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *PAGES], ids=lambda page: str(page.relative_to(ROOT))
)
def test_every_link_leads_somewhere_inside_the_site(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if "://" in link:
            continue
        path, _, place = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name} names {link}"
        if page in PAGES:  # others are not on the site
            assert target.is_relative_to(ROOT / "docs"), f"{page.name} names {link}"
        if place:
            headings = re.findall(r"^#+ (.+)$", prose(target), re.M)
            assert place in map(anchor, headings), f"{page.name} names {link}"


@pytest.mark.parametrize("name", OBJECTS)
def test_docstrings_name_each_argument_by_itself(name: str) -> None:
    """The build of the site fails for a description without such an argument."""
    found = place_of(name)
    public = vars(found) if inspect.isclass(found) else {}
    for one in (found, *(value for key, value in public.items() if key[0] != "_")):
        one = getattr(one, "__func__", one)
        if callable(one) and one.__doc__:
            _, _, section = inspect.getdoc(one).partition("\nArgs:\n")  # type: ignore[union-attr]
            described = re.findall(r"^    (\S[^:\n]*): ", section.split("\n\n")[0], re.M)
            assert all(argument.isidentifier() for argument in described), described
