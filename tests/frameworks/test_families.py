"""Every family of transformers that predicts the next token: documents apart, or refused.

Which are which, for the versions that the tests run with, is in docs/families.md, which
`python -m scripts.families` writes.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch

from streampack import BestFitDecreasing, PackedDataset, PackedLoader, Pad, TokenRules, Topology
from streampack.errors import ConfigError
from tests.support.packed_batches import packed_batches, random_documents

transformers = pytest.importorskip("transformers")
pytest.importorskip("streampack.hf.arguments")

from tests.support.family_table import ATTENTIONS, Outcome, outcome, section  # noqa: E402
from tests.support.tiny_families import families, tiny_model  # noqa: E402

ROOT = Path(__file__).parents[2]
#: One of each kind; all of them are tried by the slow tests.
SOME = {
    "llama": "positions",
    "mistral": "positions",
    "gemma2": "positions",
    "mixtral": "positions",
    "doge": "positions",
    "llama4_text": "positions" if transformers.__version__ >= "5" else "refused",  # chunks
    "gpt_oss": "mask",
    "opt": "mask",
    "biogpt": "mask",
    "bloom": "refused",
    "mamba": "refused",
    "mamba2": "refused",
    "qwen3_next": "refused",
    "bart": "refused",
}
outcome = functools.cache(outcome)


@pytest.mark.parametrize("family", SOME)
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_documents_are_as_by_themselves_or_refused(family: str, attention: str) -> None:
    assert outcome(family, attention).way == SOME[family]


@pytest.mark.slow
@pytest.mark.parametrize("family", families())
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_gradients_of_every_family_match_as_well(family: str, attention: str) -> None:
    found: Outcome = outcome(family, attention)
    if found.way == "not tried":
        pytest.skip(found.reason)


@pytest.mark.slow
def test_the_page_of_families_is_true() -> None:
    page = (ROOT / "docs/families.md").read_text()
    written = section(outcome)
    if written.splitlines()[0] not in page:
        pytest.skip(f"the page has nothing of transformers {transformers.__version__}")
    assert written in page


@pytest.mark.parametrize("family", ["bloom", "mamba", "gptj", "llama"])
def test_rows_of_one_segment_work_for_every_model_by_the_refusals_advice(family: str) -> None:
    model = tiny_model(family, "eager")
    documents = random_documents([9, 14, 12, 10])
    batches = {
        "row": packed_batches(documents, Pad(seq_len=23), batch_size=4, attention="row"),
        "one document": packed_batches(documents, Pad(seq_len=23), batch_size=4),
    }
    for (batch,) in batches.values():
        arguments = batch.hf(model=model)
        logits = model(**arguments).logits.reshape(4 * 23, -1)
        for number in range(batch.num_documents):
            at = batch.document_ids.view(-1) == number
            alone = model(input_ids=batch.input_ids.view(-1)[at][None], use_cache=False).logits[0]
            torch.testing.assert_close(logits[at], alone, rtol=1e-4, atol=1e-4)


def test_where_a_model_does_not_take_the_count_it_gets_no_labels() -> None:
    model = tiny_model("gpt_oss", "eager")

    class Narrow(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside, self.config = model, model.config

        def forward(
            self,
            input_ids: Any,
            attention_mask: Any = None,
            position_ids: Any = None,
            labels: Any = None,
        ) -> Any:
            return self.inside(
                input_ids=input_ids,
                attention_mask=attention_mask,
                position_ids=position_ids,
                labels=labels,
                use_cache=False,
            )

    narrow = Narrow()
    (batch, *_) = short_documents()
    named = {"input_ids", "attention_mask", "position_ids"}
    assert set(batch.hf(model=narrow)) == {*named, "labels"}
    batch.num_items_in_batch = 100  # as `PackedLoader.accumulate` sets it
    assert set(batch.hf(model=narrow)) == named


def short_documents() -> list[Any]:
    return packed_batches(
        random_documents([9, 14, 12, 10]), BestFitDecreasing(seq_len=23), batch_size=2
    )


#: Models with rotary frequencies that follow the longest document once it exceeds 64 tokens.
FOLLOWING = {
    "longrope": (
        "phi3",
        {"type": "longrope", "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1, 3, 9, 27]},
    ),
    "dynamic": ("llama", {"rope_type": "dynamic", "factor": 8.0}),
}


def following(kind: str, **settings: Any) -> Any:
    family, rope = FOLLOWING[kind]
    return tiny_model(
        family,
        "sdpa",
        **{
            "rope_scaling": rope,
            "original_max_position_embeddings": 64,
            "max_position_embeddings": 256 if kind == "longrope" else 64,
            **settings,
        },
    )


def full_rows(seq_len: int, rows: int = 8) -> Any:
    lengths = [seq_len * (2 + number % 5) // 10 for number in range(4 * rows)]
    documents = [2 + ids % 80 for ids in random_documents(lengths)]
    return packed_batches(documents, BestFitDecreasing(seq_len=seq_len), batch_size=rows)[0]


@pytest.mark.parametrize("kind", FOLLOWING)
@pytest.mark.parametrize(("seq_len", "rows"), [(72, 8), (256, 2)])
def test_frequencies_that_follow_the_longest_document_are_refused_with_the_length(
    kind: str, seq_len: int, rows: int
) -> None:
    with pytest.raises(ConfigError):
        full_rows(seq_len, rows).hf(model=following(kind))


@pytest.mark.parametrize("rope", [{"rope_type": "linear", "factor": 4.0}, None])
def test_fixed_frequencies_are_taken_beyond_the_lengths_that_a_config_names(rope: Any) -> None:
    model = following("dynamic", rope_scaling=rope)
    assert "attention_mask" not in full_rows(200).hf(model=model)


def test_a_loader_gives_each_model_its_arguments() -> None:
    documents = [ids.tolist() for ids in random_documents([9, 14, 12, 10])]
    dataset = PackedDataset(
        documents, seq_len=23, batch_size=2, token_rules=TokenRules(pad_id=90), topology=Topology()
    )
    llama, opt, mamba = (tiny_model(name, "eager") for name in ("llama", "opt", "mamba"))
    (batch,) = PackedLoader(dataset, transform=lambda b: b.hf(model=llama))
    assert "attention_mask" not in batch
    (batch,) = PackedLoader(dataset, transform=lambda b: b.hf(model=opt))
    assert batch["attention_mask"].shape == (2, 1, 23, 23)
    ((batch,),) = PackedLoader(dataset, transform=lambda b: b.hf(model=opt)).accumulate(4)
    assert batch["attention_mask"].shape == (2, 1, 23, 23)
    assert batch["num_items_in_batch"] > 0
    with pytest.raises(ConfigError):
        list(PackedLoader(dataset, transform=lambda b: b.hf(model=mamba)))
