"""Mixtures: several sources by weights, with the tokens of each counted."""
