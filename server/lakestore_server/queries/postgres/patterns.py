"""Calls whose constant arguments PostgreSQL writes in another form: dates, arrays, JSON paths, SIMILAR TO, format."""

from __future__ import annotations

import re
from collections.abc import Callable

from lakestore.errors import Invalid
from lakestore_server.queries.postgres import to_char
from lakestore_server.queries.postgres.nodes import Node, call, cast, constant, constant_text, number

Rule = Callable[[Node], Node | None]
_DATE_PARTS = {
    "YYYY": "%Y",
    "YY": "%y",
    "IYYY": "%G",
    "IW": "%V",
    "WW": "%W",
    "MONTH": "%B",
    "Month": "%B",
    "MON": "%b",
    "Mon": "%b",
    "MM": "%m",
    "DDD": "%j",
    "DD": "%d",
    "DAY": "%A",
    "Day": "%A",
    "DY": "%a",
    "Dy": "%a",
    "D": "%w",
    "ID": "%u",
    "HH24": "%H",
    "HH12": "%I",
    "HH": "%I",
    "MI": "%M",
    "SS": "%S",
    "MS": "%g",
    "US": "%f",
    "AM": "%p",
    "PM": "%p",
    "TZ": "%Z",
    "OF": "%z",
}
_DATE_TOKEN = re.compile(r'"([^"]*)"|FM|(?:' + "|".join(sorted(_DATE_PARTS, key=len, reverse=True)) + r")|.", re.DOTALL)
_ARRAY_ITEM = re.compile(r'\s*(?:"((?:[^"\\]|\\.)*)"|([^,{}"]*))\s*(,|$)')
_FORMAT = re.compile(r"%(?:(%)|(?:(\d+)\$)?(-?\d*)([sIL]))")


def rewritten(name: str, node: Node) -> Node | None:
    """The call in DuckDB's form; None for a call that stays."""
    rule = _RULES.get(name)
    return rule(node) if rule else None


def date_format(text: str) -> str:
    """A format of `to_char` as one of `strftime`."""
    out = []
    for match in _DATE_TOKEN.finditer(text):
        part = match[0]
        if match[1] is not None:
            out.append(match[1].replace("%", "%%"))
        elif part != "FM":
            out.append(_DATE_PARTS.get(part, "%%" if part == "%" else part))
    return "".join(out)


def _parsed_time(kind: str) -> Rule:
    def rule(node: Node) -> Node | None:
        text = constant_text(node["children"][1]) if len(node["children"]) == 2 else None
        if text is None:
            return None
        made = call("strptime", node["children"][0], constant(date_format(text.upper())))
        return cast(made, kind, node["alias"])

    return rule


def array_constant(text: str) -> Node:
    """An array constant such as `{a,"b c",NULL}` as a list of texts. Raises `Invalid` for a nested one."""
    inner = text.strip()[1:-1]
    items: list[Node] = []
    place = 0
    if not text.strip().endswith("}"):
        raise Invalid(f"the query failed: malformed array literal: {text!r}")
    while inner.strip():
        match = _ARRAY_ITEM.match(inner, place)
        if match is None:
            raise Invalid(f"the query failed: the array {text!r} is not read: write ARRAY[…]")
        if match[1] is not None:
            items.append(constant(re.sub(r"\\(.)", r"\1", match[1])))
        else:
            word = match[2].strip()
            items.append(constant(None if word.upper() == "NULL" else word))
        place = match.end()
        if not match[3]:
            break
    made = call("list_value", *items)
    info = {"type": "LIST_TYPE_INFO", "alias": "", "extension_info": None}
    return cast(made, "LIST") | {
        "cast_type": {"id": "LIST", "type_info": info | {"child_type": {"id": "VARCHAR", "type_info": None}}}
    }


def json_pointer(text: str) -> str:
    """A path such as `{a,0,b}` as a JSON pointer."""
    parts = [part.strip().strip('"') for part in text.strip().strip("{}").split(",")]
    return "".join(json_key(part) for part in parts if part)


def json_key(key: str) -> str:
    """One step of a JSON pointer."""
    return f"/{key.replace('~', '~0').replace('/', '~1')}"


def similar_pattern(text: str) -> str:
    """A pattern of SIMILAR TO as a regular expression."""
    out, place = [], 0
    while place < len(text):
        sign = text[place]
        if sign == "\\" and place + 1 < len(text):
            out.append(re.escape(text[place + 1]))
            place += 1
        else:
            out.append({"%": ".*", "_": ".", ".": r"\.", "^": r"\^", "$": r"\$"}.get(sign, sign))
        place += 1
    return "(?s)" + "".join(out)


def _similar(node: Node) -> Node | None:
    text = constant_text(node["children"][1]) if len(node["children"]) == 2 else None
    if text is None or text.startswith("(?s)"):
        return None
    return node | {"children": [node["children"][0], constant(similar_pattern(text))]}


def bytes_text(text: str) -> str:
    """A constant of bytea, in hexadecimal or with octal escapes, as DuckDB writes it. Raises `Invalid`."""
    if text.startswith("\\x"):
        digits = re.sub(r"\s", "", text[2:])
        if len(digits) % 2 or not re.fullmatch("[0-9a-fA-F]*", digits):
            raise Invalid(f"the query failed: Conversion Error: {text!r} is no hexadecimal text of bytes")
        data = bytes.fromhex(digits)
    else:
        if not _ESCAPED.fullmatch(text):
            raise Invalid(f"the query failed: Conversion Error: invalid input syntax for type bytea: {text!r}")
        pieces = re.split(r"(\\\\|\\[0-3][0-7]{2})", text)
        data = b"".join(_unescaped(piece) for piece in pieces)
    return "".join(f"\\x{byte:02X}" for byte in data)


_ESCAPED = re.compile(r"(?:[^\\]|\\\\|\\[0-3][0-7]{2})*", re.DOTALL)


def _unescaped(piece: str) -> bytes:
    if piece == "\\\\":
        return b"\\"
    return bytes([int(piece[1:], 8)]) if piece.startswith("\\") else piece.encode()


def _substr(node: Node) -> Node | None:
    """DuckDB counts a place before the first letter from the end of the text."""
    if len(node["children"]) not in (2, 3) or all(map(_is_positive, node["children"][1:])):
        return None
    text, *places = node["children"]
    return node | {"function_name": "text_from", "children": [text, *(cast(each, "BIGINT") for each in places)]}


def _is_positive(node: Node) -> bool:
    value = node["value"].get("value") if node.get("class") == "CONSTANT" else None
    return isinstance(value, int) and value > 0


def _date_part(node: Node) -> Node | None:
    """DuckDB's seconds are whole."""
    text = constant_text(node["children"][0]) if len(node["children"]) == 2 else None
    name = _FRACTIONS.get((text or "").lower())
    return None if name is None else call(name, node["children"][1], alias=node["alias"])


_FRACTIONS = {
    **dict.fromkeys(("second", "seconds", "sec", "secs", "s"), "seconds_of"),
    **dict.fromkeys(("millisecond", "milliseconds", "ms", "msec", "msecs"), "milliseconds_of"),
}


def _substring(node: Node) -> Node | None:
    text = constant_text(node["children"][1]) if len(node["children"]) == 2 else None
    if text is None:
        return _substr(node)
    group = 1 if re.search(r"(?<!\\)\((?!\?)", text) else 0
    return call(
        "nullif",
        call("regexp_extract", node["children"][0], constant(text), number(group), constant("s")),
        constant(""),
        alias=node["alias"],
    )


def _groups(pattern: str) -> int:
    """The number of groups of a regular expression that give their match."""
    return len(re.findall(r"(?<!\\)\((?!\?)", re.sub(r"\[[^\]]*\]", "", pattern)))


def _regexp_match(node: Node) -> Node | None:
    """`regexp_match` and `regexp_matches`: the groups of a match, or of each match, as an array."""
    name, (text, pattern, *rest) = node["function_name"], node["children"]
    said, options = constant_text(pattern), constant_text(rest[0]) if rest else ""
    if options and "s" in options:
        return None
    if said is None or options is None or len(rest) > 1:
        raise Invalid(
            f"the query failed: {name} without a constant pattern is not supported by the Postgres port: use ~"
        )
    groups, flags = _groups(said), "s" + options.replace("g", "")
    if "g" in options:
        if groups > 1:
            raise Invalid(
                f"the query failed: {name} with several groups and the flag g is not supported by the Postgres port:"
                " ask for one group"
            )
        return call("unnest", call("all_matches", text, pattern, number(groups), constant(flags)), alias=node["alias"])
    form = constant(f"(?{flags}){said}")
    parts = [call("regexp_extract", text, form, number(place)) for place in (range(1, groups + 1) if groups else [0])]
    made = call("if_match", text, form, call("list_value", *parts), alias=node["alias"])
    return call("rows_of_match", made | {"alias": ""}, alias=node["alias"]) if name == "regexp_matches" else made


def _regexp_replace(node: Node) -> Node | None:
    """A point matches every letter, also a line's end; `\\&` is the whole match."""
    text, pattern, by, *rest = node["children"]
    options, said = constant_text(rest[0]) if rest else "", constant_text(by)
    if options is None or len(rest) > 1:
        raise Invalid("the query failed: regexp_replace with a place is not supported by the Postgres port: use substr")
    if "s" in options:
        return None
    by = by if said is None else constant(re.sub(r"\\&", r"\\0", said))
    return node | {"children": [text, pattern, by, constant(options + "s")]}


def _json_agg(node: Node) -> Node | None:
    return call("to_json", node | {"function_name": "array_agg", "alias": ""}, alias=node["alias"])


def _format(node: Node) -> Node | None:
    text = constant_text(node["children"][0]) if node["children"] else None
    if text is None:
        raise Invalid("the query failed: format needs its format as a constant")
    children = node["children"][1:]
    quoting = {"I": "quote_ident", "L": "quote_nullable"}
    parts: list[Node] = []
    last = 0
    for _, said, _, kind in (match.groups() for match in _FORMAT.finditer(text) if match[4]):
        last = int(said) if said else last + 1
        if not 1 <= last <= len(children):
            raise Invalid("the query failed: too few arguments for format()")
        parts.append(call(quoting[kind], children[last - 1]) if kind in quoting else children[last - 1])
    plain = _FORMAT.sub(lambda match: "%%" if match[1] else f"%{match[3]}s", text)
    texts = [call("concat", part) for part in parts]
    return call("printf", constant(plain), *texts, alias=node["alias"])


def _json_path(node: Node) -> Node | None:
    value, *keys = node["children"]
    steps = [constant_text(key) for key in keys]
    if None in steps:
        raise Invalid("the query failed: a key that is no constant is not supported by the Postgres port: use ->")
    name = "json_extract_string" if node["function_name"].endswith("_text") else "json_extract"
    return call(name, value, constant("".join(json_key(str(step)) for step in steps)), alias=node["alias"])


_RULES: dict[str, Rule] = {
    "date_part": _date_part,
    "format": _format,
    "json_agg": _json_agg,
    "json_extract_path": _json_path,
    "json_extract_path_text": _json_path,
    "jsonb_agg": _json_agg,
    "jsonb_extract_path": _json_path,
    "jsonb_extract_path_text": _json_path,
    "regexp_full_match": _similar,
    "regexp_match": _regexp_match,
    "regexp_matches": _regexp_match,
    "regexp_replace": _regexp_replace,
    "substr": _substr,
    "substring": _substring,
    "to_char": to_char.rewritten,
    "to_date": _parsed_time("DATE"),
    "to_timestamp": _parsed_time("TIMESTAMP WITH TIME ZONE"),
}
