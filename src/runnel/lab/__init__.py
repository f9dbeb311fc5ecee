"""What trains, measures and compares models. Nothing of the package outside
this folder imports it.
"""
