"""Plain text files: one document per file.

Knows files and their order; it does not know tokenizers.
"""
