from .answer import Answer as Answer
from .loader import Loader as Loader
from .metrics import RolloutMetrics as RolloutMetrics
from .prompts import Prompts as Prompts
from .queue import Queue as Queue
from .queue import Ticket as Ticket
from .step import Step as Step
