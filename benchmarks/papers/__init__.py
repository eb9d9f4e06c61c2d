"""Figures of papers with strategies implemented here, beside ours."""
