"""clang-tidy over the files of build/release, with a memory of what was clean."""

import concurrent.futures
import hashlib
import json
import pathlib
import re
import shlex
import subprocess
import time

import build
import setup
from common import CACHE, ROOT, Failure, jobs, output, say

INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


def problems(everything: bool, since: str | None, minutes: float | None = None) -> list[str]:
    """One text for each problem of the files looked at; empty when all are clean. After `minutes` no further file is
    looked at: those that were changed last come first, and how many are left is said."""
    folder = build.configure("release")
    commands = selected_commands(folder, everything, since)
    database = folder / "tidy"
    database.mkdir(exist_ok=True)
    (database / "compile_commands.json").write_text(json.dumps(list(commands.values())))
    memory = CACHE / "tidy"
    memory.mkdir(parents=True, exist_ok=True)
    program = setup.install_clang_tidy()
    version = output([program, "--version"]) + (ROOT / ".clang-tidy").read_text()
    stamps = {name: memory / fingerprint(name, command["command"] + version)
              for name, command in commands.items()}
    to_do = [name for name, stamp in stamps.items() if not stamp.exists()]
    say(f"clang-tidy: {len(to_do)} of {len(commands)} files are new or changed")
    if minutes is not None:
        to_do = newest_first(to_do, output(["git", "log", "--format=", "--name-only"]).splitlines())
    found, begun = [], time.monotonic()
    last_word = begun
    with concurrent.futures.ThreadPoolExecutor(jobs()) as pool:
        results = {pool.submit(look_at, program, database, name): name for name in to_do}
        for done, future in enumerate(concurrent.futures.as_completed(results), 1):
            name, lines = results[future], future.result()
            found += lines
            if not lines:
                stamps[name].touch()
            if time.monotonic() - last_word > 20:
                last_word = time.monotonic()
                say(f"clang-tidy: {done} of {len(to_do)}")
            if minutes is not None and time.monotonic() - begun >= 60 * minutes:
                left = sum(other.cancel() for other in results)
                if left:
                    say(f"clang-tidy: {left} files are not looked at: {minutes:g} minutes are over")
                break
    return sorted(set(found))


def newest_first(names: list[str], changed: list[str]) -> list[str]:
    """Files in the order in which `changed` names them first, and then those that it does not name."""
    order = {name: place for place, name in reversed(list(enumerate(changed)))}
    return sorted(names, key=lambda name: order.get(name, len(changed)))


def selected_commands(folder: pathlib.Path, everything: bool, since: str | None) -> dict:
    """Compile commands by file name relative to the root, as clang understands them."""
    changed = None
    if since:
        changed = set(output(["git", "diff", "--name-only", since]).splitlines())
    commands = {}
    known = set(output(["git", "ls-files"]).splitlines())
    for entry in json.loads((folder / "compile_commands.json").read_text()):
        path = pathlib.Path(entry["file"])
        if not path.is_relative_to(ROOT) or str(path.relative_to(ROOT)) not in known:
            continue
        name = str(path.relative_to(ROOT))
        if changed is not None and not changed & dependencies(name).keys():
            continue
        # The test for LibTorch: its include path.
        if not everything and (name.startswith("tests/") or "/libtorch/" in entry["command"]):
            continue
        commands[name] = {**entry, "command": plain_command(entry["command"])}
    return commands


def plain_command(command: str) -> str:
    """Without ccache and without g++'s precompiled header, which clang cannot read."""
    words = shlex.split(command)
    if pathlib.Path(words[0]).name == "ccache":
        words = words[1:]
    plain, skip = [], False
    for word, following in zip(words, [*words[1:], ""]):
        if skip:
            skip = False
        elif word == "-include" and "cmake_pch" in following:
            skip = True
        elif word not in ("-Winvalid-pch", "-fmodules-ts"):
            plain.append(word)
    if "-fopenmp" in plain:  # its header is the compiler's own
        plain += ["-idirafter", output([plain[0], "-print-file-name=include"]).strip()]
    return shlex.join(plain)


def dependencies(name: str, seen: dict[str, bytes] | None = None) -> dict[str, bytes]:
    """The contents of the file and of all of ours that it includes."""
    seen = {} if seen is None else seen
    path = ROOT / name
    if name not in seen and path.is_file():
        seen[name] = path.read_bytes()
        for included in INCLUDE.findall(seen[name].decode(errors="replace")):
            dependencies(included, seen)
    return seen


def fingerprint(name: str, context: str) -> str:
    digest = hashlib.sha256(context.replace(str(ROOT), "").encode())
    for included, content in sorted(dependencies(name).items()):
        digest.update(included.encode() + b"\0" + content)
    return digest.hexdigest()


def look_at(program: pathlib.Path, database: pathlib.Path, name: str) -> list[str]:
    done = subprocess.run([program, "-quiet", "-p", database, ROOT / name], cwd=ROOT,
                          capture_output=True, text=True)
    lines = [line.removeprefix(f"{ROOT}/") for line in done.stdout.splitlines()
             if re.match(r"\S+:\d+:\d+: (warning|error):", line)]
    if done.returncode != 0 and not lines:
        raise Failure(f"clang-tidy {name}: {done.stdout}{done.stderr}")
    return lines
