"""Training: losses, data, recipes and what long inputs need; the models stay those of `runnel.models`."""
