"""Models of Hugging Face: their arguments, attention, routers, and the check of isolation."""
