"""Sources for a language model's prompt from LangChain: the sentences of an index that answer, each
with its exact place.

python examples/langchain_sources.py "Is the finally clause executed if a return statement is
reached?"
"""

import sys
import tempfile
from pathlib import Path
from pydoc_data.topics import topics

from langchain_core.documents import Document as Result
from langchain_core.prompts import ChatPromptTemplate

from runnel import Document, Index
from runnel.integrations.langchain import RunnelRetriever

CHAPTERS = (
    "for",
    "while",
    "break",
    "continue",
    "try",
    "with",
    "del",
    "return",
    "yield",
    "nonlocal",
)
PROMPT = ChatPromptTemplate.from_template(
    "Answer from these sources and cite them by number.\n\n{sources}\n\nQuestion: {question}"
)


def numbered(results: list[Result]) -> str:
    """Return the sentences, numbered, with the chapter and the characters they are from."""
    lines = []
    for number, one in enumerate(results, start=1):
        place = "{source}:{start}-{end}".format_map(one.metadata)
        lines.append(f"[{number}] {' '.join(one.page_content.split())} ({place})")
    return "\n".join(lines)


def main() -> None:
    """Index some chapters of the Python language reference and print the prompt for a question."""
    question = (
        sys.argv[1]
        if len(sys.argv) > 1
        else "Is the finally clause executed if a return statement is reached?"
    )
    with tempfile.TemporaryDirectory() as folder, Index.create(Path(folder) / "index") as index:
        index.add([Document(name, topics[name].strip()) for name in CHAPTERS])
        sources = RunnelRetriever(index=index, k=2, sentences=3) | numbered
        prompt = {"sources": sources, "question": lambda text: text} | PROMPT  # | a chat model
        print(prompt.invoke(question).to_string())


if __name__ == "__main__":
    main()
