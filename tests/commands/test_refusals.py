"""What commands refuse: options that have no effect or contradict each other, and input that they
cannot use.

A row is a command with the part of its message that names what is wrong. Nothing is printed or left
behind.
"""

import gzip
import json
import shlex

import pytest
from helpers.document_files import pdf
from helpers.files import write_files

from runnel import cli

EVIDENCE = {
    "id": "a",
    "question": "red cat",
    "document": "The red cat sat. A dog ran.",
    "evidence": [[0, 16]],
}
OPTIONS = {
    "find q a.txt --plain --json": "--plain and --json",
    "find q a.txt --explain --plain": "--plain",
    "ask q a.txt --in library": "PATH",
    "ask q a.txt --no-update": "--no-update",
    "ask q --in library --ocr 'x {image}'": "--ocr",
    "ask q --in library --no-remember": "--no-remember",
    "info pocket --cache": "MODEL",
    "info --empty": "--empty",
    "search x --in library --words-only --meaning-only": "--meaning-only",
    "search x --in library --words-only --weight 1": "--weight",
    "search x --in library --rerank 3 --no-rerank": "--rerank",
    "search x --in library --explain -l": "--explain",
    "search x --in library --no-update": "--no-update",
    "search x --in library --ocr 'x {image}'": "--ocr",
    "read a.txt --lines 1:2 --pages 1": "--lines, --pages",
    "rerank q a.txt --depth 2": "--depth",
    "rerank q": "DOCUMENTS missing",
    "rerank --queries q.tsv --run r": "--corpus, --to missing",
    "mcp --port 80": "--port",
    "mcp --port 0": "--port",
    "mcp --no-update --in x": "--no-update",
    "ray notes": "--to",
    "index --keep-missing": "--keep-missing needs --to",
    "index --to library": "PATH",
    "index --watch --json": "--json",
    "lab synthesize a.txt --without-llm --to out --llm http://x/v1": "--llm",
}
INPUT = {
    "lab evaluate bm25 beir --dtype int8": "--dtype",
    "lab evaluate pocket beir --k1 2": "--k1",
    "lab evaluate pocket beir --rerank 0": "--rerank",
    "lab evaluate pocket beir --prompt '{instruction}: '": "{instruction}",
    "lab evaluate pocket beir --stride 5": "--stride",
    "lab evaluate api:toy evidence.jsonl --as embed --max-tokens 5": "--max-tokens",
    "lab evaluate pocket evidence.jsonl --chunk-words 5": "--chunk-words",
    "lab evaluate tiny sts --mteb --metrics MRR": "--metrics",
    "lab qa whole q.jsonl --out out -k 3": "--top-k",
    "lab qa bm25 q.jsonl --out out --seed 1": "--seed",
    "find ' ' a.txt": "the query is empty",
    "find a.txt 'is it?'": "find 'is it?' a.txt",
    "rerank a.txt 'is it?'": "rerank 'is it?' a.txt",
    "ask a.txt 'is it?'": "ask 'is it?' a.txt",
    "find q 'a*.rst'": "a*.rst",
    "find q a.txt --min-score 20%": "probabilities",
    **{
        f"find q a.txt --min-score {score}": f"--min-score is '{score}'"
        for score in ("x", "inf", "nan", "0%", "100%", "nan%")
    },
    "find q a.txt --html no/r.html": "no: no such directory",
    "verify - -": "standard input",
    "read a.txt --lines x": "--lines is 'x'",
    "read a.txt --characters 3": "--characters is '3'",
    "read a.pdf --ocr 'tesseract scan.png'": "{image}",
    "search x --no-update": "no .runnel in",
    "index missing --to library": "missing",
    "index a.txt --to library --field year": "'year'",
    "index a.txt --to a.txt": "a.txt has other content",
    "index notes --to notes": "notes has other content",
    "embed - --to out.npy --shard 1/2": "--shard needs a file on disk",
    "embed packed.txt.gz --to out.npy --shard 1/2": "packed.txt.gz: --shard needs plain text",
    "embed pairs.csv --to out.npy --shard 1/2": "pairs.csv: --shard needs rows of one line each",
    "embed named.tsv --to out.npy --shard 1/2": "named.tsv: --shard needs rows of one line each",
    "embed odd.jsonl --to out.npy": "odd.jsonl, line 1: an id must not",
    "embed a.dat --to out.npy": "'.dat'",
    "embed a.txt --to out.parquet": "parquet",
    "embed a.txt --to no/out.npy": "no: no such directory",
    "embed notes --to out.npy": "notes is a folder",
    "embed missing.jsonl --to out.npy": "missing.jsonl: No such file",
    "embed a.txt --to out.npy --precision int8 --query": "--ranges",
    "embed a.txt --to out.npy --precision int8 --shard 1/2": "--ranges",
    "embed a.txt --to out.npy --precision binary --ranges x.npy": "--ranges",
    "lab mine pairs.csv --to out.jsonl --ranks 5": "'5'",
    "lab mine pairs.csv --to out.jsonl --ranks 1-3": "ranks 1 to 3",
    "lab mine pairs.csv --to out.jsonl --relative-margin 0.1": "--relative-margin",
    "lab mine pairs.csv --to out.jsonl --run x --model toy": "--run or --model",
    "lab mine pairs.csv --to out.jsonl --model toy --b 1": "--k1 and --b",
    "lab mine pairs.csv --to out.jsonl --b 2": "0.9 and 2",
    "lab mine pairs.csv --to out.jsonl --prompt 'find: '": "--prompt",
    "lab evaluate bm25 bier": "near names: beir",
    "lab evaluate bm25 beir beir": "two tasks are called 'beir'",
    "lab evaluate bm25 beir --as embed": "bm25 is BM25",
    "lab evaluate bm25 beir --out a.txt/folder": "a.txt is a file",
    "lab evaluate bm25 qrels.txt": "--corpus and --queries",
    "lab evaluate bm25 q.jsonl": "q.jsonl, line 1",
    "lab evaluate toy evidence.jsonl --as rerank": "'rerank'",
    "lab evaluate api:toy evidence.jsonl": "with --as embed",
    "lab evaluate api:toy beir --as embed": "can only rank the sentences of evidence",
    "lab evaluate api:toy sts --mteb": "can only rank the sentences of evidence",
    "lab evaluate api:toy sts --mteb --as index": "can only rank the sentences of evidence",
    "lab evaluate api:toy evidence.jsonl --as embed --dtype bf16": "--dtype has no effect",
    "lab evaluate api:toy evidence.jsonl --as embed --max-query-tokens 5": "--max-query-tokens",
    "lab qa api:x q.jsonl --out out --dtype bf16": "--dtype has no effect",
    "lab evaluate toy evidence.jsonl --context clause": "'clause'",
    "lab evaluate pocket beir --as rerank --segment-tokens 4 --stride 5": "the stride is 5",
    "lab evaluate pocket beir --segment-tokens 4 --max-tokens 5": "--max-tokens has no effect",
    "lab compare a b": "a has no results",
    "lab qa whole q.jsonl --out out --window-tokens 3 --stride 4": "the stride is 4",
    "lab qa api:x q.jsonl --out out --as sentences": "--as has no effect",
    "lab synthesize a.txt --to out --lengths 2k": "'2k'",
    "serve --port 0 --api-key-file empty": "empty holds no API key",
    "info 'no such model'": "'no such model'",
}


@pytest.fixture
def files(beir, tmp_path):
    write_files(
        tmp_path,
        {
            "notes/heart.txt": "The heart is a muscle.",
            "a.txt": "One dog.\nTwo dogs.\n",
            "a.pdf": pdf([["A page."], None]),
            "empty": "\n",
            "a.dat": "a,b\n",
            "packed.txt.gz": gzip.compress(b"one\n"),
            "named.tsv": "id\ttext\na\tb\n",
            "odd.jsonl": '{"id": "a b", "text": "b"}\n',
            "pairs.csv": "query,positive\nwhere is it,it is here\nwho is it,she is it\n",
            "qrels.txt": "1 0 d1 2\n",
            "q.jsonl": '{"question": "q", "file": "a"}\n',
            "evidence.jsonl": json.dumps(EVIDENCE) + "\n",
        },
    )


@pytest.mark.usefixtures("fake", "files")
@pytest.mark.parametrize("command", OPTIONS)
def test_options_that_have_no_effect_are_wrong_usage(run, command):
    done = run(*shlex.split(command))
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("Usage: ") and OPTIONS[command] in " ".join(
        done.err.replace("│", " ").split()
    )


@pytest.mark.usefixtures("fake", "files")
@pytest.mark.parametrize("command", INPUT)
def test_input_that_cannot_be_used_is_one_line(run, tmp_path, command):
    arguments = shlex.split(command)
    llm = (
        ["--llm", "http://127.0.0.1:9/v1", "--llm-model", "x"]
        if arguments[1] in ("qa", "synthesize")
        else []
    )
    done = run(*arguments, *llm)
    like_grep = arguments[0] in cli.LIKE_GREP
    assert (done.code, done.out) == (2 if like_grep else 1, "")
    *notes, error = done.err.splitlines()
    assert (
        INPUT[command] in error
        and error.startswith("runnel: error: ")
        and not any("error" in note for note in notes)
    )
    assert not list(tmp_path.glob("out*.npy")) and not (tmp_path / ".runnel").exists()
