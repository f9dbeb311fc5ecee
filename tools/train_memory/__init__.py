"""Pilots of a recurrent sentence retriever (docs/pocket.md, "A recurrent sentence retriever")."""
