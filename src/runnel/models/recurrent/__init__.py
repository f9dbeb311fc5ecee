"""Models that torch computes: recurrent models, and encoders when they are trained or have no
weights for numpy. Read `heads.py` first, which turns hidden vectors into vectors and scores.

    model, describe      a model of a folder: load and save it; describe it without its weights
    heads                the heads that are torch modules
    readers              how an embedder reads texts
    memory, scorer       a reranker: the state after a remembered document; its score for a query
    scanner              a sentence retriever: reads the query and then the documents
    units                the scores of what `models/items.py` makes: pairs and sentences
    graph, adapters      for training: reads with autograd's graph; LoRA
    language_model       continues a text, with the LM head
    likelihood           a reranker without training: how probable the query is after the document
"""
