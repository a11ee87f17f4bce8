"""PostgreSQL's functions of values as DuckDB's macros: numbers, texts, times, arrays, JSON.

- A macro that must know the type of its argument asks `typeof`, which is a constant once the text is bound. Its
  branches have one type, or the type of the argument.
- Overloads by type are for columns only: DuckDB picks the wrong one for an aggregate.
"""

from __future__ import annotations

from collections.abc import Mapping


def _failed(sentence: str, value: str) -> str:
    """A call that raises an error about a value."""
    return f"error('{sentence}: \"' || {value} || '\"')"


_NUMBERS = "('BIGINT', 'UBIGINT', 'HUGEINT', 'UHUGEINT', 'DOUBLE')"
"""Types of numbers as `json_type` names them."""
_MARK = "chr(1)"
"""A letter that no JSON text has: it is escaped there."""
_TYPE_WORDS = {
    '"NULL"': "unknown",
    "BLOB": "bytea",
    "DECIMAL": "numeric",
    "DOUBLE": "double precision",
    "FLOAT": "real",
    "HUGEINT": "numeric",
    "TIME": "time without time zone",
    "TIMESTAMP": "timestamp without time zone",
    "TINYINT": "smallint",
    "UBIGINT": "numeric",
    "UINTEGER": "bigint",
    "USMALLINT": "integer",
    "UTINYINT": "smallint",
    "VARCHAR": "text",
}
"""Names of PostgreSQL for types that DuckDB names otherwise, without regard to upper case."""
_JSON_TOKENS = r"""'("(?:[^"\\]|\\.)*"|[^",:]+)([:,]?)'"""

MACROS: Mapping[str, tuple[str, ...]] = {
    # numbers
    "divisor": ("(y) AS CASE WHEN y = 0 THEN error('division by zero') ELSE y END",),
    "quotient": ("(a, b) AS trunc(a / divisor(b))",),
    "wide": (
        "(x) AS x",
        "(x SMALLINT) AS x",
        "(x INTEGER) AS x",
        "(x BIGINT) AS CAST(x AS DECIMAL(19, 0))",
        "(x UBIGINT) AS CAST(x AS DECIMAL(38, 0))",
        "(x HUGEINT) AS CAST(x AS DECIMAL(38, 0))",
    ),
    "whole": (
        "(x) AS CASE WHEN typeof(x) = 'VARCHAR' AND NOT regexp_full_match(CAST(x AS VARCHAR),"
        " '\\s*[+-]?\\d+\\s*') THEN "
        + _failed("invalid input syntax for type integer", "CAST(x AS VARCHAR)")
        + " ELSE x END",
    ),
    "truth_text": (
        "(x) AS CASE WHEN lower(trim(x)) IN ('t', 'tr', 'tru', 'true', 'y', 'ye', 'yes', 'on', '1') THEN 'true'"
        " WHEN lower(trim(x)) IN ('f', 'fa', 'fal', 'fals', 'false', 'n', 'no', 'of', 'off', '0') THEN 'false'"
        " WHEN x IS NOT NULL THEN " + _failed("invalid input syntax for type boolean", "x") + " END",
    ),
    "type_of": (
        "(x) AS CASE WHEN typeof(x) = 'JSON' OR typeof(x) LIKE 'STRUCT%' OR typeof(x) LIKE 'MAP%' OR typeof(x) LIKE"
        " '%[][]' THEN 'jsonb' ELSE type_word(regexp_replace(replace(typeof(x), '[]', ''), '\\(.*', '')) || CASE WHEN"
        " typeof(x) LIKE '%[]' THEN '[]' ELSE '' END END",
    ),
    "type_word": (
        f"(t) AS coalesce(map([{', '.join(map(repr, _TYPE_WORDS))}],"
        f" [{', '.join(map(repr, _TYPE_WORDS.values()))}])[t], lower(t))",
    ),
    "sha256_bytes": ("(b) AS unhex(sha256(b))",),
    "to_hex": ("(n) AS CASE WHEN typeof(n) = 'BIGINT' THEN printf('%x', n) ELSE right(printf('%x', n), 8) END",),
    "width_bucket": (
        "(x, a, b, n) AS CAST(CASE WHEN x < a THEN 0 WHEN x >= b THEN n + 1 ELSE floor((x - a) * n / (b - a)) + 1 END"
        " AS INTEGER)",
    ),
    # the texts of values
    "float_text": (
        "(t, n) AS CASE WHEN t IN ('inf', '-inf', 'nan') THEN replace(replace(t, 'inf', 'Infinity'), 'nan', 'NaN')"
        " WHEN regexp_full_match(t, '-?\\d+\\.\\d+') AND strpos(ltrim(t, '-'), '.') > n"
        " THEN rtrim(rtrim(regexp_replace(t, '^(-?\\d)(\\d*)\\.(\\d+)$', '\\1.\\2\\3'), '0'), '.') || 'e+'"
        " || lpad(CAST(strpos(ltrim(t, '-'), '.') - 2 AS VARCHAR), 2, '0')"
        " ELSE regexp_replace(t, '\\.0$', '') END",
    ),
    "json_text": (
        f"(j) AS replace(replace(replace(regexp_replace(j, {_JSON_TOKENS}, '\\1\\2' || {_MARK}, 'g'),"
        f" ',' || {_MARK}, ', '), ':' || {_MARK}, ': '), {_MARK}, '')",
    ),
    "item_text": (
        "(t) AS CASE WHEN t IS NULL THEN 'NULL' WHEN t = '' OR lower(t) = 'null' OR regexp_matches(t,"
        " '[{{}},\"\\\\\\s]')"
        " THEN '\"' || replace(replace(t, '\\', '\\\\'), '\"', '\\\"') || '\"' ELSE t END",
    ),
    "items_text": (
        "(j, k) AS '{{' || coalesce(list_aggregate(list_transform(CAST(j AS JSON[]), lambda e: CASE"
        " WHEN k = 'DOUBLE[]' THEN coalesce(float_text(CAST(e AS VARCHAR), 16), 'NULL')"
        " WHEN k = 'FLOAT[]' THEN coalesce(float_text(CAST(e AS VARCHAR), 7), 'NULL')"
        " WHEN k = 'BOOLEAN[]' THEN coalesce(left(CAST(e AS VARCHAR), 1), 'NULL')"
        " ELSE item_text(e ->> '$') END), 'string_agg', ','), '') || '}}'",
    ),
    "text_of": (
        "(x) AS CASE typeof(x) WHEN 'DOUBLE' THEN float_text(CAST(x AS VARCHAR), 16)"
        " WHEN 'FLOAT' THEN float_text(CAST(x AS VARCHAR), 7)"
        " WHEN 'BLOB' THEN '\\x' || lower(hex(CAST(CAST(x AS VARCHAR) AS BLOB)))"
        " WHEN 'JSON' THEN json_text(CAST(x AS VARCHAR)) ELSE CASE"
        " WHEN x IS NULL THEN NULL"
        " WHEN typeof(x) LIKE 'DECIMAL%[]' THEN replace(translate(CAST(x AS VARCHAR), '[]', '{{}}'), ', ', ',')"
        " WHEN typeof(x) LIKE 'STRUCT%' OR typeof(x) LIKE 'MAP%' OR typeof(x) LIKE '%[][]'"
        " THEN json_text(CAST(to_json(x) AS VARCHAR))"
        " WHEN typeof(x) LIKE '%[]' THEN items_text(to_json(x), typeof(x))"
        " ELSE CAST(x AS VARCHAR) END END",
    ),
    "shown_text": ("(x) AS CASE typeof(x) WHEN 'BOOLEAN' THEN left(CAST(x AS VARCHAR), 1) ELSE text_of(x) END",),
    "formatted": ("(f, x) AS format(f, x)",),
    "signed_text": (
        "(x, r, m, t, w, h) AS CASE WHEN x IS NULL THEN NULL WHEN r >= m THEN h WHEN w = 0 THEN CASE WHEN x"
        " < 0 THEN '-'"
        " ELSE '' END || t ELSE lpad(CASE WHEN x < 0 THEN '-' ELSE ' ' END || t, w, ' ') END",
    ),
    "time_number": (
        "(f, t) AS CAST(CASE f WHEN 'Q' THEN quarter(t) WHEN 'D' THEN dayofweek(t) + 1 WHEN 'W' THEN (day(t)"
        " - 1) // 7 + 1"
        " WHEN 'WW' THEN (dayofyear(t) - 1) // 7 + 1 WHEN 'CC' THEN (year(t) + 99) // 100"
        " WHEN 'J' THEN CAST(floor(julian(CAST(t AS DATE))) AS BIGINT) ELSE hour(t) * 3600 + minute(t) * 60"
        " + second(t) END AS VARCHAR)",
    ),
    "time_count": (
        "(f, t, n) AS CASE WHEN length(time_number(f, t)) < n THEN lpad(time_number(f, t), n, '0') ELSE"
        " time_number(f, t)"
        " END",
    ),
    # texts
    "text_from": (
        "(t, s) AS substring(t, CASE WHEN s < 1 THEN 1 ELSE s END)",
        "(t, s, n) AS CASE WHEN n < 0 THEN error('negative substring length not allowed') WHEN s >= 1 THEN"
        " substring(t, s, n) WHEN s + n <= 1 THEN substring(t, 1, 0) ELSE substring(t, 1, s + n - 1) END",
    ),
    "quote_ident": (
        "(t) AS CASE WHEN regexp_full_match(t, '[a-z_][a-z0-9_$]*') AND NOT (SELECT coalesce(bool_or(__w = t), false)"
        " FROM (SELECT word AS __w FROM {c}.pg_get_keywords WHERE catcode IN ('R', 'T', 'C')) AS __x) THEN t"
        " ELSE '\"' || replace(t, '\"', '\"\"') || '\"' END",
    ),
    "parse_ident": (
        "(t) AS list_transform(string_split(t, '.'), lambda p: CASE WHEN starts_with(p, '\"') THEN trim(p, '\"') ELSE"
        " lower(p) END)",
    ),
    "quote_literal": (
        "(t) AS CASE WHEN strpos(shown_text(t), '\\') > 0 THEN 'E' ELSE '' END || '''' ||"
        " replace(replace(shown_text(t), '''', ''''''),"
        " '\\', '\\\\') || ''''",
    ),
    "quote_nullable": ("(t) AS coalesce(quote_literal(t), 'NULL')",),
    "btrim": ("(t) AS trim(t, ' ')", "(t, c) AS trim(t, c)"),
    "initcap": (
        "(t) AS coalesce(list_aggregate(list_transform(regexp_extract_all(t, '[\\pL\\pN]+|[^\\pL\\pN]+'),"
        " lambda w: upper(w[1]) || lower(w[2:])), 'string_agg', ''), t)",
    ),
    "padded_left": (
        "(t, n) AS CASE WHEN n <= 0 THEN left(t, 0) WHEN length(t) >= n THEN left(t, n) ELSE lpad(t, n, ' ') END",
        "(t, n, p) AS CASE WHEN n <= 0 THEN left(t, 0) WHEN p = '' OR length(t) >= n THEN left(t, n) ELSE lpad(t, n, p)"
        " END",
    ),
    "padded_right": (
        "(t, n) AS CASE WHEN n <= 0 THEN left(t, 0) WHEN length(t) >= n THEN left(t, n) ELSE rpad(t, n, ' ') END",
        "(t, n, p) AS CASE WHEN n <= 0 THEN left(t, 0) WHEN p = '' OR length(t) >= n THEN left(t, n) ELSE rpad(t, n, p)"
        " END",
    ),
    "part_of": (
        "(t, s, n) AS CASE WHEN n = 0 THEN error('field position must not be zero') WHEN s = '' THEN"
        " CASE WHEN n IN (1, -1) THEN t ELSE left(t, 0) END ELSE split_part(t, s, n) END",
    ),
    "split_text": (
        "(t, s) AS CASE WHEN t = '' THEN CAST([] AS VARCHAR[]) WHEN s IS NULL THEN regexp_extract_all(t, '(?s).')"
        " WHEN s = '' THEN [t] ELSE string_split(t, s) END",
        "(t, s, z) AS list_transform(CASE WHEN t = '' THEN CAST([] AS VARCHAR[]) WHEN s IS NULL THEN"
        " regexp_extract_all(t, '(?s).') WHEN s = '' THEN [t] ELSE string_split(t, s) END, lambda e: nullif(e, z))",
    ),
    "bytes_text": (
        "(b, f) AS CASE f WHEN 'hex' THEN lower(hex(b)) WHEN 'base64' THEN base64(b) ELSE error('unrecognized encoding:"
        " \"' || f || '\"') END",
    ),
    "bytes_from": (
        "(t, f) AS CASE f WHEN 'hex' THEN unhex(t) WHEN 'base64' THEN from_base64(t) ELSE error('unrecognized encoding:"
        " \"' || f || '\"') END",
    ),
    "convert_from": ("(b, e) AS decode(b)",),
    "convert_to": ("(t, e) AS encode(t)",),
    "get_byte": ("(b, n) AS CAST(('0x' || substr(hex(b), 2 * n + 1, 2)) AS INTEGER)",),
    "overlay": (
        "(t, n, f) AS left(t, f - 1) || n || substr(t, f + length(n))",
        "(t, n, f, c) AS left(t, f - 1) || n || substr(t, f + c)",
    ),
    "if_match": ("(t, p, g) AS CASE WHEN regexp_matches(t, p) THEN g END",),
    "all_matches": ("(t, p, n, o) AS list_transform(regexp_extract_all(t, p, n, o), lambda m: [m])",),
    "rows_of_match": ("(m) AS unnest(CASE WHEN m IS NULL THEN [] ELSE [m] END)",),
    "regexp_like": ("(t, p) AS regexp_matches(t, p, 's')", "(t, p, o) AS regexp_matches(t, p, o || 's')"),
    "regexp_count": ("(t, p) AS CAST(len(regexp_extract_all(t, p, 0, 's')) AS INTEGER)",),
    "regexp_substr": ("(t, p) AS CASE WHEN regexp_matches(t, p, 's') THEN regexp_extract(t, p, 0, 's') END",),
    "string_to_table": ("(t, s) AS unnest(split_text(t, s))",),
    **{
        name: (
            f"(a, x) AS CASE WHEN list_bool_or(list_transform(a, lambda p: x {word} p ESCAPE '\\')) THEN true"
            " WHEN any_is_unknown(a, x) IS NULL THEN NULL ELSE false END",
        )
        for name, word in (("like_any", "LIKE"), ("ilike_any", "ILIKE"))
    },
    # comparisons
    "any_is_unknown": (
        "(a, x) AS CASE WHEN a IS NULL OR (len(a) > 0 AND (x IS NULL OR list_count(a) < len(a))) THEN NULL ELSE false"
        " END",
    ),
    # times
    "seconds_of": ("(t) AS CAST(date_part('microseconds', t) AS DOUBLE) / 1000000.0",),
    "milliseconds_of": ("(t) AS CAST(date_part('microseconds', t) AS DOUBLE) / 1000.0",),
    "time_gap": ("(a, b) AS to_microseconds(date_diff('microsecond', b, a))",),
    "overlaps": (
        "(a, b, c, d) AS CASE WHEN least(a, b) = least(c, d) THEN true WHEN least(a, b) > least(c, d) THEN least(a, b)"
        " < greatest(c, d) ELSE least(c, d) < greatest(a, b) END",
    ),
    "date_bin": ("(s, t, o) AS time_bucket(CAST(s AS INTERVAL), t, o)",),
    "justify_interval": ("(i) AS normalized_interval(i)",),
    # arrays
    "contains_items": ("(a, b) AS list_has_all(a, b) AND list_count(b) = len(b)",),
    "item_place": ("(i) AS CASE WHEN i > 0 THEN i END",),
    "appended": ("(a, x) AS list_append(coalesce(a, []), x)",),
    "prepended": ("(x, a) AS list_prepend(x, coalesce(a, []))",),
    "array_upper": ("(a, d) AS CASE WHEN d = 1 AND len(a) > 0 THEN len(a) END",),
    "array_lower": ("(a, d) AS CASE WHEN d = 1 AND len(a) > 0 THEN 1 END",),
    "array_length": ("(a, d) AS CASE WHEN d = 1 AND len(a) > 0 THEN len(a) END",),
    "array_ndims": ("(a) AS CASE WHEN len(a) > 0 THEN 1 END",),
    "array_dims": ("(a) AS CASE WHEN len(a) > 0 THEN '[1:' || len(a) || ']' END",),
    "cardinality": ("(a) AS len(a)",),
    "array_remove": ("(a, x) AS list_filter(a, lambda y: y IS DISTINCT FROM x)",),
    "array_replace": (
        "(a, x, z) AS list_transform(a, lambda y: CASE WHEN y IS NOT DISTINCT FROM x THEN z ELSE y END)",
    ),
    "array_positions": (
        "(a, x) AS list_filter(list_transform(a, lambda y, i: CASE WHEN y IS NOT DISTINCT FROM x THEN i"
        " END), lambda i: i"
        " IS NOT NULL)",
    ),
    "trim_array": ("(a, n) AS a[1:len(a) - n]",),
    "joined_items": (
        "(a, s) AS CASE WHEN a IS NOT NULL THEN coalesce(list_aggregate(list_transform(list_filter(a, lambda"
        " y: y IS NOT"
        " NULL), lambda y: shown_text(y)), 'string_agg', s), '') END",
        "(a, s, z) AS CASE WHEN a IS NOT NULL THEN coalesce(list_aggregate(list_filter(list_transform(a, lambda y:"
        " coalesce(shown_text(y), z)), lambda y: y IS NOT NULL), 'string_agg', s), '') END",
    ),
    "_pg_expandarray": ("(a) AS unnest(list_transform(a, lambda x, i: {{'x': x, 'n': i}}))",),
    "_pg_truetypid": ("(a, t) AS a.atttypid",),
    # json
    "json_of": (
        "(x) AS CASE WHEN typeof(x) = 'TIMESTAMP' THEN to_json(replace(CAST(x AS VARCHAR), ' ', 'T'))"
        " WHEN typeof(x) = 'TIMESTAMP WITH TIME ZONE' THEN to_json(regexp_replace(replace(CAST(x AS VARCHAR), ' ',"
        " 'T'), '([+-]\\d\\d)$', '\\1:00')) ELSE to_json(x) END",
    ),
    **dict.fromkeys(
        ("json_typeof", "jsonb_typeof"),
        (
            f"(x) AS CASE WHEN json_type(x) = 'VARCHAR' THEN 'string' WHEN json_type(x) IN {_NUMBERS} THEN 'number'"
            " ELSE lower(json_type(x)) END",
        ),
    ),
    "json_item_count": ("(x) AS CAST(json_array_length(x) AS INTEGER)",),
    "jsonb_pretty": ("(x) AS json_pretty(x)",),
    **dict.fromkeys(("json_array_elements", "jsonb_array_elements"), ("(x) AS unnest(CAST(to_json(x) AS JSON[]))",)),
    **dict.fromkeys(
        ("json_array_elements_text", "jsonb_array_elements_text"), ("(x) AS unnest(CAST(to_json(x) AS VARCHAR[]))",)
    ),
    **dict.fromkeys(("json_object_keys", "jsonb_object_keys"), ("(x) AS unnest(json_keys(x))",)),
    "json_values": ("(x) AS unnest(list_transform(json_keys(x), lambda k: json_extract(x, json_step(k))))",),
    "json_value_texts": (
        "(x) AS unnest(list_transform(json_keys(x), lambda k: json_extract_string(x, json_step(k))))",
    ),
    "json_step": ("(k) AS '/' || replace(replace(k, '~', '~0'), '/', '~1')",),
    "json_known": ("(x, c) AS CASE WHEN x IS NULL THEN NULL ELSE c END",),
    "json_is": ("(x, k) AS coalesce(json_type(x) = k, false)",),
    "json_equals": (
        "(x, t) AS coalesce(CASE WHEN json_type(x) = 'VARCHAR' THEN starts_with(t, '\"') AND (x ->> '$') = (CAST(t AS"
        f" JSON) ->> '$') WHEN json_type(x) IN {_NUMBERS} THEN CAST(CAST(x AS VARCHAR) AS DOUBLE) = TRY_CAST(t AS"
        " DOUBLE) ELSE CAST(x AS VARCHAR) = t END, false)",
    ),
    "json_has_item": (
        "(x, t) AS CASE json_type(x) WHEN 'ARRAY' THEN coalesce(list_bool_or(list_transform(CAST(x AS"
        " JSON[]), lambda e:"
        " json_equals(e, t))), false) ELSE false END",
    ),
    "has_json_key": (
        "(x, k) AS CASE json_type(x) WHEN 'OBJECT' THEN list_contains(json_keys(x), k) WHEN 'ARRAY' THEN"
        " list_contains(CAST(x AS VARCHAR[]), k) WHEN 'VARCHAR' THEN (x ->> '$') = k ELSE json_type(x) IS NULL AND NULL"
        " END",
    ),
    "has_any_json_key": ("(x, a) AS list_bool_or(list_transform(a, lambda k: has_json_key(x, k)))",),
    "has_all_json_keys": ("(x, a) AS list_bool_and(list_transform(a, lambda k: has_json_key(x, k)))",),
}
"""Parameters and body of each form of a macro, by name. Braces are doubled."""
RENAMED = {
    **dict.fromkeys(("json_array_length", "jsonb_array_length"), "json_item_count"),
    "json_build_object": "json_object",
    "jsonb_build_object": "json_object",
    "json_build_array": "json_array",
    "jsonb_build_array": "json_array",
    "every": "bool_and",
    "to_json": "json_of",
    "to_jsonb": "json_of",
    "sha256": "sha256_bytes",
    "pg_typeof": "type_of",
    "json_object_agg": "json_group_object",
    "jsonb_object_agg": "json_group_object",
    "decode": "bytes_from",
    "div": "quotient",
    "encode": "bytes_text",
    "lpad": "padded_left",
    "rpad": "padded_right",
    "split_part": "part_of",
    "string_to_array": "split_text",
    "array_to_string": "joined_items",
    "@~^": "xor",
    "@~": "has_json_key",
    "@~|": "has_any_json_key",
    "@~&": "has_all_json_keys",
}
"""Functions that DuckDB has under another name, or with another meaning."""
