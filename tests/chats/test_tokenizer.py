"""Chat data: the assistant's text carries loss, and nothing else does, by every route."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Engine

from streampack.chats.conversations import Conversations
from streampack.chats.records import conversation_of
from streampack.documents.blocks import Documents, make_origin
from streampack.errors import ConfigError, ContentError
from streampack.sources.error_policy import ErrorPolicy
from streampack.sources.records import BrokenDocumentError
from streampack.tokenization import ChatTokenizer, load_tokenizer
from tests.support.chats import (
    CHATML,
    CHATML_MARKED,
    HEADERS,
    LLAMA3,
    MISTRAL,
    OPEN_ENDED,
    THINKING,
    bpe_tokenizer,
    messages,
    sentencepiece_like_tokenizer,
    with_template,
)
from tests.support.drawn import drawn

BPE = bpe_tokenizer()
MARKED = bpe_tokenizer(two_ends=True)
TRIMMING = bpe_tokenizer(trim_offsets=True, two_ends=True)
SENTENCES = sentencepiece_like_tokenizer()

#: Pieces of a text, each with whether it carries loss.
Pieces = list[tuple[str, bool]]


def chatml(chat: list[Any]) -> Pieces:
    pieces: Pieces = []
    for m in chat:
        pieces += [(f"<|im_start|>{m['role']}\n", False)]
        pieces += [(m["content"] + "<|im_end|>", m["role"] == "assistant"), ("\n", False)]
    return pieces


def llama3(chat: list[Any]) -> Pieces:
    pieces: Pieces = [("<s>", False)]
    for m in chat:
        pieces += [(f"<|start_header_id|>{m['role']}<|end_header_id|>\n\n", False)]
        pieces += [(m["content"].strip() + "<|eot_id|>", m["role"] == "assistant")]
    return pieces


def mistral(chat: list[Any]) -> Pieces:
    pieces: Pieces = [("<s>", False)]
    for m in chat:
        user = m["role"] == "user"
        pieces += [(f"[INST] {m['content']} [/INST]" if user else " ", False)]
        pieces += [] if user else [(m["content"] + "</s>", True)]
    return pieces


def open_ended(chat: list[Any]) -> Pieces:
    pieces: Pieces = [("<s>", False)]
    for i, m in enumerate(chat):
        closes = i > 0 and chat[i - 1]["role"] == "assistant"
        pieces += [(f"<|{m['role']}|>", closes), ("\n", False)]
        pieces += [(m["content"], m["role"] == "assistant")]
    return pieces


def headers(chat: list[Any]) -> Pieces:
    pieces: Pieces = []
    for m in chat:
        pieces += [(f"### {m['role']}:\n", False)]
        pieces += [(m["content"] + "\n\n", m["role"] == "assistant")]
    return pieces


#: Template, expected pieces, the end-of-text token, and whether that is added at the end.
STYLES: dict[str, tuple[str, Callable[[list[Any]], Pieces], str, bool]] = {
    "chatml": (CHATML, chatml, "<|endoftext|>", False),
    "chatml-marked": (CHATML_MARKED, chatml, "<|endoftext|>", False),
    "llama3": (LLAMA3, llama3, "<|eot_id|>", False),
    "mistral": (MISTRAL, mistral, "</s>", False),
    "open-ended": (OPEN_ENDED, open_ended, "<|endoftext|>", True),
    "headers": (HEADERS, headers, "</s>", True),
}


def chat_tokenizer(
    engine: Engine, template: str | None, eos: str = "<|endoftext|>", **settings: Any
) -> ChatTokenizer:
    ids = {"eos_id": engine.token_to_id(eos), "bos_id": engine.token_to_id("<s>")}
    tokenizer = load_tokenizer(engine, **{**ids, **settings})
    return ChatTokenizer(tokenizer, template, lambda origin: f"line {int(origin['index'])}")


def block(*records: Any) -> Conversations:
    conversations = [conversation_of(record) for record in records]
    return Conversations(conversations, make_origin(0, np.arange(len(records), dtype=np.int64)))


def encode(tokenizer: ChatTokenizer, *records: Any, skips: ErrorPolicy | None = None) -> Documents:
    return tokenizer.encode(block(*records), skips or ErrorPolicy())


def learnt(engine: Engine, documents: Documents, i: int = 0) -> list[str]:
    """The texts of the runs of tokens that carry loss."""
    assert documents.loss_mask is not None
    ids = documents.document(i).tolist()
    mask = documents.loss_mask[documents.offsets[i] : documents.offsets[i + 1]]
    cuts = np.flatnonzero(np.diff(mask.astype(np.int8))) + 1
    runs = np.split(np.arange(len(ids)), cuts)
    return [
        engine.decode([ids[k] for k in run], skip_special_tokens=False)
        for run in runs
        if mask[run[0]]
    ]


def by_hand(engine: Engine, pieces: Pieces, added_eos: int | None) -> tuple[list[int], list[bool]]:
    """Ids and mask, token by token: a token that overlaps with learnt text carries loss."""
    encoding = engine.encode("".join(text for text, _ in pieces), add_special_tokens=False)
    flags = [flag for text, flag in pieces for _ in text]
    mask = [any(flags[start:stop]) for start, stop in encoding.offsets]
    if added_eos is None:
        return encoding.ids, mask
    return [*encoding.ids, added_eos], [*mask, True]


texts = st.text(alphabet=st.sampled_from("ab the\n\n  .é😀#:<|"), min_size=1, max_size=12)
talks = st.lists(st.tuples(texts, texts), min_size=1, max_size=4)


@pytest.mark.parametrize("style", STYLES)
@drawn(30)
@given(talk=talks)
def test_exactly_the_assistants_tokens_carry_loss(style: str, talk: list[Any]) -> None:
    template, expected, eos, added = STYLES[style]
    chat = messages(*(content for pair in talk for content in pair))
    documents = encode(chat_tokenizer(MARKED, template, eos), {"messages": chat})
    eos_id = MARKED.token_to_id(eos) if added else None
    ids, mask = by_hand(MARKED, expected(chat), eos_id)
    assert documents.document(0).tolist() == ids
    assert documents.loss_mask is not None
    assert documents.loss_mask.tolist() == mask


@pytest.mark.parametrize(
    "engine", [MARKED, TRIMMING, SENTENCES], ids=["bpe", "trimming", "unigram"]
)
@pytest.mark.parametrize("style", STYLES)
def test_learnt_tokens_read_as_the_assistants_words(style: str, engine: Engine) -> None:
    template, _, eos, _ = STYLES[style]
    end = {"headers": "\n\n", "open-ended": "<|user|>", "mistral": "</s>", "llama3": "<|eot_id|>"}
    chat = messages("who is it?", "hello  world", "and now?", "the quick\nbrown fox")
    documents = encode(chat_tokenizer(engine, template, eos), {"messages": chat})
    last = {"headers": "\n\n</s>", "open-ended": "<|endoftext|>"}
    closing = end.get(style, "<|im_end|>")
    assert [said.lstrip(" ") for said in learnt(engine, documents)] == [
        "hello  world" + closing,
        "the quick\nbrown fox" + last.get(style, closing),
    ]


def test_a_token_on_the_border_belongs_to_the_assistant() -> None:
    chat = messages("hi", "\n\nhello")
    documents = encode(chat_tokenizer(BPE, CHATML), {"messages": chat})
    assert learnt(BPE, documents) == ["\n\n\nhello<|im_end|>"]  # "\n" of the header merged with it


def test_marked_turns_agree_with_transformers() -> None:
    hf = with_template(BPE, CHATML_MARKED)
    chats = [messages("one", "two", "three", "four"), messages("a b", "the\nend")]
    documents = encode(chat_tokenizer(BPE, CHATML_MARKED), *({"messages": c} for c in chats))
    for i, chat in enumerate(chats):
        theirs = hf.apply_chat_template(chat, return_dict=True, return_assistant_tokens_mask=True)
        low, high = documents.offsets[i], documents.offsets[i + 1]
        assert documents.document(i).tolist() == theirs["input_ids"]
        assert documents.loss_mask is not None
        assert documents.loss_mask[low:high].astype(int).tolist() == theirs["assistant_masks"]


@pytest.mark.parametrize("template", [CHATML, LLAMA3, MISTRAL, THINKING])
def test_texts_equal_the_texts_of_transformers(template: str) -> None:
    eos = "</s>" if template is MISTRAL else "<|im_end|>"
    hf = with_template(BPE, template, eos=eos, bos="<s>")
    chat = messages("one", "two", "three", "four")
    ours = ChatTokenizer(load_tokenizer(hf), None, str)
    assert encode(ours, {"messages": chat}).tokens.tolist() == hf.apply_chat_template(chat)


def test_a_template_that_leaves_words_out_is_refused() -> None:
    forgetful = CHATML.replace("(message['content'] or '')", "message['content'][:3]")
    with pytest.raises(ContentError, match="leaves out in part or rewrites"):
        encode(chat_tokenizer(BPE, forgetful), {"messages": messages("hi", "hello")})


def test_tool_calls_and_their_answers() -> None:
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    chat = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "1 "}, {"text": "+ 1"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "2"},
        {"role": "assistant", "content": "2"},
    ]
    documents = encode(chat_tokenizer(BPE, CHATML), {"messages": chat, "tools": "[]"})
    assert learnt(BPE, documents) == ['<call>add{"a": 1}</call><|im_end|>', "2<|im_end|>"]
    text = BPE.decode(documents.tokens.tolist(), skip_special_tokens=False)
    assert "user\n1 + 1<|im_end|>" in text


def test_a_function_call_is_a_call_of_a_tool() -> None:
    said = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    record = {"messages": [*messages("hi"), said]}
    tokenizer = chat_tokenizer(BPE, CHATML)
    assert learnt(BPE, encode(tokenizer, record)) == ["<call>f{}</call><|im_end|>"]
    wordless = CHATML.replace("message.tool_calls or []", "[]")
    for content in (None, "ok"):
        said["content"] = content
        with pytest.raises(ContentError, match=r"calls of tools in message 1 .* leaves out"):
            encode(chat_tokenizer(BPE, wordless), record)
    said["tool_calls"] = [{"type": "function", "function": {"name": "f", "arguments": {}}}]
    with pytest.raises(BrokenDocumentError, match='"function_call" beside "tool_calls"'):
        encode(tokenizer, record)


def test_of_a_prompt_of_messages_nothing_is_learnt() -> None:
    prompt = messages("a", "not this", "b")
    record = {"prompt": prompt, "completion": [{"role": "assistant", "content": "this"}]}
    for template in (CHATML, CHATML_MARKED):
        documents = encode(chat_tokenizer(BPE, template), record)
        assert learnt(BPE, documents) == ["this<|im_end|>"]


def test_a_plain_pair_is_joined_unless_a_template_is_given() -> None:
    pair = {"prompt": "Question: 1\n", "completion": "\n\n42"}
    plain = chat_tokenizer(BPE, None)
    documents = encode(plain, pair)
    assert learnt(BPE, documents) == ["\n\n\n42<|endoftext|>"]  # the border's token with the rest
    text = BPE.encode("Question: 1\n\n\n42", add_special_tokens=False).ids
    assert documents.tokens.tolist() == [*text, 0]
    rendered = encode(chat_tokenizer(BPE, LLAMA3), {**pair, "prompt": "hi"})
    assert learnt(BPE, rendered) == ["42<|eot_id|>"]


@pytest.mark.parametrize(
    ("rule", "closed", "plain"),
    [
        ("ensure", ["hey<|im_end|>"], "hey<|endoftext|>"),
        ("append", ["hey<|im_end|>", "<|endoftext|>"], "hey<|endoftext|>"),
        ("as-is", ["hey<|im_end|>"], "hey"),
    ],
)
def test_eos_ends_documents_without_another_end(rule: str, closed: list[str], plain: str) -> None:
    tokenizer = load_tokenizer(BPE, eos=rule, eos_id=BPE.token_to_id("<|endoftext|>"))
    chat = {"messages": messages("hi", "hey")}
    assert learnt(BPE, encode(ChatTokenizer(tokenizer, CHATML, str), chat)) == closed
    pair = {"prompt": "hi\n", "completion": "hey"}
    assert learnt(BPE, encode(ChatTokenizer(tokenizer, None, str), pair)) == [plain]


def test_bos_comes_once() -> None:
    tokenizer = chat_tokenizer(BPE, LLAMA3, "<|eot_id|>", bos=True)
    bos = BPE.token_to_id("<s>")
    assert encode(tokenizer, {"messages": messages("a", "b")}).tokens.tolist().count(bos) == 1
    plain = chat_tokenizer(BPE, None, bos=True)
    documents = encode(plain, {"prompt": "a\n", "completion": "b"})
    assert documents.tokens.tolist().count(bos) == 1
    assert learnt(BPE, documents) == ["b<|endoftext|>"]


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}",
        "{% macro f() %}{% generation %}x{% endgeneration %}{% endmacro %}",
        "{% set x %}{% generation %}x{% endgeneration %}{% endset %}",
    ],
)
def test_templates_that_cannot_work_are_refused_at_once(template: str) -> None:
    with pytest.raises(ConfigError):
        chat_tokenizer(BPE, template)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "of 'list' object is unsafe"),
        ("{% include '/etc/passwd' %}", "no loader"),
        ("{{ strftime_now('%Y') }}", "strftime_now"),
        ("{{ raise_exception('no system role') }}", "no system role"),
        ("{{ messages[0].content + 1 }}", "TypeError"),
        ("{% if false %}{% generation %}{% endgeneration %}{% endif %}x", "nothing that the templ"),
    ],
)
def test_a_forbidden_action_of_a_template_is_a_content_error(template: str, message: str) -> None:
    with pytest.raises(ContentError, match=message):
        encode(chat_tokenizer(BPE, template), {"messages": messages("a", "b")})


def test_messages_need_a_template() -> None:
    with pytest.raises(ConfigError, match="neither the source nor the tokenizer has"):
        encode(chat_tokenizer(BPE, None), {"messages": messages("a", "b")})


def test_pickled_it_does_the_same_and_the_template_is_part_of_its_fingerprint() -> None:
    tokenizer = ChatTokenizer(load_tokenizer(BPE), CHATML, str)
    again = pickle.loads(pickle.dumps(tokenizer))
    chat = {"messages": messages("a", "b")}
    assert encode(again, chat).tokens.tolist() == encode(tokenizer, chat).tokens.tolist()
    kinds = [(BPE, CHATML), (BPE, LLAMA3), (BPE, None), (SENTENCES, CHATML)]
    prints = [ChatTokenizer(load_tokenizer(e, eos_id=0), t, str).fingerprint for e, t in kinds]
    assert max(Counter([*prints, again.fingerprint]).values()) == 1 + (again.fingerprint in prints)


def test_text_that_cannot_be_tokenized_harms_no_other() -> None:
    skips = ErrorPolicy("skip")
    bad, good = {"messages": messages("a", "\ud800")}, {"messages": messages("a", "fine")}
    documents = encode(chat_tokenizer(BPE, CHATML), bad, good, skips=skips)
    assert skips.counts.skipped == 1
    assert learnt(BPE, documents) == ["fine<|im_end|>"]
    assert documents.origin["index"].tolist() == [1]


OUTSIDE = """{% for m in messages %}
{{ '<|im_start|>' }}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}
{% else %}{{ m.content }}{% endif %}{{ '<|im_end|>' }}
{%- endfor %}"""


def test_the_token_after_an_empty_generation_block_carries_no_loss() -> None:
    tokenizer = chat_tokenizer(MARKED, OUTSIDE, eos="<|im_end|>")
    documents = tokenizer.encode(block({"messages": messages("a", "", "b", "c")}), ErrorPolicy())
    assert documents.loss_mask is not None
    learnt = documents.tokens[documents.loss_mask].tolist()
    assert MARKED.decode(learnt, skip_special_tokens=False) == "c<|im_end|>"
