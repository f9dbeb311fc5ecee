"""Which titles in the properties of files are titles."""

import pytest
from helpers.document_files import docx, epub, odf, pdf, pptx, replace_in_zip, shape

from runnel.text.documents.document import Canonical
from runnel.text.documents.reader import DocumentReader
from runnel.text.documents.titles import is_filled_in

FILLED_IN = r"""
Microsoft Word - PageLayoutAnalysisICDAR.doc|Microsoft PowerPoint - Talk
Microsoft Office Word - Costs|Word - x.docx|Microsoft Excel - Book1.xls|Microsoft Word – x.doc
Adobe InDesign - brochure|CorelDRAW - logo.cdr|Crystal Reports - costs.rpt
Crystal Reports ActiveX Designer - x|OpenOffice.org Writer - a.odt|WordPerfect - letter
QuarkXPress Passport: Cover|FrameMaker - ch1|C:\texts\final report.DOCX
C:\DOCUME~1\me\LOCALS~1\Temp\x.tmp|C:/Users/jo/My Documents/costs|\\server\share\costs
/home/jo/texts/paper|/Users/jo/Documents/my costs.pages|~/thesis/main|file:///C:/temp/a.html
http://www.example.org/a/b.html|https://example.org|www.example.org/costs|about:blank|paper.dvi
final report v2.doc|costs.doc.pdf|report.pdf|thesis.tex|Costs 2019.xls|talk.ppt (1)|slides.pptx
letter.wpd|cover.indd|0132350882.qxd|main.ps|photo 1.jpg|index.html|default.aspx|README.md
notes.txt|costs.doc [Compatibility Mode]|costs.doc [Compatibility Mode] - Microsoft Word
Presentation1 [Compatibility Mode]|Presentation1 [Read-Only]|letter.docx - Google Docs
Untitled document - Google Docs|Untitled|untitled|Untitled-1|Untitled 3|untitled1|UNTITLED
Untitled Document|[Untitled]|(untitled)|Untitled.|Unbenannt|Unbenannt 1|Sans titre|Sans titre 2
Document sans titre|Sin título|Sin título-1|Senza titolo|Sem título 1|Naamloos|Namnlös|Без имени
无标题|無題|제목 없음|Unknown|No title|NO TITLE|none|null|None|undefined|N/A|(anonymous)|Document1
Document 2|Document|Dokument1|Documento1|Documento 12|Doc1|doc2|Document(1)|Document (2)
Presentation|Presentation1|Präsentation1|Présentation1|Presentación1|Apresentação1|Book1|Mappe1
Classeur1|Libro1|Cartel1|Drawing1|Publication1|Layout 1|Slide 1|Folie 1|Diapositiva 1
Diapositive 1|Слайд 1|スライド 1|New Page 1|New Microsoft Word Document
New Microsoft Word Document (2)|Microsoft Word Document|Word Document|Neues Dokument|Image1
Page 1|Sheet1|Tabelle1|PowerPoint Presentation|PowerPoint-Präsentation|Présentation PowerPoint
Presentación de PowerPoint|Apresentação do PowerPoint|Presentazione standard di PowerPoint
PowerPoint プレゼンテーション|PowerPoint 演示文稿|PowerPoint 프레젠테이션|Презентация PowerPoint
Prezentacja programu PowerPoint|PowerPoint-presentatie|PowerPoint-presentation
PowerPoint-præsentation|PowerPoint Sunusu|PowerPoint bemutató|Title|[Title]|[Document title]
[Type the document title]|Title of the paper|Title of paper|Paper Title
Paper Title (use style: paper title)|Insert title here|Your title here
Click to edit Master title style|Click to add title|Proceedings Template - WORD
ACM Proceedings Template - WORD|Conference Paper Template|Presentation Title|Report Title
Title of Presentation|Titel|Titel des Dokuments|Enter the title
IEEE Paper Word Template in A4 Page Size (V3)|Template|LaTeX document|Title goes here|Scan
Scan0001|SCAN0023|Scan_20190301|Scan 1|scan-7|Scanned Document|Scanned Image
Scanned from a Xerox Multifunction Device|Scanned from a Xerox Multifunction Printer
Scanned Document 2|SKM_C36819011112340|SKMBT_C36412010112340|KM_C454e-20190101
MX-M453N_20190101_120000|S22C-419010112340|CCF01012019|CCF_000123|img20200101_12345678|IMG_1234
IMG-20190203-WA0001|DSC01234|DSCN1234|DOC081512|DOC-20190203-WA0001|20190301123456
2019-03-01 12-34|20190301|HP0001|HPSCAN_20191|EPSON001|EPSON MFP image|BRN30055C123456_000123
CamScanner 01-02-2019 12.34|CamScanner|Adobe Scan Jan 1, 2020
Scannable Document on Jan 1, 2020, 12:34|Genius Scan 2020-01-01|New Doc 2019-01-01 12.00.00
New Document(2) 01-Jan-2020|Scan Jan 1, 2020|Xerox Scan_01012019|Scan Mar 3 2020 at 4.12 PM
Screenshot 2020-01-01 at 12.34.56|Screenshot_20200101-123456|Fax0012|PXL_20210101_123456789
00000123|doi:10.1016/j.neucom.2005.02.006|10.1016/j.neucom.2005.02.006|PII: 0004-3702(95)00012-X
arXiv:1706.03762v5 [cs.CL]|3F2504E0-4F89-11D3-9A0C-0305E82C3301
{3F2504E0-4F89-11D3-9A0C-0305E82C3301}|ISBN 978-0-13-235088-4|-|--|...|***|?|_
urn:uuid:3f2504e0-4f89-11d3-9a0c-0305e82c3301|jo@example.org
Remote Desktop Redirected Printer Doc|Full page photo|Print|Print Job|Local Downlevel Document
Blank Page|New Tab|React App|(stdin)
""".strip()
WRITTEN = r"""
Document Retrieval|Microsoft Word for Writers|How to read a .doc file|Word|1984|2666|1914-1918
1939–1945|9/11|Catch-22|Fahrenheit 451|PowerPoint Basics|PowerPoint Presentation Skills
Book of Sand|Scan Tailor Guide|Scanned in Error: a Memoir|Untitled Goose Game|Unknown Pleasures
RFC 7231|RFC7231|ISO 9001|ISO9001:2015|HP 12C Owner's Handbook|HP12C|Canon EOS 80D|Xerox 914
Sharp MX-2610 Manual|Title IX|Title Insurance Handbook|The Title Deed
C++ Template Metaprogramming|Templates|Node.js|ASP.NET|Introduction to robots.txt
An Introduction to TeX|README|The Print Shop|Project Management|Access Control|Excel: The Basics
Draw Me a Star|Annual Report 2019|Annual Report 2019-2020|Presentation of Results|Documentation
Document Classification with BERT|Budget 2020|2020 Budget|Report 12|Chapter 1|Lecture 7|U2
Page, Larry|Photo 51|Form 10-K|Form 1040|W-4|The 39 Steps|Vitamin B12|COVID-19|Apollo 13
/dev/null: a history|Input/Output|TCP/IP Illustrated|and/or|CamScanner for Teachers
New Document Standards|Doc Savage|Slide Rules|Layout Analysis|Image Processing|Costs, 1999
日本語の題名|Ein Titel|Der Titel des Romans|Über uns|Les Misérables|Q&A|C|R|Ulysses|Word 2016: A Guide
e.e. cummings|Dr. No|Moby-Dick; or, The Whale|Project - X|Access - a study|Print Culture in 1500
Default Risk|Blank Verse|Null Hypothesis Testing|Drawing on the Right Side|Table 5|user guide
pg_dump|mod_rewrite|std::vector|x86|Visio 2003 Step by Step|Outlook 2019|Nineteen Eighty-Four|S.
"K."|Amazon.com|C3.ai|Report on Project: Costs|Project: Hail Mary|Writer: A Life|Draw: how to
Notepad++ manual|Letter to J. Doe
""".strip()


@pytest.mark.parametrize("filled_in, titles", [(True, FILLED_IN), (False, WRITTEN)])
def test_what_programs_fill_in_is_no_title(filled_in, titles):
    given = titles.replace("\n", "|").split("|")
    assert [title for title in given if is_filled_in(title) != filled_in] == []


CORE = "<p xmlns:dc='http://purl.org/dc/elements/1.1/'><dc:title>{}</dc:title></p>"


def write(folder, kind, title):
    """Write a document with a title in its properties."""
    path = folder / f"costs.{kind}"
    properties = {"docProps/core.xml": CORE.format(title)}
    if kind == "docx":
        relation = '<Relationship Id="1" Type="x/core-properties" Target="docProps/core.xml"/>'
        properties["_rels/.rels"] = f"<Relationships>{relation}</Relationships>"
        docx(path, "<w:p><w:r><w:t>Text.</w:t></w:r></w:p>", more=properties)
    elif kind == "pptx":
        pptx(path, [shape("Text.")], more=properties)
    elif kind == "html":
        path.write_text(f"<title>{title}</title><p>Text.", encoding="utf-8")
    elif kind == "pdf":
        path.write_bytes(pdf([["Text."]], title=title))
    else:
        made, part, old = folder / "made", "meta.xml", b"A title"
        if kind == "epub":
            epub(made, ["<p>Text.</p>"])
            part, old = "OEBPS/book.opf", b"A book"
        else:
            odf(made, "text", "<text:p>Text.</text:p>")
        replace_in_zip(made, path, {part: lambda data: data.replace(old, title.encode())})
    return str(path)


@pytest.mark.parametrize("kind", ["docx", "epub", "html", "odt", "pdf", "pptx"])
def test_titles_of_files(tmp_path, kind):
    titles = ["Costs of 1999", "Microsoft Word - costs.doc", "Untitled-1", "SKM_C36819011112340"]
    with DocumentReader() as reader:
        found = [next(iter(reader.read(write(tmp_path, kind, title)))).title for title in titles]
    assert found == ["Costs of 1999", None, None, None]


def test_titles_that_are_words_of_the_text_stay():
    assert Canonical().finish("mail", title="Document1").title == "Document1"
