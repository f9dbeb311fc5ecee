"""Find the tokenizer of a model folder, and load it.

    file in the folder          class
    rwkv_vocab_v20230424.txt    `world.WorldTokenizer`: greedy longest match of bytes (RWKV)
    tokenizer.json              `library.LibraryTokenizer`: anything that the tokenizers library
                                runs

The first of them that the folder has is read: RWKV's folders may also have files for other
programs, which do not give the same ids.
"""

from pathlib import Path

from runnel.errors import CheckpointError
from runnel.text.library import LibraryTokenizer
from runnel.text.tokenizer import LIBRARY_FILE, WORLD_FILE, Marker, Tokenizer

# not read: the error says what to do
_SENTENCEPIECE_FILES = ("tokenizer.model.v3", "tokenizer.model")


def read_tokenizer(folder: str | Path, *, begin: Marker = None, end: Marker = None) -> Tokenizer:
    """Read the tokenizer of a model folder. `begin` and `end` are markers that replace the markers
    in the folder's files.
    """
    path = tokenizer_file(folder)
    if path is None:
        raise CheckpointError(_no_tokenizer(folder))
    if path.name == LIBRARY_FILE:
        return LibraryTokenizer.read(path, begin=begin, end=end)
    from runnel.text.world import WorldTokenizer  # imports numba

    return WorldTokenizer.read(path, begin=begin, end=end)


def tokenizer_file(folder: str | Path) -> Path | None:
    """Return the file that `read_tokenizer` reads in this folder; None if it has no tokenizer."""
    paths = (Path(folder) / name for name in (WORLD_FILE, LIBRARY_FILE))
    return next(filter(Path.is_file, paths), None)


def _no_tokenizer(folder: str | Path) -> str:
    """Return what to do about a folder without a tokenizer."""
    for name in _SENTENCEPIECE_FILES:
        if Path(folder, name).is_file():
            place = repr(str(folder))
            return (
                f"{folder} needs {LIBRARY_FILE}, because {name} is not read; take it from the"
                " model's repository, or have transformers write it:"
                f" AutoTokenizer.from_pretrained({place}).save_pretrained({place})"
            )
    return (
        f"{folder} has no tokenizer: neither {LIBRARY_FILE} nor {WORLD_FILE}; put this model's file"
        " there"
    )
