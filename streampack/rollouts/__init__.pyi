from streampack.rollouts.answer import Answer as Answer
from streampack.rollouts.loader import Loader as Loader
from streampack.rollouts.metrics import RolloutMetrics as RolloutMetrics
from streampack.rollouts.prompts import Prompts as Prompts
from streampack.rollouts.queue import Queue as Queue
from streampack.rollouts.step import Step as Step
from streampack.rollouts.ticket import Ticket as Ticket
