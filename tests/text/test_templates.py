"""Templates: notation, joining as ids, saved prefixes, budgets, JSON."""

import json

import numpy as np
import pytest
from helpers.tokenizers_for_tests import build
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.errors import InputError
from runnel.text import templates
from runnel.text.templates import Template
from runnel.text.tokenizer import Encoded

NAMES = pytest.mark.parametrize("name", ["neox_like", "bert_like", "sentencepiece_like"])
QUERY = Template.parse("{query}{end}")
TEXTS = st.text(st.sampled_from("ab {}\n:;de"), max_size=8)
LITERALS = TEXTS.map(lambda text: text.replace("{", "{{").replace("}", "}}"))
PARTS = st.one_of(LITERALS, st.sampled_from(["{begin}", "{end}", "{token:[SEP]}"]))


def fill(template: Template, tokenizer):
    texts = {"query": "the dog", "document": "rivers run. They see!"}
    return template.render(
        tokenizer,
        **{name: template.encode(tokenizer, name, texts[name]).ids for name in template.fields},
    )


@settings(max_examples=60, deadline=None)
@given(pieces=st.lists(PARTS, max_size=6))
def test_the_notation_is_written_as_it_was_read(pieces):
    template = Template.parse("".join([*pieces[:3], "{query}", *pieces[3:], "{document}"]))
    assert Template.parse(str(template)) == template
    assert Template.from_dict(json.loads(json.dumps(template.to_dict()))) == template


@pytest.mark.parametrize(
    ("read", "notation", "named"),
    [
        (Template.parse, "{querry}", r"\{querry\}.*\{query\}"),
        (Template.parse, "{token:}", r"\{token:\}"),
        (Template.parse, "a { b", r"'\{' at character 2"),
        (Template.parse, "a } b", r"'\}'"),
        (Template.parse, "{query}{query}", "twice"),
        (Template.from_dict, {"template": "{query}", "max_tokens": 3}, "max_tokens"),
        (Template.from_dict, {}, 'expected an object with the text "template"'),
        (Template.from_dict, {"template": 3}, 'expected an object with the text "template"'),
    ],
)
def test_mistakes(read, notation, named):
    with pytest.raises(InputError, match=named):
        read(notation)


@NAMES
@settings(max_examples=60, deadline=None)
@given(
    pieces=st.lists(PARTS, max_size=6),
    query=st.text("ab d\n", max_size=9),
    document=st.text("ab d\n", max_size=9),
)
def test_a_saved_prefix_stays_valid(name, pieces, query, document):
    tokenizer = build(name)
    pieces = [
        piece
        for piece in pieces
        if name == "bert_like" or piece not in ("{begin}", "{token:[SEP]}")
    ]
    template = Template.parse(
        "".join([*pieces[:2], "{document}", *pieces[2:4], " {query}", *pieces[4:]])
    )
    ids = {
        field: template.encode(tokenizer, field, text).ids
        for field, text in (("query", query), ("document", document))
    }
    whole = template.render(tokenizer, **ids)
    assert whole.cut == 0 and whole.ids.dtype == np.int32
    for field in template.fields:
        first = template.before(field)
        rest = template.starting_at(field)
        left = first.render(tokenizer, **{key: ids[key] for key in first.fields})
        right = rest.render(tokenizer, **{key: ids[key] for key in rest.fields})
        np.testing.assert_array_equal(np.concatenate([left.ids, right.ids]), whole.ids)
        np.testing.assert_array_equal(whole.ids[whole.slices[field]], ids[field])
        assert whole.slices[field].start == len(left.ids)


@NAMES
@pytest.mark.parametrize(
    ("template", "whole"),
    [
        (templates.DOCUMENT_THEN_QUERY, "document: rivers run. They see!\n\nquery: the dog"),
        (
            templates.CAPITAL_DOCUMENT_THEN_QUERY,
            "Document: rivers run. They see!\n\nQuery: the dog",
        ),
        (templates.DOCUMENT_SEMICOLON_QUERY, "document: rivers run. They see! ; query: the dog ;"),
    ],
)
def test_the_parts_join_as_the_whole_text(name, template, whole):
    tokenizer = build(name)
    joined = [*tokenizer.encode(whole).ids, tokenizer.end_id]
    np.testing.assert_array_equal(fill(template, tokenizer).ids, joined)


@pytest.mark.parametrize("name", ["neox_like", "bert_like"])
def test_a_document_below_its_query_joins_as_the_whole_text(name):
    """A tokenizer that writes a space before every text has one in the document too."""
    tokenizer = build(name)
    joined = tokenizer.encode("the dog\nrivers run. They see!").ids
    found = fill(templates.QUERY_LINE_THEN_DOCUMENT, tokenizer).ids
    np.testing.assert_array_equal(found, joined)


@NAMES
def test_offsets_refer_to_the_field(name):
    tokenizer = build(name)
    text = "rivers run"
    encoded = templates.DOCUMENT_THEN_QUERY.encode(tokenizer, "document", text)
    assert encoded.starts[0] == 0 and encoded.ends[-1] == len(text)
    assert len(templates.DOCUMENT_THEN_QUERY.encode(tokenizer, "document", "")) == 0
    lead = templates.DOCUMENT_THEN_QUERY.lead(tokenizer, "document")
    assert lead == ("" if tokenizer.adds_space else " ") and QUERY.lead(tokenizer, "query") == ""
    stream = tokenizer.stream()
    np.testing.assert_array_equal(
        Encoded.join([stream.feed(lead + text), stream.finish()]).ends - len(lead), encoded.ends
    )


def test_budgets_and_missing_or_needless_fields():
    tokenizer = build("bert_like")
    template = Template.parse("{begin} a {document}{token:[SEP]}{query}{end}")
    query = np.arange(10, 13)
    document = np.arange(20, 25)
    rendered = template.render(tokenizer, query, document)
    fixed = len(rendered.ids) - 5
    for budget in range(fixed, fixed + 7):
        rendered = template.render(tokenizer, query, document, max_tokens=budget)
        kept = min(5, budget - fixed)
        assert len(rendered.ids) == fixed + kept and rendered.cut == 5 - kept
        assert rendered.ids[rendered.slices["document"]].tolist() == document[:kept].tolist()
        assert rendered.ids[-1] == tokenizer.end_id and rendered.ids[
            rendered.slices["query"]
        ].tolist() == [10, 11, 12]
    for filled, budget in (
        (template, fixed - 1),
        *((template, wrong) for wrong in ("3", 0, -1, 2.5, True)),
        (QUERY, 3),
    ):
        ids = {"query": query, "document": document}
        with pytest.raises(InputError, match=f"max_tokens is {budget!r}"):
            filled.render(
                tokenizer, **{field: ids[field] for field in filled.fields}, max_tokens=budget
            )
    for call, named in (
        (
            lambda: templates.DOCUMENT_THEN_QUERY.render(tokenizer, query=np.arange(3)),
            "document and query; got query",
        ),
        (
            lambda: QUERY.render(tokenizer, np.arange(3), np.arange(3)),
            "query; got document and query",
        ),
        (lambda: QUERY.before("document"), "'document'"),
        (lambda: QUERY.render(build("cl100k_like"), np.arange(3)), "end marker"),
    ):
        with pytest.raises(InputError, match=named):
            call()
    assert len(Template.parse("").render(tokenizer).ids) == 0
