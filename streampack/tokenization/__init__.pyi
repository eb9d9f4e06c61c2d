from .chat import ChatTokenizer as ChatTokenizer
from .rules import EosRule as EosRule
from .rules import TokenRules as TokenRules
from .rules import apply_bos as apply_bos
from .rules import apply_eos as apply_eos
from .tokenizer import Tokenizer as Tokenizer
from .tokenizer import load_tokenizer as load_tokenizer
