"""Trees of conversations: turns trained one by one, and preference pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from streampack import PackedDataset, PackedLoader, Topology, sources
from tests.support.chats import CHATML, messages, write_lines
from tests.support.corpora import byte_tokenizer


def learnt(batch: Any, number: int) -> bytes:
    """The text of a sequence that carries loss."""
    own = (batch.sequence_ids == number) & batch.loss_mask
    ids = batch.input_ids.view(-1)[batch.slot[own]].tolist()
    return bytes(byte_tokenizer().decode(ids), "utf-8")


def loader_of(source: Any, layout: Any, **options: Any) -> PackedLoader:
    rules: dict[str, Any] = {"lanes": 1, "layout": layout, "topology": Topology(), **options}
    made = PackedDataset(source, seq_len=512, batch_size=1, tokenizer=byte_tokenizer(), **rules)
    return PackedLoader(made)


@pytest.mark.parametrize("pairs", [True, False])
def test_conversations_share_common_turns_and_learn_as_they_do_apart(
    pairs: bool, tmp_path: Path
) -> None:
    options: dict[str, Any] = {}
    settings: dict[str, Any] = {"template": CHATML}
    if pairs:
        options = {"document_fields": {"chosen": "bool"}}
        records: list[Any] = [
            {
                "prompt": messages(f"question {i}"),
                "chosen": [{"role": "assistant", "content": f"good {i}"}],
                "rejected": [{"role": "assistant", "content": "worse"}],
            }
            for i in range(12)
        ]
    else:
        settings["turns"] = "each"
        records = [
            {"messages": messages(f"a{i}", "first", "b", "second", "c", "third")} for i in range(12)
        ]
    source = sources.Chat(write_lines(tmp_path / "a.jsonl", records), **settings)
    tree, apart = (loader_of(source, layout, **options) for layout in ("tree", "documents"))
    batches = list(tree)
    count = sum(batch.num_documents for batch in batches)
    assert count == (24 if pairs else 36)
    texts = [learnt(batch, n) for batch in batches for n in range(batch.num_documents)]
    if pairs:
        for batch in batches:
            chosen, rejected = batch.pairs()
            assert all(b"good" in learnt(batch, n) for n in chosen.tolist())
            assert all(b"worse" in learnt(batch, n) for n in rejected.tolist())
    else:
        assert [sum(word in text for text in texts) for word in (b"first", b"third")] == [12, 12]
    rows = list(apart)
    assert sum(b.num_loss_tokens for b in batches) == sum(b.num_loss_tokens for b in rows)
    metrics = tree.metrics()
    assert metrics.tokens + metrics.shared_tokens == apart.metrics().tokens
    assert metrics.shared_tokens > metrics.tokens / 4
