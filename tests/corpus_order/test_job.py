"""A job: every document in the shards or listed, stopped anywhere, and the same whoever works."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from streampack import PackedDataset, PackedLoader, TokenRules, sources
from streampack.corpus_order import run_job
from streampack.corpus_order.job import STAGES
from streampack.errors import ConfigError
from streampack.ordering import BM25, HashedNgrams
from streampack.packing import Concat
from streampack.packing.rng import permutation
from tests.support import ordering_reference as reference
from tests.support.drawn import sampled
from tests.support.ordered_corpora import (
    COPIES,
    counted,
    documents_of,
    make_job,
    shards_of,
    unit,
    write_parquet,
    write_topics,
)
from tests.support.topics import topical


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_topics(tmp_path_factory.mktemp("corpus") / "in")


@pytest.fixture(scope="module")
def whole(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "out"
    run_job(make_job(corpus, out), workers=0)
    return out


def listed(out: Path) -> list[dict[str, Any]]:
    lines = (out / "_order" / "duplicates.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_every_document_is_in_the_shards_or_listed(corpus: Path, tmp_path: Path) -> None:
    summary = run_job(make_job(corpus, tmp_path / "out"), workers=0)
    read = documents_of(corpus)
    assert summary.documents == len(read) == summary.written + summary.duplicates
    dataset = PackedDataset(
        sources.open(str(tmp_path / "out"), reading=sources.ReadOptions(open_shards=1)),
        packer=Concat(seq_len=512),
        token_rules=TokenRules(eos="as-is", eos_id=0),
        attention="row",
        shuffle=False,
        lanes=1,
    )
    tokens = sum(batch.num_tokens for batch in PackedLoader(dataset))
    dropped = [record["tokens"] for record in listed(tmp_path / "out")]
    assert sum(dropped) == summary.duplicate_units
    assert tokens + sum(dropped) == summary.units == sum(map(len, read))


def test_planted_copies_are_the_duplicates_and_their_originals_are_named(
    corpus: Path, whole: Path
) -> None:
    read = documents_of(corpus)
    records = listed(whole)
    assert len(records) == COPIES
    size = -(-len(read) // 2)

    def number(name: str) -> int:
        words = name.split()
        return int(words[1]) + size * int(Path(words[-1]).stem)

    for record in records:
        copy, original = number(record["document"]), number(record["like"])
        assert (copy, read[copy]) == (len(read) - COPIES + original, read[original])
    kept = counted(read) - counted([read[number(record["document"])] for record in records])
    assert counted(documents_of(whole)) == kept


@pytest.mark.parametrize("search", ["exact", "faiss"])
def test_of_a_hundred_copies_one_stays_beside_its_like_though_the_search_finds_copies_only(
    tmp_path: Path, search: str
) -> None:
    documents, topic = topical(60)
    arrays = [documents.document(i) for i in range(60)]
    topic_of = {tuple(ids.tolist()): t for ids, t in zip(arrays, topic, strict=True)}
    arrays += [arrays[7].copy() for _ in range(100)]
    source = write_parquet(tmp_path / "in", arrays)
    summary = run_job(make_job(source, tmp_path / "out", k=2, search=search), workers=0)
    assert (summary.duplicates, summary.without_neighbours) == (100, 0)
    found = documents_of(tmp_path / "out")
    assert len(set(found)) == summary.written == 60
    at = found.index(tuple(arrays[7].tolist()))
    beside = [topic_of[ids] for ids in found[max(at - 1, 0) : at + 2]]
    assert beside.count(topic[7]) > 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("limit", [1.0, 0.25])
@pytest.mark.parametrize("embedder", [HashedNgrams(), BM25()])
def test_the_path_matches_the_reference(tmp_path: Path, embedder: Any, limit: float) -> None:
    documents, _ = topical(150)
    source = write_parquet(tmp_path / "in", [documents.document(i) for i in range(150)])
    settings = {"embedder": embedder, "max_similarity": limit, "row_tokens": 500}
    run_job(make_job(source, tmp_path / "out", k=4, duplicate_threshold=1, **settings), workers=0)
    vectors = unit(embedder(documents))
    cosines = np.rint(vectors @ vectors.T * 2**22) / 2**22  # as float32 keeps them, about
    _, _, nearest = reference.neighbours(cosines, 4 if limit == 1 else 12, 2.0)
    lengths = documents.lengths.tolist()
    if limit == 1:
        expected = reference.path(nearest, cosines)
    else:
        expected = reference.limited_path(nearest, cosines, limit, 4, lengths, 500)
        assert expected != reference.path([near[:4] for near in nearest], cosines, 1)
    found = documents_of(tmp_path / "out")
    assert found == [tuple(documents.document(i).tolist()) for i in expected]


def test_words_of_texts_are_weighed_over_the_whole_corpus(tmp_path: Path) -> None:
    texts = [f"the {topic} of the {word}" for topic in "abcdef" for word in ("x", "y", "z", "w")]
    source = write_parquet(tmp_path / "in", [texts[i] for i in permutation(24, 3)])
    run_job(make_job(source, tmp_path / "out", embedder="bm25", k=3), workers=0)
    found = documents_of(tmp_path / "out")
    assert counted(found) == counted(texts)
    assert np.mean([a[:5] == b[:5] or a[-1] == b[-1] for a, b in pairwise(found)]) > 0.7


def test_most_documents_side_by_side_share_their_topic(corpus: Path, whole: Path) -> None:
    documents, topic = topical(400)
    topic_of = {tuple(documents.document(i).tolist()): t for i, t in enumerate(topic)}
    found = np.array([topic_of[ids] for ids in documents_of(whole)])
    assert (found[1:] == found[:-1]).mean() > 0.9
    summary = json.loads((whole / "_order" / "summary.json").read_text())
    assert summary["neighbours"] > summary["within_rows"] > summary["random_pairs"] + 0.05


def test_the_inverted_file_finds_nearly_all_pairs_of_a_full_comparison(
    corpus: Path, whole: Path, tmp_path: Path
) -> None:
    found = run_job(make_job(corpus, tmp_path / "out", search="faiss"), workers=0)
    exact = json.loads((whole / "_order" / "summary.json").read_text())
    assert found.duplicates == exact["duplicates"]
    assert found.neighbours > exact["neighbours"] - 0.02
    assert counted(documents_of(tmp_path / "out")) == counted(documents_of(whole))


class StopError(Exception):
    pass


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"search": "exact"}, id="exact"),
        pytest.param({"search": "faiss"}, id="faiss", marks=pytest.mark.slow),
        pytest.param({"embedder": "bm25", "max_similarity": 0.3}, id="bm25"),
    ],
)
def test_stopped_in_any_stage_it_goes_on_to_the_same_shards(
    corpus: Path, whole: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    job = make_job(corpus, tmp_path / "whole", **settings)
    events: list[tuple[str, int, int]] = []
    run_job(job, workers=0, report=lambda *event: events.append(event))
    assert {stage for stage, _, _ in events} == set(STAGES)
    expected = shards_of(tmp_path / "whole")
    if settings == {"search": "exact"}:
        assert expected == shards_of(whole)
    for stage in sampled(STAGES, part=1 / 2):
        out = tmp_path / stage
        for at_its_end in (False, True):

            def report(
                now: str, done: int, total: int, stage: str = stage, end: bool = at_its_end
            ) -> None:
                if now == stage and done >= (total if end else 1):
                    raise StopError

            with pytest.raises(StopError):
                run_job(make_job(corpus, out, **settings), workers=0, report=report)
            with pytest.raises(ConfigError) as caught:
                sources.open(str(out))
            assert caught.value.path == str(out)
        run_job(make_job(corpus, out, **settings), workers=0)
        assert shards_of(out) == expected


def test_unfinished_parts_at_a_url_are_not_read(corpus: Path, tmp_path: Path) -> None:
    def stop(stage: str, done: int, total: int) -> None:
        if stage == "write" and 0 < done < total:
            raise StopError

    memory, url = fsspec.filesystem("memory"), "memory://ordered"
    with pytest.raises(StopError):
        run_job(make_job(corpus, url, work=tmp_path), workers=0, report=stop)
    assert memory.glob("/ordered/*.parquet")
    for pattern in (url, f"{url}/*.parquet"):
        with pytest.raises(ConfigError) as caught:
            sources.open(pattern)
        assert caught.value.path == url
    run_job(make_job(corpus, url, work=tmp_path), workers=0)
    assert len(sources.open(url).manifest) == len(memory.glob("/ordered/*.parquet"))
    memory.rm("/ordered", recursive=True)


def test_texts_stay_texts_and_are_compared_by_their_words(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    words = [[f"topic{t}word{n}é" for n in range(30)] for t in range(4)]
    texts = [" ".join(rng.choice(words[i % 4], 40)) + "。" for i in range(80)]
    texts.append(texts[5])
    source = write_parquet(tmp_path / "in", texts)
    summary = run_job(make_job(source, tmp_path / "out"), workers=0)
    assert summary.duplicates == 1
    found = documents_of(tmp_path / "out")
    assert sorted(found) == sorted(texts[:-1])
    same = [a[:6] == b[:6] for a, b in pairwise(found)]
    assert np.mean(same) > 0.9


def test_empty_documents_are_kept_and_counted(tmp_path: Path) -> None:
    documents, _ = topical(40)
    arrays = [documents.document(i) for i in range(40)]
    arrays[3] = arrays[17] = arrays[3][:0]
    source = write_parquet(tmp_path / "in", arrays)
    summary = run_job(make_job(source, tmp_path / "out"), workers=0)
    assert (summary.documents, summary.empty, summary.written) == (40, 2, 40)
    assert summary.without_neighbours == 2
    assert counted(documents_of(tmp_path / "out"))[()] == 2
