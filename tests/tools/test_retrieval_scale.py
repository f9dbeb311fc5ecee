"""Mining and evaluation by vectors of two processes, as docs/data.md measured over 200,000
passages.
"""

import random

import pytest
from helpers.tiny import tiny_model

from tools.retrieval_scale import EVERY, main


@pytest.mark.slow
def test_vectors_of_two_processes_rank_as_all_products_do(tmp_path, capsys):
    tiny_model(tmp_path / "tokenizer").save(tmp_path / "model")
    words = "the cat dog sat on mat river runs to sea a of".split()
    text = " ".join(random.Random(0).choices(words, k=60 * 3 * EVERY))
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text(text)
    main(str(tmp_path / "model"), tmp_path / "texts", 3 * EVERY)
    printed = capsys.readouterr().out
    assert "1,500 passages, 3 queries" in printed
    assert "3 of 3 first queries have the scores of all products at once" in printed
