"""Transformer baselines."""
