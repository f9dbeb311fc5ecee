"""Begin and end ids of every published pair of architecture and vocabulary."""

import json

import pytest
from helpers.tokenizers_for_tests import build

from runnel.backbones.families import BACKBONES
from runnel.models.bare import markers, vocabulary_name
from runnel.text.library import LibraryTokenizer

TABLE = [
    ("mamba1", "gpt_neox_20b", None, 0),
    ("mamba2", "gpt_neox_20b", None, 0),
    ("mamba2", "mistral_v3", 1, 2),
    ("rwkv7", "rwkv_world", 0, 0),
    ("rwkv7", "gpt_neox_20b", 0, 0),
    ("xlstm", "gpt_neox_20b", 0, 0),
]


@pytest.mark.parametrize(("architecture", "name", "begin", "end"), TABLE)
def test_published_checkpoints(architecture, name, begin, end):
    assert markers(BACKBONES[architecture], build(name)) == (begin, end)


@pytest.mark.parametrize(
    ("name", "expected"), [("gpt_neox_20b", "GPT-NeoX"), ("mistral_v3", "Mistral v3"), ("rwkv_world", "RWKV World")]
)
def test_vocabularies_are_recognized_by_their_tokens(name, expected):
    assert vocabulary_name(build(name)) == expected


def test_markers_of_files_that_contradict_the_vocabulary_are_not_taken():
    neox = LibraryTokenizer(build("gpt_neox_20b")._source, begin=1, end=2)  # the ids in xLSTM-7B's config
    assert neox.encode("!").ids.tolist() == [2]
    assert markers(BACKBONES["xlstm"], neox) == (0, 0)


@pytest.mark.parametrize(
    ("architecture", "begin"), [("mamba1", None), ("mamba2", None), ("rwkv7", 3), ("xlstm", 3), ("transformer", 3)]
)
def test_other_vocabularies_keep_their_own(architecture, begin):
    source = json.loads(build("neox_like")._source)
    tokenizer = LibraryTokenizer(json.dumps(source), begin=3, end=4)
    assert vocabulary_name(tokenizer) is None
    assert markers(BACKBONES[architecture], tokenizer) == (begin, 4)
