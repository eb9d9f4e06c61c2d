"""Text blocks to token blocks, and the ends and beginnings of documents.

The fast engine encodes a block by one call, the tokenizers library text by text: it takes 50 to 400
bytes of memory per byte of what one call encodes, and several at once are not faster. Ids go into
one flat array, uint16 if the vocabulary allows. No Python runs per token: an `array("I")` of each
list of ids is the fastest way on, twice as fast as "H" and three times as fast as numpy's.
"""

from __future__ import annotations

import hashlib
import logging
import os
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, processors
from tokenizers import Tokenizer as Engine

from streampack.arguments import explained, one_of, type_in_words
from streampack.documents.blocks import Documents, Texts, offsets_of
from streampack.errors import ConfigError, ContentError
from streampack.sources.skips import Skips
from streampack.tokenization.byte_level import Span
from streampack.tokenization.ends import apply_bos, apply_eos, missing_id
from streampack.tokenization.fast import EngineName, FastEngine, fast_engine
from streampack.tokenization.rules import (
    EosRule,
    SpecialInText,
    check_rule,
    check_special_rule,
    checked_id,
)
from streampack.tokenization.vocabulary import open_vocabulary

logger = logging.getLogger(__name__)

#: Returns the name of a document, by its origin (a record of dtype `ORIGIN`).
NameOf = Callable[[np.void], str]

_THREADS = "TOKENIZERS_PARALLELISM"
_encoded_in: int | None = None  # process


def _numbered(origin: np.void) -> str:
    return f"document {int(origin['index'])} of shard {int(origin['shard'])}"


def load_tokenizer(tokenizer: Any, **settings: Any) -> Tokenizer:
    """A `Tokenizer` from a path or a tokenizer object; nothing is ever downloaded.

    Args:
        tokenizer: a path of a tokenizer.json or of the folder that holds it, a
            `tokenizers.Tokenizer`, a fast tokenizer of transformers, a `tiktoken.Encoding`, or a
            `Tokenizer` (returned as it is if there are no settings).
        settings: keyword arguments of `Tokenizer`.

    Raises:
        ConfigError: the path does not exist, the tokenizer is none of these, or a rule needs an
            id that it does not declare.
    """
    if isinstance(tokenizer, Tokenizer):
        if not settings:
            return tokenizer
        raise ConfigError(
            f"{', '.join(sorted(settings))} came with a tokenizer that has its settings already.",
            "Pass the settings to streampack.Tokenizer when it is made.",
            setting="tokenizer",
        )
    return Tokenizer(tokenizer, **settings)


@explained
class Tokenizer:
    """Turns blocks of text into blocks of token ids. Picklable; works on its own copy.

    Truncation and padding configured in the tokenizer are turned off, since they would drop or add
    tokens silently.

    Args:
        tokenizer: see `load_tokenizer`.
        eos: "ensure" adds the end-of-document id to texts that do not end in it, "append" always
            adds it, "as-is" never does. Empty texts stay empty.
        eos_id: the end-of-document id; default is what the tokenizer declares.
        bos: True puts `bos_id` before texts that do not begin with it; None does so if the
            tokenizer itself does.
        bos_id: the id of the beginning; default is what the tokenizer declares, if it does.
        pad_id: the id of padding; default is what the tokenizer declares, if it does.
        model_vocab_size: rows of the model's embedding, where it has more than the tokenizer has
            ids; ids of ends and padding may be among them.
        engine: what encodes texts: "tokenizers", "kitoken" (several times faster, the same ids), or
            "auto": kitoken where it is installed and proved for this kind of tokenizer (byte-level
            BPE). It is compared with tokenizers before the first ids and on one text in 251.
            Either encodes on one thread of a process; workers make it several.
        special_tokens_in_text: see `TokenRules`.

    Attributes:
        vocab_size: one more than the largest id that can occur in a document.
        dtype: of the ids: uint16 if `vocab_size` is at most 65,536, else uint32.
        fingerprint: 64 bits, in hexadecimal, over the tokenizer and these rules.
        splits_special_tokens: True if texts that look like special tokens are split like others.
        chat_template: the Jinja template that came with the tokenizer, or None.
        tool_template: the one named "tool_use", for conversations with tools, or None.

    Raises:
        ConfigError: see `load_tokenizer`.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        eos: EosRule = "ensure",
        eos_id: int | None = None,
        bos: bool | None = None,
        bos_id: int | None = None,
        pad_id: int | None = None,
        model_vocab_size: int | None = None,
        special_tokens_in_text: SpecialInText | None = None,
        engine: EngineName = "auto",
    ) -> None:
        one_of("engine", engine, get_args(EngineName))
        vocabulary = open_vocabulary(tokenizer)
        if special_tokens_in_text is not None:
            check_special_rule(special_tokens_in_text)
            vocabulary.engine.encode_special_tokens = special_tokens_in_text == "split"
        check_rule(eos)
        self.eos: EosRule = eos
        size = max(vocabulary.largest_id + 1, model_vocab_size or 0)
        self.eos_id = checked_id("eos_id", vocabulary.eos_id if eos_id is None else eos_id, size)
        self.bos_id = checked_id("bos_id", vocabulary.bos_id if bos_id is None else bos_id, size)
        self.pad_id = checked_id("pad_id", vocabulary.pad_id if pad_id is None else pad_id, size)
        self.bos = vocabulary.wants_bos if bos is None else bos
        if eos != "as-is" and self.eos_id is None:
            raise (
                _several_ends(vocabulary.likely_eos)
                if vocabulary.likely_eos
                else missing_id("eos", f'eos="{eos}"', 'use eos="as-is"')
            )
        if eos != "as-is" and eos_id is None and vocabulary.likely_eos:
            (name,) = vocabulary.likely_eos
            logger.warning(
                "The tokenizer does not say which token ends a document: %s (id %d) is taken, the "
                "only special token with such a name. TokenRules(eos_id=%d) (--eos-id) says so "
                "without this warning.",
                name,
                self.eos_id,
                self.eos_id,
            )
        if self.bos and self.bos_id is None:
            raise missing_id("bos", "bos=True", "use bos=False")
        ends = [i for i in (self.eos_id, self.bos_id) if i is not None]
        self.vocab_size = max([vocabulary.largest_id, *ends]) + 1
        self.dtype = np.dtype(np.uint16 if self.vocab_size <= 1 << 16 else np.uint32)
        self._engine = vocabulary.engine
        self.engine: EngineName = engine
        self._fast: FastEngine | None = fast_engine(self._engine, engine)
        self.splits_special_tokens = vocabulary.engine.encode_special_tokens
        self.fingerprint = self._digest()
        self.chat_template = vocabulary.chat_template
        self.tool_template = vocabulary.tool_template
        # Special tokens are never added here. All that a post-processor would do is to leave white
        # space out of the tokens' places in the text, and `encode_spans` needs whole places.
        self._engine.post_processor = processors.ByteLevel(trim_offsets=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_engine": self._engine.to_str(), "_fast": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._engine = Engine.from_str(state["_engine"])
        self._engine.encode_special_tokens = self.splits_special_tokens
        self._fast = fast_engine(self._engine, self.engine)

    def _digest(self) -> str:
        rules = (self.eos, self.eos_id, self.bos, self.bos_id, self.splits_special_tokens)
        digest = hashlib.blake2b(self._engine.to_str().encode(), digest_size=8)
        digest.update(repr(rules).encode())
        return digest.hexdigest()

    def encode(self, texts: Texts, skips: Skips, name: NameOf = _numbered) -> Documents:
        """The block as token ids, in order, without the texts that cannot be encoded.

        Args:
            texts: N texts; an empty one becomes an empty document.
            skips: gets a `ContentError` for each text that is not a string, holds lone surrogates,
                or is refused by the tokenizer; the rest of the block is encoded.
            name: returns the name of a text, by its origin, for errors.
        """
        found: Iterable[list[int] | None] | None = self._by_fast_engine(texts.texts)
        if found is None:
            encodings = (self._encoding(texts, i, skips, name) for i in range(len(texts.texts)))
            found = (None if encoding is None else encoding.ids for encoding in encodings)
        kept: list[int] = []
        made: list[array[int]] = []
        for i, ids in enumerate(found):
            if ids is not None:
                kept.append(i)
                made.append(array("I", ids))
        documents = self._documents(texts.origin[kept], made)
        if self.bos:
            documents = apply_bos(documents, self.bos_id)
        return apply_eos(documents, self.eos, self.eos_id)

    def encode_spans(
        self,
        texts: Texts,
        spans: Sequence[Sequence[Span]],
        skips: Skips,
        name: NameOf = _numbered,
    ) -> tuple[Documents, NDArray[np.int64]]:
        """The block as token ids with a loss mask, nothing added at either end.

        Args:
            texts: N texts.
            spans: for each, (start, stop) characters that carry loss. A token carries loss if any
                of its characters does.
            skips: as for `encode`.
            name: as for `encode`.

        Returns:
            The documents, and which texts (M,) they are: all but those that were skipped.
        """
        found = self._by_fast_engine(texts.texts)
        kept, made, masks = [], [], [np.zeros(0, dtype=np.bool_)]
        for i, text in enumerate(texts.texts):
            ids = [] if found is None else found[i]
            mask = self._fast.mask(text, ids, spans[i]) if self._fast and found else None
            if mask is None:  # its places are not known
                encoding = self._encoding(texts, i, skips, name, places=True)
                if encoding is None:
                    continue
                ids, mask = encoding.ids, _mask(encoding, spans[i], len(text))
            kept.append(i)
            made.append(array("I", ids))
            masks.append(mask)
        documents = self._documents(texts.origin[kept], made)
        return replace(documents, loss_mask=np.concatenate(masks)), np.array(kept, dtype=np.int64)

    @property
    def special_tokens(self) -> list[str]:
        """The texts that become special tokens."""
        added = self._engine.get_added_tokens_decoder().values()
        return [token.content for token in added if token.special]

    def knows(self, text: str) -> bool:
        """True if the text is one token."""
        return self._engine.token_to_id(text) is not None

    def token(self, token_id: int | None) -> str | None:
        """The text of an id; None if there is none."""
        return None if token_id is None else self._engine.id_to_token(token_id)

    def decode(self, ids: NDArray[np.integer[Any]]) -> str:
        """The text of ids (N,), special tokens included.

        Bytes that make no whole character, as at the cut of a document, become "\ufffd".
        """
        return str(self._engine.decode(ids.tolist(), skip_special_tokens=False))

    def _by_fast_engine(self, texts: Sequence[str]) -> list[list[int]] | None:
        """The ids of texts; None if there is no fast engine, or one of them is no text."""
        if self._fast is None:
            return None
        try:
            found = self._fast.encode(texts)
        except (TypeError, UnicodeEncodeError):
            return None
        if found is None:
            self._fast = None
        return found

    def _documents(self, origin: NDArray[np.void], made: Sequence[array[int]]) -> Documents:
        ids = np.frombuffer(b"".join(made), dtype=np.uint32).astype(self.dtype, copy=False)
        return Documents(ids, offsets_of(np.array([*map(len, made)], dtype=np.int64)), origin)

    def _encoding(
        self, texts: Texts, i: int, skips: Skips, name: NameOf, places: bool = False
    ) -> Encoding | None:
        """A text by tokenizers, with `places` of tokens; None if it is broken and skipped."""
        text = texts.texts[i]
        encode = self._engine.encode_batch if places else self._engine.encode_batch_fast
        _use_one_thread()
        try:
            if not isinstance(text, str):
                raise TypeError  # the library would join a pair of texts
            (found,) = encode([text], add_special_tokens=False)
        except Exception as error:  # the library raises plain Exception
            origin = texts.origin[i]
            document = name(origin)
            skips.handle(
                ContentError(
                    f"{document[0].upper()}{document[1:]} cannot be tokenized: "
                    f"{_complaint(text, error)}.",
                    'Repair it, or use on_error="skip" to leave such documents out.',
                    shard=int(origin["shard"]),
                    index=int(origin["index"]),
                    document=document,
                )
            )
            return None
        return found


def _use_one_thread() -> None:
    """Turn the threads of tokenizers off: a text is encoded by one, and a fork copies none.

    A user's own choice stays, but in a forked process, where those threads do not exist.
    """
    global _encoded_in
    if _encoded_in in (None, os.getpid()):
        _encoded_in = os.getpid()
        os.environ.setdefault(_THREADS, "false")
    else:
        os.environ[_THREADS] = "false"


def _mask(encoding: Encoding, spans: Sequence[Span], length: int) -> NDArray[np.bool_]:
    """Which tokens of a text of `length` characters hold characters of `spans`."""
    mask = np.zeros(len(encoding), dtype=np.bool_)
    for start, stop in spans:
        first, last = _tokens_of(encoding, start, stop, length)
        mask[first:last] = True
    return mask


def _tokens_of(encoding: Encoding, start: int, stop: int, length: int) -> tuple[int, int]:
    """(first, one after the last) token that holds a character of text[start:stop]."""
    first = None
    while first is None and start < stop:  # a tokenizer may leave characters out
        first = encoding.char_to_token(start)
        start += 1
    if first is None:
        return 0, 0
    last = None
    while last is None and stop < length:
        last = encoding.char_to_token(stop)
        stop += 1
    if last is None:
        return first, len(encoding.ids)
    begin, _ = encoding.token_to_chars(last)
    return first, last + (begin < stop - 1)


def _several_ends(names: Mapping[str, int]) -> ConfigError:
    listed = ", ".join(f'"{name}" (id {number})' for name, number in names.items())
    return ConfigError(
        f"The tokenizer does not say which token ends a document, and it may be {listed}.",
        "Pass TokenRules(eos_id=...) (--eos-id), or put the tokenizer_config.json of the model "
        "beside the tokenizer.json.",
        setting="eos_id",
    )


def _complaint(text: object, error: Exception) -> str:
    if not isinstance(text, str):
        return f"it is {type_in_words(text)}, not a string"
    try:
        text.encode()
    except UnicodeEncodeError as surrogate:
        return f"character {surrogate.start} is a lone surrogate, which UTF-8 cannot express"
    return str(error)
