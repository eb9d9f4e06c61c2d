"""Every answer of docs/faq.md is true: each question has a claim here that is tried."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streampack import (
    Concat,
    ConfigError,
    PackedBatch,
    PackedDataset,
    PackedLoader,
    SimulatedRanks,
    StateError,
    Topology,
    sources,
)
from tests.support.chats import write_lines
from tests.support.corpora import byte_tokenizer

FAQ = Path(__file__).parent.parent / "docs" / "faq.md"
DOCUMENTS = [[n % 250 + 1] * (n * 7 % 29 + 1) for n in range(200)]
LONGEST = 24


def loader_of(
    folder: Path,
    *,
    workers: int = 0,
    rank: int = 0,
    ranks: int = 1,
    agreeing: Any = None,
    **settings: Any,
) -> PackedLoader:
    file = folder / "documents.jsonl"
    if not file.exists():
        write_lines(file, [{"input_ids": document} for document in DOCUMENTS])
    given: dict[str, Any] = {"seq_len": 32, "batch_size": 2, "lanes": 2, **settings}
    source = sources.JSONL(str(file), tokens="input_ids")
    dataset = PackedDataset(source, topology=Topology(rank, ranks), **given)
    return PackedLoader(dataset, num_workers=workers, ranks=agreeing)


def pieces(batches: list[PackedBatch]) -> list[list[int]]:
    """The ids of every piece of a document."""
    return [
        batch.input_ids[batch.document_ids == number].tolist()
        for batch in batches
        for number in range(batch.num_documents)
    ]


def padding(batch: PackedBatch) -> set[int]:
    """The slots at which padding begins."""
    free = (batch.document_ids.flatten() < 0).tolist()
    return {i for i, is_free in enumerate(free) if is_free and not free[i - 1]}


def texts_are_tokenized_on_the_way(folder: Path) -> None:
    file = folder / "texts.jsonl"
    file.write_text('{"text": "one"}\n{"text": "two"}\n')
    dataset = PackedDataset(str(file), seq_len=16, tokenizer=byte_tokenizer())
    (batch,) = PackedLoader(dataset)
    assert {batch.decode(n, byte_tokenizer()) for n in range(2)} == {
        "one<|endoftext|>",
        "two<|endoftext|>",
    }


def only_long_documents_are_cut(folder: Path) -> None:
    assert sorted(pieces(list(loader_of(folder)))) == sorted(DOCUMENTS)
    shorter = list(loader_of(folder, seq_len=LONGEST))
    cut = [document for document in DOCUMENTS if len(document) > LONGEST]
    assert cut
    found = pieces(shorter)
    assert all(document in found for document in DOCUMENTS if document not in cut)
    assert sum(map(len, found)) == sum(map(len, DOCUMENTS))
    assert len(pieces(list(loader_of(folder, seq_len=None, packer=Concat(seq_len=32))))) > len(
        DOCUMENTS
    )


def documents_are_apart(folder: Path) -> None:
    batch = next(iter(loader_of(folder)))
    starts = set(batch.cu_seqlens.tolist())
    flat = batch.document_ids.flatten().tolist()
    changes = {i for i in range(1, len(flat)) if flat[i] != flat[i - 1]}
    assert changes <= starts
    assert all(batch.position_ids.flatten()[i] == 0 for i in changes)
    joined = next(iter(loader_of(folder, attention="row")))
    assert joined.input_ids.tolist() == batch.input_ids.tolist()
    assert not changes <= {32} | padding(joined)
    assert set(joined.cu_seqlens.tolist()) & changes <= {32} | padding(joined)


def every_token_is_delivered_once(folder: Path) -> None:
    ranks = [loader_of(folder, rank=rank, ranks=2) for rank in range(2)]
    found = [piece for loader in ranks for piece in pieces(list(loader))]
    assert sorted(found) == sorted(DOCUMENTS)


def the_order_is_the_same(folder: Path) -> None:
    alone = [batch.input_ids.tolist() for batch in loader_of(folder)]
    assert [batch.input_ids.tolist() for batch in loader_of(folder, workers=2)] == alone
    simulated = SimulatedRanks(2)

    def batches_of(rank: int) -> list[Any]:
        loader = loader_of(folder, rank=rank, ranks=2, agreeing=simulated[rank])
        return [batch.input_ids.tolist() for batch in loader]

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(batches_of, range(2))
    together = [ids for step in zip(first, second, strict=True) for ids in step]
    assert [ids for ids in together if np.any(ids)] == alone  # without what is padding only


def there_is_an_estimate(folder: Path) -> None:
    loader = loader_of(folder)
    with pytest.raises(TypeError, match="estimate_steps"):
        len(loader)
    estimate = loader.estimate_steps()
    assert estimate is not None
    steps, error = estimate
    assert abs(sum(1 for _ in loader) - steps) <= 3 * error + 2


def epochs_have_orders_of_their_own(folder: Path) -> None:
    found = pieces(list(loader_of(folder, epochs=2, lanes=1)))
    assert sorted(found) == sorted(DOCUMENTS * 2)
    first, second = found[: len(DOCUMENTS)], found[len(DOCUMENTS) :]
    assert first != second
    endless = iter(loader_of(folder, epochs=None))
    assert sum(next(endless).num_tokens for _ in range(300)) > sum(map(len, DOCUMENTS))


def settings_may_change(folder: Path) -> None:
    loader = loader_of(folder)
    next(iter(loader))
    state = loader.state_dict()
    loader_of(folder, seq_len=64).load_state_dict(state, allow={"packer"})
    for allowed in ((), {"seed"}):
        with pytest.raises((StateError, ConfigError), match="seed"):
            loader_of(folder, seed=1).load_state_dict(state, allow=allowed)


def broken_documents_are_named_or_skipped(folder: Path) -> None:
    file = folder / "texts.jsonl"
    file.write_text('{"text": "one"}\n{"text": \n{"text": "two"}\n')
    with pytest.raises(ValueError, match=r"texts\.jsonl"):
        list(PackedLoader(PackedDataset(str(file), seq_len=16, tokenizer=byte_tokenizer())))
    loader = PackedLoader(
        PackedDataset(str(file), seq_len=16, tokenizer=byte_tokenizer(), on_error="skip")
    )
    assert sum(batch.num_documents for batch in loader) == 2
    assert loader.metrics().skipped == 1


def a_state_is_small(folder: Path) -> None:
    loader = loader_of(folder)
    next(iter(loader))
    assert len(json.dumps(loader.state_dict())) < 8_000


def one_process_on_a_cpu_will_do(folder: Path) -> None:
    assert next(iter(loader_of(folder))).device.type == "cpu"


def nothing_is_looked_up(folder: Path) -> None:
    with pytest.raises(ConfigError, match="nothing is downloaded"):
        PackedDataset("HuggingFaceFW/fineweb", seq_len=32)
    with pytest.raises(ConfigError, match="never downloads"):
        PackedDataset(["a", "b"], seq_len=32, tokenizer="openai-community/gpt2")


CLAIMS: dict[str, Callable[[Path], None]] = {
    "Do I have to tokenize beforehand?": texts_are_tokenized_on_the_way,
    "Are documents cut?": only_long_documents_are_cut,
    "Do documents in a row see each other?": documents_are_apart,
    "Is every token delivered exactly once?": every_token_is_delivered_once,
    "Does the order depend on the number of GPUs or workers?": the_order_is_the_same,
    "How long is the loader?": there_is_an_estimate,
    "How do I train for several epochs?": epochs_have_orders_of_their_own,
    "May I change settings in the middle of a run?": settings_may_change,
    "What happens to a broken document?": broken_documents_are_named_or_skipped,
    "How large is a checkpoint?": a_state_is_small,
    "Does it need a GPU, or torch.distributed?": one_process_on_a_cpu_will_do,
    "Does it send or download anything?": nothing_is_looked_up,
}


@pytest.mark.parametrize("question", re.findall(r"^## (.+)$", FAQ.read_text(), re.M))
def test_the_answer_is_true(question: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*address: object) -> None:
        raise AssertionError(f"a connection to {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    CLAIMS[question](tmp_path)
