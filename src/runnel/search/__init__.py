"""Find documents: an index that is built in one pass and searched in stages."""
