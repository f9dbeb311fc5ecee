"""xLSTM."""
