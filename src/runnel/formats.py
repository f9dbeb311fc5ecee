"""The table of all kinds of documents that runnel reads; docs/contributing.md
says how to add one.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Format:
    """How files of a kind are recognized, and which function reads them.

    Attributes:
        read: "module:function" in `runnel.text.documents`, which returns a `DocumentText`; `takes`
            says what it is given: "text": a `Decoded`, in this process; its text stays the file's
            own, and places in it are lines. "rows": an open file, in this process; it yields a
            document for each row. "markup": a `Decoded`, "file": a path and limits, "archive": an
            `Archive` and limits; in a process with limits.
        suffixes: of file names; for an archive only for messages.
        begins: pattern of the first bytes, without a byte order mark and NULs; it is tried before
            the suffix.
        parts: of an archive, the files, or files in folders, that it must have.
    """

    read: str
    takes: Literal["text", "rows", "markup", "file", "archive"]
    suffixes: str = ""
    begins: bytes | None = None
    parts: tuple[str, ...] = ()


_CODE = (
    ".c .cc .cjs .cpp .cs .cu .cxx .dart .ex .exs .go .h .hh .hpp .java .jl .js .jsx .kt .kts .lua"
    " .mjs .php .pl .pm .py .pyi"
)
_HTML = rb"(?is)\s*+(?:<\?xml[^>]*+>\s*+)?(?><!--.*?-->\s*+)*+<(!doctype\s+html|html)[\s>]"
# Other bytes may come before it; a text that mentions it does not end the line there.
_PDF = rb"(?s)[\t\n\r \xef\xbb\xbf]*%PDF-|.{0,1016}?%PDF-\d\.\d[ \t]*[\r\n%]"
# An XML declaration, not before a web page.
_XML = rb"(?is)\s*+<\?xml\s(?!.{,2000}<html[\s>])"
# A mailbox, or headers of which one is only of mail.
_MAIL = (
    rb"(?i)From \S+ [^\n]*\d\d:\d\d[^\n]*\d{4}\r?\n[\w-]+:"
    rb"|(?:[a-z][a-z\d-]*:[^\n]*\n|[ \t][^\n]*\n)*?"
    rb"(?:received|return-path|message-id|mime-version|delivered-to|x-mailer):"
)
FORMATS = {
    "txt": Format("document:read_plain", "text"),
    "md": Format("markdown:read_markdown", "text", ".md .markdown .mdx .qmd .rmd .mkd .mdown"),
    "code": Format(
        "code:read_code", "text", f"{_CODE} .pyx .rb .rs .scala .sh .swift .ts .tsx .zig"
    ),
    "jsonl": Format("rows:read_row_documents", "rows", ".jsonl .ndjson"),
    "csv": Format("rows:read_row_documents", "rows", ".csv"),
    "tsv": Format("rows:read_row_documents", "rows", ".tsv"),
    "pdf": Format("pdf:read_pdf", "file", begins=_PDF),
    "mail": Format("mail:read_mail", "file", ".eml .mbox .mbx .mht .mhtml", begins=_MAIL),
    "html": Format("html:read_html", "markup", ".html .htm .xhtml", begins=_HTML),
    "xml": Format("data:read_xml", "markup", ".xml .rss .atom .opml", begins=_XML),
    "json": Format("data:read_json", "markup", ".json .geojson"),
    "ipynb": Format("notebook:read_notebook", "markup", ".ipynb"),
    "srt": Format(
        "subtitles:read_subtitles",
        "markup",
        ".srt .vtt .sbv .ass .ssa",
        begins=rb"WEBVTT\b|\s*(?:\d+\r?\n)?\[?[\d:]{5,9}[,.]\d{3} -->",
    ),
    "epub": Format("epub:read_epub", "archive", ".epub", parts=("META-INF/container.xml",)),
    "docx": Format("docx:read_docx", "archive", ".docx", parts=("word/",)),
    "pptx": Format("pptx:read_pptx", "archive", ".pptx", parts=("ppt/presentation.xml",)),
    "xlsx": Format("xlsx:read_xlsx", "archive", ".xlsx", parts=("xl/workbook.xml",)),
    "odt": Format("odf:read_odf", "archive", ".odt .ods .odp", parts=("content.xml", "mimetype")),
}
# whose places are lines
LINES = tuple(kind for kind, entry in FORMATS.items() if entry.takes == "text")
ROWS = tuple(kind for kind, entry in FORMATS.items() if entry.takes == "rows")
