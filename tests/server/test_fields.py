"""The table of fields in docs/serving.md, /docs and the server say the same; a field that is null
counts as missing.
"""

import re
import resource
from html import unescape
from pathlib import Path

import pytest
from helpers.routes import DETAIL, OPENAI, POSTS, TEI

BODIES = {path: body for path, (_, body) in POSTS.items()}
PAGE = Path(__file__).parents[2] / "docs/serving.md"


@pytest.fixture(scope="module")
def schema(tiny_server):
    return tiny_server.get("/openapi.json").json()


def shapes_of(schema, path):
    """The shapes that the body of a route may have."""
    body = schema["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    names = [one["$ref"].rpartition("/")[2] for one in body.get("oneOf", [body])]
    return [schema["components"]["schemas"][name] for name in names]


def documented():
    """By route: its fields, and its fields without effect, as the page has them."""
    section = PAGE.read_text(encoding="utf-8").partition("### Fields")[2].partition("\n\nTests")[0]
    rows = [line.split("|")[1:4] for line in section.splitlines() if line.startswith("| `/")]
    cells = [[re.findall(r"`([^`]+)`", cell) for cell in row] for row in rows]
    return {path: (set(taken), set(ignored)) for paths, taken, ignored in cells for path in paths}


def test_the_page_names_all_fields(schema):
    posts = {path for path, methods in schema["paths"].items() if "post" in methods}
    table = documented()
    assert set(table) == posts == set(BODIES)
    for path in posts:
        shape = shapes_of(schema, path)[-1]["properties"]  # of /rerank, TEI's
        ignored = {name for name, field in shape.items() if "x-ignored" in field}
        assert table[path] == (set(shape) - ignored, ignored), path
    names = [set(one["properties"]) for one in shapes_of(schema, "/rerank")]
    assert names[0] == set(shapes_of(schema, "/v2/rerank")[0]["properties"])


def test_docs_show_all_fields(tiny_server, schema):
    page = unescape(tiny_server.get("/docs").text)
    for path, methods in schema["paths"].items():
        section = page.partition(f" <code>{path}</code></h2>")[2].partition("<h2>")[0]
        assert next(iter(methods.values()))["description"] in section, path
        for shape in shapes_of(schema, path) if "post" in schema["paths"][path] else ():
            for name, field in shape["properties"].items():
                row = section.partition(f"<code>{name}</code>")[2].partition("<tr>")[0]
                assert row and field.get("description", "") in row, (path, name)
    assert "'right'" not in page and '"right" or "Right"' in page and "list of integer" in page


def test_fields_without_effect_may_have_any_value_of_their_type(tiny_server, schema):
    values = {"boolean": True, "integer": 7, "string": "x"}
    for path, (_, ignored) in documented().items():
        fields = shapes_of(schema, path)[-1]["properties"]
        for name in ignored:
            kinds = [one for one in fields[name]["anyOf"] if one["type"] != "null"]
            value = kinds[0].get("enum", [values.get(kinds[0]["type"])])[0]
            done = tiny_server.post(path, json=BODIES[path] | {name: value})
            assert done.status_code == 200 and done.headers["x-runnel-ignored"] == name
        done = tiny_server.post(path, json=BODIES[path] | dict.fromkeys(ignored))
        assert done.status_code == 200 and "x-runnel-ignored" not in done.headers


UUID = "[0-9a-f-]{36}"  # each answer to Cohere's clients has one


def check_refused(done, path, *named):
    """An error has a status that the route's clients know, their shape, and one line."""
    body = done.json()
    shape, _ = POSTS[path]
    assert done.status_code == (422 if shape >= TEI else 400), (path, done.text)
    assert set(body) == shape
    message = body.get("message") or body["error"]
    if shape in (OPENAI, OPENAI | DETAIL):
        assert set(message) == {"message", "type", "param", "code"}
        message = message["message"]
    assert all(name in message for name in named) and "\n" not in message, message
    assert "valid dictionary" not in message and "Text" not in message, message


@pytest.mark.parametrize("path", BODIES)
def test_every_optional_field_may_be_null(tiny_server, schema, path):
    fields = set(shapes_of(schema, path)[-1]["properties"]) - set(BODIES[path])
    plain = tiny_server.post(path, json=BODIES[path])
    null = tiny_server.post(path, json=BODIES[path] | dict.fromkeys(fields))
    assert plain.status_code == null.status_code == 200, null.text
    answers = [re.sub(UUID, "", answer.text) for answer in (plain, null)]
    assert answers[0] == answers[1]
    for needed in set(BODIES[path]) - {"text" if path == "/v1/verify" else ""}:
        if path not in ("/v1/embed", "/v2/embed"):  # where another field may take its place
            check_refused(tiny_server.post(path, json=BODIES[path] | {needed: None}), path, needed)


JSON = "application/json"
REFUSED_BODIES = [  # with their Content-Type and what the error names
    (b"{}", "text/plain", ("Content-Type", "'text/plain'")),
    (b"{}", "application/x-www-form-urlencoded", ("Content-Type", "urlencoded")),
    (b"{}", "multipart/form-data; boundary=x", ("Content-Type", "boundary=x")),
    (b"", JSON, ("not a JSON object",)),
    (b"null", JSON, ("not a JSON object",)),
    (b"[]", JSON, ("not a JSON object",)),
    (b'"a"', JSON, ("not a JSON object",)),
    (b"{", JSON, ("not JSON", "character 1")),
    (b"{} x", JSON, ("not JSON", "character 3")),
    (b"\x1f\x8b\x08", JSON, ("not JSON", "0x8b")),
    (b'{"query": "\xff"}', JSON, ("JSON in UTF-8", "byte 0xff in position 11")),
    (b'{"query": %s}' % (b"9" * 5000), JSON, ("JSON", "5000 digits")),
    (b"[" * 100_000, JSON, ("nested deeper than", "levels")),
    (b'{"unknown": 1}', JSON, ("unknown", "no such field")),
]


@pytest.mark.parametrize("path", [*BODIES, "/"])
def test_what_is_no_body_of_a_route_is_refused_in_its_shape(tiny_server, path):
    for content, kind, named in REFUSED_BODIES:
        done = tiny_server.post(path, content=content, headers={"Content-Type": kind})
        check_refused(done, "/embed" if path == "/" else path, *named)
        # the name of a field, not a place in the text
        assert '"param":' not in done.text or "unknown" in named or '"param":null' in done.text


NO_OBJECT = "should be an object"
WRONG_VALUES = [  # route, what replaces fields of its least body, and what the error names
    ("/v1/find", {"documents": [None]}, ("documents.0: ", "string")),
    ("/v1/find", {"documents": ["a", {"text": "a", "id": 3}]}, ("documents.1.id", "it is 3")),
    ("/v1/find", {"documents": [{"id": "a"}]}, ("documents.0.text", "missing")),
    ("/v1/rerank", {"relevant_spans": True}, ("relevant_spans", NO_OBJECT)),
    ("/v2/embed", {"texts": None, "inputs": ["a"]}, ("inputs.0", NO_OBJECT)),
    ("/similarity", {"inputs": "a"}, ("inputs", NO_OBJECT)),
    (
        "/v1/embed",
        {"embedding_types": ["fp16"]},
        ("types.0: ", "'base64', 'float'", "it is 'fp16'"),
    ),
    ("/v1/embeddings", {"embedding_type": "fp16"}, ("'base64', 'float'", "it is 'fp16'")),
    ("/v1/embeddings", {"truncate": True, "truncation": False}, ("truncate", "truncation")),
    (
        "/predict",
        {"parameters": {"function_to_apply": "softmax"}},
        ("function_to_apply", "softmax"),
    ),
]


@pytest.mark.parametrize(("path", "wrong", "named"), WRONG_VALUES)
def test_a_wrong_value_is_named_once_without_names_of_types(tiny_server, path, wrong, named):
    done = tiny_server.post(path, json=BODIES[path] | wrong)
    check_refused(done, path, *named)
    refused = done.json()
    assert str(refused.get("error", refused)).count("it is ") <= 1


def body_of(path, count):
    """Return the least body of a route with this many texts, and the name of their field."""
    if path == "/similarity":
        return {"inputs": {"source_sentence": "a", "sentences": ["b"] * count}}, "sentences"
    name = next(name for name in BODIES[path] if name != "query")
    return BODIES[path] | {name: BODIES[path][name] * count}, name


SEVERAL = [path for path in BODIES if path not in ("/v1/tokenize", "/v1/search", "/v1/verify")]


@pytest.mark.parametrize("path", SEVERAL)
def test_more_than_ten_thousand_texts_are_refused(tiny_server, path):
    body, name = body_of(path, 10_001)
    shape, _ = POSTS[path]
    done = tiny_server.post(path, json=body)
    assert done.status_code == (422 if shape >= TEI else 413) and set(done.json()) == shape
    assert name in done.text and "10000 items, not 10001" in done.text


@pytest.mark.slow
@pytest.mark.parametrize("path", [one for one in SEVERAL if one != "/embed_all"])
def test_ten_thousand_texts_are_answered_whole(tiny_server, path):
    body, _ = body_of(path, 10_000)
    most = {"top_k": 10_000} if path == "/v1/find" else {}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answer = tiny_server.post(path, json=body | most).json()
    for key in ("data", "results", "embeddings", "sentences", "float"):
        answer = answer.get(key, answer) if isinstance(answer, dict) else answer
    assert len(answer) == 10_000
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 512 << 10, "KiB, of the server and of this client together"


WRONG = [  # with what the error names
    ({"where": {"must": [{"key": "year", "match": {"value": 2020}}]}}, ("must", "year")),  # Qdrant
    ({"where": {"year": {"$gte": 2020}}}, ("$gte", ">=")),  # Chroma, Pinecone
    ({"where": "year > 2020"}, ("where", "should be an object")),
    ({"filter": {"year": 2020}}, ("filter", "/docs")),
    ({"where": {"year": {"$in": [2020]}}}, ("$in", ">=")),
    ({"where": {"year": None}}, ("year",)),
    ({"top_k": 10_000}, ("top_k", "1000", "10000")),
    ({"rerank": 10_000}, ("rerank", "1000", "10000")),
    ({"sentences": 10_000}, ("sentences", "1000", "10000")),
    ({"limit": 5}, ("limit", "/docs")),
]


@pytest.mark.parametrize(("wrong", "named"), WRONG)
def test_filters_and_limits_of_other_services_are_refused(tiny_server, wrong, named):
    done = tiny_server.post("/v1/search", json={"query": "a"} | wrong)
    assert done.json()["error"]["type"] == "invalid_request_error"
    check_refused(done, "/v1/search", *named)
    assert tiny_server.post("/v1/search", json={"query": "a"}).status_code == 200
