"""A corpus in the order of a field, or of a signal of its texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streampack import PackedDataset, PackedLoader, TokenRules, Topology, WindowConfig, sources
from streampack.corpus_order import order_corpus, run_job
from streampack.errors import ConfigError, ContentError, StreampackError
from streampack.ordering import ByField
from streampack.ordering.signals import compression_ratio
from tests.support.ordered_corpora import documents_of, make_job, shards_of

COUNT = 200
RNG = np.random.default_rng(4)
SCORES = RNG.integers(0, 60, COUNT).astype(np.float64)  # with ties
DOCUMENTS = [(i, *RNG.integers(0, 1000, 1 + i % 9).tolist()) for i in range(COUNT)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scored")
    for number in range(2):
        half = slice(number * COUNT // 2, (number + 1) * COUNT // 2)
        tokens = pa.array(DOCUMENTS[half], pa.list_(pa.uint32()))
        table = pa.table({"tokens": tokens, "score": SCORES[half]})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=30)
    return folder


def numbers(folder: Path) -> list[int]:
    """Number of each written document, in order; its tokens are unchanged."""
    written = documents_of(folder)
    found = [document[0] for document in written]
    assert written == [DOCUMENTS[i] for i in found]
    return found


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("descending", [False, True])
def test_documents_are_in_the_order_of_the_field_and_ties_in_corpus_order(
    corpus: Path, tmp_path: Path, parts: int, descending: bool
) -> None:
    by = ByField("score", descending=descending)
    job = make_job(corpus, tmp_path / "out", by=by, parts=parts, shard_bytes=1000)
    summary = run_job(job, workers=0)
    expected = sorted(range(COUNT), key=lambda i: -SCORES[i] if descending else SCORES[i])
    assert numbers(tmp_path / "out") == expected
    assert (summary.documents, summary.written, summary.duplicates) == (COUNT, COUNT, 0)
    assert summary.quartiles == tuple(np.quantile(SCORES, (0.25, 0.5, 0.75)))
    assert summary.shards > 3
    named = pq.read_table(tmp_path / "out" / "_order" / "documents.parquet").to_pylist()
    assert [Path(each["file"]).stem for each in named] == [
        str(int(i >= COUNT // 2)) for i in expected
    ]


def test_passes_go_from_small_to_large_values_and_a_shard_ends_with_a_pass(
    corpus: Path, tmp_path: Path
) -> None:
    by = ByField("score", pace="interleaved", groups=4)
    run_job(make_job(corpus, tmp_path / "out", by=by, shard_bytes=2500), workers=0)
    ranked = sorted(range(COUNT), key=lambda i: SCORES[i])
    assert numbers(tmp_path / "out") == [i for group in range(4) for i in ranked[group::4]]
    runs = np.load(tmp_path / "out" / "_order" / "runs.npy")
    assert runs.tolist() == [0, 50, 100, 150]
    ends = np.cumsum([len(pq.read_table(f)) for f in sorted((tmp_path / "out").glob("*.parquet"))])
    assert {50, 100, 150, 200} <= set(ends.tolist())


def test_a_quantile_comes_whole_before_the_next_one_and_is_random_inside(
    corpus: Path, tmp_path: Path
) -> None:
    by = ByField("score", pace="quantiles", groups=5)
    run_job(make_job(corpus, tmp_path / "out", by=by), workers=0)
    ranked, found = sorted(range(COUNT), key=lambda i: SCORES[i]), numbers(tmp_path / "out")
    for low in range(0, COUNT, 40):
        part = ranked[low : low + 40]
        assert sorted(found[low : low + 40]) == sorted(part)
        assert found[low : low + 40] != part


def test_a_signal_of_the_text_needs_no_field(tmp_path: Path) -> None:
    texts = ["word " * n + "".join(chr(97 + (i * n) % 26) for i in range(60)) for n in range(1, 30)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    by = ByField("compression_ratio")
    order_corpus(str(tmp_path / "in.jsonl"), str(tmp_path / "out"), by=by, workers=0)
    assert documents_of(tmp_path / "out") == sorted(texts, key=compression_ratio)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("stage", ["copy", "path", "write"])
def test_stopped_in_any_stage_it_continues_to_the_same_shards(
    corpus: Path, tmp_path: Path, stage: str
) -> None:
    by = ByField("score", pace="quantiles")

    def stop(at: str, done: int, total: int) -> None:
        if at == stage and (done or at == "path"):
            raise KeyboardInterrupt

    run_job(make_job(corpus, tmp_path / "whole", by=by, shard_bytes=1000), workers=0)
    job = make_job(corpus, tmp_path / "out", by=by, shard_bytes=1000)
    with pytest.raises(KeyboardInterrupt):
        run_job(job, workers=0, report=stop)
    other = make_job(corpus, tmp_path / "out", by=ByField("score"), shard_bytes=1000)
    with pytest.raises(StreampackError):
        run_job(other, workers=0)
    run_job(make_job(corpus, tmp_path / "out", by=by, shard_bytes=1000), workers=0)
    assert shards_of(tmp_path / "out") == shards_of(tmp_path / "whole")


def lines(folder: Path, values: list[Any]) -> str:
    rows = [{"tokens": [i, i], "score": value} for i, value in enumerate(values)]
    (folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder / "in.jsonl")


@pytest.mark.parametrize("wrong", ["high", None, [1]])
def test_a_document_without_a_number_is_named_or_skipped(tmp_path: Path, wrong: Any) -> None:
    source = lines(tmp_path, [3, 1, wrong, 2])
    by = ByField("score")
    with pytest.raises(ContentError) as caught:
        order_corpus(source, str(tmp_path / "out"), by=by, workers=0)
    begin = sum(map(len, Path(source).read_text().splitlines(keepends=True)[:2]))
    assert f"byte {begin} of" in str(caught.value.document)
    summary = order_corpus(source, str(tmp_path / "skip"), by=by, workers=0, on_error="skip")
    assert documents_of(tmp_path / "skip") == [(1, 1), (3, 3), (0, 0)]
    assert (summary.written, summary.skipped) == (3, 1)


def test_a_field_that_no_record_has_is_named(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        run_job(make_job(corpus, tmp_path / "out", by=ByField("difficulty")), workers=0)
    assert "difficulty" in str(caught.value)
    assert caught.value.setting == "by"


def test_nan_is_not_a_number(tmp_path: Path) -> None:
    table = pa.table({"tokens": [[0, 0], [1, 1], [2, 2]], "score": [2.0, np.nan, 1.0]})
    pq.write_table(table, tmp_path / "in.parquet")
    by = ByField("score")
    with pytest.raises(ContentError) as caught:
        order_corpus(tmp_path / "in.parquet", str(tmp_path / "out"), by=by, workers=0)
    assert str(caught.value.document).startswith("row 1 of")
    settings: dict[str, Any] = {"by": by, "workers": 0, "on_error": "skip"}
    order_corpus(tmp_path / "in.parquet", str(tmp_path / "skip"), **settings)
    assert documents_of(tmp_path / "skip") == [(2, 2), (0, 0)]


def test_a_stored_signal_orders_token_ids(tmp_path: Path) -> None:
    table = pa.table({"tokens": [[0, 0], [1, 1]], "compression_ratio": [0.5, 0.25]})
    pq.write_table(table, tmp_path / "in.parquet")
    by = ByField("compression_ratio")
    order_corpus(tmp_path / "in.parquet", str(tmp_path / "out"), by=by, workers=0)
    assert documents_of(tmp_path / "out") == [(1, 1), (0, 0)]


def test_conversations_have_no_signal(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]
    (tmp_path / "in.jsonl").write_text(json.dumps({"messages": turns}) + "\n")
    source = sources.Chat(str(tmp_path / "in.jsonl"))
    with pytest.raises(ConfigError) as caught:
        order_corpus(source, str(tmp_path / "out"), by=ByField("lexical_diversity"), workers=0)
    assert caught.value.setting == "source"


EASY = "The cat sat on the mat. The dog sat on the mat. The cat saw the dog. " * 6
MIDDLE = (
    "The rain fell on the harbour while the boats came in, and the people on the quay watched the "
    "water. Nobody wanted to leave, because the road to the village was under water too. "
) * 2
HARD = (
    "Notwithstanding considerable heterogeneity, epidemiological surveillance demonstrates that "
    "socioeconomic deprivation systematically exacerbates cardiovascular morbidity; interventions "
    "targeting modifiable determinants necessitate interdisciplinary collaboration. Randomised "
    "controlled trials, observational cohorts plus qualitative ethnographies illuminate mechanisms "
    "otherwise obscured by aggregate statistics, although methodological pluralism complicates "
    "quantitative synthesis."
)


@pytest.mark.parametrize(
    ("signal", "descending"),
    [("compression_ratio", False), ("lexical_diversity", False), ("flesch_reading_ease", True)],
)
def test_each_signal_puts_texts_from_easy_to_difficult(
    tmp_path: Path, signal: str, descending: bool
) -> None:
    by = ByField(signal, descending=descending)
    lines = [json.dumps({"text": text}) for text in (HARD, EASY, MIDDLE)]
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    order_corpus(tmp_path / "in.jsonl", str(tmp_path / "out"), by=by, workers=0)
    assert documents_of(tmp_path / "out") == [EASY, MIDDLE, HARD]


def test_one_lane_trains_from_small_values_to_large_ones(corpus: Path, tmp_path: Path) -> None:
    run_job(make_job(corpus, tmp_path / "out", by=ByField("score"), shard_bytes=1000), workers=0)
    dataset = PackedDataset(
        sources.open(tmp_path / "out", reading=sources.ReadOptions(open_shards=1)),
        seq_len=16, batch_size=1, lanes=1, shuffle=False, topology=Topology(),
        window=WindowConfig(rows=3), token_rules=TokenRules(eos="as-is", eos_id=0, pad_id=0),
        provenance=True,
    )  # fmt: skip
    found = []
    for batch in PackedLoader(dataset):
        for place in dataset.locate(batch):
            shard = sorted((tmp_path / "out").glob("*.parquet")).index(Path(place.shard))
            found.append((shard, place.index))
    assert len(found) >= COUNT
    at = [shard * 1000 + document for shard, document in found]
    assert np.corrcoef(at, np.sort(at))[0, 1] > 0.95


@pytest.mark.parametrize(
    ("setting", "by", "settings"),
    [
        ("by", ByField("lexical_diversity"), {}),  # of token ids
        ("embedder", ByField("score"), {"embedder": "bm25"}),
        ("max_similarity", ByField("score"), {"max_similarity": 0.5}),
        ("k", ByField("score"), {"k": 5}),
        ("duplicate_threshold", ByField("score"), {"duplicate_threshold": 0.8}),
        ("search", ByField("score"), {"search": "exact"}),
    ],
)
def test_settings_that_exclude_each_other_are_refused(
    corpus: Path, tmp_path: Path, setting: str, by: ByField, settings: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError) as caught:
        run_job(make_job(corpus, tmp_path / "out", by=by, **settings), workers=0)
    assert caught.value.setting == setting
