"""Parts of long chats under the templates that TRL carries: every turn is learnt once."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken
from tokenizers import Tokenizer as Engine

from tests.frameworks.test_shipped_templates import FOLDER, NOT_SPECIAL, SHIPPED, SPECIAL
from tests.support.chats import bpe_tokenizer
from tests.support.drawn import drawn
from tests.support.long_chats import Template, assert_parts, chats, words

pytestmark = pytest.mark.skipif(not SHIPPED, reason="TRL's templates are not installed")
VARIABLES = (("bos_token", "<BOS>"), ("eos_token", "<EOS>"))
#: Templates of vision models, which read contents as lists of parts.
LISTS = ("idefics3", "llava_next", "smolvlm")


@functools.cache
def shipped(name: str) -> tuple[Engine, Template]:
    source = (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
    special = {text for text in SPECIAL.findall(source) if text not in NOT_SPECIAL}
    special = tuple(sorted({*special, "<BOS>", "<EOS>"}))
    engine = bpe_tokenizer()
    engine.add_special_tokens([AddedToken(text, special=True) for text in special])
    return engine, Template(source, special, VARIABLES, name in LISTS)


@pytest.mark.parametrize("turns", ["whole", "each"])
@pytest.mark.parametrize("name", SHIPPED)
@given(data=st.data(), row=st.integers(150, 900))
@drawn(6)
def test_every_turn_is_learnt_once_with_the_turns_before_that_fit(
    name: str, turns: str, data: Any, row: int
) -> None:
    tools = data.draw(st.booleans())
    chat = data.draw(chats(tools=tools, odd=tools))
    assert_parts(*shipped(name), chat, row, turns)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_plain_chat_has_parts_under_every_template(name: str) -> None:
    chat = [{"role": ("user", "assistant")[i % 2], "content": words(i, 25)} for i in range(12)]
    engine, template = shipped(name)
    assert assert_parts(engine, template, chat, 900) > 1
