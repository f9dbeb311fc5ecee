"""The licenses of all pinned distributions that are installed, as their metadata state them:
permissive, or the MPL.

GPL and AGPL are refused. A dependency under the LGPL needs an entry in REVIEWED: its user must be
able to replace it, and nothing of it may be copied into the package. Only metadata are read: not
the licenses of libraries inside a wheel, unless it states them.
"""

import contextlib
import re
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

PINS = (Path(__file__).parents[1] / "constraints.txt").read_text(encoding="utf-8").splitlines()
PERMISSIVE = {  # in license expressions, in classifiers, and in other words
    *(
        "MIT",
        "MIT-0",
        "MIT-CMU",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "0BSD",
        "ISC",
        "Zlib",
        "CC0-1.0",
        "BSL-1.0",
        "PSF-2.0",
    ),
    # the MPL asks for changed files of the library alone
    *("Apache-2.0", "LLVM-exception", "CNRI-Python", "MPL-2.0"),
    *(
        "MIT License",
        "BSD License",
        "Apache Software License",
        "ISC License (ISCL)",
        "Academic Free License (AFL)",
    ),
    *(
        "Python Software Foundation License",
        "Mozilla Public License 2.0 (MPL 2.0)",
        "Freely Distributable",
    ),
    *("Apache 2.0", "Apache 2.0 License", "Apache License, Version 2.0", "3-Clause BSD License"),
}
REVIEWED = {  # what states its license in words alone
    "pypdfium2": (
        "BSD-3-Clause and Apache-2.0; PDFium inside is permissive; GPL of build tools alone, with"
        " their exceptions"
    ),
    "tiktoken": "the text of MIT",
}


def problem(name: str, package: Distribution) -> str | None:
    """Return what is wrong with the license in a distribution's metadata, or None."""
    metadata = package.metadata
    classifiers = [
        c.rpartition("::")[2].strip()
        for c in metadata.get_all("Classifier") or []
        if c.startswith("License ::")
    ]
    expression = metadata.get("License-Expression") or ""
    text = (metadata.get("License") or "").strip()[:80]
    if re.search(
        r"GPL|General Public|Affero|SSPL|BUSL|Commons Clause|-NC",
        f"{expression} {classifiers} {text}",
    ):
        return (
            f"{name}: {expression or classifiers or text} is not permissive: replace it, or add it"
            " to REVIEWED with the reason"
        )
    words = set(re.findall(r"[\w.+-]+", expression or text)) - {"AND", "OR", "WITH"}
    stated = [words] if expression else [words, {text}, set(classifiers)]
    if any(names and names <= PERMISSIVE for names in stated):
        return None
    return (
        f"{name}: the license {stated} is unknown: read it, and add its name here or the"
        " distribution to REVIEWED"
    )


def test_pinned_distributions_have_permissive_licenses() -> None:
    packages = {}
    for name in (line.partition("==")[0] for line in PINS if "==" in line):
        # needed by an extra that is not installed here
        with contextlib.suppress(PackageNotFoundError):
            packages[name] = distribution(name)
    assert len(packages) > 100  # all of them are installed where all tests run
    problems = {
        name: text for name, package in packages.items() if (text := problem(name, package))
    }
    assert [text for name, text in problems.items() if name not in REVIEWED] == []
    # an entry without need
    assert [name for name in REVIEWED if name in packages and name not in problems] == []
