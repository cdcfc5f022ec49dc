"""Turns the docstrings of the package into what the site can show."""

import re

import griffe


def with_fences(text):
    """Puts examples into fences: in Markdown `>>>` begins a quotation."""
    lines, inside = [], False
    for line in text.splitlines():
        if line.startswith(">>>") and not inside:
            lines.append("```pycon")
            inside = True
        elif inside and not line:
            lines.append("```")
            inside = False
        lines.append(line)
    return "\n".join([*lines, "```"] if inside else lines)


def with_single_names(text):
    """Gives each of several arguments that share a text an entry."""
    pattern = r"^    (\w+(?:, \w+)+): ((?:.*\n?)(?:        .*\n?)*)"

    def split(match):
        body = match[2].rstrip("\n")
        return "".join(f"    {name}: {body}\n" for name in match[1].split(", "))

    return re.sub(pattern, split, text, flags=re.M)


def with_titles(text):
    """Titles of sections that are no sections for griffe."""
    return re.sub(r"^(Example|Reference):$", r"**\1**", text, flags=re.M)


class Readable(griffe.Extension):
    def on_object(self, *, obj, **kwargs):
        if obj.docstring and not obj.is_alias:
            text = obj.docstring.value
            for change in (with_single_names, with_fences, with_titles):
                text = change(text)
            obj.docstring.value = text
