"""Text in, ids and spans out: reading files, sentences, tokenising, templates. Knows nothing of tensors."""
