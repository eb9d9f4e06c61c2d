"""Synthetic recall: what packing does to a model that must read its documents."""
