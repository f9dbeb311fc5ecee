"""Readers of documents of many kinds, each as one canonical text with blocks."""
