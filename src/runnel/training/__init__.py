"""Training: recipes, losses, trainers and what long inputs need; the models stay those of `runnel.models`.

The way of the data, from a file to a batch:

    formats, corpora   rows of a file in one of many formats, and the texts of the ids in them
    data               examples: a query with documents (`Triple`), or with a document and where it answers (`Evidence`)
    triple_table, sentence_table   Arrow files made of these, as the trainers take them
    run_data           the tables of one run
    batches            rows of about equal length, to a budget of tokens; `forward` and `segments` read them with a graph
"""
