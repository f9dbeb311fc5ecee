"""Write questions about the Python language reference, with their answers marked, in every form
that `runnel lab evaluate` reads.

python examples/python_questions.py python

python/chapters/*.txt             the chapters, to be indexed
python/questions.jsonl            questions with the chapters and the words that answer, for
                                  --questions
python/corpus.jsonl, queries.jsonl, qrels.tsv    the same as a BEIR folder
python/evidence.jsonl             the same with the document and the characters that answer
"""

import json
import re
import sys
from pathlib import Path
from pydoc_data.topics import topics

# Questions with words of the sentence that answers. Chapters repeat each other: each one with these
# words is an answer.
QUESTIONS = {
    "How can I stop a class from having a __dict__ for every instance?": (
        "allow us to explicitly declare data members"
    ),
    "Does an assert cost time when Python runs with optimization?": (
        "code generator emits no code for an assert statement"
    ),
    "Are function default arguments created again on each call?": (
        "parameter values are evaluated from left to right when"
    ),
    "Is an empty string true or false in an if?": "All other values are interpreted as true",
    "Does the loop variable still exist after a for loop?": (
        "Names in the target list are not deleted when the loop is finished"
    ),
    "Which error do I get for a local variable that has no value yet?": (
        '"UnboundLocalError" exception is raised'
    ),
    "Can I write a million with underscores?": (
        "Underscores are ignored for determining the numeric value of the literal"
    ),
    "Is b evaluated twice in a < b < c?": 'except that "y" is evaluated only once',
    "Can two equal objects have different hashes?": (
        "objects which compare equal have the same hash value"
    ),
    "What is returned if both try and finally return?": (
        'is determined by the last "return" statement executed'
    ),
    "How do I let the debugger run until the next breakpoint?": (
        "Continue execution, only stop when a breakpoint is encountered"
    ),
    "What does an asterisk before a parameter collect?": (
        "initialized to a tuple receiving any excess positional parameters"
    ),
    "How do I remove white space from both ends of a string?": (
        "the string with the leading and trailing characters removed"
    ),
    "How do I assign to a variable of the enclosing function?": (
        "to previously bound variables in the nearest enclosing scope"
    ),
    "How do I keep the original cause when I raise another exception?": (
        '"from" clause is used for exception chaining'
    ),
    "Is there an order in dictionaries?": "Dictionaries preserve insertion order",
    "When are two dictionaries equal?": (
        "Dictionaries compare equal if and only if they have the same"
    ),
    "How does a context manager swallow an error?": (
        "If the return value was true, the exception is suppressed"
    ),
    "Does minus or power bind more tightly?": "binds more tightly than unary operators on its left",
    "What does three dots mean as an object?": "There is exactly one ellipsis object",
    "How do I make a function without a name?": (
        "lambda forms) are used to create anonymous functions"
    ),
    "What does a bare raise do?": "re-raises the exception that is currently being handled",
    "Do backslashes count in r-strings?": "treat backslashes as literal characters",
    "What makes a function a generator?": "Using yield in a function definition is sufficient",
    "Which words are keywords only in some places?": (
        "Some identifiers are only reserved under specific contexts"
    ),
    "In which order does Python look for base classes?": (
        "classes that are considered when looking for base classes"
    ),
    "What type does dividing two integers give?": "Division of integers yields a float",
    "What does a comma make of two expressions?": (
        "an expression list containing at least one comma yields a tuple"
    ),
    "How large can an integer literal be?": "There is no limit for the length of integer literals",
    "When is an object of my class false?": (
        'defines either a "__bool__()" method that returns "False"'
    ),
}


def main() -> None:
    """Write the files and say what is in them."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "python")
    (folder / "chapters").mkdir(parents=True, exist_ok=True)
    corpus = [{"_id": name, "title": "", "text": topics[name].strip()} for name in sorted(topics)]
    for chapter in corpus:
        (folder / "chapters" / f"{chapter['_id']}.txt").write_text(
            chapter["text"] + "\n", encoding="utf-8"
        )
    questions = []
    evidence = []
    qrels = []
    queries = []
    for number, (question, words) in enumerate(QUESTIONS.items(), start=1):
        pattern = re.compile(r"\s+".join(map(re.escape, words.split())))
        places = {
            chapter["_id"]: found.span()
            for chapter in corpus
            if (found := pattern.search(chapter["text"]))
        }
        if not places:
            print(f"left out, as this Python words it in another way: {question}")
            continue
        shortest = min(places, key=lambda name: len(topics[name]))
        name = str(number)
        files = [f"chapters/{chapter}.txt" for chapter in places]
        questions.append({"id": name, "question": question, "file": files, "text": words})
        evidence.append(
            {
                "id": name,
                "question": question,
                "document": topics[shortest].strip(),
                "evidence": [places[shortest]],
            }
        )
        queries.append({"_id": name, "text": question})
        qrels += [f"{name}\t{chapter}\t1\n" for chapter in places]
    for file, rows in (
        ("corpus", corpus),
        ("queries", queries),
        ("questions", questions),
        ("evidence", evidence),
    ):
        (folder / f"{file}.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8"
        )
    (folder / "qrels.tsv").write_text(
        "query-id\tcorpus-id\tscore\n" + "".join(qrels), encoding="utf-8"
    )
    print(f"{folder}: {len(corpus)} chapters, {len(questions)} questions")


if __name__ == "__main__":
    main()
