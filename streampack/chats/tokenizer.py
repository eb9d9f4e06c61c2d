"""Tokenization of conversations: rendered by a chat template, encoded whole, masked by position.

A conversation is encoded as one text, and the loss mask follows from the positions of the tokens in
it. Parts are never encoded separately, because tokens merge across the border of two parts and
tokenizers treat the start of a text differently from its middle. A token on a border belongs to the
assistant, as in transformers.

Templates close turns themselves. With eos="ensure" an EOS is added only if the last message is the
assistant's and no special token ends it; a plain-text completion gets one like any text. An added
EOS carries loss, to teach the model to stop. Templates also write BOS themselves, so BOS is added
to plain text only.

A conversation may become several documents: one per learnt turn, or the two sides of a preference
pair. They all have its origin and document fields, and are skipped together.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.chats.conversations import Conversation, Conversations, TurnRules
from streampack.chats.templates.script import RenderError
from streampack.chats.templates.template import ChatTemplate
from streampack.chats.templates.turns import Rendered
from streampack.documents.blocks import Documents, Texts, text_bytes
from streampack.errors import ConfigError, ContentError
from streampack.sources.broken import TOO_LONG_REMEDY
from streampack.sources.error_policy import ErrorPolicy
from streampack.sources.reading import ReadOptions, too_long
from streampack.tokenization.ends import apply_bos, apply_eos
from streampack.tokenization.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

_MARKER = re.compile(r"<\|\w+\|>")  # form of turn markers in most templates


class ChatTokenizer:
    """Encode blocks of conversations to blocks of token ids with loss masks. Picklable.

    Args:
        tokenizer: the tokenizer; its EOS rule applies.
        template: template for every record. None applies the tokenizer's template to messages (its
            "tool_use" template to messages with tools), and joins a plain prompt and completion.
        name: function from a document's origin to its name, for errors.
        rules: choice of the parts of a conversation that carry loss.
        template_kwargs: further variables of the template; see `streampack.sources.Chat`.
        most_bytes: longest rendered text in bytes of UTF-8.

    Attributes:
        fingerprint: 64-bit hash, in hexadecimal, of tokenizer and template.

    Raises:
        ConfigError: the template is broken, or the tokenizer would split special tokens.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: str | None,
        name: Callable[[np.void], str],
        rules: TurnRules | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        most_bytes: int = ReadOptions().most_text_bytes,
    ) -> None:
        if tokenizer.splits_special_tokens:
            raise ConfigError(
                "Chat templates need special tokens, but the tokenizer's encode_special_tokens is "
                "set, which splits them.",
                "Set `tokenizer.encode_special_tokens = False`.",
                setting="tokenizer",
            )
        self.tokenizer = tokenizer
        self._name = name
        self._most_bytes = most_bytes
        self._all_rendered = template is not None
        source = tokenizer.chat_template if template is None else template
        with_tools = tokenizer.tool_template if template is None else None
        markers = _MARKER.findall(f"{source} {with_tools}")
        self._split_markers = frozenset(text for text in markers if not tokenizer.knows(text))
        ids = {"bos": tokenizer.bos_id, "eos": tokenizer.eos_id, "pad": tokenizer.pad_id}
        named = {f"{kind}_token": tokenizer.token(number) for kind, number in ids.items()}
        known = {key: text for key, text in named.items() if text is not None}
        variables = {**known, **(template_kwargs or {})}
        self._template, self._tool_template = (
            None if text is None else ChatTemplate(text, variables, tokenizer.special_tokens, rules)
            for text in (source, with_tools)
        )
        digest = hashlib.blake2b(tokenizer.fingerprint.encode(), digest_size=8)
        digest.update(repr((source, self._all_rendered)).encode())
        if with_tools is not None:
            digest.update(with_tools.encode())
        if chosen := {**(rules.describe() if rules else {}), **(template_kwargs or {})}:
            digest.update(repr(sorted(chosen.items())).encode())
        self.fingerprint = digest.hexdigest()

    def encode(self, block: Conversations, skips: ErrorPolicy) -> Documents:
        """Encode a block to token ids with a loss mask, in order, without skipped conversations.

        Args:
            block: N conversations.
            skips: gets a `ContentError` for each conversation that the template refuses, that
                cannot be tokenized, or with assistant turns that cannot be located.
        """
        rendered, record = self.rendered_of(block, skips)
        return self.documents_of(block, rendered, record, skips)[0]

    def rendered_of(
        self, block: Conversations, skips: ErrorPolicy
    ) -> tuple[list[Rendered], list[int]]:
        """Return the texts of a block, and the index of each text's conversation; see `encode`."""
        rendered: list[Rendered] = []
        record: list[int] = []
        for i, conversation in enumerate(block.conversations):
            try:
                sides = self._rendered(conversation)
                for side in sides:
                    self._check_length(side.text)
            except RenderError as error:
                self.refuse(block.origin[i], error, skips)
            else:
                rendered += sides
                record += [i] * len(sides)
        return rendered, record

    def refuse(self, origin: np.void, error: RenderError, skips: ErrorPolicy) -> None:
        """Report the conversation at `origin`, which cannot be rendered."""
        name = self._name(origin)
        skips.handle(
            ContentError(
                f"The conversation in {name} {error.reason}.",
                error.remedy,
                shard=int(origin["shard"]),
                index=int(origin["index"]),
                setting=error.setting,
                document=name,
            )
        )

    def documents_of(
        self,
        block: Conversations,
        rendered: Sequence[Rendered],
        record: Sequence[int],
        skips: ErrorPolicy,
    ) -> tuple[Documents, NDArray[np.int64]]:
        """Encode texts of a block's conversations, whose indices are `record`.

        Returns:
            The documents, and the index of each one's conversation. A conversation with a text
            that cannot be encoded has none.
        """
        if rendered and self._split_markers:
            self._warn_split_markers(rendered[0].text)
        which = np.array(record, dtype=np.int64)
        texts = Texts([conversation.text for conversation in rendered], block.origin[which])
        spans = [conversation.spans for conversation in rendered]
        documents, encoded = self.tokenizer.encode_spans(texts, spans, skips, self._name)
        if len(encoded) < len(which):  # a conversation is kept only if all its texts are
            kept = ~np.isin(which[encoded], np.delete(which, encoded))
            documents, encoded = documents.take(np.flatnonzero(kept)), encoded[kept]
        plain = np.array([self.is_plain(block.conversations[i]) for i in record], dtype=np.bool_)
        closed = np.array([conversation.closed for conversation in rendered], dtype=np.bool_)
        if self.tokenizer.bos:
            bos_ids, may_get = self.tokenizer.bos_ids, plain[encoded]
            documents = apply_bos(documents, bos_ids, only=may_get, counts=False)
        rule = self.tokenizer.eos
        unclosed = ~closed[encoded] if rule == "ensure" else None
        documents = apply_eos(documents, rule, self.tokenizer.eos_id, only=unclosed)
        fields = {name: values[which[encoded]] for name, values in block.document_fields.items()}
        pairs = [block.conversations[i].rejected is not None for i in which[encoded].tolist()]
        if any(pairs):
            fields["chosen"] = _chosen(np.array(pairs, dtype=np.bool_))
        return (replace(documents, document_fields=fields) if fields else documents), which[encoded]

    def _check_length(self, text: str) -> None:
        if (size := text_bytes(text)) > self._most_bytes:
            raise RenderError(
                too_long(size, self._most_bytes), TOO_LONG_REMEDY, setting="max_document_bytes"
            )

    def _warn_split_markers(self, text: str) -> None:
        """Warn once if the template marks turns with text that the tokenizer splits."""
        written = sorted(self._split_markers.intersection(_MARKER.findall(text)))
        self._split_markers = frozenset()
        if written:
            logger.warning(
                "The chat template writes %s, which the tokenizer does not know as one token and "
                "splits like any other text. Pass the tokenizer that belongs to the template, or "
                "add the token to it and to the model.",
                " and ".join(written),
            )

    def is_plain(self, conversation: Conversation) -> bool:
        """Return True for a text prompt and completion that no template renders."""
        return conversation.plain and not self._all_rendered

    def _rendered(self, conversation: Conversation) -> list[Rendered]:
        """Return a conversation's texts; for a preference pair the chosen and the rejected one."""
        if conversation.rejected is None:
            return self._sides(conversation)
        texts = [*self._sides(conversation), *self._sides(conversation.rejected)]
        if len(texts) != 2:
            raise RenderError(
                f"is a preference pair and makes {len(texts)} documents instead of two, as more "
                "than one turn of a side is learnt",
                'Pass turns="whole" for pairs, or pairs with one answer on each side.',
            )
        return texts

    def _sides(self, conversation: Conversation) -> list[Rendered]:
        if self.is_plain(conversation):
            prompt, completion = (message["content"] for message in conversation.messages)
            text = prompt + completion
            return [Rendered(text, [(len(prompt), len(text))], closed=False)]
        return self.template_of(conversation).render(conversation)

    def template_of(self, conversation: Conversation) -> ChatTemplate:
        """Return the template of a conversation's messages; raise `ConfigError` without one."""
        template = self._template
        if conversation.tools is not None:
            template = self._tool_template or template
        if template is None:
            raise ConfigError(
                "The records hold messages, and neither the source nor the tokenizer has a chat "
                "template.",
                "Pass sources.Chat(..., template=), or a tokenizer that has a `chat_template`.",
                setting="template",
            )
        return template


def _chosen(pairs: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return an (N,) bool mask, False for rejected documents; a pair's chosen one comes first."""
    chosen = ~pairs
    chosen[np.flatnonzero(pairs)[::2]] = True
    return chosen
