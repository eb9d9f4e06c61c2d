"""Synthetic recall: effects of packing on a model that must read its documents."""
