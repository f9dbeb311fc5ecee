"""Write the Python language reference that every CPython carries as one text file.

python examples/python_reference.py python-reference.txt
"""

import sys
from pathlib import Path
from pydoc_data.topics import topics


def main() -> None:
    """Write the file and say what is in it."""
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "python-reference.txt")
    text = "\n\n".join(topics[name].strip() for name in sorted(topics)) + "\n"
    target.write_text(text, encoding="utf-8")
    print(f"{target}: {len(topics)} chapters, {len(text.split()):,} words")


if __name__ == "__main__":
    main()
