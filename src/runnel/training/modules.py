"""The former path of `runnel.integrations.sentence_transformers`, which model folders saved before it was moved still name."""

from runnel.integrations.sentence_transformers import EmbedderModule, RerankerModule, cross_encoder, sentence_transformer

__all__ = ["EmbedderModule", "RerankerModule", "cross_encoder", "sentence_transformer"]
