"""Make a site of the repository's documents: pages from outside docs/, and links that lead out of it.

`mkdocs.yml` names the functions as hooks of MkDocs, and `Doctests` as an extension of Griffe.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import griffe
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent
RESULTS = ROOT / "benchmarks" / "results"

# Documents outside of docs/, and the pages that they become.
PAGES = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def on_config(config: Any) -> Any:
    """List the benchmarks' results, which `make bench-all` writes, in the navigation."""
    (benchmarks,) = (entry for entry in config.nav if "Benchmarks" in entry)
    benchmarks["Benchmarks"] = [f"benchmarks/{path.name}" for path in sorted(RESULTS.glob("*.md"))]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the documents outside of docs/ and the reference of the public names."""
    for document, page in PAGES.items():
        text = (ROOT / document).read_text()
        files.append(File.generated(config, page, content=_with_site_links(text, folder="")))
    for path in sorted(RESULTS.glob("*.md")):
        text = _with_site_links(path.read_text(), folder="benchmarks/results/")
        files.append(File.generated(config, f"benchmarks/{path.name}", content=text))
    for path in sorted(RESULTS.glob("*.png")):
        files.append(File.generated(config, f"benchmarks/{path.name}", abs_src_path=str(path)))
    files.append(File.generated(config, "reference.md", content=reference()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Make the links of a page of docs/ those of the site."""
    if page.file.generated_by:
        return markdown
    return _with_site_links(markdown, folder=f"docs/{Path(page.file.src_uri).parent}/")


def reference() -> str:
    """Return the page of the public names, each with its docstring and its methods."""
    lines = ["# The Python interface", "", "Every public name of `dimorder`."]
    lines += _entries("dimorder")
    lines += ["", "## For authors of delegates", "", "The names of `dimorder.executorch`."]
    return "\n".join(lines + _entries("dimorder.executorch")) + "\n"


def _entries(package: str) -> list[str]:
    """Return a line for each function and class that a package lists in `_HOMES`."""
    source = ROOT.joinpath("src", *package.split("."), "__init__.py").read_text()
    homes = re.search(r"^_HOMES = \{(.*?)^\}", source, re.DOTALL | re.MULTILINE)
    assert homes is not None, "the public names are listed in _HOMES"
    found = {
        name: module
        for module, names in re.findall(r'"([\w.]+)": \(([^)]*)\)', homes[1])
        for name in re.findall(r'"(\w+)"', names)
        if not name.isupper()  # a constant
    }
    return [f"\n::: {package}.{found[name]}.{name}" for name in sorted(found, key=str.lower)]


class Doctests(griffe.Extension):
    """Show the doctests that end a docstring as code, which Google's style asks a heading for."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        docstring = obj.docstring
        if docstring is None or not re.search(r"^>>> ", docstring.value, re.MULTILINE):
            return
        text, mark, doctests = docstring.value.partition("\n>>> ")
        lines = (mark.lstrip("\n") + doctests).splitlines()
        docstring.value = "\n".join([text, "", "Examples:", *(f"    {line}" for line in lines)])


def _with_site_links(text: str, folder: str) -> str:
    """Return a document whose links lead to pages of the site; those to source files become text.

    Links in generated pages are relative to the page, those of a document to its folder in the repository.
    """
    depth = "../" if folder in ("benchmarks/results/", "docs/tutorials/") else ""

    def site_link(match: re.Match[str]) -> str:
        picture, shown, link = match.groups()
        path, mark, anchor = link.partition("#")
        if re.match(r"\w+:", link) or not path:
            return match[0]
        place = (ROOT / folder / path).resolve().relative_to(ROOT).as_posix()
        page = _page_of(place)
        return shown if page is None else f"{picture}[{shown}]({depth}{page}{mark}{anchor})"

    return _LINK.sub(site_link, text)


def _page_of(place: str) -> str | None:
    """Return the page of a file of the repository, or None if the site has none."""
    if place in PAGES:
        return PAGES[place]
    for folder, pages in (("docs/", ""), ("benchmarks/results/", "benchmarks/")):
        if place.startswith(folder) and place.endswith((".md", ".png", ".svg")):
            return pages + place.removeprefix(folder)
    return None
