"""Lost tokens are counted in loss tokens too, and logged while a run can be stopped."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from streampack import PackedDataset, PackedLoader, TokenRules, Topology, WindowConfig
from streampack.packers.kinds import packer_kinds, with_rows
from streampack.packing import BestFitCrop, BestFitDecreasing, Packer, Pad, Seamless
from tests.support.memory_source import MemorySource, numbered_documents

LOSING = [
    BestFitDecreasing(seq_len=32, overflow="truncate"),
    BestFitDecreasing(seq_len=32, overflow="drop"),
    Pad(seq_len=32, overflow="truncate"),
    BestFitCrop(seq_len=32),
    Seamless(seq_len=32, extra_capacity=5),
]
KINDS = [with_rows(kind, 32) for kind in packer_kinds().values()]
PACKERS = LOSING + [packer for packer in KINDS if packer not in LOSING]


def corpus(masked: bool) -> tuple[list[Any], list[Any] | None]:
    """Chats: a prompt without loss, then an answer; some are longer than a row by their prompts."""
    rng = np.random.default_rng(3)
    lengths = rng.integers(1, 90, 120).tolist()
    documents = numbered_documents(lengths)
    prompts = rng.integers(0, 40, 120)
    masks = [np.arange(n) >= p for n, p in zip(lengths, prompts, strict=True)]
    return documents, masks if masked else None


def loader(masked: bool, packer: Packer, **options: Any) -> PackedLoader:
    documents, masks = corpus(masked)
    source = MemorySource([documents], None if masks is None else [masks])
    values = {"batch_size": 2, "lanes": 2, "window": WindowConfig(rows=8), "topology": Topology()}
    if packer.inserts_eos:
        values["token_rules"] = TokenRules(eos="as-is", eos_id=9_999_999)
    return PackedLoader(PackedDataset(source, packer=packer, **{**values, **options}))


def expected(masked: bool, placed: set[int]) -> tuple[int, int]:
    """Labels that no row holds, and documents that have none left, token by token."""
    documents, masks = corpus(masked)
    lost = unlearnt = 0
    for i, tokens in enumerate(documents):
        labels = [
            int(token) for k, token in enumerate(tokens) if k and (masks is None or masks[i][k])
        ]
        missing = [label for label in labels if label not in placed]
        lost += len(missing)
        unlearnt += bool(labels) and len(missing) == len(labels)
    return lost, unlearnt


@pytest.mark.sampled("each")
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("packer", PACKERS, ids=repr)
def test_every_loss_token_is_in_a_row_or_counted(packer: Packer, masked: bool) -> None:
    made = loader(masked, packer)
    placed = {
        int(token) for batch in made for token in batch.input_ids[batch.document_ids >= 0].tolist()
    }
    found = made.metrics()
    lost, unlearnt = expected(masked, placed)
    assert found.composition.loss_dropped == lost
    assert lost > 0 or packer not in LOSING
    assert found.composition.documents_unlearnt == unlearnt
    assert found.as_dict()["loss_tokens_dropped"] == lost


@pytest.mark.sampled(2)
@pytest.mark.parametrize("packer", LOSING[:4], ids=repr)
def test_a_resumed_run_counts_the_same_losses(packer: Packer) -> None:
    whole = loader(True, packer)
    list(whole)
    parts, state, total = 0, None, None
    while True:
        part = loader(True, packer)
        if state is not None:
            part.load_state_dict(state)
        taken = [batch for batch, _ in zip(part, range(3), strict=False)]
        total = part.metrics() if total is None else total + part.metrics()
        state, parts = part.state_dict(), parts + 1
        if len(taken) < 3:
            break
    assert parts > 3
    assert total.loss_tokens == whole.metrics().loss_tokens
    assert total.composition.loss_dropped == whole.metrics().composition.loss_dropped
    assert total.composition.documents_unlearnt == whole.metrics().composition.documents_unlearnt


def test_groups_that_are_dropped_count_the_labels_of_their_documents() -> None:
    records = [{"input_ids": [list(range(1, 9)), list(range(1, n))]} for n in (5, 60, 9, 70)]
    packer = BestFitDecreasing(seq_len=32, overflow="drop")
    made = PackedLoader(PackedDataset(records, packer=packer, batch_size=1, topology=Topology()))
    list(made)
    assert made.metrics().composition.loss_dropped == 2 * 7 + 58 + 68
    assert made.metrics().composition.documents_unlearnt == 4


def test_losses_are_logged_after_the_first_window_and_at_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = loader(True, PACKERS[0], lanes=1)
    taken = 0
    with caplog.at_level(logging.WARNING, logger="streampack"):
        for _ in made:
            taken += 1
            if caplog.records:
                break
        assert taken * 2 * 32 == 8 * 32  # a window's slots
        rest = sum(1 for _ in made)
    assert rest
    assert len(caplog.records) == 2
    share = made.metrics().loss_dropped_ratio
    assert f"{share:.1%} of the loss tokens" in caplog.records[-1].getMessage()
    assert share > made.metrics().composition.dropped_ratio
