"""Models that runnel reads but did not write: published checkpoints, folders of other libraries.

loading           opens such a folder, and decides which of the following it is
bare              a recurrent checkpoint without heads: gets the papers' templates and a head
transformers      transformers: BERT-like encoders, and what other libraries compute
embedding_rwkv    EmbeddingRWKV: an RWKV-7 embedder, and its reranker of states
settings          what the folder's files say: special tokens, pooling, prompts
reader            how documents are read by a transformer that reads a text whole
"""
