"""Saving after every batch and restoring the states: the run continues as if it had not stopped."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from streampack import PackedDataset, PackedLoader, TokenRules, Topology, WindowConfig
from streampack.packing import Packer
from tests.support.chats import CHATML, with_template
from tests.support.corpora import byte_tokenizer
from tests.support.drawn import sampled

WHOLE = 20  # of one state in so many, all that follows is read


def assert_restores_everywhere(make: Callable[[], PackedDataset], **options: Any) -> None:
    """Save after every batch, through JSON; restore states and compare the batches after each.

    A restored run is compared, batch by batch and state by state, until each lane has planned its
    next round. By then its state is one that the first run has saved, and the batches after that
    state are compared by themselves. For one state in twenty all batches are compared, so that a
    run which remembers more than its state holds is found too. The gate restores a tenth of the
    states, the night all (the marker `sampled`).

    Args:
        make: returns the dataset, the same at each call.
        options: options of the loaders.
    """
    loader = PackedLoader(make(), **options)
    batches, states = [], []
    for batch in loader:
        batches.append(_contents(batch))
        states.append(json.loads(json.dumps(loader.state_dict())))
    assert len(batches) > 5
    last = _rounds(states[-1])
    for number, (i, state) in enumerate(sampled(enumerate(states), part=1 / 10)):
        restored = PackedLoader(make(), **options)
        restored.load_state_dict(state)
        at, saved = i, _rounds(state)
        for batch in restored:
            at += 1
            assert _contents(batch) == batches[at]
            now = json.loads(json.dumps(restored.state_dict()))
            assert now == states[at]
            planned = [
                reached in (last[lane],) or reached > saved[lane]
                for lane, reached in _rounds(now).items()
            ]
            if number % WHOLE and all(planned):
                break
        else:
            assert at == len(batches) - 1


def _contents(batch: Any) -> tuple[Any, ...]:
    tensors = (batch.input_ids, batch.labels, batch.cu_seqlens)
    return (batch.lane, batch.step, *(tensor.numpy().tobytes() for tensor in tensors))


def _rounds(state: dict[str, Any]) -> dict[str, int]:
    return {lane: each["round"] if each else -1 for lane, each in state["lanes"].items()}


def maker(
    source: Any, packer: Packer, batch_size: int = 2, **options: Any
) -> Callable[[], PackedDataset]:
    """Return a function that makes the same dataset at each call."""
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
