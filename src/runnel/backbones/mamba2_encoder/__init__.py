"""BERT's encoder with Mamba-2 in place of attention, which reads a text passage by passage."""
