"""The package as it is released, without building it."""

import pathlib
import re
import runpy

import pytest

ROOT = pathlib.Path(__file__).parent.parent
release = runpy.run_path(str(ROOT / "tools" / "release.py"))
URL = "https://example.org/some/where"


@pytest.mark.parametrize(
    "remote",
    [
        URL,
        f"{URL}.git",
        "git@example.org:some/where.git",
        "ssh://git@example.org/some/where.git",
    ],
)
def test_address_of_a_remote(remote):
    assert release["browser_url"](remote) == URL


def test_a_remote_on_disk_has_no_address():
    assert release["browser_url"]("/somewhere/on/disk") is None
    assert release["browser_url"]("") is None


def test_links_of_the_readme_become_absolute():
    readme = (ROOT / "README.md").read_text()
    changed = release["with_absolute_links"](readme, URL)
    targets = re.findall(r"\]\(([^)\s]+)\)", changed)
    assert targets and all("://" in x or x[0] == "#" for x in targets)
    tag = f"v{release['version']()}"
    assert f"]({URL}/raw/{tag}/docs/quickstart.png)" in changed
    assert f"]({URL}/blob/{tag}/docs/theory.md)" in changed
    # Nothing else has changed.
    back = re.sub(rf"{URL}/(raw|blob)/{tag}/", "", changed)
    assert back == readme


def test_addresses_in_the_metadata():
    text = (ROOT / "pyproject.toml").read_text()
    changed = release["with_urls"](text, URL)
    assert f'\nSource = "{URL}"\n' in changed
    assert set(text.splitlines()) <= set(changed.splitlines())


def test_the_readme_says_how_to_install():
    first_screen = "\n".join((ROOT / "README.md").read_text().splitlines()[:40])
    assert 'pip install "keras-vdrop[jax]"' in first_screen
