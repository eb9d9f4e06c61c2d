"""Text and conversations to blocks of token ids, and the ids that begin and end documents.

Knows tokenizers and chat templates; it does not know sources, lanes or rows.
"""

from streampack.tokenization.chat import ChatTokenizer
from streampack.tokenization.rules import EosRule, TokenRules, apply_bos, apply_eos
from streampack.tokenization.tokenizer import Tokenizer, load_tokenizer

__all__ = [
    "ChatTokenizer",
    "EosRule",
    "TokenRules",
    "Tokenizer",
    "apply_bos",
    "apply_eos",
    "load_tokenizer",
]
