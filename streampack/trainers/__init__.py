"""Mix-ins with which trainers of other libraries take packed batches and resume.

This package handles how each trainer requests batches and saves checkpoints. It is independent of
how batches are made, and imports no trainer. `examples/torchtitan_loader.py` shows an adapter for
another trainer.
"""

from streampack.trainers.hugging_face import TrainerMixin
from streampack.trainers.lightning import DataModuleMixin

__all__ = ["DataModuleMixin", "TrainerMixin"]
