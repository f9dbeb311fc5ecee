"""The table of fields in docs/serving.md, /docs and the server say the same; a field that is null
counts as missing.
"""

import re
from html import unescape
from pathlib import Path

import pytest
from helpers.serving import serving
from helpers.tiny import tiny_encoder

from runnel import Document, Embedder, Index

PAGE = Path(__file__).parents[2] / "docs/serving.md"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tiny_encoder(tmp_path_factory.mktemp("tiny")), name="tiny") as client:
        yield client


@pytest.fixture(scope="module")
def schema(server):
    return server.get("/openapi.json").json()


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
    assert set(table) == posts
    for path in posts:
        shape = shapes_of(schema, path)[-1]["properties"]  # of /rerank, TEI's
        ignored = {name for name, field in shape.items() if "x-ignored" in field}
        assert table[path] == (set(shape) - ignored, ignored), path
    names = [set(one["properties"]) for one in shapes_of(schema, "/rerank")]
    assert names[0] == set(shapes_of(schema, "/v2/rerank")[0]["properties"])


def test_docs_show_all_fields(server, schema):
    page = unescape(server.get("/docs").text)
    assert "<script" not in page
    for path, methods in schema["paths"].items():
        section = page.partition(f" <code>{path}</code></h2>")[2].partition("<h2>")[0]
        assert next(iter(methods.values()))["description"] in section, path
        for shape in shapes_of(schema, path) if "post" in schema["paths"][path] else ():
            for name, field in shape["properties"].items():
                row = section.partition(f"<code>{name}</code>")[2].partition("<tr>")[0]
                assert row and field.get("description", "") in row, (path, name)
    assert "'right'" not in page and '"right" or "Right"' in page and "list of integer" in page


def test_fields_without_effect_may_have_any_value_of_their_type(server, schema):
    bodies = {
        "/v1/embeddings": {"input": "a"},
        "/v1/embed": {"texts": ["a"]},
        "/v2/embed": {"texts": ["a"]},
        "/v1/rerank": {"query": "a", "documents": ["b"]},
        "/v2/rerank": {"query": "a", "documents": ["b"]},
        "/rerank": {"query": "a", "texts": ["b"]},
        "/predict": {"inputs": ["a", "b"]},
    }
    values = {"boolean": True, "integer": 7, "string": "x"}
    assert set(bodies) == {path for path, (_, ignored) in documented().items() if ignored}
    for path, body in bodies.items():
        fields = shapes_of(schema, path)[-1]["properties"]
        ignored = [name for name, field in fields.items() if "x-ignored" in field]
        for name in ignored:
            kinds = [one for one in fields[name]["anyOf"] if one["type"] != "null"]
            value = kinds[0].get("enum", [values.get(kinds[0]["type"])])[0]
            done = server.post(path, json=body | {name: value})
            assert done.status_code == 200 and done.headers["x-runnel-ignored"] == name
        done = server.post(path, json=body | dict.fromkeys(ignored))
        assert done.status_code == 200 and "x-runnel-ignored" not in done.headers


WRONG = [  # with what the error names
    ({"where": {"must": [{"key": "year", "match": {"value": 2020}}]}}, ("must", "year")),  # Qdrant
    ({"where": {"year": {"$gte": 2020}}}, ("$gte", ">=")),  # Chroma, Pinecone
    ({"where": "year > 2020"}, ("where", "year > 2020")),
    ({"filter": {"year": 2020}}, ("filter", "/docs")),
    ({"top_k": 10_000}, ("top_k", "1000", "10000")),
    ({"limit": 5}, ("limit", "/docs")),
]


@pytest.mark.parametrize(("wrong", "named"), WRONG)
def test_filters_and_limits_of_other_services_are_refused(tmp_path, wrong, named):
    model = tiny_encoder(tmp_path / "model")
    with Index.create(tmp_path / "index", Embedder(model), fields={"year": "int"}) as index:
        index.add([Document("a", "a b c. d e f.", {"year": 2020})])
    with serving(model, name="tiny", index=tmp_path / "index") as client:
        done = client.post("/v1/search", json={"query": "a"} | wrong)
        error = done.json()["error"]
        assert done.status_code == 400 and error["type"] == "invalid_request_error", error
        assert all(name in error["message"] for name in named), error
        assert client.post("/v1/search", json={"query": "a"}).status_code == 200
