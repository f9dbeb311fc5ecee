"""Fixtures shared with other folders."""

from helpers.tiny_shapes import tiny_shapes

__all__ = ["tiny_shapes"]
