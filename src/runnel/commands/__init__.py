"""The commands of `runnel`, one file each: options, work and output."""
