"""What several results say together."""
