"""`to_char` with a constant format: dates and numbers as PostgreSQL writes them.

A format becomes pieces that are joined: `strftime` for the fields that it has, and calls for the others.
"""

from __future__ import annotations

import re

from lakestore.errors import Invalid
from lakestore_server.queries.postgres.nodes import Node, call, cast, constant, constant_text, number

_FIELDS = {
    "YYYY": "Y",
    "YY": "y",
    "IYYY": "G",
    "IW": "V",
    "MM": "m",
    "DDD": "j",
    "DD": "d",
    "ID": "u",
    "HH24": "H",
    "HH12": "I",
    "HH": "I",
    "MI": "M",
    "SS": "S",
    "MS": "g",
    "US": "f",
    "TZ": "Z",
    "OF": "z",
}
"""Letters of `strftime`."""
_UNPADDED = frozenset("mdjHIMS")
"""Letters of `strftime` with a form without zeros before the number."""
_WORDS = {"MONTH": ("%B", 9), "MON": ("%b", 0), "DAY": ("%A", 9), "DY": ("%a", 0), "AM": ("%p", 0), "PM": ("%p", 0)}
"""Words: their letter of `strftime`, and the number of letters to which they are padded."""
_COUNTS = {"SSSSS": 0, "SSSS": 0, "WW": 2, "CC": 2, "W": 0, "Q": 0, "J": 0, "D": 0}
"""Numbers that `strftime` does not have, and their digits."""
_ALL = sorted([*_FIELDS, *_WORDS, *_COUNTS], key=len, reverse=True)
_TOKEN = re.compile(rf'"([^"]*)"|(FM)?({"|".join(_ALL)})(TH)?|.', re.DOTALL | re.IGNORECASE)
_NUMBER = re.compile(r"(FM)?(\$)?([09][09,G]*)?(?:[.D]([09]+))?", re.IGNORECASE)
_OTHER = re.compile(r"[AP]\.M\.|RM|TZH|TZM|\bB\.?C\.?\b|\bA\.?D\.?\b", re.IGNORECASE)
DIGITS_MAX = 15
"""Digits of a number: DuckDB formats a float."""


def rewritten(node: Node) -> Node:
    """The call in DuckDB's form. Raises `Invalid` for a format that is not a constant, or not read."""
    text = constant_text(node["children"][1]) if len(node["children"]) == 2 else None
    if text is None:
        raise _refused("with a format that is not a constant")
    value = node["children"][0]
    if re.search(r"[09]", re.sub(r'"[^"]*"', "", text)):
        return _number(value, text) | {"alias": node["alias"]}
    return _moment(value, text) | {"alias": node["alias"]}


def _refused(what: str) -> Invalid:
    return Invalid(f"the query failed: to_char {what} is not supported by the Postgres port: format the value yourself")


def _moment(value: Node, text: str) -> Node:
    if _OTHER.search(re.sub(r'"[^"]*"', "", text)):
        raise _refused(f"with the format {text!r}")
    pieces: list[Node] = []
    plain = ""
    for match in _TOKEN.finditer(text):
        quoted, is_bare, token, ordinal = match.groups()
        word = (token or "").upper()
        if ordinal:
            raise _refused(f"with the format {text!r}")
        if word in _FIELDS:
            letter = _FIELDS[word]
            plain += f"%-{letter}" if is_bare and letter in _UNPADDED else f"%{letter}"
        elif token:
            if plain:
                pieces.append(call("strftime", value, constant(plain)))
            pieces.append(_word(value, token, bool(is_bare)) if word in _WORDS else _count(value, word, bool(is_bare)))
            plain = ""
        else:
            plain += (match[0] if quoted is None else quoted).replace("%", "%%")
    if plain or not pieces:
        pieces.append(call("strftime", value, constant(plain)))
    made = pieces[0]
    for piece in pieces[1:]:
        made = call("||", made, piece, is_operator=True)
    return made


def _word(value: Node, token: str, is_bare: bool) -> Node:
    form, width = _WORDS[token.upper()]
    made = call("strftime", value, constant(form))
    if token.isupper() and form != "%p":
        made = call("upper", made)
    elif token[0].islower():
        made = call("lower", made)
    return call("rpad", made, number(width), constant(" ")) if width and not is_bare else made


def _count(value: Node, word: str, is_bare: bool) -> Node:
    return call("time_count", constant(word), value, number(0 if is_bare else _COUNTS[word]))


def _number(value: Node, text: str) -> Node:
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise _refused(f"with the number format {text!r}")
    whole, part = (match[3] or "").upper().replace("G", ","), match[4] or ""
    digits = whole.replace(",", "")
    is_grouped = "," in whole
    zeros = len(digits) - digits.index("0") if "0" in digits else 0
    grouped = ",".join(re.findall(r"\d{1,3}", digits[::-1]))[::-1]
    if len(digits + part) > DIGITS_MAX or (is_grouped and (grouped != whole or zeros > 1)):
        raise _refused(f"with the number format {text!r}")
    places, is_bare, sign = len(part), bool(match[1]), match[2] or ""
    width = zeros + (places + 1 if places else 0) if zeros > 1 else 0
    form = f"{{:{',' if is_grouped else ''}{f'0{width}' if width else ''}.{places}f}}"
    rounded = call("round", call("abs", value), number(places))
    body = call("formatted", constant(form), cast(rounded, "DOUBLE"))
    if places and not zeros:
        body = call("regexp_replace", body, constant(r"^0\."), constant("."))
    if is_bare and places:
        forced = part.rindex("0") + 1 if "0" in part else 0
        body = call("regexp_replace", body, constant(f"0{{0,{places - forced}}}$"), constant(""))
    full = len(whole) + (places + 1 if places else 0) + len(sign)
    hashes = sign + re.sub(r"\d", "#", whole) + ("." + "#" * places if places else "")
    if sign:
        body = call("||", constant(sign), body, is_operator=True)
    over = call("signed_text", value, rounded, number(10 ** len(digits)), body, number(0 if is_bare else full + 1))
    return over | {"children": [*over["children"], constant(hashes if is_bare else f" {hashes}")]}
