"""Tools for language-model agents: search, find, read and verify, by the Model Context Protocol
(MCP).
"""
