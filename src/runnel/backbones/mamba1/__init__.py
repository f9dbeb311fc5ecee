"""Mamba-1."""
