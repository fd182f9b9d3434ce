"""The terminal while a run trains."""
