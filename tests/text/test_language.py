"""The language of a text: by frequent words and scripts, of the beginning only."""

from pathlib import Path

import pytest
from helpers.texts import repeat

from runnel.text.language import LETTERS, language_of

ENDS = Path(__file__).with_name("ends")


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("en", "It was not for the first time that he came to the house with a dog."),
        ("de", "Der Hund ist nicht im Haus und das wird dem Mann auf dem Feld nicht gefallen."),
        ("es", "El perro no está en la casa y los niños no saben por qué se fue."),
        ("fr", "Le chien n'est pas dans la maison et les enfants sont à l'école avec une amie."),
        ("it", "Il cane non è nella casa e la bambina è al mare con una delle sue amiche."),
        ("pt", "O cão não está em casa e as crianças foram para a escola com uma amiga do pai."),
        ("nl", "De hond is niet in het huis en dat wordt een probleem voor de man van het veld."),
        ("pl", "Pies nie jest w domu i to nie jest dobre, bo jak się zgubił, to na długo."),
        (
            "cs",
            "Pes není v domě a to je problém, který se týká nás, jako by za to nebo o tom bylo.",
        ),
        ("da", "Hunden er ikke i huset, og det er ikke godt for os at have den med."),
        ("fi", "Koira ei ole kotona ja se on ongelma, mutta hän ei ole se joka sen kun teki."),
        ("ru", "Собака не в доме, и это не так хорошо для нас, но что же с ней?"),
        ("el", "Ο σκύλος δεν είναι στο σπίτι."),
        ("hy", "Շունը տանը չէ։"),
        ("en", "Too short: der die das."),
        ("en", "12:00 4711 [x] {} == 3"),
        (
            "en",
            "import os\nfor name in names:\n    if name is not None and os.path.exists(name): a",
        ),
        ("en", "今天天气很好。我们去公园。"),
        ("en", ""),
    ],
)
def test_languages(language, text):
    assert language_of(text) == language


@pytest.mark.parametrize("path", sorted(ENDS.glob("*.txt")), ids=lambda path: path.stem)
def test_languages_of_longer_texts(path):
    expected = {"german": "de", "spanish": "es"}.get(path.stem, "en")
    assert language_of(path.read_text(encoding="utf-8")) == expected


def test_only_the_first_letters_count():
    german = "Der Hund ist nicht im Haus und das wird dem Mann nicht gefallen. "
    english = repeat("It was not for the first time that he came to the house. ", 200)
    assert language_of(german * (LETTERS // 40) + english) == "de"
    assert language_of(repeat(".", 10**6) + german * 10) == "en"
