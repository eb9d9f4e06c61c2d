"""The rule by which a tokenizer.json goes to gigatoken: the settings taken have equal ids."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from itertools import chain, islice
from typing import Any

import pytest
from tokenizers import Tokenizer as Engine

from streampack.tokenization.byte_level import _SAME, GPT2, LETTERS
from tests.support.engines import differing, every_character, hostile, unproved
from tests.support.vocabularies import LLAMA3, QWEN2, trained, trained_pieces

pytest.importorskip("gigatoken")


def split(*patterns: str, behavior: str = "Isolated", invert: bool = False) -> list[Any]:
    return [
        {"type": "Split", "pattern": {"Regex": p}, "behavior": behavior, "invert": invert}
        for p in patterns
    ]


def letters(**settings: Any) -> dict[str, Any]:
    whole = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {**whole, "use_regex": False, **settings}


def cuts(*steps: Any, normalizer: Any = None) -> Callable[[dict[str, Any]], None]:
    def change(described: dict[str, Any]) -> None:
        described["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [*steps]}
        described["normalizer"] = normalizer

    return change


def model(**settings: Any) -> Callable[[dict[str, Any]], None]:
    return lambda described: described["model"].update(settings)


def added(*tokens: Any, **settings: Any) -> Callable[[dict[str, Any]], None]:
    """Add tokens, with `normalized` as given for each or False."""

    def change(described: dict[str, Any]) -> None:
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
        for n, token in enumerate(tokens):
            text, own = token if isinstance(token, tuple) else (token, {})
            entry = {"id": 5000 + n, "content": text, **flags, **settings, **own}
            described["added_tokens"].append(entry)
        described["normalizer"] = described["normalizer"] or settings.get("normalizer")

    return change


def with_vocabulary(*tokens: str) -> Callable[[dict[str, Any]], None]:
    def change(described: dict[str, Any]) -> None:
        vocabulary = described["model"]["vocab"]
        for token in tokens:
            vocabulary.setdefault(token, max(vocabulary.values()) + 1)

    return change


def without_a_letter(described: dict[str, Any]) -> None:
    described["model"]["vocab"].pop(LETTERS[0x85])
    described["model"]["merges"] = [
        pair for pair in described["model"]["merges"] if LETTERS[0x85] not in "".join(pair)
    ]


NFC, NFKC = {"type": "NFC"}, {"type": "NFKC"}
CL100K = LLAMA3.replace(r"[\r\n]+|\s+(", r"[\r\n]|\s+(")
DIGITS = {"type": "Digits", "individual_digits": True}
PUNCTUATION = {"type": "Punctuation", "behavior": "Isolated"}
NORMALIZED = {"normalized": True}

#: Changes of a tokenizer.json with the patterns of Llama 3, and whether gigatoken may take it.
VARIANTS: dict[str, tuple[Callable[[dict[str, Any]], None], bool]] = {
    **{f"pattern {n}": (cuts(*split(*known), letters()), True) for n, known in enumerate(_SAME)},
    "pattern removed": (cuts(*split(LLAMA3, behavior="Removed", invert=True), letters()), True),
    "kept as removed": (cuts(*split(LLAMA3, behavior="Removed"), letters()), False),
    "pattern merged": (cuts(*split(LLAMA3, behavior="MergedWithNext"), letters()), False),
    "pattern inverted": (cuts(*split(LLAMA3, invert=True), letters()), False),
    "pattern of cl100k": (cuts(*split(CL100K), letters()), False),
    "possessive": (cuts(*split(LLAMA3.replace("{1,3}", "{1,3}+")), letters()), False),
    "pattern of nobody": (cuts(*split(LLAMA3 + "|x"), letters()), False),
    "two patterns": (cuts(*split(QWEN2, LLAMA3), letters()), False),
    "pattern and regex": (cuts(*split(LLAMA3), letters(use_regex=True)), False),
    "regex alone": (cuts(letters(use_regex=True)), True),
    "no regex": (cuts(letters()), False),
    "space before": (cuts(letters(use_regex=True, add_prefix_space=True)), False),
    "digits": (cuts(DIGITS, *split(LLAMA3), letters()), False),
    "punctuation": (cuts(*split(LLAMA3), PUNCTUATION, letters()), False),
    "digits alone": (cuts(DIGITS, letters(use_regex=True)), False),
    "GPT-2 as text": (cuts(*split(GPT2), letters()), True),
    "NFC": (cuts(*split(QWEN2), letters(), normalizer=NFC), True),
    "NFKC": (cuts(*split(QWEN2), letters(), normalizer=NFKC), False),
    "lower case": (cuts(*split(QWEN2), letters(), normalizer={"type": "Lowercase"}), False),
    "all tokens match": (model(ignore_merges=True), True),
    "unknown token": (model(unk_token="<|endoftext|>", fuse_unk=True), True),
    "end of word": (model(end_of_word_suffix="</w>"), False),
    "prefix of words": (model(continuing_subword_prefix="##", merges=[]), False),
    "raw character": (with_vocabulary("你", "\u2603", "好a"), True),
    "no such letter": (without_a_letter, False),
    "added": (added("abc", " tok", "<x>", "\n\n"), True),
    "added, normalized": (added("abc", " tok", "éa", **NORMALIZED), True),
    "added in the other": (added(("bc", {}), ("abcd", NORMALIZED), ("xb", NORMALIZED)), False),
    "added around the other": (added(("abc", {}), ("bc", NORMALIZED)), True),
    "one word": (added("abc", single_word=True), False),
    "stripped left": (added("<x>", lstrip=True), False),
    "stripped right": (added("<x>", rstrip=True), False),
    "letters of other bytes": (added(LETTERS[0x85] + "a"), True),
    "added with an id of another": (added(("abc", {"id": 300})), True),
}


def pieces(*tokens: str, merges: Sequence[list[str]] = ()) -> Callable[[dict[str, Any]], None]:
    """Add pieces to the vocabulary, and merges before all others."""

    def change(described: dict[str, Any]) -> None:
        with_vocabulary(*tokens)(described)
        described["model"]["merges"][:0] = merges

    return change


def without(letters: str) -> Callable[[dict[str, Any]], None]:
    """Take away the pieces that hold some letters."""

    def change(described: dict[str, Any]) -> None:
        model = described["model"]
        model["vocab"] = {t: n for t, n in model["vocab"].items() if letters not in t}
        model["merges"] = [pair for pair in model["merges"] if letters not in "".join(pair)]

    return change


def normalized_by(*steps: Any) -> Callable[[dict[str, Any]], None]:
    return lambda described: described.update(
        normalizer={"type": "Sequence", "normalizers": [*steps]}
    )


PREPEND = {"type": "Prepend", "prepend": "▁"}
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first"}

#: Changes of the tokenizer.json of a SentencePiece BPE, and whether gigatoken may take it.
PIECES: dict[str, tuple[Callable[[dict[str, Any]], None], bool]] = {
    "as Llama 2": (pieces(), True),
    "bytes of a character": (pieces("\n", "\x00", "é"), True),
    "pieces across words": (pieces("a▁", "a▁b", merges=[["a", "▁"], ["a▁", "b"]]), True),
    "a piece of spaces": (pieces("a b", " "), True),
    "no white space": (without("▁"), True),
    "merged bytes": (pieces("<0x41>b", merges=[["<0x41>", "b"]]), False),
    "spelled bytes": (
        pieces(*"<0x4a", "<0", "x4", "<0x4", "1>", merges=[["1", ">"], ["<0x4", "1>"]]),
        False,
    ),
    "bytes in lower case": (pieces("<0x4a>"), False),
    "a sign as a byte": (pieces("<0x+1>"), False),
    "a byte is missing": (without("<0x41>"), False),
    "all texts match": (model(ignore_merges=True), False),
    "dropout": (model(dropout=0.1), False),
    "end of word": (model(end_of_word_suffix="</w>"), False),
    "no byte fallback": (model(byte_fallback=False), False),
    "not prepended": (normalized_by(REPLACE), False),
    "replaced first": (normalized_by(REPLACE, PREPEND), False),
    "replaced by a pattern": (
        normalized_by(PREPEND, {**REPLACE, "pattern": {"Regex": " "}}),
        False,
    ),
    "composed too": (normalized_by(PREPEND, REPLACE, NFC), False),
    "no normalizer": (lambda described: described.update(normalizer=None), False),
    "metaspace": (lambda described: described.update(pre_tokenizer=METASPACE), False),
    "added": (added("abc", " tok", "<x>", "\n\n", "▁", "é"), True),
    "added, normalized": (added("abc", ("<x>", NORMALIZED), ("b", NORMALIZED)), True),
    "added with a space": (added(" tok", **NORMALIZED), False),
    "one word": (added("abc", single_word=True), False),
    "stripped": (added("<x>", rstrip=True), False),
}


SPACES = (*" ▁▁ab.,é\n", "  ", " a", " ▁", "<0x41>", "<0x4a>", "</s>", "abc", " tok")


def changed(name: str) -> Engine:
    described = json.loads(trained(LLAMA3).to_str())
    VARIANTS[name][0](described)
    return Engine.from_str(json.dumps(described))


def compare(engine: Engine, taken: bool) -> None:
    fast = unproved(engine)
    assert (fast is not None) == taken
    if fast is not None:
        rng = random.Random(1)
        spaces = ["".join(rng.choices(SPACES, k=rng.randrange(9))) for _ in range(400)]
        texts = [*hostile(1, 600), *every_character(4099), *spaces]
        assert differing(engine, fast, texts) == []


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", VARIANTS)
def test_settings_that_are_taken_have_equal_ids_and_others_are_refused(name: str) -> None:
    compare(changed(name), VARIANTS[name][1])


@pytest.mark.sampled(6)
@pytest.mark.parametrize("across_words", [False, True])
@pytest.mark.parametrize("name", PIECES)
def test_settings_of_sentencepiece_that_are_taken_have_equal_ids_and_others_are_refused(
    name: str, across_words: bool
) -> None:
    described = json.loads(trained_pieces(across_words).to_str())
    PIECES[name][0](described)
    compare(Engine.from_str(json.dumps(described)), PIECES[name][1])


def test_split_special_tokens_are_text() -> None:
    engine = changed("added, normalized")
    engine.encode_special_tokens = True
    fast = unproved(engine)
    assert fast is not None
    assert differing(engine, fast, hostile(2, 600)) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in VARIANTS if name.startswith("pattern ")])
def test_all_characters_of_unicode_have_equal_ids(name: str) -> None:
    engine = changed(name)
    fast = unproved(engine)
    texts = chain(every_character(1, 0x2B000), every_character(61))
    while fast is not None and (some := [*islice(texts, 1 << 15)]):
        assert differing(engine, fast, some) == []
