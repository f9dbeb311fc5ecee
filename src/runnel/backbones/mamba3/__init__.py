"""Mamba-3."""
