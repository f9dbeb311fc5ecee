"""Files of every kind that runnel reads, made from code: what tests read must be known to the letter."""

import zipfile


def pdf(pages, *, outline=(), encrypted=False, image_only=False):
    """A PDF file. `pages`: a list of pages, each a list of lines; None is a line of empty space.

    A line is a string, or a list of (x, size, rise, text) pieces: x in points from the line's start, None behind the last piece.

    Args:
        outline: (title, page from 0) pairs.
        encrypted: asks for a password that nobody has.
        image_only: each page has a picture instead of its lines.
    """
    kids = " ".join(f"{5 + 2 * i} 0 R" for i in range(len(pages)))
    first = 5 + 2 * len(pages)
    objects = [
        f"<< /Type /Catalog /Pages 2 0 R {f'/Outlines {first} 0 R' if outline else ''} >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
        "<< /Type /XObject /Subtype /Image /Width 1 /Height 1 /BitsPerComponent 8 /ColorSpace /DeviceGray /Length 1 >>"
        "\nstream\n0\nendstream",
    ]
    for i, lines in enumerate(pages):
        content = "q 500 0 0 700 50 50 cm /Im0 Do Q" if image_only else _lines(lines)
        resources = "<< /Font << /F1 3 0 R >> /XObject << /Im0 4 0 R >> >>"
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] /Resources {resources} /Contents {6 + 2 * i} 0 R >>"
        )
        objects.append(f"<< /Length {len(content)} >>\nstream\n{content}\nendstream")
    if outline:
        last = first + len(outline)
        objects.append(f"<< /Type /Outlines /First {first + 1} 0 R /Last {last} 0 R /Count {len(outline)} >>")
        for i, (title, page) in enumerate(outline, start=first + 1):
            near = (f"/Prev {i - 1} 0 R " if i > first + 1 else "") + (f"/Next {i + 1} 0 R " if i < last else "")
            objects.append(f"<< /Title ({title}) /Parent {first} 0 R {near}/Dest [{5 + 2 * page} 0 R /Fit] >>")
    extra = (
        f"/Encrypt << /Filter /Standard /V 1 /R 2 /P -4 /O <{'11' * 32}> /U <{'22' * 32}> >> /ID [<00> <00>]" if encrypted else ""
    )
    return _assemble(objects, extra)


def _lines(lines):
    shown = "\n".join("T*" if line is None else _line(line) for line in lines)
    return f"BT /F1 11 Tf 13 TL 60 740 Td\n{shown}\nET"


def _line(line):
    if isinstance(line, str):
        return f"({_escape(line)}) Tj T*"
    out, at = "", 0
    for x, size, rise, text in line:
        if x is not None:
            out += f"{x - at} 0 Td "
            at = x
        out += f"/F1 {size} Tf {rise} Ts ({_escape(text)}) Tj "
    return out + f"{-at} 0 Td /F1 11 Tf 0 Ts T*"


def _escape(line):
    return line.replace("\\", "\\\\").replace("(", "\\(").replace(")", "\\)")


def _assemble(objects, extra):
    out, places = bytearray(b"%PDF-1.4\n"), []
    for number, body in enumerate(objects, start=1):
        places.append(len(out))
        out += f"{number} 0 obj\n{body}\nendobj\n".encode("cp1252")
    start = len(out)
    out += f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n".encode()
    out += b"".join(b"%010d 00000 n \n" % place for place in places)
    out += f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R {extra} >>\nstartxref\n{start}\n%%EOF\n".encode()
    return bytes(out)


_CONTAINER = """<?xml version="1.0"?><container version="1.0" xmlns="urn:oasis:names:tc:opendocument:xmlns:container">
<rootfiles><rootfile full-path="OEBPS/book.opf" media-type="application/oebps-package+xml"/></rootfiles></container>"""


def epub(path, chapters, *, title="A book", more=None, spine=None):
    """An EPUB file at `path`. `chapters`: bodies of XHTML pages. `more`: {name in the archive: content}. `spine`: other hrefs."""
    names = [f"text/chapter%20{i}.xhtml" for i in range(len(chapters))] if spine is None else spine
    items = "".join(f'<item id="c{i}" href="{name}" media-type="application/xhtml+xml"/>' for i, name in enumerate(names))
    refs = "".join(f'<itemref idref="c{i}"/>' for i in range(len(names)))
    package = f"""<?xml version="1.0"?><package xmlns="http://www.idpf.org/2007/opf" version="3.0">
<metadata xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>{title}</dc:title></metadata>
<manifest>{items}</manifest><spine>{refs}</spine></package>"""
    files = {"mimetype": "application/epub+zip", "META-INF/container.xml": _CONTAINER, "OEBPS/book.opf": package}
    for i, body in enumerate(chapters):
        files[f"OEBPS/text/chapter {i}.xhtml"] = (
            '<?xml version="1.0" encoding="utf-8"?><html xmlns="http://www.w3.org/1999/xhtml">'
            f"<head><title/><style/></head><body>{body}</body></html>"
        )
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in (files | (more or {})).items():
            archive.writestr(name, content)


def replace_in_zip(source, target, changes):
    """Copy an archive with some entries changed: `changes` is {name: content -> content}."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, changes.get(name, bytes)(old.read(name)))
