"""`streampack order` as a user calls it."""

from __future__ import annotations

from pathlib import Path

import pytest

from streampack.errors import ConfigError
from tests.support.ordered_corpora import COPIES, documents_of, write_topics
from tests.support.program import output_of


def test_it_reports_its_result(tmp_path: Path) -> None:
    source = write_topics(tmp_path / "in", count=100)
    out = tmp_path / "out"
    output = output_of("order", source, out, "--workers", 0)
    assert f"130 documents = 100 in 1 shards + {COPIES} near-duplicates" in output
    for stage in ("embed", "index", "search", "duplicates", "path", "write"):
        assert stage in output
    assert len(documents_of(out)) == 100
    names = sorted(path.name for path in (out / "_order").iterdir())
    files = ["documents.parquet", "duplicates.jsonl", "runs.npy", "summary.json"]
    assert names == files
    assert sum(1 for _ in (out / "_order" / "duplicates.jsonl").open()) == COPIES


def test_bm25_and_a_limit_of_similarity_change_the_order_alone(tmp_path: Path) -> None:
    source = write_topics(tmp_path / "in", count=100)
    found = []
    for number, options in enumerate(
        [(), ("--embedder", "bm25"), ("--max-similarity", 0.2, "--row-tokens", 1000)]
    ):
        out = tmp_path / f"out{number}"
        output = output_of("order", source, out, "--workers", 0, *options)
        assert f"130 documents = 100 in 1 shards + {COPIES} near-duplicates" in output
        found.append(documents_of(out))
    assert sorted(found[0]) == sorted(found[1]) == sorted(found[2])
    assert len({tuple(order) for order in found}) == 3


def test_a_field_orders_in_place_of_similarity(tmp_path: Path) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out"
    rows = [f'{{"text": "document {i}", "score": {i * 7 % 20}}}\n' for i in range(20)]
    source.write_text("".join(rows))
    options = ("--by", "score", "--pace", "interleaved", "--groups", 2, "--descending")
    output = output_of("order", source, out, "--workers", 0, *options)
    assert "20 documents = 20 in 1 shards + 0 near-duplicates" in output
    ranked = sorted(range(20), key=lambda i: -(i * 7 % 20))
    expected = [f"document {i}" for i in (*ranked[::2], *ranked[1::2])]
    assert documents_of(out) == expected


@pytest.mark.parametrize(
    "options", [("--pace", "quantiles"), ("--groups", 3), ("--descending",)], ids=str
)
def test_a_pace_without_a_field_is_refused(tmp_path: Path, options: tuple[object, ...]) -> None:
    source = write_topics(tmp_path / "in", count=40)
    with pytest.raises(ConfigError) as caught:
        output_of("order", source, tmp_path / "out", "--workers", 0, *options)
    assert caught.value.setting == "by"
    assert not (tmp_path / "out").exists()
