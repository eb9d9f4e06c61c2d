from .chat import ChatTokenizer as ChatTokenizer
from .ends import apply_bos as apply_bos
from .ends import apply_eos as apply_eos
from .rules import EosRule as EosRule
from .rules import TokenRules as TokenRules
from .tokenizer import Tokenizer as Tokenizer
from .tokenizer import load_tokenizer as load_tokenizer
