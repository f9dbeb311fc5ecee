"""Other libraries through which runnel is used: sentence-transformers, Qdrant, Ray. Each file needs its extra."""
