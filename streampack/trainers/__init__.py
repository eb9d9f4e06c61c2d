"""Trainers of other libraries: what their classes need to take packed batches and to resume.

Knows how each trainer asks for batches and saves; it does not know how batches are made. No trainer
is imported here. `examples/torchtitan_loader.py` is the model for a trainer of your own.
"""

from streampack.trainers.hugging_face import TrainerMixin
from streampack.trainers.lightning import DataModuleMixin

__all__ = ["DataModuleMixin", "TrainerMixin"]
