"""Conversations to token ids: rendered by a chat template, tokenized whole, masked by place.

A conversation is tokenized as one text and the mask follows from where tokens lie in it, never
from tokenizing its parts one by one: tokens merge across the border of two parts, and tokenizers
treat the start of a text otherwise than its middle. A token on a border counts as the
assistant's, as it does in transformers.

EOS: a template closes turns by itself. Under "ensure" an EOS is added only where the assistant
has the last word and no special token ends it; a completion that is plain text gets one as any
text does. What is added carries loss: it is where the model learns to stop. BOS is the
template's business too, and is added to plain text alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from streampack.documents import Conversation, Conversations, Documents, Texts
from streampack.errors import ConfigError, ContentError
from streampack.reading.skips import Skips
from streampack.tokenization.boundaries import extend
from streampack.tokenization.template import ChatTemplate, Rendered, RenderError
from streampack.tokenization.tokenizer import Tokenizer

__all__ = ["ChatTokenizer"]


class ChatTokenizer:
    """Turns blocks of conversations into blocks of token ids with loss masks. Picklable.

    Args:
        tokenizer: the tokenizer; its rule for EOS is kept.
        template: applied to every record; None takes the tokenizer's own for messages, and joins
            a plain prompt and completion as they are.
        name: gives words for a document's origin, for errors.

    Attributes:
        fingerprint: 64 bits, in hexadecimal, over tokenizer and template.

    Raises:
        ConfigError: the template is broken, or the tokenizer would take its special tokens apart.
    """

    def __init__(
        self, tokenizer: Tokenizer, template: str | None, name: Callable[[np.void], str]
    ) -> None:
        if tokenizer.splits_special_tokens:
            raise ConfigError(
                "The tokenizer's encode_special_tokens is set.",
                "It would take the tokens apart that a chat template puts between turns.",
                "Set `tokenizer.encode_special_tokens = False`.",
            )
        self.tokenizer = tokenizer
        self._name = name
        self._all_rendered = template is not None
        source = tokenizer.chat_template if template is None else template
        self._template: ChatTemplate | None = None
        if source is not None:
            ids = {"bos": tokenizer.bos_id, "eos": tokenizer.eos_id, "pad": tokenizer.pad_id}
            named = {f"{kind}_token": tokenizer.token(number) for kind, number in ids.items()}
            known = {key: text for key, text in named.items() if text is not None}
            self._template = ChatTemplate(source, known, tokenizer.special_tokens)
        digest = hashlib.blake2b(tokenizer.fingerprint.encode(), digest_size=8)
        digest.update(repr((source, self._all_rendered)).encode())
        self.fingerprint = digest.hexdigest()

    def encode(self, block: Conversations, skips: Skips) -> Documents:
        """The block as token ids with a loss mask, in order, without what `skips` steps over.

        Args:
            block: N conversations.
            skips: takes a `ContentError` for each conversation that the template refuses, whose
                assistant's turns cannot be told from the rest, or that cannot be tokenized.
        """
        rendered: list[Rendered] = []
        kept: list[int] = []
        for i, conversation in enumerate(block.conversations):
            try:
                rendered.append(self._render(conversation))
                kept.append(i)
            except RenderError as error:
                origin = block.origin[i]
                skips.handle(
                    ContentError(
                        f"The conversation in {self._name(origin)} {error.reason}.",
                        "It cannot be learnt from.",
                        error.remedy,
                        shard=int(origin["shard"]),
                        index=int(origin["index"]),
                    )
                )
        texts = Texts([conversation.text for conversation in rendered], block.origin[kept])
        spans = [conversation.spans for conversation in rendered]
        documents, encoded = self.tokenizer.encode_spans(texts, spans, skips)
        plain = np.array([self._is_plain(block.conversations[i]) for i in kept], dtype=np.bool_)
        closed = np.array([conversation.closed for conversation in rendered], dtype=np.bool_)
        return self._with_ends(documents, plain[encoded], closed[encoded])

    def _is_plain(self, conversation: Conversation) -> bool:
        return conversation.plain and not self._all_rendered

    def _render(self, conversation: Conversation) -> Rendered:
        if self._is_plain(conversation):
            prompt, completion = (message["content"] for message in conversation.messages)
            text = prompt + completion
            return Rendered(text, [(len(prompt), len(text))], closed=False)
        if self._template is None:
            _refuse_without_template()
        return self._template.render(conversation)

    def _with_ends(
        self, documents: Documents, plain: NDArray[np.bool_], closed: NDArray[np.bool_]
    ) -> Documents:
        """With BOS and EOS where the rules say so."""
        tokenizer = self.tokenizer
        if len(documents.tokens) == 0:
            return documents
        if tokenizer.bos and tokenizer.bos_id is not None:
            heads = documents.tokens[np.minimum(documents.offsets[:-1], len(documents.tokens) - 1)]
            add = plain & (heads != tokenizer.bos_id)
            documents = extend(documents, add, tokenizer.bos_id, at_head=True, counts=False)
        if tokenizer.eos == "as-is" or tokenizer.eos_id is None:
            return documents
        add = np.ones(len(documents), dtype=np.bool_)
        if tokenizer.eos == "ensure":
            add = ~closed & (documents.tokens[documents.offsets[1:] - 1] != tokenizer.eos_id)
        return extend(documents, add, tokenizer.eos_id, at_head=False)


def _refuse_without_template() -> NoReturn:
    raise ConfigError(
        "The records hold messages, and neither the source nor the tokenizer has a chat template.",
        "Nobody can tell how the model is to be shown a conversation.",
        "Pass sources.Chat(..., template=) with a Jinja template or its path, or a transformers "
        "tokenizer that has a `chat_template`.",
    )
