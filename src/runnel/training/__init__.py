"""Training of the models in `runnel.models`: recipes, losses, trainers, and reading of long texts with a graph.

The path of the data, from a file to a batch:

    formats, corpora   rows of a file in one of many formats, and the texts for ids in them
    data               examples: a query with documents (`Triple`), or with a document and its evidence spans (`Evidence`)
    triple_table, sentence_table   Arrow files made of these, as the trainers need them
    vector_data        documents that are read once, for a head over stored vectors
    run_data           the tables of one run
    batches            rows of about equal length, up to a budget of tokens; `forward` and `segments` read them with a graph
"""
