"""A retrieval task of your own in mteb, with its metrics for an embedder and for an index of the
same model.

python examples/mteb_own_task.py
"""

import logging
import tempfile
from pydoc_data.topics import topics

import mteb
from datasets import Dataset
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.abstasks.task_metadata import TaskMetadata

from runnel import Embedder
from runnel.integrations.mteb import MtebEncoder, MtebIndex

QUESTIONS = {  # and the chapter that answers
    "Is the finally clause executed if a return statement is reached?": "try",
    "How do I assign to a variable of the enclosing function?": "nonlocal",
    "Does the loop variable still exist after a for loop?": "for",
    "How do I make a function without a name?": "lambda",
    "What does a bare raise do?": "raise",
    "Does an assert cost time when Python runs with optimization?": "assert",
}
CHAPTERS = sorted(
    {
        *QUESTIONS.values(),
        "while",
        "break",
        "continue",
        "with",
        "del",
        "return",
        "yield",
        "global",
        "pass",
        "import",
    }
)


class PythonQuestions(AbsTaskRetrieval):
    """Questions about chapters of the Python language reference."""

    metadata = TaskMetadata(
        name="PythonQuestions",
        description="Questions about the Python language reference.",
        reference="https://docs.python.org/3/reference/",
        dataset={"path": "local", "revision": "1"},
        type="Retrieval",
        category="t2t",
        eval_splits=["test"],
        eval_langs=["eng-Latn"],
        main_score="ndcg_at_10",
        date=("2026-01-01", "2026-01-01"),
        domains=["Programming"],
        license="apache-2.0",
        bibtex_citation="",
    )

    def load_data(self, num_proc: int | None = None, **options: object) -> None:
        """Fill the task from this file, without a download."""
        ids = {question: f"q{number}" for number, question in enumerate(QUESTIONS)}
        queries = [{"id": name, "text": question} for question, name in ids.items()]
        corpus = [
            {"id": name, "title": "", "text": text.strip()}
            for name, text in topics.items()
            if name in CHAPTERS
        ]
        judged = {ids[question]: {chapter: 1} for question, chapter in QUESTIONS.items()}
        split = {
            "queries": Dataset.from_list(queries),
            "corpus": Dataset.from_list(corpus),
            "relevant_docs": judged,
        }
        self.dataset = {"default": {"test": {**split, "top_ranked": None}}}
        self.data_loaded = True


def main() -> None:
    """Evaluate pocket on the task, and print nDCG@10."""
    logging.getLogger("mteb").setLevel(logging.ERROR)
    embedder = Embedder.load("pocket")
    with tempfile.TemporaryDirectory() as folder:
        systems = {"vectors": MtebEncoder(embedder), "index": MtebIndex(embedder, folder)}
        for name, system in systems.items():
            result = mteb.evaluate(
                system, PythonQuestions(), cache=None, co2_tracker=False, show_progress_bar=False
            )
            print(f"{name}: nDCG@10 {result.task_results[0].get_score():.3f}")


if __name__ == "__main__":
    main()
