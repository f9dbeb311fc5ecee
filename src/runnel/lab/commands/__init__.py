"""The commands of `runnel lab`."""
