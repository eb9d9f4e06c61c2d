"""Saving after every batch and restoring each: what follows is the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from streampack import PackedDataset, PackedLoader, TokenRules, Topology, WindowConfig
from streampack.packing import Packer
from tests.support.chats import CHATML, with_template
from tests.support.corpora import byte_tokenizer


def assert_restores_everywhere(make: Callable[[], PackedDataset], **options: Any) -> None:
    """Save after every batch, through JSON; restore each and compare all that follows.

    Of three states in four only as far as the third batch, if the state there is what it was in the
    first run: then what follows is what follows that state, which is compared by itself.

    Args:
        make: the dataset, again and again; options: of the loaders.
    """
    loader = PackedLoader(make(), **options)
    batches, states = [], []
    for batch in loader:
        batches.append((batch.lane, batch.step, batch.input_ids, batch.labels, batch.cu_seqlens))
        states.append(json.dumps(loader.state_dict()))
    assert len(batches) > 5
    for i, state in enumerate(states):
        again = PackedLoader(make(), **options)
        again.load_state_dict(json.loads(state))
        at = i
        for batch in again:
            at += 1
            lane, step, ids, labels, cu_seqlens = batches[at]
            assert (batch.lane, batch.step) == (lane, step)
            assert batch.input_ids.equal(ids)
            assert batch.labels.equal(labels)
            assert batch.cu_seqlens.equal(cu_seqlens)
            if i % 4 and at == i + 3 and json.dumps(again.state_dict()) == states[at]:
                break
        else:
            assert at == len(batches) - 1


def maker(
    source: Any, packer: Packer, batch_size: int = 2, **options: Any
) -> Callable[[], PackedDataset]:
    """Makes the same dataset again and again."""
    source.prepare()
    tokenizer = with_template(byte_tokenizer(), CHATML)

    def make() -> PackedDataset:
        return PackedDataset(
            source,
            packer=packer,
            batch_size=batch_size,
            window=WindowConfig(rows=6),
            tokenizer=None if source.tokenized else tokenizer,
            token_rules=TokenRules(eos_id=256 if source.tokenized else None, vocab_size=2000),
            lanes=source.max_lanes() or 2,
            epochs=1,
            topology=Topology(),
            **options,
        )

    return make
