"""`streampack order` as a user calls it."""

from __future__ import annotations

from pathlib import Path

from tests.support.ordered_corpora import COPIES, documents_of, write_topics
from tests.support.program import output_of


def test_it_says_what_came_of_it(tmp_path: Path) -> None:
    source = write_topics(tmp_path / "in", count=100)
    out = tmp_path / "out"
    said = output_of("order", source, out, "--workers", 0)
    assert f"130 documents = 100 in 1 shards + {COPIES} near-duplicates" in said
    for stage in ("embed", "index", "search", "duplicates", "path", "write"):
        assert stage in said
    assert len(documents_of(out)) == 100
    names = sorted(path.name for path in (out / "_order").iterdir())
    files = ["documents.parquet", "duplicates.jsonl", "runs.npy", "summary.json"]
    assert names == files
    assert sum(1 for _ in (out / "_order" / "duplicates.jsonl").open()) == COPIES
