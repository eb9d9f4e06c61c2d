"""Preference records become pairs of documents that know each other, whatever happens to a run."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streampack import Hook, PackedDataset, PackedLoader, Topology, sources
from streampack.errors import ConfigError, ContentError
from streampack.tokenization import load_tokenizer
from tests.support.chats import CHATML, THINKING, bpe_tokenizer, messages, write_lines
from tests.support.drawn import sampled

BPE = bpe_tokenizer()
FIELDS = {"chosen": "bool", "margin": "float32"}


def pair(i: int, margin: float | None = None) -> dict[str, Any]:
    return {
        "prompt": messages(f"question {i}"),
        "chosen": [{"role": "assistant", "content": f"good {i} " + "word " * (i % 7)}],
        "rejected": [{"role": "assistant", "content": f"bad {i}"}],
        "margin": float(i) if margin is None else margin,
    }


def dataset(source: Any, **settings: Any) -> PackedDataset:
    chosen: dict[str, Any] = {"seq_len": 96, "batch_size": 1, "lanes": 2, "document_fields": FIELDS}
    chosen |= {"tokenizer": load_tokenizer(BPE, eos_id=0), "topology": Topology(), **settings}
    return PackedDataset(source, **chosen)


def sides_of(batch: Any) -> list[tuple[bool, float, str]]:
    """Return side, margin and learnt text of every document of a batch."""
    ids = batch.document_ids[0]
    fields = batch.document_fields
    found = []
    for d in range(batch.num_documents):
        labels = batch.labels[0][ids == d]
        text = BPE.decode(labels[labels != -100].tolist(), skip_special_tokens=False)
        values = [fields[name][d].item() for name in FIELDS]
        found.append((values[0], values[1], text))
    return found


def assert_pairs(documents: list[tuple[bool, float, str]], numbers: set[int]) -> None:
    sides: dict[float, dict[bool, tuple[float, str]]] = defaultdict(dict)
    for chosen, margin, text in documents:
        assert chosen not in sides[margin]
        sides[margin][chosen] = (margin, text)
    found = set()
    for both in sides.values():
        i = int(both[True][0])
        assert both[False] == (i, f"bad {i}<|im_end|>")
        assert both[True][1].startswith(f"good {i} ")
        found.add(i)
    assert found == numbers


def files(form: str, records: list[dict[str, Any]], folder: Path) -> sources.Chat:
    half = len(records) // 2
    for name, part in (("a", records[:half]), ("b", records[half:])):
        if form == "parquet":
            pq.write_table(pa.Table.from_pylist(part), folder / f"{name}.parquet")
        else:
            write_lines(folder / f"{name}.jsonl", part)
    paths = sorted(folder.iterdir())
    return sources.Chat(paths, template=CHATML, reading=sources.ReadOptions(block_documents=5))


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_every_pair_comes_out_whole_with_its_fields(form: str, tmp_path: Path) -> None:
    source = files(form, [pair(i) for i in range(40)], tmp_path)
    documents = [d for batch in PackedLoader(dataset(source)) for d in sides_of(batch)]
    assert len(documents) == 80
    assert_pairs(documents, set(range(40)))


@pytest.mark.sampled
def test_resumed_anywhere_no_side_is_lost_or_repeated(tmp_path: Path) -> None:
    source = files("jsonl", [pair(i) for i in range(24)], tmp_path)
    whole = [sides_of(batch) for batch in PackedLoader(dataset(source))]
    for step in sampled(range(len(whole) + 1)):
        loader = PackedLoader(dataset(source))
        for _ in zip(range(step), loader, strict=False):
            pass
        again = PackedLoader(dataset(source))
        again.load_state_dict(json.loads(json.dumps(loader.state_dict())))
        assert [sides_of(batch) for batch in again] == whole[step:]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "broken",
    [
        {"rejected": [{"role": "assistant", "content": "\ud800"}]},  # cannot be tokenized
        {"margin": float("nan")},
        {"rejected": "text"},
    ],
    ids=["text", "field", "shape"],
)
def test_a_pair_with_one_broken_side_is_skipped_whole_and_once(
    broken: dict[str, Any], tmp_path: Path
) -> None:
    records = [pair(i) for i in range(20)]
    records[7] |= broken
    source = files("jsonl", records, tmp_path)
    with pytest.raises(ContentError):
        list(PackedLoader(dataset(source)))
    loader = PackedLoader(dataset(source, on_error="skip"))
    whole = [sides_of(batch) for batch in loader]
    assert loader.metrics().skipped == 1
    assert_pairs([d for batch in whole for d in batch], set(range(20)) - {7})
    for step in range(0, len(whole), 3):
        first = PackedLoader(dataset(source, on_error="skip"))
        for _ in zip(range(step), first, strict=False):
            pass
        again = PackedLoader(dataset(source, on_error="skip"))
        again.load_state_dict(first.state_dict())
        assert [sides_of(batch) for batch in again] == whole[step:]


def test_plain_pairs_need_no_template(tmp_path: Path) -> None:
    records = [{"prompt": f"{i}:\n", "chosen": "good", "rejected": "bad"} for i in range(5)]
    path = write_lines(tmp_path / "a.jsonl", records)
    fields = {"chosen": "bool"}
    loader = PackedLoader(dataset(sources.Chat(path), document_fields=fields))
    texts = []
    for batch in loader:
        for d in range(batch.num_documents):
            labels = batch.labels[0][batch.document_ids[0] == d]
            texts.append(BPE.decode(labels[labels != -100].tolist(), skip_special_tokens=False))
    assert sorted(texts) == ["bad<|endoftext|>"] * 5 + ["good<|endoftext|>"] * 5


def test_pairs_are_refused_where_nothing_would_tell_the_rejected_and_both_ways_out_work(
    tmp_path: Path,
) -> None:
    source = files("jsonl", [pair(i) for i in range(10)], tmp_path)
    with pytest.raises(ConfigError, match="rejected answer") as raised:
        list(PackedLoader(dataset(source, document_fields=None)))
    remedy = raised.value.remedy
    fields = {"chosen": "bool"}
    assert 'document_fields={"chosen": "bool"}' in remedy
    both = list(PackedLoader(dataset(source, document_fields=fields)))
    assert sum(batch.num_documents for batch in both) == 20
    expression = remedy[remedy.index("documents.") :].removesuffix(".")
    chosen = Hook("chosen", lambda documents, seeds: eval(expression, {"documents": documents}))
    loader = PackedLoader(dataset(source, document_fields=fields, filter=chosen))
    batches = list(loader)
    assert sum(batch.num_documents for batch in batches) == 10
    assert all(batch.document_fields["chosen"].all() for batch in batches)


def test_a_side_with_several_answers_is_one_document_unless_turns_are_split(tmp_path: Path) -> None:
    several = messages("a", "b", "c", "d")
    record = {"prompt": several[:1], "chosen": several[1:], "rejected": several[1:2]}
    path = write_lines(tmp_path / "a.jsonl", [{**record, "margin": 0.0}])
    assert (
        len(sides_of(next(iter(PackedLoader(dataset(sources.Chat(path, template=CHATML))))))) == 2
    )
    split = sources.Chat(path, template=CHATML, turns="each")
    with pytest.raises(ContentError):
        list(PackedLoader(dataset(split)))


def test_the_answers_of_a_pair_are_rendered_as_generated_turn_by_turn(tmp_path: Path) -> None:
    before = messages("a", "<think>hm</think>b", "c")
    record = {
        "prompt": before,
        "chosen": [{"role": "assistant", "content": "<think>1</think>d"}],
        "rejected": [{"role": "assistant", "content": "<think>2</think>e"}],
        "margin": 1.0,
    }
    source = sources.Chat(
        write_lines(tmp_path / "a.jsonl", [record]), template=THINKING, turns="each"
    )
    documents = [d for batch in PackedLoader(dataset(source)) for d in sides_of(batch)]
    assert sorted((chosen, text) for chosen, _, text in documents) == [
        (False, "<think>2</think>e<|im_end|>"),
        (True, "<think>1</think>d<|im_end|>"),
    ]


def test_a_pair_longer_than_a_row_is_dropped_whole_and_counted(tmp_path: Path) -> None:
    records = [pair(i) for i in range(20)]
    records[3]["rejected"][0]["content"] = "bad " * 300
    loader = PackedLoader(dataset(files("jsonl", records, tmp_path)))
    margins = [d[1] for batch in loader for d in sides_of(batch)]
    assert sorted(margins) == sorted([float(i) for i in range(20) if i != 3] * 2)
    assert loader.metrics().composition.dropped > 300
