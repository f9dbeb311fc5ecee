"""Question answering over long documents: the sets of paper E (docs/papers.md) and a user's own."""
