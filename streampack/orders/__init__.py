"""The documents of a lane in the order of their similarity or of a field."""
