"""Chat templates: rendering in a sandbox, and the bounds of turns in the rendered text."""
