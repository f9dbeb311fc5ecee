"""Other libraries through which runnel is used (docs/integrations.md). Each file needs the extra of
its name, but `calls.py`, which the others share.
"""
