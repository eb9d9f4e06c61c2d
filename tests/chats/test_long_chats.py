"""Conversations longer than a row, in parts that begin at a turn."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken

from streampack import (
    BestFitDecreasing,
    Concat,
    PackedDataset,
    PackedLoader,
    TokenRules,
    Topology,
    sources,
)
from streampack.chats.templates.turn_starts import Starts
from streampack.errors import ConfigError, ContentError, StateError
from streampack.tokenization import load_tokenizer
from tests.support.chat_templates import SPECIAL, TEMPLATES
from tests.support.chats import CHATML, MISTRAL, bpe_tokenizer
from tests.support.drawn import drawn
from tests.support.long_chats import Template, assert_parts, chats, words
from tests.support.restoring import assert_restores_everywhere, maker
from tests.support.simulated_ranks import over_legs

BPE = bpe_tokenizer()
BPE.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
VARIABLES = (("bos_token", "<s>"), ("eos_token", "</s>"))
EVERY = {**TEMPLATES, "chatml": CHATML, "alternating": MISTRAL}
#: Templates that take calls of tools.
WITH_TOOLS = ("stripped", "opened", "channels", "open-ended", "call-or-content", "chatml")
#: Templates with alternating turns alone.
STRICT = ("alternating", "moving-system", "merged-system")


@pytest.mark.sampled(9)
@pytest.mark.parametrize("turns", ["whole", "each"])
@pytest.mark.parametrize("name", EVERY)
@given(data=st.data(), row=st.integers(60, 700))
@drawn(5)
def test_every_turn_is_learnt_once_with_the_turns_before_that_fit(
    name: str, turns: str, data: Any, row: int
) -> None:
    chat = data.draw(chats(tools=name in WITH_TOOLS, odd=name not in STRICT))
    assert_parts(BPE, Template(EVERY[name], SPECIAL, VARIABLES), chat, row, turns)


def talk(number: int, exchanges: int, *, system: bool = True) -> dict[str, Any]:
    draw = random.Random(number)
    made = [{"role": "system", "content": words(number, 3)}] if system else []
    for k in range(2 * exchanges):
        content = words(100 * number + k, draw.randint(1, 12))
        made.append({"role": ("user", "assistant")[k % 2], "content": content})
    return {"messages": made}


TALKS = [talk(i, 1 + i % 7) for i in range(40)]


def dataset(data: Any = TALKS, row: int = 128, **options: Any) -> PackedDataset:
    chat = {"template": CHATML, "overflow": "turns", **options.pop("chat", {})}
    options = {"seq_len": row, "lanes": 2, "topology": Topology(), **options}
    tokenizer = options.pop("tokenizer", load_tokenizer(BPE, eos="as-is", eos_id=2))
    return PackedDataset(sources.Chat(data, **chat), tokenizer=tokenizer, **options)


def learnt_of(loader: Any) -> list[str]:
    """Every word that carries loss, sorted."""
    found: list[str] = []
    for batch in loader:
        ids = batch.labels[batch.labels != -100].tolist()
        text = BPE.decode(ids, skip_special_tokens=False)
        found += re.findall(r"m\d+w\d+z", text)
    return sorted(found)


def answers(data: Any) -> list[str]:
    assistant_texts = [
        m["content"] for t in data for m in t["messages"] if m["role"] == "assistant"
    ]
    return sorted(word for content in assistant_texts for word in content.split())


def test_a_run_learns_every_word_of_the_assistant_once() -> None:
    loader = PackedLoader(dataset())
    assert learnt_of(loader) == answers(TALKS)
    assert loader.metrics().composition.loss_dropped == 0
    cut = PackedLoader(dataset(chat={"overflow": None}))
    assert len(learnt_of(cut)) < len(answers(TALKS)) / 2


@pytest.mark.sampled
def test_it_goes_on_in_the_middle_of_a_conversation() -> None:
    source = sources.Chat(TALKS[:9], template=CHATML, overflow="turns")
    assert_restores_everywhere(maker(source, BestFitDecreasing(seq_len=256)))


def test_ranks_and_workers_change_nothing() -> None:
    def make(topology: Topology) -> PackedDataset:
        return dataset(TALKS[:14], topology=topology, batch_size=2, lanes=4)

    alone = over_legs(make, [(1, 0, 999)])
    assert over_legs(make, [(2, 0, 3), (1, 1, 2), (1, 0, 999)]) == alone


def test_a_turn_longer_than_a_row_is_cut_like_a_text_and_lost_tokens_are_counted() -> None:
    long = {
        "messages": [
            {"role": "user", "content": words(1, 60)},
            {"role": "assistant", "content": words(2, 90)},
            {"role": "user", "content": words(3, 60)},
            {"role": "assistant", "content": words(4, 2)},
        ]
    }
    loader = PackedLoader(dataset([long], row=128, batch_size=1))
    assert len(learnt_of(loader)) >= 92 - 6  # a word is cut at the end of each row
    made = loader.metrics()
    assert made.context_dropped > 0
    assert made.context_dropped == made.as_dict()["context_dropped"]
    assert made.composition.dropped == 0


@pytest.mark.parametrize("length", [1, 300])
def test_a_text_and_its_completion_keep_the_completion(length: int) -> None:
    record = {"prompt": words(1, 300), "completion": words(2, length)}
    tokenizer = load_tokenizer(BPE, eos="as-is", bos=False)
    loader = PackedLoader(
        dataset([record], row=128, chat={"template": None}, tokenizer=tokenizer, batch_size=1)
    )
    assert len(learnt_of(loader)) > 0.94 * length
    assert loader.metrics().context_dropped > 0


def test_a_broken_conversation_is_named_once(tmp_path: Any) -> None:
    talks = [talk(1, 6, system=False), talk(2, 6, system=False), talk(3, 6, system=False)]
    talks[1]["messages"] = talks[1]["messages"][1:]  # begins with the assistant
    options = {"chat": {"template": MISTRAL, "template_kwargs": dict(VARIABLES)}, "lanes": 1}
    with pytest.raises(ContentError, match="Roles must alternate"):
        list(dataset(talks, **options))
    loader = PackedLoader(dataset(talks, on_error="skip", **options))
    list(loader)
    assert loader.metrics().skipped == 1


def test_with_texts_in_a_mixture() -> None:
    chat = sources.Chat(TALKS, template=CHATML, overflow="turns")
    texts = sources.open([{"text": words(i, 30)} for i in range(50)], text="text")
    mixture = sources.Mixture({"chat": chat, "texts": texts}, weights={"chat": 1, "texts": 1})
    made = PackedDataset(
        mixture, seq_len=128, tokenizer=load_tokenizer(BPE, eos="as-is", eos_id=2), lanes=1
    )
    assert made._config.packer.overflow == "split"
    learnt = learnt_of(PackedLoader(made))
    assert {*answers(TALKS)} <= {*learnt}


def test_incompatible_settings_are_refused_by_name() -> None:
    pair = [{"prompt": "a", "chosen": "b", "rejected": "c"}]
    wrong: list[tuple[str, Any, dict[str, Any]]] = [
        ("packer", TALKS, {"seq_len": None, "packer": Concat(seq_len=128)}),
        ("document_fields", pair, {"document_fields": {"chosen": "bool"}}),
        ("layout", TALKS, {"layout": "tree", "chat": {"turns": "each"}}),
        ("overflow", TALKS, {"chat": {"overflow": "split"}}),
    ]
    for setting, data, options in wrong:
        with pytest.raises(ConfigError) as caught:
            dataset(data, **options)
        assert caught.value.setting == setting


def test_a_state_belongs_to_its_row_and_its_overflow() -> None:
    loader = PackedLoader(dataset())
    next(iter(loader))
    state = loader.state_dict()
    for other in (dataset(chat={"overflow": None}), dataset(row=256)):
        with pytest.raises(StateError):
            PackedLoader(other).load_state_dict(state)
    longer = PackedLoader(dataset(row=256))
    with pytest.raises(StateError) as caught:
        longer.load_state_dict(state, allow={"packer"})
    assert caught.value.setting == "turns"


def test_eos_after_an_open_turn_counts_as_part_of_the_row() -> None:
    headers = """{% for m in messages %}{{ '\\n' + m.role + ': ' + m.content }}{% endfor %}
{%- if add_generation_prompt %}{{ '\\nassistant:' }}{% endif %}"""
    options = {"token_rules": TokenRules(eos="append", eos_id=2), "tokenizer": BPE}
    loader = PackedLoader(dataset(chat={"template": headers}, **options))
    assert {*answers(TALKS)} == {*learnt_of(loader)}
    assert loader.metrics().composition.documents_cut == 0


def test_no_part_begins_between_a_call_and_its_result() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages: Any = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "user", "content": "is it slow?"},
        {"role": "tool", "content": "b", "tool_call_id": "1"},
        {"role": "assistant", "content": "c"},
    ]
    assert [[start.begin for start in group] for group in Starts(messages).before(4)] == [[0], []]
