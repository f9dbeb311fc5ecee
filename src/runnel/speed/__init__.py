"""The speed and memory of models on this machine. Every figure is reported only after a check of the model's results."""
