"""An HTTP server for one model: `runnel serve`.

A request passes through these files, in this order:

    connections   limits of the connection: its headers' time, and the number of connections
    guard         checks of Host, Origin, key and body, before any route; metrics after it
    app           the application: which routes there are, and how errors become answers
    embeddings, tei, rerank, retrieval, page    the routes, by the service whose shape they have
    context       what routes share: the loaded model, the index, strict bodies
    work          the queue: a model call is counted, admitted, and run in a thread

`refusals` has the body of each error, `settings` the limits, `view` what the page shows.
"""
