"""Languages of texts."""

import sys

import pytest

from runnel.errors import InputError, MissingDependency
from runnel.lab.synthesis import sources
from runnel.lab.synthesis.sources import check_language, is_language

TEXTS = {
    "en": "The keeper of the old mill sold flour to the bakers of the town until the river changed its course.",
    "de": "Der Müller der alten Mühle verkaufte den Bäckern der Stadt sein Mehl, bis der Fluss sein Bett verließ.",
    "fr": "Le meunier du vieux moulin vendait sa farine aux boulangers de la ville, jusqu'au jour où la rivière changea de lit.",
}


@pytest.mark.parametrize("of", TEXTS)
@pytest.mark.parametrize("code", TEXTS)
def test_a_text_is_in_its_language(of, code):
    assert is_language(TEXTS[of], code) == (of == code)


@pytest.mark.parametrize("text", ["", " \n", "12 34 56", "|--|--|"])
def test_a_text_without_words_is_in_no_language(text):
    assert not any(is_language(text, code) for code in TEXTS)


def test_errors(monkeypatch):
    check_language("en")
    with pytest.raises(InputError, match=r"'english'.* en, "):
        check_language("english")
    sources._identifier.cache_clear()
    monkeypatch.setitem(sys.modules, "py3langid.langid", None)
    with pytest.raises(MissingDependency, match="py3langid"):
        check_language("en")
