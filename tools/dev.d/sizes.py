"""How large the tree is: lines of code, and types that headers declare in public, by folder.

Types as callers.py finds them. Beside another commit, what has come or gone since.
"""

import io
import subprocess
import tarfile
from collections import Counter

import callers
from common import ROOT, Failure, tracked

SUFFIXES = (".h", ".cc", ".cu", ".py")
COLUMNS = ("folder", "lines", "public types")


def folder_of(name: str) -> str:
    """The folder that a file is counted in: "net/tcp", of tests and what stands in the root's folders the first."""
    folders = name.split("/")[:-1]
    return "/".join(folders[:1 if folders[:1] == ["tests"] else 2]) or "."


def count(texts: dict[str, str]) -> tuple[Counter, Counter]:
    """Lines and public types by folder; `texts` is file -> content."""
    lines, types = Counter(), Counter()
    for name, text in texts.items():
        if not name.endswith(SUFFIXES):
            continue
        lines[folder_of(name)] += len(text.splitlines())
        if name.endswith(".h") and not name.startswith("tests/"):
            found = callers.declared(name, callers.without_comments(text))
            types[folder_of(name)] += sum(one.what == "type" for one in found)
    return lines, types


def tree() -> dict[str, str]:
    return {name: (ROOT / name).read_text() for name in tracked(*(f"*{suffix}" for suffix in SUFFIXES))}


def tree_at(commit: str) -> dict[str, str]:
    done = subprocess.run(["git", "archive", "--format=tar", commit], cwd=ROOT, capture_output=True)
    if done.returncode != 0:
        raise Failure(f"git archive {commit}: {done.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        return {member.name: archive.extractfile(member).read().decode()
                for member in archive if member.isfile() and member.name.endswith(SUFFIXES)}


def table(now: tuple[Counter, Counter], before: tuple[Counter, Counter] | None) -> list[str]:
    """Lines to print, a total last. With `before`: with what has come or gone, in brackets."""
    folders = sorted(set(now[0]) | set(before[0] if before else ()))

    def cell(of: int, names: list[str]) -> str:
        number = sum(now[of][name] for name in names)
        if before is None:
            return f"{number:,}"
        return f"{number:,} ({number - sum(before[of][name] for name in names):+,})"

    rows = [COLUMNS] + [(name, cell(0, [name]), cell(1, [name])) for name in folders]
    rows.append(("all", cell(0, folders), cell(1, folders)))
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    return ["  ".join([row[0].ljust(widths[0]), *(row[i].rjust(widths[i]) for i in (1, 2))]) for row in rows]


def show(since: str | None) -> None:
    print("\n".join(table(count(tree()), count(tree_at(since)) if since else None)), flush=True)
