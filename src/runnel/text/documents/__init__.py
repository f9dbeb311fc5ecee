"""Documents of many kinds, each as one canonical text with blocks."""
