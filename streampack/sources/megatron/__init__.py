"""Indexed datasets of Megatron-LM: a `.bin` of tokens and the `.idx` that says where they begin.

Knows the layout of both files; it does not know lanes or tokenizers.
"""
