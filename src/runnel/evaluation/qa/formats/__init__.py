"""One file for each format in which sets are published: rows in, a `QaSet` out."""
