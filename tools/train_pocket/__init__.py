"""Training of `pocket`, the model that ships with runnel. See README.md in this folder."""
