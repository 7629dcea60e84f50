"""Keeps the prose of Markdown pages within COLUMNS: paragraphs and list items with a longer line are wrapped anew.

Code, tables, headings and HTML stay as they are, however wide.
"""

import re
import textwrap

from common import ROOT, tracked

COLUMNS = 120
ITEM = re.compile(r"\s*(?:[-*+]|\d+[.)])\s+")
# What ends a paragraph, and is none itself.
OTHER = re.compile(r"\s*(?:$|#|\||<|>|```|~~~|\[[^\]]+\]:|-{3,}$|={3,}$)")
FENCE = re.compile(r"\s*(```|~~~)")
CODE = re.compile(r"`[^`\n]{,80}`")  # stays on one line
GLUE = "\0"
# At the start of a line it would be a marker, which it was not within one.
MARKER = re.compile(r"\s*(?:[-*+#>|=]|\d+[.)])(?:\s|$)|\s*(?:\||<|```|~~~|-{3}|={3})")


def wrap(text: str) -> str:
    """The page with what is too wide wrapped anew."""
    out, block = [], []
    fenced = blank = False

    def flush() -> None:
        out.extend(rewrapped(block))
        block.clear()

    for line in text.splitlines():
        is_code = not block and blank and re.match(r"    ", line) and not ITEM.match(line)
        if FENCE.match(line):
            flush()
            fenced = not fenced
            out.append(line)
        elif fenced or is_code or OTHER.match(line):
            flush()
            out.append(line)
        else:
            if ITEM.match(line):
                flush()
            block.append(line)
        blank = not line.strip() or bool(is_code)
    flush()
    return "\n".join(out) + "\n"


def rewrapped(block: list[str]) -> list[str]:
    """One paragraph or item."""
    if all(len(line) <= COLUMNS for line in block) or any(line.endswith("  ") for line in block):
        return block
    item = ITEM.match(block[0])
    first = item.group(0) if item else re.match(r"\s*", block[0]).group(0)
    words = " ".join([block[0][len(first):], *(line.strip() for line in block[1:])])
    words = CODE.sub(lambda code: code.group(0).replace(" ", GLUE), words)
    for width in range(COLUMNS, 80, -1):
        lines = textwrap.wrap(words, width, initial_indent=first, subsequent_indent=" " * len(first),
                              break_long_words=False, break_on_hyphens=False)
        if not any(MARKER.match(line) for line in lines[1:]):
            return [line.replace(GLUE, " ") for line in lines]
    return block


def pages() -> list[str]:
    return tracked("*.md")


def problems() -> list[str]:
    """Lines that wrap() would change."""
    found = []
    for name in pages():
        text = (ROOT / name).read_text()
        if wrap(text) != text:
            number = next(number for number, (now, right) in enumerate(
                zip(text.splitlines(), wrap(text).splitlines()), 1) if now != right)
            found.append(f"{name}:{number}: prose of more than {COLUMNS} columns; run tools/dev docs --wrap")
    return found


def wrap_all() -> list[str]:
    """Pages that were changed."""
    changed = []
    for name in pages():
        text = (ROOT / name).read_text()
        if wrap(text) != text:
            (ROOT / name).write_text(wrap(text))
            changed.append(name)
    return changed
