"""Training examples written by a language model: subsequences of documents, prompts, strategies."""
