"""Training of the models in `runnel.models`: recipes, losses, trainers, and reading of long texts
with a graph.
"""
