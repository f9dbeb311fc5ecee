"""Work over many rows that resumes: rows of files in, vectors, runs and lines of JSON out."""
