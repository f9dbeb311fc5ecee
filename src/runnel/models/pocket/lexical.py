"""Lexical features of each sentence of a document, computed from token ids without the text.

A word is a WordPiece and the pieces that continue it ("##..."). Other vocabularies mark the pieces
that begin a word (SentencePiece with "▁", byte-level BPE with "Ġ"): there, a word is such a piece,
or a piece after punctuation, and the letters and digits that follow; capital and small letters are
equal. A plural s is dropped if the vocabulary has the singular. In scripts without spaces
(`runnel.text.words`) each piece is a word.

The order of work: `word_table` classifies the pieces of a vocabulary, once per model; `words` finds
the words of a text; `sentence_features` compares a document's words with a query's (`_Matches`) and
computes the `COLUMNS`.

V  vocabulary      T  tokens      S  sentences      Q  tokens of the query      W  words
n  terms of a query      h  hits of these terms
"""

import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from runnel.text.words import UNSPACED_RUN

K1, B = 0.9, 0.4  # parameters of BM25
AVERAGE = 100.0  # the words, without stop words, that a document of average length is taken to have
WINDOW = 2  # sentences on each side of a sentence whose words count as near
# how many of the best sentences lend their words to the query (`_Matches.lent`): a column for each
LEADING = (1, 3)
STOP_WORDS = frozenset(
    "a about am an and are as at be been being but by can could did do does doing for from had has"
    " have having he her his how i if in into is it its me my no nor not of on or our s she should"
    " so such t than that the their them then there these they this those to was we were what when"
    " where which who whom whose why will with would you your".split()
)
_WORDS = ("keys", "first", "starts", "idf", "content")  # fields of `Words`
_PLACE = np.uint64(1 << 32)  # separates equal pieces at different places of a word
# Byte-level BPE writes each byte as a character: printable ones as themselves, the others from
# U+0100 on (GPT-2).
_PRINTABLE = (*range(33, 127), *range(161, 173), *range(174, 256))
_BYTES = {chr(byte): byte for byte in _PRINTABLE}
_BYTES |= {
    chr(256 + n): byte
    for n, byte in enumerate(byte for byte in range(256) if byte not in _PRINTABLE)
}


@dataclass(frozen=True, eq=False)
class WordTable:
    """Properties of each id of a vocabulary; `word_table` makes it once per model."""

    # (V,) bool: a piece continues the word before it if `continues` is true for the piece, as for
    # "##ing", and `joins` for the piece before. Pieces of scripts without spaces do neither.
    continues: np.ndarray
    joins: np.ndarray
    stop: np.ndarray  # (V,) bool: a stop word
    # (V,) bool: a piece with a letter or a digit; punctuation and special tokens are not words
    word: np.ndarray
    code: np.ndarray  # (V,) uint64: equal for a singular and its plural; 0 for "##s"
    idf: np.ndarray  # (V,) float32 in [0, 1], static

    def begins(self, ids: np.ndarray) -> np.ndarray:
        """Return (T,) bool, True for a token that begins a word. The first token always does."""
        out = ~self.continues[ids]
        out[1:] |= ~self.joins[ids[:-1]]
        out[:1] = True
        return out


@dataclass(frozen=True, eq=False)
class Words:
    """The words of a run of tokens."""

    keys: np.ndarray  # (W,) uint64, equal for equal words
    first: np.ndarray  # (W,) the `code` of each word's first piece
    starts: np.ndarray  # (W,) the index of each word's first token
    idf: np.ndarray  # (W,) static idf
    content: np.ndarray  # (W,) bool, False for stop words


@dataclass(frozen=True, eq=False)
class Terms:
    """The distinct terms of a query, sorted by key: their keys (n,), how often each occurs (n,),
    and their static idf (n,).
    """

    keys: np.ndarray
    count: np.ndarray
    idf: np.ndarray


@dataclass(frozen=True, eq=False)
class Hits:
    """The occurrences of a query's terms, one entry for each sentence and term: the sentence (h,),
    the term (h,), and how often it occurs there (h,).
    """

    sentence: np.ndarray
    term: np.ndarray
    count: np.ndarray


def word_table(vocabulary: Mapping[str, int], idf: np.ndarray) -> WordTable:
    """Make the table of a vocabulary (piece to id) with the static idf (V,) of each id."""
    size = len(idf)
    vocabulary = {piece: number for piece, number in vocabulary.items() if number < size}
    counts = {
        mark: sum(piece.startswith(mark) for piece in vocabulary) for mark in ("##", "▁", "Ġ")
    }
    # the mark that most pieces have: "##" for continuations, another one for beginnings
    if (mark := max(counts, key=lambda mark: counts[mark])) != "##":
        return _marked_table(vocabulary, mark, np.asarray(idf, dtype=np.float32))
    continues = np.zeros(size, bool)
    stop = np.zeros(size, bool)
    word = np.zeros(size, bool)
    code = np.arange(1, size + 1, dtype=np.uint64)
    continued = [
        (piece[2:], number) for piece, number in vocabulary.items() if piece.startswith("##")
    ]
    continues[[number for rest, number in continued if not UNSPACED_RUN.fullmatch(rest)]] = True
    stop[[vocabulary[piece] for piece in STOP_WORDS if piece in vocabulary]] = True
    word[[number for piece, number in vocabulary.items() if piece.removeprefix("##").isalnum()]] = (
        True
    )
    # a code is a piece's number + 1, of the singular if there is one: 0 is for "##s"
    for piece, number in vocabulary.items():
        if piece.endswith("s") and not piece.endswith("ss") and len(piece.removeprefix("##")) > 3:
            code[number] = vocabulary.get(piece[:-1], number) + 1
    if "##s" in vocabulary:
        code[vocabulary["##s"]] = 0
    return WordTable(
        continues, np.ones(size, bool), stop, word, code, np.asarray(idf, dtype=np.float32)
    )


def _core(piece: str, mark: str) -> tuple[str, bool]:
    """Return the text of a piece without the mark, and whether the piece begins a word."""
    if mark == "Ġ" and not piece.isascii():
        if not all(character in _BYTES for character in piece):
            return piece, True  # an added token
        piece = (
            bytes(_BYTES[character] for character in piece)
            .decode(errors="replace")
            .replace(" ", mark, 1)
        )
    core = piece.removeprefix(mark)
    return core, core != piece


def _is_word(core: str) -> bool:
    """Return whether a piece has only letters, digits and the marks on letters,
    or bytes of them.
    """
    return core.isalnum() or (
        core != ""
        and all(c.isalnum() or c == "\ufffd" or unicodedata.category(c)[0] == "M" for c in core)
    )


def _marked_table(vocabulary: Mapping[str, int], mark: str, idf: np.ndarray) -> WordTable:
    """Make the table of a vocabulary in which a mark begins the pieces that begin a word."""
    size = len(idf)
    continues, joins, stop, word = (np.zeros(size, bool) for _ in range(4))
    code = np.arange(1, size + 1, dtype=np.uint64)
    cores = {number: _core(piece, mark) for piece, number in vocabulary.items()}
    known: dict[str, int] = {}  # pieces that begin a word come first, and keep their places
    for number, (core, begins) in sorted(cores.items(), key=lambda item: not item[1][1]):
        known.setdefault(core, number)
        if not _is_word(core):
            continue
        word[number] = True
        joins[number] = UNSPACED_RUN.fullmatch(core) is None
        continues[number] = joins[number] and not begins
        stop[number] = core.lower() in STOP_WORDS
    for number in np.flatnonzero(word).tolist():
        core, begins = cores[number]
        core = core.lower() if core.lower() in known else core
        if core.endswith("s") and not core.endswith("ss") and len(core) > 3 and core[:-1] in known:
            core = core[:-1]
        code[number] = 0 if core == "s" and not begins else known[core] + 1
    return WordTable(continues, joins, stop, word, code, idf)


def words(ids: np.ndarray, table: WordTable, start: int = 0, stop: int | None = None) -> Words:
    """Return the whole words of (T,) ids whose first token is in [start, stop), in order, including
    stop words.
    """
    ids = np.asarray(ids, dtype=np.int64)
    before = min(start, 1)
    begins = table.begins(ids[start - before : stop])[before:]
    return _words_at(ids, np.flatnonzero(begins & table.word[ids[start:stop]]) + start, table)


class _Matches:
    """The words of a query in a document, as the columns of `sentence_features` need them."""

    def __init__(
        self, ids: np.ndarray, bounds: np.ndarray, query_ids: np.ndarray, table: WordTable
    ) -> None:
        self.ids, self.bounds, self.query_ids, self.table = ids, bounds, query_ids, table
        self.query = words(query_ids, table)
        self.terms = _terms(self.query)
        self.sizes = _content_words(ids, table)
        self.lengths = (self.sizes[bounds[1:]] - self.sizes[bounds[:-1]]).astype(np.float64)
        self.found, self.where = _find(ids, self.terms, self.query, table)
        self.hits = _count(bounds, self.where, self.found, len(self.terms.keys))
        self.score, local = bm25(self.hits, self.terms.count, self.lengths)
        # (n,) the idf of each term in this document, times its count in the query
        self.local = local * self.terms.count
        static = self.terms.idf * self.terms.count
        self.static = static / max(float(static.sum()), 1e-9)

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Return (S,) the sums of the terms' values (n,) in each sentence."""
        return np.bincount(self.hits.sentence, values[self.hits.term], len(self.lengths))

    def lent(self, count: int) -> np.ndarray:
        """Return (S,) BM25 for the words that the query lacks and the `count` best sentences have,
        divided by its maximum; 0 for these sentences.

        A document often uses other words than the question: its best sentence contains them.
        """
        best = np.argsort(-np.round(self.score, 6), kind="stable")[:count]
        leading = best[self.score[best] > 0]  # ties go to the earlier sentence
        if not len(leading):
            return np.zeros(len(self.lengths))
        lent = [words(self.ids, self.table, self.bounds[s], self.bounds[s + 1]) for s in leading]
        new = [~np.isin(w.keys, self.terms.keys) & w.content for w in lent]
        query = Words(
            *(
                np.concatenate([getattr(w, name)[n] for w, n in zip(lent, new, strict=True)])
                for name in _WORDS
            )
        )
        asked = _terms(query)
        found, where = _find(self.ids, asked, query, self.table)
        score, _ = bm25(
            _count(self.bounds, where, found, len(asked.keys)),
            np.ones(len(asked.keys)),
            self.lengths,
        )
        score[leading] = 0
        return _of_best(score)


# The columns of `sentence_features`, in the order of the heads' weights. A single number is the
# value of all sentences. Divided by 4 or 8, the logarithms of usual numbers are about 1.
COLUMNS: dict[str, Callable[[_Matches], np.ndarray | float]] = {
    # BM25 divided by the greatest value that a sentence can have
    "BM25 share": lambda m: m.score / max(float(m.local.sum()), 1e-9),
    "BM25": lambda m: _of_best(m.score),
    "BM25 before": lambda m: np.append(0.0, _of_best(m.score))[: len(m.lengths)],
    "BM25 after": lambda m: np.append(_of_best(m.score), 0.0)[1:],
    "idf": lambda m: m.sums(m.static),  # share of the query's static idf in the sentence
    # the same with the idf in this document
    "local idf": lambda m: m.sums(m.local / max(float(m.local.sum()), 1e-9)),
    # up to `WINDOW` sentences before and after
    "idf around": lambda m: _near(m.hits, m.static, len(m.lengths)),
    # of single pieces, stop words and punctuation included: entry 1 of `_of_pieces` is their BM25
    "BM25 of pieces": lambda m: _of_best(
        _of_pieces(m.ids, m.bounds, *np.unique(m.query_ids, return_counts=True), len(m.table.idf))[
            1
        ]
    ),
    "length": lambda m: np.log1p(m.lengths) / 4,
    "document idf": lambda m: float(m.static[np.unique(m.found)].sum()),
    "query words": lambda m: np.log1p(float(m.terms.count.sum())) / 4,
    "sentences": lambda m: np.log1p(float(len(m.lengths))) / 8,
    # share of the query's word pairs
    "pairs": lambda m: _pairs(m.found, m.where, m.sizes, m.bounds, m.query, m.terms),
    "query idf": lambda m: (
        float((m.terms.idf * m.terms.count).sum()) / max(float(m.terms.count.sum()), 1.0)
    ),
    "BM25 of one lent": lambda m: m.lent(LEADING[0]),
    "BM25 of three lent": lambda m: m.lent(LEADING[1]),
}
FEATURES = len(COLUMNS)  # F


def sentence_features(
    ids: np.ndarray, bounds: np.ndarray, query_ids: np.ndarray, table: WordTable
) -> np.ndarray:
    """Compute the `COLUMNS` (S, F) float32 of a document's sentences (ids (T,), bounds (S+1,)) and
    a query (Q,).
    """
    ids = np.asarray(ids, dtype=np.int64)
    bounds = np.asarray(bounds, dtype=np.int64)
    ids = ids[bounds[0] : bounds[-1]]
    bounds = bounds - bounds[0]
    matches = _Matches(ids, bounds, query_ids, table)
    out = np.empty((len(bounds) - 1, FEATURES), np.float32)
    for number, column in enumerate(COLUMNS.values()):
        out[:, number] = column(matches)
    return out


def _of_best(score: np.ndarray) -> np.ndarray:
    return score / max(float(score.max(initial=0.0)), 1e-9)


def static_bm25(ids: np.ndarray, query_ids: np.ndarray, table: WordTable) -> float:
    """Compute BM25 of a document (T,) for a query (Q,) with static idf, which no other document
    changes, in [0, 1).
    """
    ids = np.asarray(ids, dtype=np.int64)
    query = words(query_ids, table)
    terms = _terms(query)
    if not len(terms.keys):
        return 0.0
    found, _ = _find(ids, terms, query, table)
    tf = np.bincount(found, minlength=len(terms.keys)).astype(np.float64)
    length = float(_content_words(ids, table)[-1])
    weight = terms.idf * terms.count
    return float(
        (weight * tf / (tf + K1 * (1 - B + B * length / AVERAGE))).sum()
        / max(float(weight.sum()), 1e-9)
    )


def _words_at(ids: np.ndarray, starts: np.ndarray, table: WordTable) -> Words:
    """Return the whole words that start at these tokens."""
    ends = starts + 1
    more = np.ones(len(starts), bool)
    first = table.code[ids[starts]]
    keys = _mixed(first, np.uint64(0))
    place = 0
    while len(at := np.flatnonzero(more)):  # once per piece of the longest word
        more[at] = ends[at] < len(ids)
        at = at[more[at]]
        more[at] = table.continues[ids[ends[at]]] & table.joins[ids[ends[at] - 1]]
        at = at[more[at]]
        place += 1
        keys[at] += _mixed(table.code[ids[ends[at]]], np.uint64(place))
        ends[at] += 1
    several = ends > starts + 1
    idf = np.where(several, np.float32(1), table.idf[ids[starts]])
    return Words(keys, first, starts, idf, several | ~table.stop[ids[starts]])


def _mixed(code: np.ndarray, place: np.uint64) -> np.ndarray:
    """Hash pieces at a place of a word to 64-bit numbers; code 0 gives 0.

    Source: the finalizer of MurmurHash3 (public domain).
    """
    with np.errstate(over="ignore"):
        x = code + place * _PLACE
        x = (x ^ (x >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
        x = (x ^ (x >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
        return np.where(code == 0, np.uint64(0), x ^ (x >> np.uint64(33)))


def _terms(query: Words) -> Terms:
    """Return the distinct words of a query, without stop words."""
    keys = query.keys[query.content]
    unique, first, count = np.unique(keys, return_index=True, return_counts=True)
    return Terms(
        unique,
        count.astype(np.float64),
        query.idf[query.content][first].astype(np.float64),
    )


def _content_words(ids: np.ndarray, table: WordTable) -> np.ndarray:
    """Return (T+1,) the number of words, without stop words, that start before each token."""
    begins = table.begins(ids)
    several = np.append(table.continues[ids[1:]], False)[: len(ids)]
    begins &= table.word[ids] & (several | ~table.stop[ids])
    return np.append(0, np.cumsum(begins, dtype=np.int32))


def _find(
    ids: np.ndarray, terms: Terms, query: Words, table: WordTable
) -> tuple[np.ndarray, np.ndarray]:
    """Return (h,) the term and (h,) the first token of every occurrence of a term.

    Only words whose first piece is the first piece of a term are assembled.
    """
    if not len(terms.keys) or not len(ids):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    like = np.isin(table.code, query.first[query.content]) & table.word
    begins = like[ids] & table.begins(ids)
    found = _words_at(ids, np.flatnonzero(begins), table)
    place = np.searchsorted(terms.keys, found.keys)
    place[place == len(terms.keys)] = 0
    hit = (terms.keys[place] == found.keys) & found.content
    return place[hit], found.starts[hit]


def _count(bounds: np.ndarray, where: np.ndarray, term: np.ndarray, terms: int) -> Hits:
    """Count occurrences, at tokens `where` (any), of each of `terms` terms in each sentence."""
    sentence = np.searchsorted(bounds, where, side="right") - 1
    # nearly sorted already, which makes this kind fast
    key = np.sort(sentence * max(terms, 1) + term, kind="stable")
    first = np.flatnonzero(np.append(True, key[1:] != key[:-1])[: len(key)])
    count = np.diff(np.append(first, len(key)))
    return Hits(key[first] // max(terms, 1), key[first] % max(terms, 1), count)


def bm25(hits: Hits, weight: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (S,) BM25 with the document's sentences as the collection, and (n,) idf: 0 for a term
    that does not occur.

    weight (n,): count of each term in the query; lengths (S,): all terms in each sentence.
    """
    sentences = len(lengths)
    df = np.bincount(hits.term, minlength=len(weight))
    idf = np.where(df > 0, np.log1p((sentences - df + 0.5) / (df + 0.5)), 0.0)
    norm = K1 * (1 - B + B * lengths / max(float(lengths.mean()) if sentences else 0.0, 1.0))
    parts = (weight * idf)[hits.term] * hits.count / (hits.count + norm[hits.sentence])
    return np.bincount(hits.sentence, parts, sentences), idf


def piece_features(
    ids: np.ndarray, bounds: np.ndarray, query_ids: np.ndarray, idf: np.ndarray
) -> np.ndarray:
    """Compute features (S, 2) float32 of each sentence (ids (T,), bounds (S+1,)) from single pieces
    that the query has too, for recurrent models (`Scanner`); they are not of the `COLUMNS`.

    Column 0: share of the query's static idf (V,) in the sentence. Column 1: BM25 with the
    sentences of this document as the collection, divided by the sum of the query's idf in it.
    """
    terms = np.unique(query_ids)
    hits, score, local = _of_pieces(
        ids[bounds[0] : bounds[-1]], bounds - bounds[0], terms, np.ones(len(terms)), len(idf)
    )
    # the idf (`bm25`) of the query's pieces that no sentence has: log(1 + (S + 0.5) / 0.5) each
    absent = np.count_nonzero(local == 0) * np.log1p(2 * len(score) + 1)
    share = np.bincount(hits.sentence, idf[terms][hits.term], len(score)) / (
        idf[terms].sum() + 1e-6
    )
    return np.stack([share, (K1 + 1) * score / (local.sum() + absent + 1e-6)], axis=1).astype(
        np.float32
    )


def _of_pieces(
    ids: np.ndarray, bounds: np.ndarray, pieces: np.ndarray, weight: np.ndarray, size: int
) -> tuple[Hits, np.ndarray, np.ndarray]:
    """Return the hits of sorted pieces of a vocabulary of this size, including stop words and
    punctuation, and their `bm25`.
    """
    wanted = np.zeros(size, bool)
    wanted[pieces] = True
    where = np.flatnonzero(wanted[ids])
    hits = _count(bounds, where, np.searchsorted(pieces, ids[where]), len(pieces))
    return hits, *bm25(hits, weight, np.diff(bounds).astype(np.float64))


def _near(hits: Hits, share: np.ndarray, sentences: int) -> np.ndarray:
    """Return (S,) the share of the query in each sentence together with the `WINDOW` sentences
    before and after it.
    """
    seen = np.zeros((sentences + 2 * WINDOW, len(share)), bool)
    for step in range(2 * WINDOW + 1):
        seen[hits.sentence + step, hits.term] = True
    row, term = np.nonzero(seen[WINDOW : WINDOW + sentences])
    return np.bincount(row, share[term], sentences)


def _pairs(
    term: np.ndarray,
    where: np.ndarray,
    sizes: np.ndarray,
    bounds: np.ndarray,
    query: Words,
    terms: Terms,
) -> np.ndarray:
    """Return (S,) the share of the query's pairs of neighboring words (no stop words) that are
    neighbors in the sentence. `sizes` (T+1,): the words, without stop words, before each token.
    """
    sentences = len(bounds) - 1
    n = len(terms.keys)
    asked = np.searchsorted(terms.keys, query.keys[query.content])
    wanted = np.unique(asked[:-1] * n + asked[1:])
    if not len(wanted) or len(term) < 2:
        return np.zeros(sentences)
    place = sizes[where]
    next_to = np.flatnonzero(place[1:] == place[:-1] + 1)
    pair = np.searchsorted(wanted, term[next_to] * n + term[next_to + 1])
    pair[pair == len(wanted)] = 0
    hit = wanted[pair] == term[next_to] * n + term[next_to + 1]
    first = where[next_to[hit]]
    second = where[next_to[hit] + 1]
    inside = second < bounds[np.searchsorted(bounds, first, side="right")]
    hits = _count(bounds, first[inside], pair[hit][inside], len(wanted))
    return np.bincount(hits.sentence, minlength=sentences) / len(wanted)
