"""The page of a server, in a browser: search, open, ask a file, keys, errors. Its marks are tested
in test_report.py.
"""

import json
import threading
from urllib.parse import parse_qs, urlsplit

import pytest
from helpers.browser import current, marked
from helpers.children import wait_for
from helpers.document_files import pdf
from helpers.files import write_files
from helpers.serving import serving

from runnel import Document, Index, SentenceRetriever
from runnel.files import decode
from runnel.server.view import Opened, opened_files, opened_id
from runnel.text.documents.document import read_plain

pytestmark = pytest.mark.slow

FILLER = [f"Ship {n} 🚢 carries number {n * n} of its goods to the harbor." for n in range(200)]
GARDEN = [
    "Roses need water every day.",
    "The gardener 🌹 waters the roses in the morning.",
    "Bees visit them at noon.",
]
DOCUMENTS = {
    "garden": "\n\n".join(FILLER[:100] + GARDEN + FILLER[100:]),
    "honey": "A gardener spoke to the bees.\n\nNobody answered.",
    "music": "The orchestra plays a symphony. The hall was full.",
}


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    place = tmp_path_factory.mktemp("page") / "library"
    with Index.create(place) as index:
        index.add([Document(name, text) for name, text in DOCUMENTS.items()])
    return place


@pytest.fixture(scope="module")
def server(library):
    with serving("pocket", index=library) as client:
        yield client


def address(server, rest=""):
    return f"{server.base_url}/{rest}".replace("//#", "/#")


@pytest.fixture
def tab(server, open_tab):
    return open_tab(address(server))


def ask(tab, query):
    tab.locator("#query:enabled").wait_for()
    tab.keyboard.press("/")
    tab.keyboard.insert_text(query)
    tab.keyboard.press("Enter")


def lines(response):
    assert response.status_code == 200, response.text
    return [json.loads(line) for line in response.text.splitlines()]


def test_a_question_finds_documents_and_opens_one_at_the_answer(server, open_tab, tab):
    tab.locator("#welcome p").first.wait_for()
    assert tab.locator("#scope").inner_text() == "in library, 3 documents"
    assert tab.locator("#welcome p").last.inner_text().startswith("Keys: / question")
    ask(tab, "When are the roses watered?")
    tab.locator("a.sentence").first.wait_for()
    hits = server.post("/v1/search", json={"query": "When are the roses watered?"}).json()[
        "documents"
    ]
    assert tab.locator("a.hit").all_inner_texts() == [hit["id"] for hit in hits]
    assert tab.locator("a.sentence mark").all_inner_texts() == [
        " ".join(one["text"].split()) for hit in hits for one in hit["sentences"]
    ]
    found = [one for hit in hits for one in hit["sentences"]]
    best_one = max(found, key=lambda one: one["answers"])
    assert best_one == found[0]
    levels = [sum(one["answers"] >= least for least in (0.15, 0.25, 0.35, 0.45)) for one in found]
    assert set(levels) == {0, 1}
    for level, kind in ((0, "[class=sentence]"), (1, ".level-1")):
        assert tab.locator(f"a.sentence{kind} mark").all_inner_texts() == [
            " ".join(one["text"].split())
            for one, its_level in zip(found, levels, strict=True)
            if its_level == level
        ]
    assert f"{round(100 * best_one['answers'])} %" in tab.locator(".where").first.inner_text()
    tab.locator("a.sentence", has_text="The gardener").click()
    assert current(tab) == [GARDEN[1]]
    best = SentenceRetriever.load("pocket").retrieve(
        "When are the roses watered?", DOCUMENTS["garden"], top_k=1
    )
    assert best[0].text.strip() in marked(tab, "level-1")
    link = tab.url
    assert f"at={DOCUMENTS['garden'].index(GARDEN[1])}-" in link
    again = open_tab(link)  # the address alone shows the same
    assert current(again) == [GARDEN[1]]
    assert again.locator("#query").input_value() == "When are the roses watered?"
    assert again.locator("a.sentence").count() == tab.locator("a.sentence").count()
    # another question marks the open document again
    tab.evaluate("() => { location.hash = '#doc=garden&q=bees' }")
    tab.wait_for_function(
        "() => [...CSS.highlights.get('level-3')].some(one => String(one).includes('Bees'))"
    )
    assert marked(tab, "level-3") == [GARDEN[2]]
    tab = open_tab(
        address(server, "#doc=garden&q=the boiling point of mercury")
    )  # nothing is painted
    tab.locator("a.sentence").first.wait_for()
    assert tab.locator("#status").inner_text().startswith("Nothing here seems to answer this. ")
    assert tab.locator("a.sentence").count() == tab.locator("a.sentence[class=sentence]").count()
    assert not any(marked(tab, f"level-{level}") for level in range(1, 5))
    tab = open_tab(address(server, "#doc=nothing&q=bees"))
    tab.locator("#status.error").wait_for()
    assert (
        tab.locator("#status").inner_text()
        == "the index has no document 'nothing'; it may have been removed"
    )
    assert all("404" in problem for problem in tab.problems)
    tab.problems.clear()


def requests_of(tab):
    """The addresses that the page asks from now on, without its own files."""
    asked = []
    tab.on("request", lambda one: None if "/static/" in one.url else asked.append(one.url))
    return asked


DROP = """([name, text]) => {
    const data = new DataTransfer();
    data.items.add(new File([text], name));
    for (const kind of ["dragover", "drop"]) {
        document.body.dispatchEvent(new DragEvent(kind, { dataTransfer: data, bubbles: true, cancelable: true }));
        if (kind === "dragover" && document.querySelector("#drop").hidden) throw new Error("no sign");
    }
}"""


def test_a_dropped_file_is_read_and_asked(open_tab, tab):
    tab.locator("#query:enabled").wait_for()
    text = "\n\n".join([*FILLER, "The lighthouse 🗼 is painted red.", *FILLER[:9]])
    tab.evaluate(DROP, ["coast <b>.txt", text])
    tab.locator("#text p").first.wait_for()
    assert (
        tab.locator("#title").inner_text()
        == tab.locator("#scope").inner_text().removeprefix("in ")
        == "coast <b>.txt"
    )
    assert tab.locator("#drop").is_hidden()
    ask(tab, "What color is the lighthouse?")
    assert current(tab) == current(open_tab(tab.url)) == ["The lighthouse 🗼 is painted red."]
    assert tab.locator("#status").inner_text() == "20 sentences of 210"
    asked = requests_of(tab)
    tab.keyboard.press("Escape")  # back to the collection, which was asked nothing
    tab.locator("#welcome p").first.wait_for()
    assert tab.locator("#scope").inner_text() == "in library, 3 documents"
    assert tab.locator("#document").is_hidden() and tab.locator("#query").input_value() == ""
    assert tab.locator("a.sentence").count() == 0 and not asked


def test_escape_goes_back_to_what_the_collection_was_asked(tab, tmp_path):
    (tmp_path / "red.txt").write_text("The lighthouse is painted red.")
    ask(tab, "When are the roses watered?")
    tab.locator("a.hit", has_text="garden").wait_for()
    hits = tab.locator("a.sentence").all_inner_texts()
    tab.set_input_files("#file", tmp_path / "red.txt")
    tab.locator("a.sentence mark", has_text="lighthouse").wait_for()
    ask(tab, "What color is the lighthouse?")
    tab.wait_for_function("() => location.hash.includes('lighthouse')")
    tab.locator(".level-4, .level-3, .level-2").first.wait_for()
    asked = requests_of(tab)
    tab.keyboard.press("Escape")
    tab.locator("a.hit", has_text="garden").wait_for()
    assert tab.locator("#query").input_value() == "When are the roses watered?"
    assert tab.locator("a.sentence").all_inner_texts() == hits and not asked
    tab.locator(
        "a.hit", has_text="garden"
    ).click()  # a document of the collection keeps its question
    tab.locator("#text p").first.wait_for()
    tab.keyboard.press("Escape")
    assert tab.locator("#query").input_value() == "When are the roses watered?"


def drop_paths(tab, *paths):
    """Drop files and folders of this machine, as a user does."""
    session = tab.context.new_cdp_session(tab)
    data = {"items": [], "files": [str(path) for path in paths], "dragOperationsMask": 1}
    for kind in ("dragEnter", "dragOver", "drop"):
        session.send("Input.dispatchDragEvent", {"type": kind, "x": 400, "y": 300, "data": data})


def test_a_dropped_folder_opens_its_files(tab, tmp_path):
    folder = tmp_path / "notes"
    texts = {"b.txt": "The lighthouse is red.", "deep/a.md": "# Ferry\n\nIt leaves at noon."}
    texts |= {"deep/er/z.txt": "The mill is old.", ".git/config": "hidden", ".hidden.txt": "hidden"}
    write_files(folder, texts | {"c.png": b"\x89PNG...."})
    write_files(tmp_path, {"alone.txt": "Ada keeps the mill."})
    tab.locator("#query:enabled").wait_for()
    drop_paths(tab, folder, tmp_path / "alone.txt")
    tab.locator("#status.error").wait_for()
    assert tab.locator("#status").inner_text().startswith("notes/c.png")
    names = ["notes/b.txt", "notes/deep/a.md", "notes/deep/er/z.txt", "alone.txt"]
    assert tab.locator("#opened a").all_inner_texts() == names
    assert tab.locator("#opened a[aria-current]").inner_text() == names[0]
    assert tab.locator("#text").inner_text() == texts["b.txt"]
    tab.locator("#opened a").nth(1).click()
    tab.locator("#text .heading").wait_for()
    assert all("400" in problem for problem in tab.problems)
    tab.problems.clear()
    write_files(many := tmp_path / "many", {f"{number}.txt": "text" for number in range(101)})
    drop_paths(tab, many)
    tab.locator("#status.error", has_text="More than 100 files").wait_for()
    assert tab.locator("#opened a").count() == 4
    (tmp_path / "empty").mkdir()
    drop_paths(tab, tmp_path / "empty")
    tab.locator("#status", has_text="no files").wait_for()


LANDMARKS = "header, nav, main, footer, aside, [role=search]"
OUTSIDE = """landmarks => {
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const outside = [];
    while (texts.nextNode()) {
        const { parentElement: parent, data } = texts.currentNode;
        if (data.trim() && !parent.closest(landmarks)) outside.push(data);
    }
    return outside;
}"""


def test_one_heading_of_the_first_level_and_all_text_in_landmarks(server, open_tab):
    for rest in ("", "#q=bees", "#doc=garden&q=bees"):
        tab = open_tab(address(server, rest))
        tab.locator("#welcome p, a.hit").first.wait_for()
        if "doc" in rest:
            tab.locator("#text p").first.wait_for()
        assert [one.inner_text() for one in tab.locator("h1").all()] == ["runnel"]
        assert tab.evaluate(OUTSIDE, LANDMARKS) == []
        assert tab.locator("body > header").count() == tab.locator("main").count() == 1
        levels = tab.evaluate(
            "() => [...document.querySelectorAll('h1, h2, h3')].map(one => one.tagName)"
        )
        assert levels[0] == "H1" and set(levels[1:]) <= {"H2"}
    assert tab.locator("h2#title").inner_text() == "garden"


def test_headings_of_a_pdf_without_an_outline(tab, tmp_path):
    lines = ["1. Introduction", None, None, "Roses need water every day.", None, None]
    lines += ["2.1 Bees and other guests", None, None, "Bees visit them at noon.", None, None]
    lines += ["REFERENCES", None, None, "1. Ada, The Mill, printed in London."]
    (tmp_path / "book.pdf").write_bytes(pdf([lines]))
    outline = [("Bees", 0), ("REFERENCES", 0), ("The Mill", 0)]
    (tmp_path / "outlined.pdf").write_bytes(pdf([lines], outline=outline))
    tab.locator("#query:enabled").wait_for()
    tab.set_input_files("#file", tmp_path / "book.pdf")
    tab.locator("#text .heading").first.wait_for()
    assert tab.locator("#text .heading").all_inner_texts() == [
        "1. Introduction",
        "2.1 Bees and other guests",
        "REFERENCES",
    ]
    tab.set_input_files("#file", tmp_path / "outlined.pdf")
    tab.locator("#title", has_text="outlined.pdf").wait_for()
    assert tab.locator("#text .heading").all_inner_texts() == ["REFERENCES"]


def test_all_opened_files_can_be_asked(tab, tmp_path):
    texts = {
        "red.txt": "The lighthouse is painted red.",
        "<b>blue.txt": "The lighthouse is painted blue.",
    }
    write_files(tmp_path, texts)
    ask(tab, "What color is the lighthouse?")
    tab.set_input_files("#file", [tmp_path / name for name in texts])
    links = tab.locator("#opened a")
    for at, (name, text) in enumerate(texts.items()):  # the first one is shown
        links.nth(1).wait_for()
        links.nth(at).click()
        tab.locator("a.sentence mark", has_text=text).wait_for()
        assert (
            tab.locator("#text").inner_text() == text
            and tab.locator("#opened a[aria-current]").inner_text() == name
        )
        assert tab.locator("a.sentence mark").all_inner_texts() == [text]
    assert links.all_inner_texts() == list(texts)
    tab.keyboard.press("Escape")
    tab.locator("a.hit", has_text="garden").wait_for()
    assert links.count() == 2 and tab.locator("#opened a[aria-current]").count() == 0
    (tmp_path / "bad.pdf").write_bytes(b"%PDF-1.4\nnothing")
    with tab.expect_response("**/page/files?name=bad.pdf"):
        tab.set_input_files("#file", tmp_path / "bad.pdf")
    tab.locator("#status.error").wait_for()
    assert tab.locator("#status").inner_text().startswith("bad.pdf: a damaged or truncated PDF")
    assert all("400" in problem for problem in tab.problems)
    tab.problems.clear()
    tab.set_input_files("#file", tmp_path / "red.txt")
    tab.locator("#text p", has_text=texts["red.txt"]).wait_for()


def test_reading_a_file_streams_progress_and_reads_it_once(server):
    text = "\n\n".join(FILLER * 3)
    first = lines(server.post("/page/files", params={"name": "ships.md"}, content=text.encode()))
    *steps, last = first
    assert steps and all(
        set(step) == {"done", "total"} and 0 < step["done"] <= step["total"] for step in steps
    )
    assert [step["done"] for step in steps] == sorted(step["done"] for step in steps)
    id = last["result"]["id"]
    assert lines(
        server.post("/page/files", params={"name": "ships.md"}, content=text.encode())
    ) == [{"result": {"id": id}}]
    gone = server.get("/page/document", params={"id": "opened-here:0"})
    assert gone.status_code == 404 and "open it again" in gone.json()["error"]["message"]
    shown = server.get("/page/document", params={"id": id}).json()
    assert shown["text"] == text and shown["name"] == "ships.md" and not shown["pictures"]
    [*_, last] = lines(server.get("/page/document/answers", params={"id": id, "q": "number 9801"}))
    best = last["result"]["sentences"][0]
    assert (
        best["text"].strip() == FILLER[99]
        and len(best["also"]) == 2
        and last["result"]["count"] == 600
    )


def test_reading_ends_when_the_client_disconnects(server):
    text = "\n\n".join(f"{n}: {line}" for n in range(40) for line in FILLER).encode()
    with server.stream(
        "POST", "/page/files", params={"name": "long.txt"}, content=text
    ) as response:
        assert set(json.loads(next(response.iter_lines()))) == {"done", "total"}
    work = server.app.state.context.work
    wait_for(lambda: not work.running and not work.left)
    # it was not read to its end
    assert server.app.state.context.opened.get(opened_id("long.txt", text)) is None


def test_opened_files_are_bounded_by_memory_and_the_latest_stays():
    def opened(name, size):
        return Opened(name, read_plain(decode(b"x" * size, name)), pdf=b"x" * size)

    files = opened_files(2000)
    for id in ("a", "b", "c"):
        files.put(id, opened(id, 400))
        assert files.get("a") is not None  # the most recently used
    assert files.get("b") is None and files.get("c") is not None
    files.put("large", opened("large", 5000))
    assert files.get("large") is not None and files.get("a") is None and files.get("c") is None


def test_a_recurrent_model_reads_a_file_again_for_each_question():
    with serving("pocket-mamba2", name="pocket-mamba2") as client:
        assert client.get("/page/about").json() == {"index": None}
        *_, last = lines(
            client.post(
                "/page/files",
                params={"name": "a.txt"},
                content="\n\n".join(GARDEN + FILLER[:20]).encode(),
            )
        )
        *steps, last = lines(
            client.get("/page/document/answers", params={"id": last["result"]["id"], "q": "bees"})
        )
        assert (
            steps
            and last["result"]["count"] == 23
            and last["result"]["sentences"][0]["text"].strip() == GARDEN[2]
        )


def test_the_page_of_an_opened_pdf_and_of_an_indexed_one(tmp_path, open_tab):
    book = tmp_path / "book.pdf"
    book.write_bytes(pdf([GARDEN[::2], ["Roses are red.", "The end of the book."]]))
    with Index.create(tmp_path / "index") as index:
        index.add_files([book])
    with serving("pocket", index=tmp_path / "index") as client:
        tab = open_tab(address(client))
        tab.locator("#query:enabled").wait_for()
        tab.set_input_files("#file", book)
        tab.locator("#text p").first.wait_for()
        ask(tab, "What color are roses?")
        current(tab)
        tab.locator("#look").click()
        tab.locator("#picture canvas[data-boxes='1']").wait_for()
        own = parse_qs(urlsplit(tab.url).fragment)["doc"][0]
        for id, name in ((own, "book.pdf"), (str(book), str(book))):
            shown = client.get("/page/document", params={"id": id}).json()
            assert shown["pictures"] and shown["pages"] == 2
            start = shown["text"].index("Roses are red.")
            place = {"id": id, "start": start, "end": start + 14}
            picture = client.get("/page/document/picture", params=place).json()
            assert picture["page"] == 2 and len(picture["boxes"]) == 1 and picture["png"]
            refused = client.get(
                "/page/document/picture", params=place | {"start": 10_000, "end": 10_001}
            )
            assert refused.status_code == 404
            assert (
                refused.json()["error"]["message"]
                == f"{name} has no page with the characters 10000-10001"
            )
        book.write_bytes(pdf([GARDEN[::2]]))
        refused = client.get("/page/document/picture", params=place)
        assert (
            refused.status_code == 404
            and "has changed since it was indexed" in refused.json()["error"]["message"]
        )


def test_the_files_of_the_page_and_files_that_are_refused(server):
    page = server.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["content-security-policy"].startswith("default-src 'self';")
    assert server.get("/static/app.js").headers["content-type"] == "text/javascript; charset=utf-8"
    for name in ("nothing.js", "../page.py", "%2e%2e/page.py", "__init__.py"):
        assert server.get(f"/static/{name}").status_code == 404
    assert not [
        path
        for path in server.get("/openapi.json").json()["paths"]
        if "page" in path or "static" in path
    ]
    wrong = [
        ("a.txt", b"", "empty"),
        ("a.txt", b" \n", "empty"),
        ("a.jsonl", b'{"text": "a"}\n', "rows"),
    ]
    for name, data, message in (*wrong, ("a.png", b"\x89PNG....", "image")):
        response = server.post("/page/files", params={"name": name}, content=data)
        assert response.status_code == 400 and message in response.json()["error"]["message"]


def test_a_server_with_a_key_asks_for_it_once(tiny, open_tab):
    with serving(tiny, name="tiny", api_keys=("secret",)) as client:
        tab = open_tab(address(client), prompts=["wrong", "secret"])
        tab.locator("#welcome p").first.wait_for()
        assert tab.locator("#welcome p").first.inner_text() == "This server has no index."
        assert len(tab.problems) == 2 and all("401" in problem for problem in tab.problems)
        tab.problems.clear()
        tab.reload()
        tab.locator("#welcome p").first.wait_for()


def test_the_page_waits_for_the_model(tiny, open_tab):
    go = threading.Event()
    with serving(tiny, name="tiny", go=go) as client:
        tab = open_tab(address(client))
        tab.wait_for_function(
            "() => document.querySelector('#status').textContent.startsWith('the model is being"
            " loaded')"
        )
        go.set()
        tab.locator("#welcome p").first.wait_for()
        assert tab.locator("#status").inner_text() == ""
        assert all("503" in problem for problem in tab.problems)
        tab.problems.clear()
