"""docs/benchmarks.md is written by the command that measures it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import into_docs
from benchmarks.page import put_between
from benchmarks.performance.__main__ import PARTS, main

DOCS = Path(__file__).parents[2] / "docs"
TINY = ["--scale", "0.01", "--rounds", "1", "--seconds", "0.01", "--tokens", "1e6"]


@pytest.fixture
def page(tmp_path: Path) -> Path:
    shutil.copy(DOCS / "benchmarks.md", tmp_path)
    return tmp_path / "benchmarks.md"


def run(page: Path, *arguments: str) -> dict[str, Any]:
    out = page.parent / "performance"
    main(["--out", str(out), "--data", str(page.parent / "data"), *TINY, *arguments])
    return dict(json.loads((out / "results.json").read_text()))


def test_a_part_is_measured_written_and_drawn(page: Path) -> None:
    results = run(page, "--only", "utilisation")
    assert set(results) == {"utilisation"}
    found = results["utilisation"]["figures"]["lognormal"]
    assert found["by window, %"][0] <= found["by window, %"][-1] <= found["whole, %"] <= 100
    text = page.read_text()
    assert f"| {found['by window, %'][0]:.2f} % |" in text
    assert (page.parent / "performance" / "utilisation.png").stat().st_size > 5000
    main(["--out", str(page.parent / "performance"), "--only"])  # from the file, nothing measured
    assert page.read_text() == text


@pytest.mark.slow
def test_parts_that_are_not_measured_keep_their_figures(page: Path) -> None:
    before = run(page, "--only", "utilisation")
    after = run(page, "--only", "stages")
    assert set(after) == {"utilisation", "stages"}
    assert after["utilisation"] == before["utilisation"]
    for stages in after["stages"]["figures"].values():
        assert all(cost >= 0 for costs in stages.values() for cost in costs)


@pytest.mark.slow
def test_every_part_runs(page: Path) -> None:
    results = run(page)
    assert set(results) == set(PARTS)
    assert all((page.parent / "performance" / f"{name}.png").exists() for name in PARTS)


def test_the_pages_have_a_place_for_every_part() -> None:
    text = (DOCS / "benchmarks.md").read_text()
    for name in PARTS:
        assert text.count(f"<!-- performance {name}: begin -->\n") == 1
        assert text.count(f"<!-- performance {name}: end -->") == 1


def test_only_what_is_between_the_marks_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- x: begin -->\nold\n<!-- x: end -->\nb\n<!-- y: begin -->\n")
    put_between(page, "x", "new\n")
    put_between(page, "x", "newer")
    assert page.read_text() == (
        "a\n<!-- x: begin -->\n\nnewer\n\n<!-- x: end -->\nb\n<!-- y: begin -->\n"
    )


def test_the_suite_puts_tables_figures_and_picture_into_the_docs(tmp_path: Path) -> None:
    page, out = tmp_path / "benchmarks.md", tmp_path / "out"
    shutil.copy(DOCS / "benchmarks.md", page)
    out.mkdir()
    (out / "results.json").write_text("{}")
    (out / "picture.png").write_bytes(b"picture")
    into_docs("| the table |", out, page)
    assert "| the table |" in page.read_text()
    assert "](benchmarks/picture.png)" in page.read_text()
    assert (tmp_path / "benchmarks" / "picture.png").read_bytes() == b"picture"
    assert (tmp_path / "benchmarks" / "results.json").read_text() == "{}"
