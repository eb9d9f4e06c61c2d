"""`streampack order` as a user calls it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

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


def test_texts_become_parquet_by_convert_too(tmp_path: Path) -> None:
    texts = [f"text number {n}" for n in range(50)]
    pq.write_table(pa.table({"text": texts}), tmp_path / "in.parquet")
    for options in ([], ["--compression", "zstd"]):
        out = tmp_path / f"out{len(options)}"
        output_of("convert", tmp_path / "in.parquet", out, "--shard-size",
                  "500", *options)  # fmt: skip
        assert len(list(out.glob("*.parquet"))) > 2
        assert documents_of(out) == texts
