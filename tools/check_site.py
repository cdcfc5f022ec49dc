"""Checks the built site: links, anchors, pictures, and every public name.

python tools/check_site.py FOLDER
"""

import html.parser
import pathlib
import sys
import urllib.parse

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import site_names


class Page(html.parser.HTMLParser):
    """The anchors and the targets of a page."""

    def __init__(self, path):
        super().__init__()
        self.anchors, self.targets = set(), []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        if "id" in found:
            self.anchors.add(found["id"])
        for name in ("href", "src"):
            if found.get(name):
                self.targets.append(found[name])


def wrong_links(folder):
    pages = {
        path: Page(path)
        for path in sorted(folder.rglob("*.html"))
        if path.name != "404.html"  # Its links begin at the root.
    }
    for path, page in pages.items():
        for target in page.targets:
            found = urllib.parse.urlsplit(target)
            if found.scheme or found.netloc:
                continue
            name = urllib.parse.unquote(found.path)
            file = (path.parent / name).resolve() if name else path
            if file.is_dir():
                file /= "index.html"
            if not file.exists():
                yield f"{path.relative_to(folder)}: {target} is not there"
            elif found.fragment and file in pages:
                anchor = urllib.parse.unquote(found.fragment)
                # The theme makes this one by a program.
                known = pages[file].anchors | {"__search"}
                if anchor not in known:
                    yield f"{path.relative_to(folder)}: {target} has no anchor"


def missing_names(folder):
    for module in site_names.MODULES:
        page = Page(folder / "api" / f"{module}.html")
        for name in site_names.public_names(module):
            if site_names.dotted(module, name) not in page.anchors:
                yield f"The reference lacks {module}.{name}"


def main(folder):
    folder = pathlib.Path(folder).resolve()
    found = [*wrong_links(folder), *missing_names(folder)]
    return "\n".join(found) or None


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
