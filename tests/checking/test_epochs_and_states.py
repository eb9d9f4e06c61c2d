"""Documents twice or missing over an epoch, over ranks and over a resume; states and shapes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset
from transformers import LlamaConfig, LlamaForCausalLM

import streampack
from streampack import CheckReport, marked_documents
from streampack.checking.marked import MarkedDocuments
from streampack.errors import ConfigError
from tests.support.hand_packed import flat, four_dimensions, packed, positions
from tests.support.program import output_of


class Batches:
    """A loader with a position, which a fault may save or restore wrongly."""

    def __init__(self, documents: MarkedDocuments, fault: str = "") -> None:
        self.batches = [positions(batch) for batch in packed(documents)]
        self.at, self.fault, self.passes = 0, fault, 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while self.at < len(self.batches):
            self.at += 1
            yield self.batches[self.at - 1]

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]
        if self.fault == "loses what was fetched ahead":
            self.at += 2
        elif self.fault == "repeats":
            self.at -= 1
        elif self.fault == "shuffles anew":
            order = torch.randperm(len(self.batches) - self.at) + self.at
            self.batches[self.at :] = [self.batches[place] for place in order.tolist()]


@pytest.mark.parametrize(
    ("fault", "kinds"),
    [
        ("", set()),
        ("loses what was fetched ahead", {"documents-missing-over-resume"}),
        ("repeats", {"documents-twice-over-resume"}),
        ("shuffles anew", {"state-does-not-repeat"}),
    ],
)
def test_a_state_that_does_not_continue_is_named(fault: str, kinds: set[str]) -> None:
    report = streampack.check(lambda documents: Batches(documents, fault))
    assert set(report.kinds) == kinds
    assert report.resumed
    assert all(fault.batch >= 3 for fault in report.faults)


def over_epoch(change: Any) -> CheckReport:
    return streampack.check(
        lambda documents: [positions(batch) for batch in packed(documents, change(documents))]
    )


def test_documents_that_come_twice_or_never_are_named_with_their_share() -> None:
    twice = over_epoch(lambda documents: [*range(len(documents)), 7, 9])
    assert twice.kinds == ("documents-twice",)
    assert twice.faults[0].count == 2
    never = over_epoch(lambda documents: range(10, len(documents)))
    assert never.kinds == ("documents-missing",)
    assert never.faults[0].count == 10
    assert never.loss is not None
    assert never.loss.delivered < never.loss.tokens


def test_a_last_batch_that_is_dropped_is_named() -> None:
    def make(documents: MarkedDocuments) -> Any:
        return list(map(flat, packed(documents)))[:-1]

    assert streampack.check(make).kinds == ("documents-missing",)


def test_tokens_lost_where_documents_are_cut_are_named() -> None:
    documents = marked_documents(lengths=[100] * 40)
    ids = torch.tensor([token for ids in documents for token in ids])[: 3999 // 129 * 129].view(
        -1, 129
    )

    def rows(last: int) -> Any:  # of concatenated documents, cut into inputs and targets
        return [(row[None, :128], row[None, 1:last]) for row in ids]

    see = ["documents-see-each-other", "labels-across-borders", "documents-missing"]
    right = streampack.check(rows(129), documents=documents, ignore=see)
    assert right.kinds == ()
    lost = [(row[:, :128], torch.where(y == row[:, 128:], -100, y)) for row, (_, y) in
            zip(ids[:, None], rows(129), strict=True)]  # fmt: skip
    assert streampack.check(lost, documents=documents, ignore=see).kinds == ("tokens-missing",)


def test_truncated_documents_are_a_figure_and_no_fault() -> None:
    documents = marked_documents(lengths=[100] * 40)
    pieces = [{"input_ids": torch.tensor([ids[:80]]), "labels": torch.tensor([ids[:80]])}
              for ids in documents]  # fmt: skip
    report = streampack.check(pieces, documents=documents)
    assert report.kinds == ()
    assert report.loss is not None
    assert report.loss.delivered == 40 * 80
    assert report.loss.learnt == 40 * 79
    assert report.loss.learnable == 40 * 99


def sampled(documents: MarkedDocuments, rank: int, sampler: bool, batch_size: int = 1) -> Any:
    records = [{"input_ids": torch.tensor(ids), "labels": torch.tensor(ids)} for ids in documents]
    over = DistributedSampler(records, num_replicas=2, rank=rank) if sampler else None  # type: ignore[arg-type]
    return DataLoader(records, sampler=over, batch_size=batch_size)  # type: ignore[arg-type]


def test_ranks_that_are_not_divided_are_named() -> None:
    documents = marked_documents(lengths=[32] * 40)

    def check(sampler: bool) -> CheckReport:
        return streampack.check(
            lambda documents, rank, world_size: sampled(documents, rank, sampler),
            documents=documents,
            ranks=2,
        )

    assert check(True).kinds == ()
    assert check(False).kinds == ("documents-on-two-ranks",)


def test_a_sampler_that_fills_up_the_last_step_is_named() -> None:
    documents = marked_documents(lengths=[32] * 41)
    loaders = [sampled(documents, rank, sampler=True) for rank in range(2)]
    report = streampack.check(loaders, documents=documents)
    assert report.kinds == ("documents-on-two-ranks",)
    assert report.faults[0].count == 1


class Stream(IterableDataset[dict[str, Any]]):
    """Documents, all of them in every worker."""

    def __init__(self, documents: MarkedDocuments) -> None:
        self.batches = [positions(batch) for batch in packed(documents)]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.batches)


@pytest.mark.parametrize(("workers", "kinds"), [(1, ()), (2, ("documents-twice",))])
def test_a_stream_that_every_worker_reads_is_named(workers: int, kinds: tuple[str, ...]) -> None:
    report = streampack.check(
        lambda documents: DataLoader(Stream(documents), batch_size=None, num_workers=workers),
        documents=marked_documents(60),
    )
    assert report.kinds == kinds
    assert report.ended


def test_ranks_with_other_shapes_or_numbers_of_batches_are_named() -> None:
    documents = marked_documents(100)
    halves = [[*range(50)], [*range(50, 100)]]
    batches = [[flat(batch) for batch in packed(documents, half)] for half in halves]
    steps = min(map(len, batches))
    even = [rank[:steps] for rank in batches]
    ignore = ["documents-missing"]
    assert streampack.check(even, documents=documents, ignore=ignore).kinds == ()
    longer = [*even[0], *even[0][:1]], even[1]
    report = streampack.check(list(longer), documents=documents, ignore=ignore)
    assert report.kinds == ("steps-differ", "documents-twice")
    wide = [flat(batch) for batch in packed(documents, halves[1], row=256)]
    report = streampack.check([even[0][: len(wide)], wide], documents=documents, ignore=ignore)
    assert "shapes-differ" in report.kinds


def model(documents: MarkedDocuments) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=documents.vocab_size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    return LlamaForCausalLM(config)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_that_ignores_boundaries_is_named(dtype: torch.dtype) -> None:
    documents = marked_documents(30)
    right = [four_dimensions(batch) for batch in packed(documents)]
    llama = model(documents).to(dtype)
    report = streampack.check(right, documents=documents, model=llama)
    assert report.kinds == ()
    assert report.model_checked
    # Only FlashAttention reads cu_seq_lens_q; without positions this model sees one document.
    for batch in right:
        lengths = torch.tensor([0, batch["input_ids"].numel()]).int()
        batch.update(cu_seq_lens_q=lengths, attention_mask=None, position_ids=None)
    flattened = [flat(batch) for batch in packed(documents)]
    for batch in flattened:
        del batch["position_ids"]
    report = streampack.check(flattened, documents=documents, model=llama)
    assert report.kinds == ("model-mixes-documents",)
    assert llama.training


def test_a_cache_beside_which_a_model_does_not_look_at_positions_is_named() -> None:
    documents = marked_documents(30)
    batches = [positions(batch) for batch in packed(documents)]
    llama = model(documents)
    assert llama.config.use_cache  # the default
    report = streampack.check(batches, documents=documents, model=llama)
    assert report.kinds == ("model-mixes-documents",)
    llama.config.use_cache = False
    assert streampack.check(batches, documents=documents, model=llama).kinds == ()


class AtPlaces(nn.Module):
    """Sees the token before in the same document, and adds its place in the row."""

    def __init__(self, size: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(size, 8)

    def forward(self, input_ids: torch.Tensor, **batch: Any) -> torch.Tensor:
        shape = input_ids.shape
        place = torch.arange(shape[1]).expand(shape)
        before = nn.functional.pad(self.table(input_ids)[:, :-1], (0, 0, 1, 0))
        inside = batch.get("position_ids", place) > 0
        return self.table(input_ids) + before * inside[..., None] + place[..., None]


def test_a_model_with_other_outputs_than_alone_is_named() -> None:
    documents = marked_documents(30)
    batches = [flat(batch) for batch in packed(documents)]
    places = AtPlaces(documents.vocab_size)
    report = streampack.check(batches, documents=documents, model=places)
    assert report.kinds == ("model-differs-from-alone",)


def test_padding_in_routers_is_named_if_the_model_has_any() -> None:
    documents = marked_documents(100)
    batches = [positions(batch) for batch in packed(documents)]
    assert streampack.check(batches, documents=documents).kinds == ()
    report = streampack.check(batches, documents=documents, routers=True)
    assert report.kinds == ("padding-in-routers",)


def test_first_tokens_of_answers_that_are_lost_are_named() -> None:
    documents = marked_documents(100, answers=True)
    batches = []
    for batch in packed(documents):
        before = nn.functional.pad(batch.labels[:, :-1], (1, 0), value=-100)
        batch.labels[before == -100] = -100
        batches.append(flat(batch))
    assert streampack.check(batches, documents=documents).kinds == ("answer-starts-lost",)


def test_prompts_in_the_loss_are_named() -> None:
    documents = marked_documents(100, answers=True)
    batches = []
    for batch in packed(documents):
        batch.labels[batch.positions > 0] = batch.tokens[batch.positions > 0]
        batches.append(flat(batch))
    assert streampack.check(batches, documents=documents).kinds == ("prompts-in-loss",)


def test_end_tokens_tell_borders_of_a_corpus_that_is_not_marked() -> None:
    documents = marked_documents(100, eos_id=2)
    batches = [positions(batch) for batch in packed(documents)]
    report = streampack.check(batches, eos_id=2, pad_id=0)
    assert report.kinds == ()
    assert report.truth == "end tokens"
    for batch in batches:
        batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    report = streampack.check(batches, eos_id=2, pad_id=0)
    assert report.kinds == ("documents-see-each-other",)


def test_an_end_token_that_is_never_learnt_is_named() -> None:
    documents = marked_documents(100, eos_id=2, pad_id=2)
    batches = []
    for batch in packed(documents):
        batch.labels[batch.tokens == 2] = -100  # as collators do where pad_id is eos_id
        batches.append(flat(batch))
    assert streampack.check(batches, documents=documents).kinds == ("labels-lost-at-borders",)


LOADERS = """
from tests.support.hand_packed import packed, positions
import torch

def right(documents):
    return [positions(batch) for batch in packed(documents)]

def model():
    from transformers import LlamaConfig, LlamaForCausalLM
    config = LlamaConfig(vocab_size=20_000, hidden_size=16, intermediate_size=16,
                         num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1,
                         use_cache=False)
    return LlamaForCausalLM(config)

def wrong(documents):
    batches = right(documents)
    for batch in batches:
        batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    return batches
"""


def test_the_command_prints_a_page_and_exits_with_the_result(tmp_path: Path) -> None:
    (tmp_path / "loaders.py").write_text(LOADERS)
    assert "No fault." in output_of("check", f"{tmp_path}/loaders.py:right")
    path = f"{tmp_path}/loaders.py"
    with_model = output_of("check", f"{path}:right", "--model", f"{path}:model", "--json")
    assert json.loads(with_model)["model_checked"]
    page = output_of("check", f"{tmp_path}/loaders.py:wrong", code=1)
    assert "documents-see-each-other" in page
    named = json.loads(output_of("check", f"{tmp_path}/loaders.py:wrong", "--json", code=1))
    assert [fault["kind"] for fault in named["faults"]] == ["documents-see-each-other"]


def test_bad_arguments_are_refused() -> None:
    batches = [positions(batch) for batch in packed(marked_documents(20))]
    with pytest.raises(ConfigError) as unknown:
        streampack.check(batches, ignore=["nothing"])
    assert unknown.value.setting == "ignore"
    with pytest.raises(ConfigError) as empty:
        streampack.check([])
    assert empty.value.setting == "loader"
    with pytest.raises(ConfigError) as text:
        streampack.check([{"text": "a"}])
    assert text.value.setting == "loader"
    documents = marked_documents(20)
    with pytest.raises(ConfigError) as vocabulary:
        streampack.check(batches, documents=documents, model=model(marked_documents(2)))
    assert vocabulary.value.setting == "model"
    with pytest.raises(ConfigError) as arguments:
        streampack.check(lambda corpus: batches)
    assert arguments.value.setting == "loader"
    with pytest.raises(ConfigError) as small:
        marked_documents(100, vocab_size=300)
    assert small.value.setting == "vocab_size"


class WithoutState(Batches):
    """Like the loader of a Trainer: it has the methods, and no state behind them."""

    def state_dict(self) -> dict[str, int]:
        state: dict[str, int] = self.dl_state_dict  # type: ignore[attr-defined]
        return state


def test_methods_without_a_state_leave_the_rest_of_the_report() -> None:
    report = streampack.check(WithoutState)
    assert report
    assert report.ended
    assert not report.resumed
    assert "dl_state_dict" in report.not_resumed
    assert report.not_resumed in str(report)


def test_the_loader_of_a_trainer_is_checked(tmp_path: Path) -> None:
    from transformers import DataCollatorWithFlattening, Trainer, TrainingArguments

    def make(documents: MarkedDocuments) -> Any:
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=64,
                hidden_size=8,
                intermediate_size=8,
                num_hidden_layers=1,
                num_attention_heads=1,
            )
        )
        trainer = Trainer(
            model,
            TrainingArguments(str(tmp_path), use_cpu=True, report_to=[]),
            train_dataset=[*documents.records("input_ids", "labels")],
            data_collator=DataCollatorWithFlattening(),
        )
        return trainer.get_train_dataloader()

    report = streampack.check(make)
    assert report.ended
    assert report


@pytest.mark.parametrize("state", [True, False])
def test_a_loader_that_ends_in_an_error_keeps_its_report(state: bool) -> None:
    class Failing(Batches if state else object):  # type: ignore[misc]
        def __init__(self, documents: MarkedDocuments) -> None:
            self.documents = documents
            if state:
                super().__init__(documents)

        def __iter__(self) -> Iterator[dict[str, Any]]:
            yield from (flat(batch) for batch in islice(packed(self.documents), 5))
            raise RuntimeError("the disk is full\nand more")

    report = streampack.check(Failing)
    fault = next(fault for fault in report.faults if fault.kind == "loader-raises")
    assert fault.batch == report.batches == 5
    assert "the disk is full" in fault.detail
    assert not report.ended
    assert "documents-missing" not in report.kinds


def test_a_loader_that_cannot_continue_keeps_its_report() -> None:
    class Failing(Batches):
        def load_state_dict(self, state: dict[str, int]) -> None:
            raise KeyError("at")

    report = streampack.check(Failing)
    assert report.kinds == ("resume-raises",)


@pytest.mark.parametrize("eos_id", [0, 1])
@pytest.mark.parametrize("named", [True, False])
def test_an_end_token_with_any_id_is_found(eos_id: int, named: bool) -> None:
    def make(documents: MarkedDocuments) -> Iterator[dict[str, Any]]:
        ids = torch.tensor([token for ids in documents for token in [*ids, eos_id]])
        for row in ids[: len(ids) // 128 * 128].view(-1, 1, 128):
            yield {"input_ids": row, "labels": row}

    report = streampack.check(make, eos_id=eos_id if named else None)
    expected = {"documents-see-each-other", "labels-across-borders", "documents-missing"}
    assert {*report.kinds} == expected
    assert report.padding == 0


def test_padding_of_one_slot_is_not_an_end_token() -> None:
    def make(documents: MarkedDocuments) -> Iterator[dict[str, Any]]:
        for ids in documents:
            row = torch.tensor([ids + [0] * (-len(ids) % 8)])
            mask = torch.tensor([[1] * len(ids) + [0] * (-len(ids) % 8)])
            labels = torch.where(mask > 0, row, -100)
            yield {"input_ids": row, "labels": labels, "attention_mask": mask}

    report = streampack.check(make)
    assert report
    assert report.padding > 0


@pytest.mark.parametrize("right", [True, False])
def test_boundaries_in_a_tuple_are_read_and_other_entries_named(right: bool) -> None:
    def make(documents: MarkedDocuments) -> Iterator[Any]:
        for start in range(0, 400, 20):
            batch = [documents[number] for number in range(start, start + 20)]
            ids = torch.tensor([token for ids in batch for token in [*ids, 0]])
            ends = torch.tensor([0, *(len(ids) + 1 for ids in batch)]).cumsum(0).to(torch.int32)
            ends = torch.cat([ends, ends[-1:].expand(7)])
            if not right:
                ends = ends[[0, -1]]
            targets = torch.cat([ids[1:], ids[:1] * 0 - 100])
            targets[ends[1:-8].long() - 1] = -100
            yield ids, targets, ends, torch.zeros(3), "a name"

    report = streampack.check(make, eos_id=0)
    assert report.boundaries == "cu_seqlens"
    assert report.unread == ("item 3 of the tuple", "item 4 of the tuple")
    assert ("documents-see-each-other" in report.kinds) != right


def test_labels_under_the_name_of_picotron_are_read() -> None:
    def make(documents: MarkedDocuments) -> Iterator[Any]:
        ids = torch.tensor([token for ids in documents for token in ids])
        for row in ids[: len(ids) // 129 * 129].view(-1, 1, 129):
            yield {
                "input_ids": row[:, :-1],
                "target_ids": row[:, 1:],
                "position_ids": torch.arange(128)[None],
                "attn_mask": torch.ones(128, 128, dtype=torch.bool).tril(),
                "hidden_states": None,
                "weights": torch.ones(3),
            }

    report = streampack.check(make)
    assert report.learnt == report.slots
    assert "labels-across-borders" in report.kinds
    assert "documents-see-each-other" in report.kinds
    assert report.unread == ("weights",)
