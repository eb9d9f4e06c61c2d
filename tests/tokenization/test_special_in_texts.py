"""Special tokens that texts write: encoded by default and counted, or split as text."""

from __future__ import annotations

from typing import Any

from streampack import PackedDataset, PackedLoader, TokenRules, Topology, sources
from streampack.packing import Concat
from streampack.tokenization import Tokenizer
from tests.support.chats import CHATML, bpe_tokenizer, messages, with_template

ENGINE = with_template(bpe_tokenizer(), CHATML)
EOS_ID = Tokenizer(ENGINE).eos_id
EOS = Tokenizer(ENGINE).token(EOS_ID)
TEXTS = [f"before{EOS}after", "plain", f"end{EOS}", f"{EOS}{EOS}start"]


def loader_of(source: Any, rules: TokenRules | None = None) -> PackedLoader:
    options: dict[str, Any] = {"token_rules": rules} if rules else {}
    return PackedLoader(
        PackedDataset(
            source,
            packer=Concat(seq_len=128),
            tokenizer=ENGINE,
            topology=Topology(),
            lanes=1,
            **options,
        )
    )


def ends(loader: PackedLoader) -> int:
    return sum(int((batch.input_ids[batch.document_ids >= 0] == EOS_ID).sum()) for batch in loader)


def test_an_end_inside_a_text_is_counted_and_logged_once(caplog: Any) -> None:
    loader = loader_of(TEXTS)
    assert ends(loader) == 7  # three inside, four at the ends
    assert loader.metrics().eos_in_texts == 3
    warnings = [line for line in caplog.messages if "special_tokens_in_text" in line]
    assert len(warnings) == 1


def test_special_tokens_in_texts_are_split_if_so_asked(caplog: Any) -> None:
    loader = loader_of(TEXTS, TokenRules(special_tokens_in_text="split"))
    assert ends(loader) == len(TEXTS)  # only the added ones
    assert loader.metrics().eos_in_texts == 0
    assert "special_tokens_in_text" not in caplog.text


def test_conversations_keep_the_special_tokens_of_their_template() -> None:
    chats = [{"messages": messages("ask", "answer")}]
    found = []
    for rules in (None, TokenRules(special_tokens_in_text="split")):
        source = sources.Mixture(
            {"text": ["x"], "chat": sources.Chat(chats)}, weights={"text": 1, "chat": 1}
        )
        found.append([batch.input_ids.tolist() for batch in loader_of(source, rules)])
    assert found[0] == found[1]
