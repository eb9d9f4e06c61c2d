"""Rollouts exactly once: prompts to samplers, groups of answers to training steps.

This package knows prompts, tickets, groups and their ages. Sampling, rewards, advantages and the
transport of weights are the user's.
"""

from streampack._lazy import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
