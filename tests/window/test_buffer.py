"""The buffer against lists of documents, whatever comes and goes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streampack.documents.blocks import Documents, make_origin, offsets_of
from streampack.window.buffer import TokenBuffer

ROUND = 3
SERIALS = np.arange(1000) * 3


def block(rng: np.random.Generator, lengths: list[int], wide: bool, masked: bool) -> Documents:
    """Documents that lie somewhere inside a larger array."""
    offsets = offsets_of(np.array(lengths, dtype=np.int64)) + int(rng.integers(3))
    count = int(offsets[-1]) + int(rng.integers(3))
    tokens = rng.integers(0, 60_000, count).astype(np.uint32 if wide else np.uint16)
    mask = rng.integers(0, 2, count).astype(np.bool_) if masked else None
    return Documents(tokens, offsets, make_origin(7, rng.integers(0, 1 << 40, len(lengths))), mask)


def piece(documents: Documents, i: int, start: int, stop: int) -> tuple[list[int], list[bool]]:
    """Ids and mask of tokens [start, stop) of a document."""
    low, high = documents.offsets[i] + start, documents.offsets[i] + stop
    mask = documents.loss_mask
    ids = documents.tokens[low:high].tolist()
    return ids, [True] * len(ids) if mask is None else mask[low:high].tolist()


def held_by(buffer: TokenBuffer) -> list[tuple[list[int], list[bool]]]:
    ends = np.cumsum(buffer.entries.held).tolist()
    found = []
    for low, high in zip([0, *ends], ends, strict=False):
        ids = buffer.tokens[low:high].tolist()
        mask = buffer.loss_mask
        found.append((ids, [True] * len(ids) if mask is None else mask[low:high].tolist()))
    return found


@given(st.data(), st.integers(0, 1 << 30))
def test_a_buffer_equals_lists_and_earlier_entries_stay_unchanged(
    data: st.DataObject, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    buffer = TokenBuffer(64)
    model: list[tuple[list[int], list[bool]]] = []
    shown = []
    last: tuple[Documents, int, int] | None = None  # block, document, how much of it is held
    for _ in range(data.draw(st.integers(1, 6))):
        entries = buffer.entries
        shown.append((entries, entries.numbers.copy(), entries.origin.copy()))
        action = data.draw(st.sampled_from(["append", "extend", "keep", "restore"]))
        if action == "keep":
            count = len(model)
            kept = np.flatnonzero(rng.integers(0, 2, count))
            held = entries.held
            moved = rng.integers(0, held[kept]) if len(kept) else kept
            position = offsets_of(held)
            buffer.keep(kept, moved, np.zeros_like(kept), position)
            model = [
                (model[d][0][m:], model[d][1][m:])
                for d, m in zip(kept.tolist(), moved.tolist(), strict=True)
            ]
            assert (buffer.entries.start == entries.start[kept] + moved).all()
            assert (buffer.entries.serial == entries.serial[kept]).all()
            assert (buffer.entries.origin == entries.origin[kept]).all()
            if count - 1 not in kept:
                last = None
        elif action == "extend" and last is not None:
            documents, i, done = last
            more = int(documents.lengths[i]) - done
            buffer.extend_last(documents, int(documents.offsets[i]) + done, more, round=ROUND + 1)
            ids, mask = piece(documents, i, done, done + more)
            model[-1] = (model[-1][0] + ids, model[-1][1] + mask)
            assert buffer.entries.arrived[-1] == ROUND + 1
            last = (documents, i, done + more)
        else:
            lengths = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=150))
            documents = block(rng, lengths, data.draw(st.booleans()), data.draw(st.booleans()))
            first = int(rng.integers(len(lengths)))
            held = documents.lengths[first:].copy()
            held[-1] = rng.integers(1, held[-1] + 1)
            if action == "restore" and len(entries):
                source = TokenBuffer(8)
                source.append(documents, first, held, SERIALS, ROUND)
                buffer.restore(documents[first:], source.entries)
            else:
                buffer.append(documents, first, held, SERIALS, ROUND)
            new = buffer.entries.pick(slice(len(model), None))
            assert (new.origin == documents.origin[first:]).all()
            assert (new.length == documents.lengths[first:]).all()
            model += [piece(documents, first + k, 0, n) for k, n in enumerate(held.tolist())]
            last = (documents, len(lengths) - 1, int(held[-1]))
        assert held_by(buffer) == model
        assert buffer.used == sum(len(ids) for ids, _ in model)
    for view, numbers, origin in shown:
        assert (view.numbers == numbers).all()
        assert (view.origin == origin).all()
