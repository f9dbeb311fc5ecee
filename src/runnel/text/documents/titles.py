"""Whether a person wrote the title in a document's properties, or a program filled it in:
`Canonical.finish` drops such a title.

Programs write the name of the file, perhaps after their own name ("Microsoft Word - costs.doc"),
their name for a new document ("Untitled-1", "Book2"), a template's words ("Title of the paper"), a
scanner's number ("SKM_C36819011112340"), an address or an identifier.
"""

import re

# What new documents are called, in the languages of Office; a number may follow.
_NEW = frozenset(
    """
untitled; untitled document; untitled presentation; untitled spreadsheet; untitled form
untitled page; untitled project; untitled design; no title; not titled; unnamed; unknown; none; null
nil; undefined; nan; n/a; anonymous; unbenannt; unbenanntes dokument; ohne titel; kein titel
sans titre; sans nom; document sans titre; sin título; sin titulo; sem título; sem titulo
senza titolo; senza nome; naamloos; zonder titel; namnlös; uten navn; uden titel; uden navn
nimetön; bez nazwy; bez tytułu; bez názvu; névtelen; adsız; başlıksız; без имени; без названия
无标题; 無標題; 未命名; 無題; 名称未設定; 제목 없음
document; dokument; documento; dokumentum; документ; 文档; 文書; 문서; doc; docs
presentation; präsentation; présentation; presentación; presentazione; apresentação; presentatie
prezentacja; презентация; プレゼンテーション; 演示文稿; 프레젠테이션
word document; microsoft word document; microsoft word; word-dokument; document microsoft word
excel worksheet; microsoft excel worksheet; workbook; spreadsheet
new document; new page; new doc; new tab; new presentation; new microsoft word document
new microsoft excel worksheet; new microsoft powerpoint presentation; neues dokument
neues microsoft word-dokument; nouveau document; nouveau document microsoft word
nuevo documento; nuevo documento de microsoft word; nuovo documento; novo documento
print; printing; print document; print job; print preview; local downlevel document
remote desktop redirected printer doc; remote downlevel document; full page photo
full page photo print; blank; blank page; blank document; about:blank; react app; vite app
scan; scanned document; scanned documents; scanned image; scanned file; scanned page; my scan
template; latex document; latex article; ieeetran; stdin; default
""".strip()
    .replace("\n", "; ")
    .split("; ")
)
# The same for words that a person may write: they count only with a number.
_NUMBERED = frozenset(
    "book mappe arbeitsmappe classeur libro cartel cartella planilha pasta sheet worksheet tabelle"
    " feuil hoja foglio drawing zeichnung dessin publication layout page seite slide slides folie"
    " diapositiva diapositive dia slayt слайд スライド 幻灯片 image img fax diagram".split()
)
_NUMBER = re.compile(r"[ _-]?\(?\d{1,4}\)?\Z")  # "-1", " (2)"
# "costs.doc [Compatibility Mode] - Microsoft Word"
_WINDOW = re.compile(
    r"(?: ?[\[(](?:compatibility mode|read[- ]only|kompatibilitätsmodus|schreibgeschützt"
    r"|mode de compatibilité|lecture seule|modo de compatibilidad|modalità compatibilità)[\])])?"
    r"(?: [-–—] (?:google (?:docs|sheets|slides)|(?:microsoft )?(?:word|excel|powerpoint)"
    r"|(?:open|libre)office(?:\.org)?(?: \w+)?))?\Z"
)
_FILLED_IN = re.compile(
    r"""
    # a program's name before the file's: "Microsoft Word - costs.doc"
    (?:(?:microsoft|adobe|corel|openoffice(?:\.org)?|libreoffice)[ ](?:office[ ])?\w+
        |word|excel|powerpoint|visio|onenote|wordpad|wordperfect|coreldraw|indesign|photoshop
        |pagemaker|framemaker|quarkxpress(?:[ ]passport:)?|crystal[ ]reports?(?:[ ]\w+)*|autocad)
        (?:[ ][\d.]+)?(?:[ ][-–—]|(?<=:))[ ].*
    # "PowerPoint Presentation" in the languages of PowerPoint
    |(?:\w+(?:[ -](?:de|di|do|da|programu|standard[ ]di))?[ -])?powerpoint
        [ -]?(?:pr[eäéæ]\w*|sunusu|bemutató|esitys|プレゼン\w*|演示文稿|簡報|프레젠테이션
        |презентация)
    |(?:pr[eé]senta\w+|prezenta\w+|apresenta\w+|презентация)[ ](?:\w+[ ]){0,2}powerpoint
    # a template's words: "Title of the paper", "ACM Proceedings Template - WORD"
    |(?:(?:type|insert|enter|add|put|write|your|click[ ]to[ ](?:add|edit))[ ])?
        (?:(?:the|your|document|paper|page|report|presentation|article|book|thesis|project
        |manuscript|chapter|master)[ ]){0,3}(?:title|titel|titre|título|titolo)
        (?:[ ](?:goes[ ])?here|[ ]style|[ ]of[ ](?:the[ ]|your[ ])?(?:paper|document|report|article
        |thesis|presentation|book|project)|(?:[ ]des)?[ ]dokuments|[ ]du[ ]document)?
    |paper[ ]title[ ]\(use[ ]style:.*
    |(?:.*[ ])?(?:proceedings|paper|manuscript|conference|word|latex|article|journal|thesis|letter
        |report|presentation|powerpoint|document)[ ]template(?:[ ](?:-|in|for)[ ].*)?
    # a scanner's, a camera's: "IMG_1234", "EPSON001", "CamScanner 01-02-2019 12.34"
    |(?:scan|sc|scn|img|image|imagen|bild|dsc[nf]?|pxl|p|doc|photo|pict?|picture|fax|ccf|vid
        |screenshot|bildschirmfoto|screen[ ]shot)
        (?=(?:\D*\d){3})[ _-]*[\d ,.:;_()-]+(?:(?:at|um|wa|am|pm|t)?[\d ,.:;_()-]*){0,3}(?:am|pm)?
    |(?:hp|hpscan|epson|canon|xerox|ricoh|sharp|brn|brw|lexmark|kyocera|toshiba)[_-]?\d{3,}\w*
    |(?:camscanner|adobe[ ]scan|genius[ ]scan|tiny[ ]?scanner|scannable[ ]document|new[ ]doc
        |new[ ]document|scan|scanned[ ]document|xerox[ ]scan|hp[ ]scan|epson[ ]scan)
        (?:[ _(-].*\d.*)?
    |scanned[ ](?:from|with|by|using)[ ].*|epson[ ]mfp[ ]image|canon[ ]ir\S*(?:[ ]\S+)?
    # seven digits in one word, and numbers and signs alone, but for two years: "1914-1918"
    |(?!\d{4}\W\d{4}\Z)(?:(?=(?:\D*\d){7})[\w.,()-]+|(?=(?:\D*\d){6})[\d\s_.,:()t-]+)|[\W_]+
    # an address, a path, an identifier
    |[a-z]:[\\/].*|\\\\.*|~?/(?:[^\s/]+/){2,}\S*|~/\S+|[a-z]{3,5}://\S*|www\.\S+|\S+@\S+\.\w+
    |(?:doi|pii|arxiv|isbn(?:-1[03])?|issn|urn|uuid|oai):?[ ]?\S*\d\S*(?:[ ]\[[\w.-]+\]?)?
    |10\.\d{4,}/\S+|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}
    # a file: "final report.doc"; of kinds that titles mention only a name without spaces
    |.*\S\.(?:docx?|docm|dot[xm]?|dvi|eml|epub|indd|indb|mobi|msg|od[fgpst]|ott|p65|pdfx?|pmd|ppsx?
        |ppt[xm]?|ps|pub|qx[dpb]|rpt|rtf|sxw|tex|tiff?|vsdx?|wp[ds]|xls[xmb]?|jpe?g|png|gif|bmp|dwg
        |psd|cdr|pages|chp|lwp|mht|x?html?)(?:[ ]?\(?\d{1,3}\)?)?
    |\S+\.(?:adoc|aspx?|cfm|csv|json|jsp|log|md|org|php|rst|shtml|svg|te?mp|txt|xml|zip|key)
    """,
    re.VERBOSE | re.DOTALL,
)


def is_filled_in(title: str) -> bool:
    """Return whether a program filled in a title, or it says nothing."""
    words = _WINDOW.sub("", title.lower().strip(" \"'")).strip("[](){}<>\"'«»„“”. ")
    name = _NUMBER.sub("", words)
    return (
        not words
        or words in _NEW
        or name in _NEW
        or (name != words and name in _NUMBERED)
        or _FILLED_IN.fullmatch(words) is not None
    )
