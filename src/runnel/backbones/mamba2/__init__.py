"""Mamba-2."""
