"""What `runnel lab compare` does with results on disk: the folders that `runnel lab evaluate`,
`questions` and `qa` wrote for several models or settings. For example, which of two models answers
more of the same queries, and whether the difference may be chance.

    comparison    `compare_results`: a row for each task and metric, with mean and spread of the
                  repeats of each result; of two results a paired test of their queries; writes the
                  table comparison.json and the plot comparison.png
"""
