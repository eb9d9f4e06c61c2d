"""Documents are taken out of every kind of run: all others come as without that, each once."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from streampack import PackedBatch, PackedDataset, PackedLoader
from tests.run import test_golden_batches as golden

#: Kinds of runs that drop tokens of other documents in other plans, so that sums differ.
DROPPING = ("seamless",)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> golden.Corpus:
    return golden.Corpus(tmp_path_factory.mktemp("corpus"))


def made(kind: str, corpus: golden.Corpus, **settings: Any) -> PackedDataset:
    """The dataset of a kind of run, with further settings."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(golden, "PackedDataset", partial(PackedDataset, **settings))
        return golden.KINDS[kind](corpus).with_provenance()


def tokens_of(dataset: PackedDataset, batches: Iterable[PackedBatch]) -> Counter[str]:
    """Delivered tokens by the place of their document."""
    tokens: Counter[str] = Counter()
    for batch in batches:
        for piece in dataset.locate(batch):
            tokens[str(piece).rpartition(", tokens")[0]] += piece.stop - piece.start
    return tokens


@pytest.mark.sampled(5)
@pytest.mark.parametrize("kind", [kind for kind in golden.KINDS if kind != "list, provenance"])
def test_the_other_documents_come_once_and_those_taken_out_never_again(
    kind: str, corpus: golden.Corpus, tmp_path: Path
) -> None:
    dataset = made(kind, corpus)
    batches = list(PackedLoader(dataset))
    whole = tokens_of(dataset, batches)
    rng = random.Random(kind)
    out = rng.sample(sorted(whole), len(whole) // 5)
    kept = Counter({place: count for place, count in whole.items() if place not in out})
    file = tmp_path / "places.txt"
    file.write_text("\n".join(out) + "\n")
    assert (
        kind in DROPPING
        or tokens_of(dataset, PackedLoader(made(kind, corpus, exclude=file))) == kept
    )

    for cut in sorted(rng.sample(range(1, len(batches)), 2)):
        loader = PackedLoader(dataset)
        before = tokens_of(dataset, islice(loader, cut))
        state = json.loads(json.dumps(loader.state_dict()))
        loader = PackedLoader(made(kind, corpus, exclude=file))
        loader.load_state_dict(state)
        after = tokens_of(dataset, loader)
        assert not after.keys() & set(out)
        both = Counter({place: n for place, n in (before + after).items() if place in kept})
        assert kind in DROPPING or both == kept
