"""Conversations: their records, templates, masks and tokens.

`source` reads records, `templates` renders them with the model's template, `tokenizer` decides
which tokens carry loss. `long_chats` divides conversations that are longer than a row.
"""
