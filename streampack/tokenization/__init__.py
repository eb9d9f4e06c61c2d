"""Text blocks to token blocks, and what marks where documents begin and end."""

from streampack.tokenization.boundaries import EosRule, apply_bos, apply_eos
from streampack.tokenization.chat import ChatTokenizer
from streampack.tokenization.rules import TokenRules
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
