"""Regular expressions of schemas: written for RE2, put into Python's words, with the same meaning or not at all."""

from __future__ import annotations

import re
from functools import lru_cache

from onward.local.api.linear import Expression

CLASSES = {
    "alpha": "a-zA-Z", "digit": "0-9", "alnum": "a-zA-Z0-9", "lower": "a-z", "upper": "A-Z", "space": r"\t\n\v\f\r ",
    "word": r"\w", "xdigit": "0-9a-fA-F", "blank": r"\t ", "cntrl": r"\x00-\x1f\x7f", "graph": "!-~", "print": " -~",
    "punct": r"!-/:-@\[-`{-~", "ascii": r"\x00-\x7f",
}  # fmt: skip
_TOKEN = re.compile(
    r"\\Q(?P<literal>.*?)(?:\\E|$)"
    r"|\\(?P<escape>x\{[0-9a-fA-F]+\}|[pP](?:\{\^?\w+\}|\w)|.)"
    r"|(?P<group>\(\?(?:P?<[=!]|[=!>#(]|<(?=\w)|P[=>]))"
    r"|(?P<set>\[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*\])"
    r"|(?P<end>\$)"
    r"|(?P<greedy>[*+?}]\+)",
    re.DOTALL,
)


@lru_cache(maxsize=1000)
def compiled(text: str) -> Expression:
    """What RE2 would match. Raises re.error for what it does not know, or what cannot be said in Python's words."""
    return Expression(_TOKEN.sub(_translated, text), re.ASCII)


def _translated(match: re.Match[str]) -> str:
    if match["literal"] is not None:
        return re.escape(match["literal"])
    if match["end"]:
        return r"\Z"  # the very end; Python's $ also stands before a last line break
    if match["greedy"]:
        raise re.error(f"invalid nested repetition operator: `{match[0]}`")
    if match["group"]:
        if match["group"] == "(?<":
            return "(?P<"
        raise re.error(f"invalid or unsupported Perl syntax: `{match[0]}`")
    if match["set"]:
        return re.sub(r"\[:(\^?)(\w+):\]", _class, match["set"])
    escape = match["escape"]
    if escape.startswith("x{"):
        return re.escape(chr(int(escape[2:-1], 16)))
    if escape == "z":
        return r"\Z"
    if escape[0] in "pP":
        raise re.error(f"invalid character class range: `{match[0]}` (classes of Unicode are not supported here)")
    if escape in "123456789ZGkgC":
        raise re.error(f"invalid escape sequence: `{match[0]}`")
    return match[0]


def _class(match: re.Match[str]) -> str:
    members = CLASSES.get(match[2])
    if members is None or match[1]:
        raise re.error(f"invalid character class range: `{match[0]}`")
    return members
