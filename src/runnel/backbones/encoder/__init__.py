"""BERT's encoder."""
