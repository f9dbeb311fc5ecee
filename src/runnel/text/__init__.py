"""Text in, ids and spans out: reading files, sentences, tokenizing, templates. Knows nothing of
tensors.
"""
