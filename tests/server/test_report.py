"""The report of `runnel find --html`, opened in a browser from a file."""

import pytest
from helpers.browser import current, marked, scrolls_sideways, settle
from helpers.document_files import pdf
from helpers.files import write_files
from helpers.texts import repeat

pytestmark = pytest.mark.slow

SENTENCES = [
    "The cat sat on the mat.",
    "A 𝔘nicorn 🦄 drank.",
    "Nothing happened here.",
    "Birds sang.",
    "🐺 The dog barked all night.",
    "Rain fell.",
    "It was cold.",
    "Snow fell too.",
    "Nobody knew why the dog barked 🐕 and ran.",
    "The end came.",
    "Clouds.",
    "More clouds.",
]
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)><!-- <b>bold</b>"


def paragraphs(sentences):
    return "\n\n".join(sentences) + "\n"


@pytest.fixture
def report(run, fake, tmp_path):
    def report(query, files, *options):
        write_files(tmp_path, files)
        done = run("find", query, *files, "--html", "report.html", *options)
        assert done.code == 0, done.err
        return (tmp_path / "report.html").as_uri()

    return report


def test_a_report_opens_a_document_at_the_sentence_with_all_answers_marked(report, open_tab):
    files = {"a b.txt": paragraphs(SENTENCES), "b.txt": "Here is a dog.\n"}
    address = report("why the dog barked", files, "-k", 3, "-c", 0)
    tab = open_tab(address)
    assert tab.locator("#query").input_value() == "why the dog barked"
    assert tab.locator("#query").get_attribute("readonly") is not None
    assert tab.locator("#status").inner_text() == "3 sentences in 1 document"
    assert tab.locator("#line #scope").inner_text() == "in 2 files"
    rows = tab.locator("a.sentence")
    assert [text.split("\n") for text in rows.all_inner_texts()][:2] == [
        ["line 17", SENTENCES[8]],
        ["line 9", SENTENCES[4]],
    ]
    rows.nth(1).click()
    assert current(tab) == [SENTENCES[4]]
    assert (
        SENTENCES[8] in marked(tab, "level-1") and tab.locator("#position").inner_text() == "2 of 3"
    )
    assert tab.locator("#text").inner_text().split() == " ".join(SENTENCES).split()
    tab.go_back()
    assert tab.locator("#document").is_hidden()
    start = files["a b.txt"].index("Nobody")  # characters, some of them beyond the basic plane
    tab = open_tab(f"{address}#doc=a+b.txt&at={start}-{start + len(SENTENCES[8])}")
    assert current(tab) == [SENTENCES[8]]
    assert SENTENCES[8] in tab.locator("a[aria-current]").inner_text()
    missing = {
        "a+b.txt&at=5000-6000": "The document has no characters 5000-6000.",
        "c": "The report does not hold this document.",
    }
    for link, message in missing.items():
        assert open_tab(f"{address}#doc={link}").locator("#status.error").inner_text() == message


def test_html_in_documents_queries_and_names_is_shown_as_text_and_never_run(report, open_tab):
    name = "<img src=x onerror=alert(3)>.txt"
    tab = open_tab(report(f"dog {HOSTILE}", {name: f"A dog says {HOSTILE} to us.\n\nYes.\n"}))
    assert tab.locator("#query").input_value() == f"dog {HOSTILE}"
    assert tab.locator("a.hit").inner_text() == name
    tab.locator("a.sentence").first.click()
    settle(tab)
    assert tab.locator("#title").inner_text() == name
    assert HOSTILE in tab.locator("#text").inner_text()
    assert tab.locator("#text *:not(p), main img, main script").count() == 0
    tab.evaluate(
        "() => { const one = document.createElement('script'); one.textContent = 'window.ran = 1';"
        " document.body.append(one) }"
    )
    assert tab.evaluate("() => window.ran") is None
    assert len(tab.problems) == 1 and "Content Security Policy" in tab.problems.pop()


def test_a_browser_that_cannot_paint_marks_shows_the_document_at_the_sentence(report, open_tab):
    files = {"a.txt": paragraphs(SENTENCES * 20) + "The dog barked at 𝔘s."}
    tab = open_tab(
        report("why the dog barked us", files),
        before="Object.defineProperty(CSS, 'highlights', { value: undefined })",
    )
    tab.locator("a.sentence", has_text="𝔘s").click()
    settle(tab)
    pane, last = (tab.locator(one).bounding_box() for one in ("#text", "#text p:last-child"))
    assert pane["y"] <= last["y"] < pane["y"] + pane["height"]
    tab.keyboard.press("n")
    assert tab.locator("#position").inner_text().startswith("1 of")


def test_the_keyboard_reaches_everything(report, open_tab):
    files = {"a.txt": paragraphs(SENTENCES), "b.txt": "A dog.\n\nThe end.\n"}
    tab = open_tab(report("why the dog barked", files, "-k", 4, "-c", 0))
    tab.keyboard.press("j")
    tab.keyboard.press("j")
    tab.keyboard.press("k")
    assert tab.locator("a.sentence:focus").inner_text().endswith(SENTENCES[8])
    tab.keyboard.press("Enter")
    assert current(tab) == [SENTENCES[8]]
    for key, sentence in (("p", SENTENCES[4]), ("n", SENTENCES[8]), ("n", SENTENCES[0])):
        tab.keyboard.press(key)
        assert current(tab) == [sentence]
    tab.keyboard.press("/")
    assert tab.locator("#query:focus").count() == 1
    tab.keyboard.press("Escape")
    assert tab.locator("#query:focus").count() == 0 and tab.locator("#document").is_visible()
    tab.keyboard.press("Escape")
    assert tab.locator("#document").is_hidden() and tab.locator("a.sentence:focus").count() == 1


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [375, 1280])
def test_nothing_is_wider_than_the_window_and_colors_follow_the_system(
    report, open_tab, width, dark
):
    word = repeat("a", 300)
    text = f"The dog {word}.\n\n>>> code  {word}\n\n{paragraphs(SENTENCES)}"
    address = report("dog", {f"{repeat('b', 100)}.txt": text})
    tab = open_tab(address, width=width, dark=dark)
    assert not scrolls_sideways(tab)
    tab.locator("a.sentence").first.click()
    assert current(tab) and not scrolls_sideways(tab)
    assert tab.evaluate(
        "() => { const one = document.querySelector('#text'); return one.scrollWidth <="
        " one.clientWidth }"
    )
    assert tab.locator("#list").is_visible() == (width > 375)
    light = tab.evaluate(
        "() =>"
        " getComputedStyle(document.querySelector('#document')).backgroundColor.match(/\\d+/g).map(Number)"
    )
    assert (max(light) < 60) == dark
    tab.locator("#close").click()
    assert tab.locator("#list").is_visible()


def test_the_strip_shows_where_the_answers_are_and_scrolls_there(report, open_tab):
    text = paragraphs(
        [f"Nothing is said in line {n}, and nothing happens." for n in range(400)]
        + ["The dog barked.", "End."]
    )
    tab = open_tab(report("dog barked", {"a.txt": text}) + "#doc=a.txt")
    settle(tab)
    dark = """() => {
        const strip = document.querySelector("#strip");
        const pixels = strip.getContext("2d").getImageData(strip.width - 4, 0, 1, strip.height).data;
        return [...Array(strip.height).keys()].filter(y => pixels[4 * y + 3] > 200 && pixels[4 * y + 2] < 80)
            .map(y => y / strip.height);
    }"""
    rows = tab.evaluate(dark)
    assert rows and all(0.98 < row <= 1 for row in rows)
    box = tab.locator("#strip").bounding_box()
    tab.mouse.click(box["x"] + 5, box["y"] + box["height"] / 4)
    settle(tab)
    first = tab.evaluate("""() => {
            const pane = document.querySelector("#text").getBoundingClientRect();
            return document.elementFromPoint(pane.left + pane.width / 2, pane.top + 4)?.textContent;
        }""")
    assert "line 99" in first or "line 100" in first or "line 101" in first


def test_a_report_without_results_says_so(run, fake, open_tab, tmp_path):
    (tmp_path / "a.txt").write_text("The cat sat on the mat.\n")
    for options in (["a.txt", "--min-score", 3], ["empty.txt"]):
        (tmp_path / "empty.txt").write_text("")
        assert run("find", "why the dog barked", *options, "--html", "report.html").code == 1
        tab = open_tab((tmp_path / "report.html").as_uri())
        assert (
            tab.locator("#status").inner_text() == "Nothing found."
            and tab.locator("a.hit").count() == 0
        )
        (tmp_path / "report.html").unlink()


PIXELS = """() => {
    const canvas = document.querySelector("#picture canvas");
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const rows = new Set();
    for (let at = 0; at < data.length; at += 4) {
        if (data[at] > 240 && data[at + 2] < 150) rows.add(Math.floor(at / 4 / canvas.width));
    }
    const all = [...rows];
    return { boxes: canvas.dataset.boxes, top: Math.min(...all) / canvas.height, bottom: Math.max(...all) / canvas.height };
}"""


def test_the_page_of_a_pdf_is_shown_as_a_picture_with_the_sentence_marked(report, open_tab):
    lines = [f"Line {n} is about nothing." for n in range(30)]
    files = {"a.pdf": pdf([lines, [*lines, "The dog barked at night.", "The end."]])}
    tab = open_tab(report("dog barked night", files, "-k", 2, "-c", 0) + "#doc=a.pdf")
    settle(tab)
    assert tab.locator("#facts").inner_text().startswith("2 pages · ")
    assert tab.locator("a.sentence .where").first.inner_text() == "page 2"
    tab.keyboard.press("v")
    tab.locator("#picture canvas[data-boxes]").wait_for()
    marks = tab.evaluate(PIXELS)
    assert marks["boxes"] == "1"
    baseline = (800 - 740 + 30 * 13) / 800  # of the thirtieth line after the first
    assert baseline - 13 / 800 < marks["top"] < baseline < marks["bottom"] < baseline + 6 / 800
    assert (
        tab.locator("#picture canvas").get_attribute("aria-label")
        == "Page 2, the sentence is marked"
    )
    tab.keyboard.press("v")
    assert tab.locator("#text").is_visible() and tab.locator("#picture").is_hidden()
