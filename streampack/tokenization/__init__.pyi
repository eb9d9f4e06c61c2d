from streampack.chats.tokenizer import ChatTokenizer as ChatTokenizer
from streampack.stages.token_rules import EosRule as EosRule
from streampack.stages.token_rules import TokenRules as TokenRules
from streampack.tokenization.ends import apply_bos as apply_bos
from streampack.tokenization.ends import apply_eos as apply_eos
from streampack.tokenization.tokenizer import Tokenizer as Tokenizer
from streampack.tokenization.tokenizer import load_tokenizer as load_tokenizer
