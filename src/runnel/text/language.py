"""The language of a text, by its most frequent words, or by its script.

These are the languages whose sentences sentencex splits in other ways than English ones, and a few
that would be mistaken for one of them.
"""

import re

LETTERS = 2000  # letters from the beginning of a text that are looked at
_SAMPLE = 20_000  # characters that are searched for these letters
# A text is in a language other than English if it has at least 5 of that language's frequent words,
# if they are a tenth of its words, and if they are 1.5 times as many as frequent English words.
_LEAST_WORDS = 5
_LEAST_SHARE = 0.1
_MARGIN = 1.5
_WORDS = {
    language: frozenset(words.split())
    for language, words in {
        "en": "the of and to in is that it for was with as be on by this are or not you from at",
        "de": "der die das und ist nicht zu den mit von ein eine auf im dem des sich für wird es",
        "es": "el la los las de que y en un una por con para del se es su no lo como más fue",
        "fr": "le la les des et est que une dans pour du qui au ce pas sur par plus avec il sont",
        "it": "il di che la e è un una per non del con sono della nel le gli dei si da alla",
        "pt": "o que e do da em um uma para com não os as no na por dos se mais foi ao são",
        "ca": "el la els les de que i en un una per amb del és no al va dels més aquest seva",
        "nl": "de het een van en is dat niet in op te zijn voor met die aan wordt ook er bij",
        "pl": "i w na nie się z do to jest że o jak po co przez dla od są oraz za być ale",
        "cs": "a se na je že v to s do o i ve pro jako by za k od po jsou nebo který bylo",
        "sk": "a sa na je že v to s do o aj vo pre ako by za k od po sú alebo ktorý bolo",
        "da": "og i at det er en til af på for den med ikke der som de et har var kan fra blev",
        "sv": "och i att det är en som på för av med den till inte ett har de om var från sig",
        "fi": "ja on ei että se oli hän mutta joka kun niin ovat myös ole sen tai kuin jos voi",
        "hu": "a az és hogy nem is egy volt de ez meg csak már van mint azt ki el még vagy",
        "ro": "și de la în cu nu o că din pe care este sau mai un pentru fi prin ale cel sunt",
        "ru": "и в не на что с он как это по но из у за к от был так же для его все",
        "uk": "і в не на що з він як це по але із у за до від був та для його й є",
        "bg": "и в не на че с той как това по но от за до е да се са ще беше като",
        "kk": "және мен бұл деп үшін бір да де болып оның еді қазақ ол бар осы емес",
    }.items()
}
_WORD = re.compile(r"[^\W\d_]+")
_SCRIPTS = {
    "el": re.compile("[\u0370-\u03ff\u1f00-\u1fff]"),
    "hy": re.compile("[\u0531-\u0587]"),
    "am": re.compile("[\u1200-\u139f]"),
    "ta": re.compile("[\u0b80-\u0bff]"),
}


def language_of(text: str) -> str:
    """Return the code (ISO 639-1) of the language of a text's first 2,000 letters: "en" if they are
    too few to tell, or in a language without a list of words here.
    """
    words: list[str] = []
    left = LETTERS
    for match in _WORD.finditer(text, 0, _SAMPLE):
        words.append(match[0].lower())
        left -= len(words[-1])
        if left <= 0:
            break
    sample = "".join(words)
    for language, script in _SCRIPTS.items():
        if len(script.findall(sample)) > len(sample) // 2:
            return language
    counts = {language: sum(word in known for word in words) for language, known in _WORDS.items()}
    best = max(counts, key=counts.__getitem__)
    least = max(_LEAST_WORDS, _MARGIN * counts["en"], _LEAST_SHARE * len(words))
    return best if counts[best] >= least else "en"
