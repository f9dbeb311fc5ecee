"""Recurrent language models without their heads: token ids and a state in, hidden vectors and a
state out.
"""
