"""The documents of one lane as they come: read, tokenized, hooked, mixed, put in order."""
