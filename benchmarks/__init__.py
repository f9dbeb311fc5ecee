"""What this project's developers measure: the page docs/performance.md, its bars, and comparisons
with other systems.
"""
