"""Hooks of mkdocs: what the site has besides the pages in `docs/`.

- The start is the README; CONTRIBUTING.md and the examples are pages too.
- The reference has a page for each public module, with every public name.
- A link that leads out of `docs/` on disk leads to these pages on the site, so
  that the same link works in the repository and on the site.
"""

import pathlib
import posixpath
import re
import sys

from mkdocs.structure.files import File

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from site_names import MODULES
from site_names import dotted
from site_names import public_names

ROOT = pathlib.Path(__file__).parent.parent
# Pages of the site that are other files of the repository.
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contribute.md",
    "examples/README.md": "examples/README.md",
}


def reference(module):
    """The page of a public module."""
    lines = [f"# {module}", ""]
    for name in public_names(module):
        lines += [f"::: {dotted(module, name)}", ""]
    return "\n".join(lines)


def example(path):
    """The page of a program."""
    code = (ROOT / path).read_text()
    return f"# {pathlib.Path(path).name}\n\n````python\n{code}````\n"


def programs():
    folder = ROOT / "examples"
    for path in sorted([*folder.rglob("*.py"), *folder.rglob("*.ipynb")]):
        if path.name != "__init__.py":
            yield path.relative_to(ROOT).as_posix()


def page_of(path):
    """The page that shows a file of the repository, or `None`."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path in PAGES:
        return PAGES[path]
    if path.startswith("examples/") and path.endswith(".py"):
        return path.removesuffix(".py") + ".md"
    if path.endswith(".ipynb"):
        return path
    if path == "examples" or path.startswith("examples/"):
        return PAGES["examples/README.md"]
    return None


def with_site_links(markdown, source, page):
    """The text of a file of the repository, as the text of a page."""

    def replace(match):
        target, anchor = match[2], match[3] or ""
        if "://" in target or not target:
            return match[0]
        path = posixpath.join(posixpath.dirname(source), target)
        path = posixpath.normpath(path)
        found = page_of(path)
        if found is None:
            if not (ROOT / path).exists():
                return match[0]  # Wrong here and there: mkdocs says so.
            return match[1].removesuffix("](").removeprefix("[")
        start = posixpath.dirname(page) or "."
        return f"{match[1]}{posixpath.relpath(found, start)}{anchor})"

    return re.sub(r"(\[[^\]]*\]\()([^)#\s]*)(#[^)\s]*)?\)", replace, markdown)


def on_config(config):
    pages = [{name: f"api/{name}.md"} for name in MODULES]
    config.nav.append({"Reference": pages})
    return config


def on_files(files, config):
    generated = {f"api/{name}.md": reference(name) for name in MODULES}
    for source, page in PAGES.items():
        text = (ROOT / source).read_text()
        generated[page] = with_site_links(text, source, page)
    for path in programs():
        if path.endswith(".py"):
            generated[page_of(path)] = example(path)
        else:
            generated[path] = (ROOT / path).read_text()
    for page, text in generated.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown, page, config, files):
    if page.file.generated_by:
        return markdown
    uri = page.file.src_uri
    return with_site_links(markdown, f"docs/{uri}", uri)


def on_page_content(html, page, config, files):
    # What is wide scrolls by itself, and not the page.
    return re.sub(
        r"<table>.*?</table>|<p>(?=<img)(.*?)</p>",
        lambda match: f'<div class="wide">{match[1] or match[0]}</div>',
        html,
        flags=re.S,
    )
