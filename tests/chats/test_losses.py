"""Shares of the loss tokens of long chats by overflow, as the runs with each overflow lose them."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import AddedToken

from streampack import BestFitDecreasing, PackedDataset, PackedLoader, Topology, sources
from streampack.chats.losses import CONVERSATIONS, LongChatLosses
from streampack.tokenization import load_tokenizer
from tests.support.chat_templates import SPECIAL
from tests.support.chats import CHATML, bpe_tokenizer
from tests.support.long_chats import words

ROW = 128
BPE = bpe_tokenizer()
BPE.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])


def talk(number: int) -> dict[str, Any]:
    roles = ("user", "assistant") * (1 + number % 5)
    return {
        "messages": [
            {"role": role, "content": words(100 * number + k, 3 + (number + k) % 7)}
            for k, role in enumerate(roles)
        ]
    }


TALKS = [talk(number) for number in range(30)]


def dataset(data: Any = TALKS, way: str = "truncate", **chat: Any) -> PackedDataset:
    turns = way == "turns"
    source = sources.Chat(data, template=CHATML, overflow="turns" if turns else None, **chat)
    packer = {} if turns else {"packer": BestFitDecreasing(seq_len=ROW, overflow=way)}
    tokenizer = load_tokenizer(BPE, eos="as-is", eos_id=2)
    given = {"seq_len": ROW, **packer} if turns else packer
    return PackedDataset(source, tokenizer=tokenizer, lanes=2, topology=Topology(), **given)


def told(data: Any = TALKS, way: str = "truncate", **chat: Any) -> LongChatLosses:
    found = dataset(data, way, **chat).explain().chats
    assert found is not None
    return found


@pytest.mark.sampled(2)
@pytest.mark.parametrize("chosen", ["truncate", "drop", "split", "turns"])
def test_each_share_is_the_one_that_a_run_with_the_overflow_loses(chosen: str) -> None:
    found = told(way=chosen)
    assert (found.chosen, found.rows, found.conversations) == (chosen, ROW, len(TALKS))
    for way in ("truncate", "drop", "turns"):
        loader = PackedLoader(dataset(way=way))
        assert sum(1 for _ in loader)
        share = getattr(found, way)
        assert share == pytest.approx(loader.metrics().loss_dropped_ratio, abs=1e-9)
    assert found.drop > found.truncate == found.without_context > 0.2
    assert found.turns == 0


def test_the_screen_and_the_figures_have_the_shares() -> None:
    explanation = dataset().explain()
    found = explanation.chats
    assert found is not None
    assert explanation.as_dict()["chats"] == found._asdict()
    (line,) = [line for line in str(explanation).splitlines() if line.startswith("chats ")]
    for share in (found.truncate, found.drop, found.turns):
        assert f"{share:.2%}" in line


@pytest.mark.slow
def test_a_large_corpus_is_sampled_and_broken_chats_are_in_no_share() -> None:
    broken = {"messages": [{"role": "user", "content": "alone"}]}
    data = [broken, *(talk(number) for number in range(CONVERSATIONS + 50))]
    source = sources.Chat(data, template=CHATML)
    packer = BestFitDecreasing(seq_len=ROW, overflow="truncate")
    tokenizer = load_tokenizer(BPE, eos="as-is", eos_id=2)
    run = PackedDataset(source, packer=packer, tokenizer=tokenizer, on_error="skip")
    found = run.explain().chats
    assert found is not None
    assert found.conversations == CONVERSATIONS
    assert found.turns == 0


def test_turns_of_a_conversation_that_are_documents_have_shares_too() -> None:
    found = told(way="drop", turns="each")
    assert found.turns == 0 < found.drop


def test_pairs_have_no_share_by_turns_and_texts_have_none_at_all() -> None:
    pairs = [
        {"prompt": words(n, 40), "chosen": words(n + 100, 50), "rejected": words(n + 200, 9)}
        for n in range(20)
    ]
    run = PackedDataset(
        sources.Chat(pairs, template=CHATML),
        seq_len=ROW,
        tokenizer=load_tokenizer(BPE, eos="as-is", eos_id=2),
        document_fields={"chosen": "bool"},
    )
    found = run.explain().chats
    assert found is not None
    assert found.turns is None
    assert "turns" not in str(found)
    assert '"drop" (this run)' in str(found)
    assert PackedDataset([[1, 2, 3]] * 9, seq_len=8).explain().chats is None
