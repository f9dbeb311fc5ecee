"""Recipes: read strictly, shipped ones whole and as published, written so that they read back equal."""

import re
import subprocess
import sys
from dataclasses import replace

import pytest

from runnel.errors import InputError, ReadError
from runnel.training import recipes
from runnel.training.recipes import differences, read, shipped, sizes, write
from runnel.training.settings import LoraTable, SearchTable

MINIMAL = """
job = "embed"
[[data.sets]]
path = "pairs.csv"
"""
EVERY = [(name, size) for name in shipped() for size in (None, *sizes(name))]


@pytest.fixture
def file(tmp_path):
    def make(text, name="mine.toml"):
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return make


# ---- the shipped ones --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_recipe_reads_and_reads_back(name, tmp_path):
    for size in (None, *sizes(name)):
        recipe = read(name, size=size)
        assert recipe.data.sets
        write(recipe, tmp_path / "recipe.toml")
        assert read(str(tmp_path / "recipe.toml")) == recipe


def test_each_row_of_the_papers_has_a_recipe_that_says_what_it_needs():
    ours = ("pairs", "evidence", "evidence-vectors")
    papers = {name: (recipes.SHIPPED / f"{name}.toml").read_text() for name in shipped() if name not in ours}
    assert sorted(re.search(r"# Paper (\w)", text)[1] for text in papers.values()) == list("AABCCCDEEE")
    for text in papers.values():
        head = text.partition("\njob =")[0]
        assert "# Data" in head and "# Published" in head and re.search(r"\d\d\.\d", head)


PUBLISHED = {  # learning rate, batch, epochs; from the README of A's authors, tables 2 (B), 9 and 10 (C) and the texts of D and E
    ("mamba-retriever-msmarco", None): (1e-5, 8, 2),
    ("mamba-retriever-msmarco", "370m"): (1e-5, 8, 2),
    ("mamba-retriever-msmarco", "790m"): (1e-5, 8, 2),
    ("mamba-retriever-msmarco", "bert-base"): (5e-6, 8, 3),
    ("mamba-retriever-msmarco", "roberta-base"): (5e-6, 8, 3),
    ("mamba-retriever-msmarco", "opt-125m"): (5e-6, 8, 3),
    ("mamba-retriever-msmarco", "pythia-160m"): (5e-6, 8, 5),
    ("mamba-retriever-msmarco", "bert-large"): (5e-6, 8, 4),
    ("mamba-retriever-msmarco", "roberta-large"): (5e-6, 8, 3),
    ("mamba-retriever-msmarco", "opt-350m"): (5e-6, 8, 3),
    ("mamba-retriever-msmarco", "pythia-410m"): (1e-6, 8, 5),
    ("mamba-retriever-msmarco", "pythia-1b"): (5e-7, 8, 3),
    ("mamba-retriever-msmarco", "opt-1.3b"): (1e-6, 8, 3),
    ("mamba-retriever-locov0", None): (5e-5, 8, 2),
    ("mamba-retriever-locov0", "8k"): (1e-5, 8, 4),
    ("mamba-retriever-locov0", "opt-125m"): (1e-5, 8, 4),
    ("mamba-retriever-locov0", "pythia-160m"): (5e-6, 8, 3),
    ("rankmamba-documents", None): (2e-5, 8, 1),
    ("rankmamba-documents", "370m"): (1e-5, 8, 1),
    ("rankmamba-documents", "790m"): (1e-4, 8, 1),
    ("rankmamba-documents", "t5-large"): (1e-4, 8, 1),
    ("ssm-reranker-passages", None): (2e-5, 4, 2),
    ("ssm-reranker-passages", "mamba1-130m"): (2e-5, 8, 2),
    ("ssm-reranker-passages", "mamba1-370m"): (1e-5, 4, 2),
    ("ssm-reranker-passages", "mamba2-780m"): (1e-5, 4, 1),
    ("ssm-reranker-passages", "mamba2-1.3b"): (1e-5, 4, 1),
    ("ssm-reranker-passages", "bert-base"): (2e-5, 8, 2),
    ("ssm-reranker-passages", "bart-large"): (1e-5, 8, 2),
    ("ssm-reranker-passages", "opt-350m"): (1e-5, 8, 2),
    ("ssm-reranker-firstp", "llama-3.2-1b"): (1e-5, 4, 1),
    ("ssm-reranker-longp", "mamba1-790m"): (1e-5, 4, 1),
    ("linear-time-embeddings", None): (2.4e-3, 2048, 1),
    ("linear-time-embeddings", "codestral-7b"): (4e-4, 2048, 1),
    ("sentence-retriever", "1.3b"): (1e-4, 64, 1),
}


@pytest.mark.parametrize(("name", "size"), PUBLISHED)
def test_published_settings(name, size):
    train = read(name, size=size).train
    assert (train.learning_rate, train.batch, train.epochs) == PUBLISHED[name, size]


def test_what_is_particular_to_each_paper():
    a, loco = read("mamba-retriever-msmarco"), read("mamba-retriever-locov0", size="8k")
    assert (a.train.temperature, a.data.negatives, a.data.max_query_tokens, a.data.max_document_tokens) == (0.01, 7, 16, 128)
    assert a.train.batch * (1 + a.data.negatives) - 1 == 63 and loco.train.batch * (1 + loco.data.negatives) - 1 == 31
    assert (a.evaluation.max_query_tokens, loco.data.max_document_tokens, loco.data.negative_source) == (32, 8192, "random")
    b = read("rankmamba-documents")
    assert (b.data.max_tokens, b.data.negatives, b.data.samples, b.train.checkpoints, b.train.warmup) == (512, 7, 2, 10, 1000)
    assert (b.train.betas, b.train.eps, b.train.weight_decay, b.lora) == ((0.9, 0.999), 1e-8, 0.01, None)
    assert {size for size in sizes("rankmamba-documents") if read("rankmamba-documents", size=size).lora} == {
        "790m", "pythia-1b", "t5-large",
    }  # fmt: skip
    assert read("rankmamba-documents", size="790m").lora == LoraTable(64, 128, 0.1)
    first, long = read("ssm-reranker-firstp"), read("ssm-reranker-longp")
    assert (first.data.max_tokens, long.data.max_tokens, first.data.negatives, first.train.warmup) == (512, 1536, 7, 0.1)
    assert read("ssm-reranker-passages").data.negatives == 15
    assert not any(read(name, size=size).lora for name, size in EVERY if name.startswith("ssm-"))
    d = read("linear-time-embeddings", size="search")
    assert (d.train.temperature, d.train.weight_decay, d.train.warmup, d.data.max_document_tokens) == (0.02, 0.1, 100, 512)
    assert d.lora == LoraTable(16, 16, 0.0, four_bit=True) and d.search == SearchTable(
        (1.6e-3, 2.2e-3, 2.4e-3, 2.6e-3, 2.8e-3), 16
    )
    public = [one for one in d.data.sets if not one.path.startswith("synthetic-")]
    assert (len(public), len(d.data.sets)) == (11, 17)
    assert {one.path: one.instructions for one in public if "web search" in str(one.instructions)} == {
        "msmarco-document.jsonl": ("Given a web search query, retrieve relevant documents that answer the query",),
        "msmarco-passage.jsonl": ("Given a web search query, retrieve relevant passages that answer the query",),
    }
    assert d.data.prompt == "Instruction: {instruction}\nQuery: "
    e = read("sentence-retriever", size="1.3b")
    assert (e.train.min_learning_rate, e.train.schedule, e.train.warmup, e.train.betas) == (1e-5, "cosine", 0.1, (0.9, 0.95))
    assert (e.data.lengths, e.data.rows, e.train.max_grad_norm) == ((), 400_000, 1.0)


# ---- strictness --------------------------------------------------------------------------------------------------------

REFUSED = {
    "unknown key": (MINIMAL + "[train]\nlerning_rate = 1", "train: unknown key 'lerning_rate' (did you mean 'learning_rate'?)"),
    "unknown table": (MINIMAL + "[trian]\nbatch = 1", "unknown key 'trian' (did you mean 'train'?)"),
    "unused key": (MINIMAL + "[data]\nmax_tokens = 5", "'max_tokens' is not used by the job 'embed'; remove it (used by rerank)"),
    "unused in a set": ('job = "sentences"\n[[data.sets]]\npath = "a"\nformat = "b"', "'format' is not used by"),
    "wrong type": (MINIMAL + "[train]\nbatch = 2.5", "train: batch must be a whole number, got 2.5"),
    "true is no number": (MINIMAL + "[train]\nlearning_rate = true", "learning_rate must be a number, got True"),
    "not a number": (MINIMAL + "[train]\nlearning_rate = nan", "train: learning_rate must be a number, got nan"),
    "infinite": (MINIMAL + "[train]\nbetas = [0.9, inf]", "train: betas must be a number, got inf"),
    "list of wrong type": (MINIMAL + '[train]\nbetas = ["a", "b"]', "betas must be a number, got 'a'"),
    "no list": (MINIMAL + "[train]\nbetas = 0.9", "betas must be a list, got 0.9"),
    "not among the choices": (MINIMAL + '[train]\nschedule = "cosin"', "schedule must be one of linear, cosine, constant, got"),
    "no job": ("[train]\nbatch = 1", "the key 'job' is missing"),
    "another job": ('job = "embedder"', "job must be one of embed, rerank, sentences, generate, got 'embedder'"),
    "set without a path": ('job = "embed"\n[[data.sets]]\nformat = "evidence"', "the key 'path' is missing"),
    "in a size": (MINIMAL + "[sizes.big.train]\nbach = 1", "sizes.big: train: unknown key 'bach'"),
    "no TOML": ("job = ", "is not valid TOML"),
    "zero": (MINIMAL + "[train]\nbatch = 0", "train.batch must be at least 1, got 0"),
    "negative": (MINIMAL + "[train]\nlearning_rate = -1.0", "train.learning_rate must be above 0"),
    "three betas": (MINIMAL + "[train]\nbetas = [0.9, 0.9, 0.9]", "train.betas must be two numbers"),
    "beta of 1": (MINIMAL + "[train]\nbetas = [0.9, 1.0]", "train.betas must be two numbers from 0 to below 1"),
    "negative number that is not whole": (MINIMAL + "[train]\nweight_decay = -0.1", "train.weight_decay must be at least 0"),
    "negative seed": (MINIMAL + "[train]\nseed = -1", "train.seed must be at least 0, got -1"),
    "large seed": (MINIMAL + "[train]\nseed = 4294967296", "train.seed must be below 2**32, got 4294967296"),
    "zero in a list": ('job = "sentences"\n[evaluation]\ntop_k = [5, 0]', "evaluation.top_k must be at least 1, got 0"),
    "zero in a table that may be missing": (MINIMAL + "[lora]\nr = 0", "lora.r must be at least 1, got 0"),
    "reranker without negatives": ('job = "rerank"\n[[data.sets]]\npath = "a"', "data.negatives must be at least 1"),
    "floor of a linear schedule": (MINIMAL + "[train]\nmin_learning_rate = 1e-6", "needs the cosine schedule"),
    "instructions without a place": (MINIMAL + 'instructions = ["find"]', "data.prompt has no {instruction}"),
    "search without held out rows": (MINIMAL + "[search]\nlearning_rates = [1e-3]", "data.held_out rows"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_mistakes_are_named(file, case):
    text, message = REFUSED[case]
    with pytest.raises(InputError, match=re.escape(message)):
        read(file(text))


@pytest.mark.parametrize("table", ["", "[sizes.large.train]\nbatch = 2"])
def test_a_mistake_of_the_recipe_is_not_reported_as_one_of_a_size(file, table):
    path = file(f"{MINIMAL}[train]\nbach = 1\n{table}")
    with pytest.raises(InputError, match=re.escape(f"{path}: train: unknown key 'bach'")):
        read(path)


def test_unknown_names_list_the_known():
    with pytest.raises(ReadError, match=r"no recipe 'pars' \(did you mean 'pairs'\?\)"):
        read("pars")
    with pytest.raises(InputError, match=r"no size '371m' \(did you mean '370m'\?\); it has 370m, 790m"):
        read("mamba-retriever-msmarco", size="371m")


# ---- changes -----------------------------------------------------------------------------------------------------------


def test_changes(file):
    changes = ("train.learning_rate=1e-3", "epochs=2", "model.name=folder/of mine", "lora.r=4", "temperature = 0.1")
    recipe = read(file(MINIMAL), changes=changes)
    assert (recipe.train.learning_rate, recipe.train.epochs, recipe.model.name) == (1e-3, 2.0, "folder/of mine")
    assert (recipe.lora, recipe.train.temperature) == (LoraTable(r=4), 0.1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("epochs", "must be key=value"),
        ("=3", "must be key=value"),
        ("epoch=3", "no table has that key (did you mean 'train.epochs'?)"),
        (
            "max_document_tokens=3",
            "several tables have that key; use one of: data.max_document_tokens, evaluation.max_document_tokens",
        ),
        ("train.epoch=3", "unknown key 'epoch' (did you mean 'epochs'?)"),
        ("evaluation.documents=max", "unknown key 'documents'"),  # recipes hold no setting that nothing does
        ("train.epochs=many", "epochs must be a number, got 'many'"),
    ],
)
def test_bad_changes(file, change, message):
    with pytest.raises(InputError, match=re.escape(message)):
        read(file(MINIMAL), changes=(change,))


def test_changes_are_applied_after_a_size(file):
    path = file(MINIMAL + "[train]\nbatch = 8\n[sizes.big.train]\nbatch = 4\nseed = 3")
    assert read(path).train.batch == 8 and read(path, size="big").train.batch == 4
    both = read(path, size="big", changes=("batch=1",)).train
    assert (both.batch, both.seed) == (1, 3)


def test_differences(file):
    recipe = read(file(MINIMAL))
    other = replace(recipe, train=replace(recipe.train, batch=7), lora=LoraTable())
    assert differences(recipe, recipe) == []
    found = differences(recipe, other)
    assert "train.batch: 32, 7" in found and "lora.r: None, 16" in found


def test_strings_with_quotes_and_line_ends_are_written_whole(tmp_path):
    recipe = read("linear-time-embeddings")
    odd = replace(recipe, data=replace(recipe.data, prompt='a "b"\n\\ {instruction}\té'))
    write(odd, tmp_path / "recipe.toml")
    assert read(str(tmp_path / "recipe.toml")) == odd


def test_reading_a_recipe_needs_no_heavy_import():
    program = (
        "import sys; from runnel.training.recipes import read; read('pairs'); assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
