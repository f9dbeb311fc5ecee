"""`python -m benchmarks asked`: questions to a recurrent model, whole and each sentence alone."""

import json

import pytest

from benchmarks.__main__ import main
from runnel import SentenceRetriever


@pytest.mark.parametrize("model", ["pocket-mamba2", "minilm-mamba2"])
def test_the_ranks_are_those_of_the_documents_own_sentences(model, tmp_path):
    folder = tmp_path / "documents"
    folder.mkdir()
    sentences = ["The harbor opened in 1902.", "It was deep.", "Ships paid two crowns a night."]
    (folder / "harbor.txt").write_text(" ".join(sentences))
    (folder / "mill.txt").write_text("The mill burned down in 1899. Nobody was hurt.")
    asked = [
        {"question": "When did the harbor open?", "file": "harbor.txt", "patterns": ["1902"]},
        {"question": "What did ships pay?", "file": "harbor.txt", "patterns": ["two crowns"]},
        {"question": "Who owned the mill?", "file": "mill.txt", "kind": "unanswerable"},
    ]
    questions = tmp_path / "questions.jsonl"
    questions.write_text("".join(json.dumps({"patterns": [], **row}) + "\n" for row in asked))
    work = tmp_path / "work"
    command = ["asked", str(questions), str(folder), model, str(work), "manuals"]
    assert main(command) == 0

    retriever = SentenceRetriever.load(model)
    query = asked[0]["question"]
    alone = [max(s.score for s in retriever.score(query, sentence)) for sentence in sentences]
    whole = [s.score for s in retriever.score(query, " ".join(sentences))]
    for title, scores in (("", whole), (", each sentence alone", alone)):
        found = work / "questions" / "manuals" / f"{model}{title}"
        rows = [json.loads(line) for line in (found / "ranks.jsonl").read_text().splitlines()]
        ranking = rows[0]["model"]["document"]
        assert ranking["rank"] == 1 + sum(score > scores[0] for score in scores)
        result = json.loads((found / "questions.json").read_text())
        numbers = (result["queries"], result["unanswerable"], result["sentences"])
        assert numbers == (2, 1, 5)
        assert [one["system"] for one in result["rankings"]] == [model, "BM25"]
        assert len(result["rankings"][0]["metrics"]["area"]) == 3

    before = (found / "ranks.jsonl").stat().st_mtime_ns
    assert main(command) == 0
    assert (found / "ranks.jsonl").stat().st_mtime_ns == before
