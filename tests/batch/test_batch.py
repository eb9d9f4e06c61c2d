"""The batch contract: shapes, dtypes, boundaries, labels, and equal losses."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from streampack import PackedBatch, PackedDataset, TokenRules, Topology, WindowConfig
from streampack.errors import ConfigError
from streampack.packing import BestFitDecreasing, Concat, Packer, Pad
from tests.support.drawn import drawn
from tests.support.memory_source import MemorySource
from tests.support.tiny_gpt import TinyGPT, summed_loss

SEQ_LEN = 24
PAD, EOS, VOCAB = 90, 91, 92
PACKERS: list[Packer] = [
    BestFitDecreasing(seq_len=SEQ_LEN),
    Concat(seq_len=SEQ_LEN),
    Pad(seq_len=SEQ_LEN),
]


def random_documents(lengths: list[int], seed: int = 0, dtype: Any = np.uint16) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 90, n).astype(dtype) for n in lengths]


def batches_of(
    documents: list[Any], packer: Packer, masks: Any = None, **options: Any
) -> list[PackedBatch]:
    dataset = PackedDataset(
        MemorySource([documents], None if masks is None else [masks], block_documents=8),
        packer=packer,
        batch_size=options.pop("rows", 2),
        window=WindowConfig(rows=8),
        token_rules=TokenRules(pad_id=PAD, eos_id=EOS),
        lanes=1,
        topology=Topology(),
        provenance=True,
        **options,
    )
    return list(dataset)


def assert_contract(batch: PackedBatch, attention: str) -> None:
    shape = (batch.rows, batch.seq_len)
    slots = batch.rows * batch.seq_len
    for name, dtype in (
        ("input_ids", torch.int64),
        ("labels", torch.int64),
        ("position_ids", torch.int64),
        ("document_ids", torch.int32),
    ):
        tensor = getattr(batch, name)
        assert tensor.shape == shape
        assert tensor.dtype == dtype
        assert tensor.is_contiguous()
    cu_seqlens = batch.cu_seqlens
    assert cu_seqlens.dtype == torch.int32
    assert cu_seqlens[0] == 0
    assert cu_seqlens[-1] == slots
    lengths = cu_seqlens.diff()
    assert (lengths > 0).all()
    assert isinstance(batch.max_seqlen, int)
    assert batch.max_seqlen == lengths.max()
    ids, labels = batch.input_ids.ravel(), batch.labels.ravel()
    documents, positions = batch.document_ids.ravel(), batch.position_ids.ravel()
    real = documents >= 0
    assert batch.num_tokens == real.sum()
    assert (ids[~real] == PAD).all()
    assert sorted(set(documents[real].tolist())) == list(range(batch.num_documents))
    assert batch.num_loss_tokens == (labels != -100).sum()
    squared = 0
    for low, high in zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True):
        assert low // batch.seq_len == (high - 1) // batch.seq_len
        assert positions[low:high].tolist() == list(range(high - low))
        assert labels[low] == -100
        inside = documents[low:high]
        assert len({bool(d >= 0) for d in inside.tolist()}) == 1  # padding is never joined
        if attention == "document":
            assert len(set(inside.tolist())) == 1
        squared += (high - low) ** 2 if inside[0] >= 0 else 0
    assert batch.sum_squared_lengths == squared
    kept = labels != -100
    assert (labels[kept] == ids[kept]).all()
    assert (labels[~real] == -100).all()
    assert batch.source_ids.shape == (batch.num_documents,)
    assert batch.provenance is not None
    assert len(batch.provenance) == batch.num_documents


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=40),
    st.sampled_from(PACKERS),
    st.sampled_from(["document", "row"]),
    st.booleans(),
    st.sampled_from([np.uint16, np.uint32, np.int32]),
)
@drawn(60)
def test_every_batch_keeps_the_contract(
    lengths: list[int], packer: Packer, attention: Any, masked: bool, dtype: Any
) -> None:
    documents = random_documents(lengths, dtype=dtype)
    masks = [tokens % 2 == 0 for tokens in documents] if masked else None
    total = 0
    for batch in batches_of(documents, packer, masks, attention=attention):
        assert_contract(batch, attention)
        total += batch.num_tokens
        provenance = batch.provenance
        assert provenance is not None
        ids, pieces = batch.input_ids.ravel(), batch.document_ids.ravel()
        for number, place in enumerate(provenance):
            expected = documents[place["index"]][place["start"] : place["stop"]]
            found = ids[pieces == number].numpy()
            np.testing.assert_array_equal(found[: len(expected)], expected)
            assert (found[len(expected) :] == EOS).all()
        if masked:
            even = batch.input_ids % 2 == 0
            inserted = batch.input_ids == EOS
            assert ((batch.labels != -100) <= (even | inserted)).all()
    assert total >= sum(lengths)


@pytest.mark.parametrize("attention", ["document", "row"])
@pytest.mark.parametrize("masked", [False, True])
def test_fields_made_by_tensor_operations_equal_the_compiled_ones(
    attention: Any, masked: bool
) -> None:
    documents = random_documents([5, 30, 9, 60, 2, 1, 24, 17])
    masks = [tokens % 2 == 0 for tokens in documents] if masked else None
    for batch in batches_of(documents, Pad(seq_len=SEQ_LEN), masks, attention=attention):
        moved = batch._moved(lambda buffer: buffer.clone())
        for name in ("input_ids", "labels", "position_ids", "document_ids"):
            assert torch.equal(getattr(moved, name), getattr(batch, name))


def test_row_attention_gives_the_loss_and_gradients_of_causal_rows() -> None:
    documents = random_documents([5, 23, 9, 40, 2, 13, 24, 17, 8])
    ours = TinyGPT(VOCAB)
    theirs = copy.deepcopy(ours)
    for batch in batches_of(documents, Concat(seq_len=SEQ_LEN), attention="row"):
        logits = ours(batch.input_ids.ravel(), batch.position_ids.ravel(), batch.cu_seqlens)
        packed = summed_loss(logits, batch.labels.ravel())
        rows = torch.zeros((), dtype=torch.float64)
        for row, pieces in zip(batch.input_ids, batch.document_ids, strict=True):
            ids = row[pieces >= 0]
            if len(ids):
                whole = torch.tensor([0, len(ids)], dtype=torch.int32)
                rows = rows + summed_loss(theirs(ids, torch.arange(len(ids)), whole), ids)
        torch.testing.assert_close(packed, rows, rtol=1e-12, atol=1e-12)
        packed.backward()
        rows.backward()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-9, atol=1e-11)


def test_hf_gives_flat_tensors_and_host_integers_and_no_mask() -> None:
    batch = batches_of(random_documents([5, 30, 9]), PACKERS[0])[0]
    kwargs = batch.hf()
    slots = batch.rows * batch.seq_len
    for name in ("input_ids", "position_ids", "labels"):
        assert kwargs[name].shape == (1, slots)
        assert kwargs[name].dtype == torch.int64
    for name in ("cu_seq_lens_q", "cu_seq_lens_k"):
        assert kwargs[name].dtype == torch.int32
    assert type(kwargs["max_length_q"]) is int
    assert type(kwargs["max_length_k"]) is int
    assert set(kwargs) == {
        "input_ids", "position_ids", "labels",
        "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "use_cache",
    }  # fmt: skip


def test_varlen_names_match_the_installed_torch() -> None:
    import inspect

    varlen = pytest.importorskip("torch.nn.attention.varlen", reason="torch has no varlen_attn")
    batch = batches_of(random_documents([5, 30, 9]), PACKERS[0])[0]
    accepted = inspect.signature(varlen.varlen_attn).parameters
    assert set(batch.varlen("torch")) <= set(accepted)
    assert set(batch.varlen()) == {
        "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k",
    }  # fmt: skip
    with pytest.raises(ConfigError):
        batch.varlen("other")  # type: ignore[arg-type]


def test_a_batch_survives_pickling_with_its_state() -> None:
    for batch in batches_of(random_documents([5, 30, 9, 7, 7]), PACKERS[0]):
        again = pickle.loads(pickle.dumps(batch))
        assert again.state == batch.state
        assert (again.lane, again.step, repr(again)) == (batch.lane, batch.step, repr(batch))
        for name in ("input_ids", "labels", "cu_seqlens", "document_ids"):
            assert torch.equal(getattr(again, name), getattr(batch, name))
