"""Paths and files as newcomers name them: what is refused, why, and that what is advised works."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streampack import ConfigError, PackedDataset, Topology, sources
from tests.support.corpora import byte_tokenizer

DOCUMENTS = [np.arange(1, n, dtype=np.uint16) for n in (3, 4, 6)]
TEXTS = [f"text {i}" for i in range(20)]
ALONE: dict[str, Any] = {"seq_len": 64, "lanes": 1, "topology": Topology()}


def texts(path: Path, words: list[str] = TEXTS, encoding: str = "utf-8") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = "".join(json.dumps({"text": text}) + "\n" for text in words).encode(encoding)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def dataset(source: Any, **options: Any) -> PackedDataset:
    return PackedDataset(source, tokenizer=byte_tokenizer(), **{**ALONE, **options})


def delivered(source: Any, **options: Any) -> Counter[str]:
    found: Counter[str] = Counter()
    for batch in dataset(source, **options):
        for number in range(batch.num_documents):
            found[batch.decode(number, byte_tokenizer()).removesuffix("<|endoftext|>")] += 1
    return found


def test_a_file_that_is_named_three_times_is_refused_and_the_advice_reads_it_so_often(
    tmp_path: Path,
) -> None:
    path = str(texts(tmp_path / "a.jsonl"))
    other = str(texts(tmp_path / "b.jsonl", ["other"]))
    advice = r'a\.jsonl" is named 3 times\..*epochs.*Mixture'
    for make in (dataset, sources.JSONL, sources.Chat):
        with pytest.raises(ConfigError, match=advice):
            make([path] * 3).prepare() if make is not dataset else make([path] * 3)
    assert delivered(path, epochs=3) == dict.fromkeys(TEXTS, 3)
    mixture = sources.Mixture({"a": path, "b": other}, epochs={"a": 3})
    assert delivered(mixture) == {**dict.fromkeys(TEXTS, 3), "other": 1}


@pytest.mark.parametrize(
    "names",
    [("*.jsonl", "a.jsonl"), ("a.jsonl", "a*"), (".", "a.jsonl"), ("a.jsonl", "{0}/a.jsonl")],
)
def test_a_file_that_two_patterns_find_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, str]
) -> None:
    monkeypatch.chdir(tmp_path)
    texts(tmp_path / "a.jsonl")
    first, second = (name.format(tmp_path) for name in names)
    with pytest.raises(ConfigError) as caught:
        sources.JSONL([first, second]).prepare()
    assert caught.value.path == str(tmp_path / "a.jsonl")
