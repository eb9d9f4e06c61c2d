"""ByField: documents by a field at a pace; signals that rate a text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampack import PackedDataset, PackedLoader, TokenRules, Topology, WindowConfig, sources
from streampack.documents.blocks import Documents
from streampack.errors import ConfigError
from streampack.ordering import ByField, GroupBy
from streampack.ordering.signals import (
    compression_ratio,
    flesch_reading_ease,
    lexical_diversity,
)
from tests.support.restoring import assert_restores_everywhere


def documents_of(values: Any) -> Documents:
    block = Documents.from_arrays([np.full(3, i, dtype=np.uint32) for i in range(len(values))])
    return replace(block, document_fields={"score": np.asarray(values)})


def order_of(values: Any, **settings: Any) -> list[int]:
    order, dropped = ByField("score", **settings).order(documents_of(values), seed=3)
    assert dropped.tolist() == []
    return order.tolist()


numbers = st.one_of(
    st.lists(st.integers(-3, 3), min_size=1),
    st.lists(st.floats(allow_nan=False, width=32), min_size=1),
    st.lists(st.sampled_from([-(2**63), 2**63 - 1, 0]), min_size=1),
)


@given(numbers)
def test_ascending_and_descending_keep_the_order_of_arrival_among_equals(values: list[Any]) -> None:
    places = range(len(values))
    assert order_of(values) == sorted(places, key=lambda i: values[i])
    assert order_of(values, descending=True) == sorted(
        places, key=lambda i: values[i], reverse=True
    ) or order_of(values, descending=True) == sorted(places, key=lambda i: (-values[i], i))


def test_documents_without_a_value_come_last_in_either_direction() -> None:
    values = [np.nan, 2.0, 1.0, np.nan, 3.0]
    assert order_of(values) == [2, 1, 4, 0, 3]
    assert order_of(values, descending=True) == [4, 1, 2, 0, 3]


@given(st.permutations(range(23)), st.integers(1, 30))
def test_each_pass_of_an_interleaved_order_goes_from_easy_to_difficult(
    values: list[int], groups: int
) -> None:
    got = [values[i] for i in order_of(values, pace="interleaved", groups=groups)]
    expected = [value for start in range(groups) for value in range(start, 23, groups)]
    assert got == expected


@given(st.permutations(range(24)), st.sampled_from([1, 2, 3, 4, 6, 12, 24]))
def test_quantiles_follow_one_another(values: list[int], groups: int) -> None:
    got = [values[i] for i in order_of(values, pace="quantiles", groups=groups)]
    size = 24 // groups
    for start in range(0, 24, size):
        assert sorted(got[start : start + size]) == list(range(start, start + size))


@pytest.mark.parametrize(
    ("arguments", "setting"),
    [
        ({"name": ""}, "name"),
        ({"name": "score", "pace": "random"}, "pace"),
        ({"name": "score", "groups": 0}, "groups"),
        ({"name": "score", "order_window_documents": 0}, "order_window_documents"),
    ],
)
def test_a_wrong_setting_is_named(arguments: dict[str, Any], setting: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ByField(**arguments)
    assert caught.value.setting == setting


def corpus(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    scores = rng.permutation(400).astype(np.float32)
    ids = [[int(score) + 1] * int(rng.integers(4, 20)) for score in scores]
    path = folder / "corpus.parquet"
    pq.write_table(pa.table({"tokens": ids, "score": scores}), path, row_group_size=50)
    return path


def make(path: Path, **settings: Any) -> PackedDataset:
    return PackedDataset(
        sources.Parquet(path, tokens="tokens"), seq_len=64, batch_size=1, lanes=1,
        topology=Topology(), window=WindowConfig(rows=8),
        order=ByField("score", **settings), document_fields={"score": "float32"},
        token_rules=TokenRules(eos_id=9000, pad_id=9001),
    )  # fmt: skip


@pytest.mark.sampled(1)
@pytest.mark.parametrize("pace", ["ascending", "interleaved", "quantiles"])
def test_a_run_in_the_order_of_a_field_is_restored_everywhere(tmp_path: Path, pace: Any) -> None:
    path = corpus(tmp_path)
    assert_restores_everywhere(lambda: make(path, pace=pace, order_window_documents=150))


def test_a_toy_corpus_is_trained_on_from_easy_to_difficult_with_the_usual_packer(
    tmp_path: Path,
) -> None:
    rows = [
        batch.input_ids[batch.document_ids >= 0] for batch in PackedLoader(make(corpus(tmp_path)))
    ]
    means = np.array([row.double().mean().item() for row in rows])
    ranks = means.argsort().argsort()
    assert np.corrcoef(ranks, np.arange(len(means)))[0, 1] > 0.9
    assert sorted({int(i) for row in rows for i in row} - {9000}) == list(range(1, 401))


def test_a_run_without_the_field_names_the_setting_to_add(tmp_path: Path) -> None:
    dataset = PackedDataset(
        sources.Parquet(corpus(tmp_path), tokens="tokens"), seq_len=64, order=ByField("score")
    )
    with pytest.raises(ConfigError) as caught:
        next(iter(PackedLoader(dataset)))
    assert caught.value.setting == "document_fields"


@pytest.mark.parametrize("order", [ByField("score"), GroupBy("score")], ids=["by field", "groups"])
def test_a_worker_orders_by_a_field_as_the_loop_does(tmp_path: Path, order: Any) -> None:
    dataset = PackedDataset(
        sources.Parquet(corpus(tmp_path), tokens="tokens"), seq_len=64, order=order,
        document_fields={"score": "float32"}, attention="row", topology=Topology(),
    )  # fmt: skip
    ids = [[batch.input_ids for batch in PackedLoader(dataset, num_workers=n)] for n in (0, 1)]
    assert len(ids[0]) > 1
    assert all(a.equal(b) for a, b in zip(*ids, strict=True))


# ------------------------------------------------------------------ signals


def mtld_by_hand(words: list[str]) -> float:
    """McCarthy and Jarvis: cut where the ratio falls to 0.72; the last part counts in part."""
    factors, start = 0.0, 0
    for end in range(1, len(words) + 1):
        part = words[start:end]
        if len(set(part)) / len(part) <= 0.72:
            factors, start = factors + 1, end
    if rest := words[start:]:
        factors += (1 - len(set(rest)) / len(rest)) / (1 - 0.72)
    return len(words) / factors if factors else float(len(words))


@given(st.lists(st.sampled_from(["the", "cat", "saw", "a", "dog", "and", "ran"]), min_size=1))
def test_lexical_diversity_is_the_mean_of_both_directions(words: list[str]) -> None:
    expected = (mtld_by_hand(words) + mtld_by_hand(words[::-1])) / 2
    assert lexical_diversity(" ".join(words).upper()) == pytest.approx(expected)


def test_signals_agree_on_which_text_is_harder() -> None:
    easy = "The cat sat on the mat. The dog sat on the mat. The cat saw the dog. " * 6
    hard = (
        "Notwithstanding considerable heterogeneity, epidemiological surveillance demonstrates "
        "that socioeconomic deprivation systematically exacerbates cardiovascular morbidity; "
        "interventions targeting modifiable determinants therefore necessitate interdisciplinary "
        "collaboration, longitudinal evaluation and sustained institutional commitment."
    )
    assert compression_ratio(easy) < compression_ratio(hard)
    assert lexical_diversity(easy) < lexical_diversity(hard)
    assert flesch_reading_ease(easy) > 90 > 10 > flesch_reading_ease(hard)


def test_flesch_of_a_sentence_counted_by_hand() -> None:
    # 6 words, 1 sentence, 7 syllables
    got = flesch_reading_ease("The cat sat on the table.")
    assert got == pytest.approx(206.835 - 1.015 * 6 - 84.6 * 7 / 6)


@pytest.mark.parametrize("text", ["", " ", "...", "\ud800", "中文沒有空格", "'"])
def test_signals_take_any_text(text: str) -> None:
    for signal in (compression_ratio, lexical_diversity, flesch_reading_ease):
        assert np.isfinite(signal(text))
