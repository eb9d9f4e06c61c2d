"""Every form of the batch gives right values for trees, or is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_mask

from streampack import PackedDataset, Topology
from streampack.batch.packed_batch import Form, PackedBatch
from streampack.errors import ConfigError
from streampack.trees.batch import TreeBatch
from tests.support.slices import times_seen
from tests.support.tree_reference import reference

GROUPS = [[[7, 8, 1], [7, 8, 2, 3]], [[4, 5], [4, 5, 6]], [[9, 9, 1], [9, 2]]]
SEQUENCES = [ids for group in GROUPS for ids in group]
SEQ_LEN, VOCABULARY = 8, 10
FORMS = sorted(name for name, value in vars(PackedBatch).items() if isinstance(value, Form))


@cache
def batch() -> Any:
    """Trees in two rows, with a chosen sequence in each."""
    records, name = [], 0
    for number, group in enumerate(GROUPS):
        chosen = [k == number % 2 for k in range(len(group))]
        records.append({"tokens": group, "chosen": chosen, "name": [name, name + 1]})
        name += len(group)
    dataset = PackedDataset(
        records,
        layout="tree",
        document_fields={"chosen": "bool", "name": "int64"},
        seq_len=SEQ_LEN,
        batch_size=2,
        topology=Topology(),
    )
    (made,) = dataset
    assert isinstance(made, TreeBatch)
    assert made.num_documents == len(SEQUENCES)
    return made


def index() -> list[int]:
    """The index of each sequence of the batch."""
    return batch().document_fields["name"].tolist()


def depths_and_mask() -> tuple[Tensor, Tensor]:
    """The position of each slot, and which slots it sees, by the reference."""
    slots = batch().rows * SEQ_LEN
    depth, seen = torch.zeros(slots, dtype=torch.int64), torch.eye(slots, dtype=torch.bool)
    first = 0
    for number, name in enumerate(index()):
        group = next(group for group in GROUPS if SEQUENCES[name] in group)
        _, depths, ends, _ = reference(group)
        here = batch().sequence_ids == number
        first = int(batch().slot[here][0])
        for k, end in enumerate(ends):
            depth[first + k] = depths[k]
            seen[first + k : first + end, first + k] = True
    return depth.view(-1, SEQ_LEN), seen


def by_rows(seen: Tensor) -> Tensor:
    rows = seen.view(batch().rows, SEQ_LEN, batch().rows, SEQ_LEN)
    return torch.stack([rows[row, :, row] for row in range(batch().rows)])[:, None]


def flex() -> None:
    block_mask = batch().flex(block_size=4)
    _, seen = depths_and_mask()
    made = create_mask(block_mask.mask_mod, 1, 1, len(seen), len(seen), device="cpu")
    assert torch.equal(made[0, 0], seen)


def magi() -> None:
    _, seen = depths_and_mask()
    real = ~batch().padding_mask.view(-1)
    assert torch.equal(times_seen(batch().magi(), len(seen))[real], seen.long()[real])


def hf() -> None:
    arguments = batch().hf()
    depth, seen = depths_and_mask()
    assert torch.equal(arguments["position_ids"], depth)
    assert torch.equal(arguments["attention_mask"], by_rows(seen))
    ids = arguments["input_ids"].view(-1)[batch().slot]
    assert ids.tolist() == [token for name in index() for token in SEQUENCES[name]]


def loss() -> None:
    logits = torch.randn(
        batch().rows, SEQ_LEN, VOCABULARY, generator=torch.Generator().manual_seed(1)
    )
    log_probs = logits.view(-1, VOCABULARY).log_softmax(dim=1)
    slots = batch().slot.split([len(SEQUENCES[name]) for name in index()])
    terms = [
        log_probs[own[:-1], torch.tensor(SEQUENCES[name][1:])]
        for own, name in zip(slots, index(), strict=True)
    ]
    torch.testing.assert_close(batch().loss(logits), -torch.cat(terms).mean())


def decode() -> None:
    texts = [batch().decode(number) for number in range(len(SEQUENCES))]
    assert texts == [" ".join(map(str, SEQUENCES[name])) for name in index()]


def show() -> None:
    own = ["7 8 1", "2 3", "4 5", "6", "9 9 1", "2"]  # behind the shared prefix
    lines = [line for line in batch().show().splitlines() if "sequence" in line]
    assert [line.replace("shared,", ":").rpartition(":")[2].strip() for line in lines] == [
        own[name] for name in index()
    ]


def pairs() -> None:
    chosen, rejected = ([index()[piece] for piece in side] for side in batch().pairs())
    assert sorted(zip(chosen, rejected, strict=True)) == [(0, 1), (3, 2), (4, 5)]


def keys() -> None:
    with pytest.raises(TypeError):
        dict(**batch())


#: For each form that trees have, a check of its values.
VALUES: dict[str, Callable[[], None]] = {
    check.__name__: check for check in (decode, flex, hf, keys, loss, magi, pairs, show)
}


@pytest.mark.parametrize("name", FORMS)
def test_a_form_gives_the_values_of_trees_or_is_refused_by_name(name: str) -> None:
    if name in VALUES:
        VALUES[name]()
        return
    with pytest.raises(ConfigError, match=f"`{name}`") as error:
        getattr(batch(), name)
    assert error.value.setting == "layout"
