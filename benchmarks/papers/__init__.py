"""Figures of the papers whose strategies are implemented, beside ours."""
