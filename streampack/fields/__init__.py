"""Declared fields: numbers per token or document that travel with the tokens."""
