"""Checkpoints of every published format: find, open, recognize and load them."""
