"""Measuring. Every figure stands behind a check that what was timed computes the right thing."""
