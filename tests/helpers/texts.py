"""Long texts of one short text."""


def repeat(text: str, times: int) -> str:
    """Return a text that says `text` again and again, without anything between."""
    return text * times
