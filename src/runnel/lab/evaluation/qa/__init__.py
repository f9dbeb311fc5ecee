"""Question answering over long documents: the sets of paper E and a user's own."""
