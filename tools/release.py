"""Builds the package for a release, checks it, and uploads it if asked.

    python tools/release.py [--out FOLDER] [--url URL] [--upload]

The address of the repository is that of the git remote `origin`, or `--url`. It
goes into the metadata, and the links of the README become absolute: without it
they would lead nowhere on the page of the package.
"""

import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parent.parent
PARTS = ("keras_vdrop", "LICENSE", "README.md", "pyproject.toml")


def remote_url():
    """The address of the remote `origin` in a browser, or `None`."""
    found = subprocess.run(
        ["git", "remote", "get-url", "origin"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    return browser_url(found.stdout.strip())


def browser_url(remote):
    match = re.fullmatch(
        r"(?:https://|ssh://git@|git@)([\w.-]+)[:/](.+?)(?:\.git)?/?", remote
    )
    return f"https://{match[1]}/{match[2]}" if match else None


def version():
    text = (ROOT / "keras_vdrop" / "__init__.py").read_text()
    return re.search(r'^__version__ = "(.+)"$', text, re.M)[1]


def with_urls(pyproject, url):
    """The text of pyproject.toml with the addresses of the repository."""
    lines = [
        "[project.urls]",
        f'Source = "{url}"',
        f'Documentation = "{url}/tree/v{version()}/docs"',
        f'Changelog = "{url}/blob/v{version()}/docs/changelog.md"',
        f'Issues = "{url}/issues"',
    ]
    found, count = re.subn(
        r"^\[project\.urls\]$", "\n".join(lines), pyproject, flags=re.M
    )
    assert count == 1
    return found


def with_absolute_links(markdown, url):
    """The text of the README for a page that is not in the repository."""

    def absolute(match):
        sign, text, target = match.groups()
        if "://" in target or target.startswith("#"):
            return match[0]
        kind = "raw" if sign else "blob"
        return f"{sign}[{text}]({url}/{kind}/v{version()}/{target})"

    return re.sub(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)", absolute, markdown)


def copy(folder, url):
    """Copies what the package is made of, with the addresses in it."""
    for name in PARTS:
        source = ROOT / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, folder / name, ignore=ignored)
        else:
            shutil.copy(source, folder / name)
    if url:
        for name, change in (
            ("pyproject.toml", with_urls),
            ("README.md", with_absolute_links),
        ):
            path = folder / name
            path.write_text(change(path.read_text(), url))


def run(*arguments):
    subprocess.run([sys.executable, "-m", *map(str, arguments)], check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "dist")
    parser.add_argument("--url", type=browser_url, default=remote_url())
    parser.add_argument("--upload", action="store_true")
    options = parser.parse_args()
    if options.upload and not options.url:
        return "The address of the repository is not known: pass --url."
    if options.out.exists() and any(options.out.iterdir()):
        return f"{options.out} is not empty."
    with tempfile.TemporaryDirectory() as folder:
        copy(pathlib.Path(folder), options.url)
        run("build", "--outdir", options.out, folder)
    files = sorted(options.out.iterdir())
    run("twine", "check", "--strict", *files)
    run("check_wheel_contents", *options.out.glob("*.whl"))
    if options.upload:
        run("twine", "upload", *files)


if __name__ == "__main__":
    sys.exit(main())
