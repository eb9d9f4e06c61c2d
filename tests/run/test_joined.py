"""A run that began with one source goes on with others that join it, every document once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from streampack import PackedDataset, PackedLoader, Topology, WindowConfig, sources
from streampack.errors import StateError
from tests.support.corpora import byte_tokenizer
from tests.support.forged import sign
from tests.support.memory_source import MemorySource
from tests.support.runs import identities, in_order
from tests.support.simulated_ranks import on_ranks

rng = np.random.default_rng(0)


def numbered(first: int, count: int) -> MemorySource:
    """Documents of consecutive numbers, in shards of ten."""
    lengths = rng.integers(1, 40, count)
    ends = first + np.cumsum(lengths)
    documents = [np.arange(e - n, e, dtype=np.uint32) for n, e in zip(lengths, ends, strict=True)]
    shards = [documents[i : i + 10] for i in range(0, count, 10)]
    return MemorySource(shards, block_documents=7)


def dataset(source: Any, **options: Any) -> PackedDataset:
    values: dict[str, Any] = {"seq_len": 64, "batch_size": 1, "window": WindowConfig(rows=8)}
    return PackedDataset(source, **{**values, "lanes": 2, **options})


def tokens_of(batches: Any) -> list[int]:
    return sorted(
        token for batch in batches for token in batch.input_ids[batch.document_ids >= 0].tolist()
    )


@pytest.mark.parametrize("batches", [1, 2, 9, 60])
@pytest.mark.parametrize("options", [{}, {"lanes": 1}, {"shuffle": False}], ids=str)
def test_a_source_becomes_a_mixture_and_every_token_comes_once(
    batches: int, options: dict[str, Any]
) -> None:
    old, new = numbered(0, 300), numbered(100_000, 200)
    begun = PackedLoader(dataset(old, **options))
    found = [batch for _, batch in zip(range(batches), begun, strict=False)]
    state = json.dumps(begun.state_dict())

    def grown() -> PackedLoader:
        mixture = sources.Mixture({"old": old, "new": new}, weights={"old": 1, "new": 2})
        return PackedLoader(dataset(mixture, **options))

    with pytest.raises(StateError, match=r'pass allow=\{"source"\}'):
        grown().load_state_dict(json.loads(state))
    loader = grown()
    loader.load_state_dict(json.loads(state), allow={"source"})
    rest, states = [], []
    for batch in loader:
        rest.append(batch)
        states.append(json.dumps(loader.state_dict()))
    everything = [*tokens_of(PackedLoader(dataset(old))), *tokens_of(PackedLoader(dataset(new)))]
    assert tokens_of([*found, *rest]) == everything
    assert {number for batch in rest[:20] for number in batch.source_ids.tolist()} == {0, 1}
    for i in (0, 7, len(states) - 1):  # without naming the change again
        again = grown()
        again.load_state_dict(json.loads(states[i]))
        for batch, expected in zip(again, rest[i + 1 :], strict=True):
            assert batch.input_ids.equal(expected.input_ids)


def test_other_ranks_and_workers_go_on_with_the_mixture() -> None:
    old, new = numbered(0, 300), numbered(100_000, 200)
    begun = PackedLoader(dataset(old, lanes=4))
    found = [batch for _, batch in zip(range(10), begun, strict=False)]
    state = json.dumps(begun.state_dict())

    def rest(topology: Topology, workers: int = 0, member: Any = None) -> list[Any]:
        mixture = sources.Mixture({"old": old, "new": new}, weights={"old": 1, "new": 2})
        made = dataset(mixture, lanes=4, topology=topology)
        loader = PackedLoader(made, num_workers=workers, ranks=member)
        loader.load_state_dict(json.loads(state), allow={"source"})
        return list(loader)

    alone = rest(Topology(0, 1), workers=2)
    everything = [*tokens_of(PackedLoader(dataset(old))), *tokens_of(PackedLoader(dataset(new)))]
    assert tokens_of([*found, *alone]) == everything
    ranks = on_ranks(2, lambda rank, member: rest(Topology(rank, 2), member=member))
    assert identities(in_order(ranks)) == identities(alone)


@pytest.mark.parametrize("dealing", [3, "x", {"lines": {}}, {"lines": {"": [1], "b": [1]}}])
def test_forged_dealing_of_a_run_that_is_joined_is_refused(dealing: Any) -> None:
    old, new = numbered(0, 300), numbered(100_000, 200)
    state = PackedLoader(dataset(old)).state_dict()
    state["fingerprint"]["dealing"] = dealing
    mixture = sources.Mixture({"old": old, "new": new}, weights={"old": 1, "new": 2})
    with pytest.raises(StateError, match="not what streampack saved"):
        dataset(mixture).load_state_dict(sign(state), allow={"source"})


def texts(path: Path, first: int, count: int) -> list[str]:
    written = [f"document {n} {'x' * (n % 50)}" for n in range(first, first + count)]
    lines = [json.dumps({"text": text}) if n != 5 else "{" for n, text in enumerate(written)]
    path.write_text("".join(line + "\n" for line in lines))
    return [text for n, text in enumerate(written) if n != 5]


def test_added_files_join_a_run_of_text_as_its_errors_say(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    expected = texts(tmp_path / "a.jsonl", 0, 200) + texts(tmp_path / "b.jsonl", 200, 200)

    def loader(source: Any) -> PackedLoader:
        made = dataset(source, tokenizer=tokenizer, on_error="skip", seq_len=128)
        return PackedLoader(made)

    def words(batches: Any) -> list[str]:
        found = []
        for batch in batches:
            ids, numbers = batch.input_ids.flatten(), batch.document_ids.flatten()
            found += [
                tokenizer.decode(ids[numbers == n].tolist()) for n in range(batch.num_documents)
            ]
        return sorted(found)

    begun = loader(tmp_path)
    found = [batch for _, batch in zip(range(12), begun, strict=False)]
    state = begun.state_dict()
    old = sorted(map(str, tmp_path.iterdir()))
    expected += texts(tmp_path / "0-new.jsonl", 1000, 100)
    for allow in ((), {"source"}):
        with pytest.raises(StateError, match="files that it had") as raised:
            loader(tmp_path).load_state_dict(state, allow=allow)
        assert "Mixture" in raised.value.remedy
    same = loader(old)  # the first advice
    same.load_state_dict(state)
    assert len(words([*found, *same])) == 398
    mixture = sources.Mixture(  # the other one
        {"before": old, "added": tmp_path / "0-new.jsonl"}, weights={"before": 2, "added": 1}
    )
    joined = loader(mixture)
    joined.load_state_dict(state, allow={"source"})
    whole = loader(pa.table({"text": expected}))
    assert words([*found, *joined]) == words(whole)
