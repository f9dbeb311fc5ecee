"""Language models behind an endpoint: answers with citations."""
