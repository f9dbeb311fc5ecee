"""What the commands of `runnel` do; `runnel.cli` declares them."""
