"""Rollouts exactly once: prompts to samplers, groups of answers to training steps.

This package knows prompts, tickets, groups and their ages. Sampling, rewards, advantages and the
transport of weights are the user's.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
