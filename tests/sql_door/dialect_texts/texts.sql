SELECT f::text, r::text, d::text, n::text, b::text FROM items ORDER BY id
SELECT day::text, ts::text, tz::text FROM items ORDER BY id
SELECT raw::text, tags::text, nums::text FROM items ORDER BY id
SELECT doc::text FROM items ORDER BY id
SELECT concat(f, '|', r, '|', d, '|', b, '|', n) FROM items ORDER BY id
SELECT concat(day, ts, tz) FROM items ORDER BY id
SELECT concat(raw), concat(tags) FROM items ORDER BY id
SELECT concat_ws(',', f, b, NULL, n, 'x') FROM items ORDER BY id
SELECT 'f=' || f, 'b=' || b, 'n=' || n, 'd=' || d FROM items ORDER BY id
SELECT 'ts=' || ts, tz || '!' FROM items ORDER BY id
SELECT t || NULL, NULL || 'x'
SELECT t || '!' FROM items ORDER BY id
SELECT 1 || 'a', 'a' || 1.50, 'a' || true
SELECT true::text, 'yes'::bool::text
SELECT 'off'::bool, 'on'::bool, 'yes'::bool, 'no'::bool, 'f'::bool, 'tr'::bool, '1'::bool, '0'::bool
SELECT 'maybe'::bool
SELECT ' true '::bool, 'FALSE'::bool
SELECT length(t), char_length(t), octet_length(t), bit_length(t) FROM items ORDER BY id
SELECT length(raw), octet_length(raw) FROM items ORDER BY id
SELECT upper(t), lower(t), initcap(t) FROM items WHERE id <> 3 ORDER BY id
-- differs: letters beyond ASCII have cases, as in every locale of PostgreSQL but C
SELECT upper(t), initcap(t) FROM items WHERE id = 3
SELECT initcap('hello WORLD-foo bar_baz 3x')
SELECT t FROM items ORDER BY t
SELECT t FROM items ORDER BY t DESC
SELECT t FROM items ORDER BY t NULLS FIRST
SELECT n FROM items ORDER BY n DESC, id
SELECT n FROM items ORDER BY n, id
SELECT n FROM items ORDER BY n DESC NULLS LAST, id
SELECT t < 'b', t >= 'apple' FROM items ORDER BY id
SELECT max(t), min(t) FROM items
SELECT substring('hello' from 2 for 3), substring('hello', 2), substring('hello' for 2)
SELECT substring('foobar' from 'o.b'), substring('foobar' from 'o(.)b'), substring('foobar' from 'x')
-- differs: a clause that is refused
SELECT substring('foobar' similar '%#"o_b#"%' escape '#')
SELECT substr('hello', 0), substr('hello', -1, 3), substr('hello', 2, 0)
SELECT left('hello', 2), right('hello', 2), left('hello', -1), right('hello', -1), left('hello', 0)
SELECT position('l' in 'hello'), strpos('hello', 'lo'), position('x' in 'hello'), position('' in 'a')
SELECT overlay('Txxxxas' placing 'hom' from 2 for 4), overlay('abc' placing 'X' from 2)
SELECT lpad('hi', 5), lpad('hi', 5, 'xy'), rpad('hi', 5, 'xy'), lpad('hello', 2), rpad('hello', 2), lpad('hi', -1)
SELECT lpad('hi', 5, '')
SELECT trim('  a '), ltrim('  a '), rtrim(' a  '), btrim('xxaxx', 'x'), trim(both 'x' from 'xax'), trim(leading 'x' from 'xax'), trim(trailing from 'a  ')
SELECT trim(E'\t a \n'), btrim(E'\ta\n') = E'\ta\n'
SELECT replace('aXbX', 'X', 'y'), replace('abc', '', 'x'), translate('12345', '143', 'ax'), reverse('abc'), repeat('ab', 3), repeat('a', -1)
SELECT split_part('a,b,c', ',', 2), split_part('a,b,c', ',', 9), split_part('a,b,c', ',', -1), split_part('abc', '', 1), split_part('abc', '', 2)
SELECT split_part('a,b', ',', 0)
SELECT string_to_array('a,b,c', ','), string_to_array('abc', NULL), string_to_array('abc', ''), string_to_array('', ',')
SELECT string_to_array('a,,b', ',', '')
SELECT array_to_string(ARRAY['a', NULL, 'b'], ','), array_to_string(ARRAY['a', NULL, 'b'], ',', '*'), array_to_string(ARRAY[1, 2], '-')
SELECT array_to_string(tags, ','), array_to_string(nums, ',', 'x') FROM items ORDER BY id
SELECT ascii('a'), ascii(''), chr(65), chr(228), md5('a'), to_hex(255), to_hex(-1)
SELECT ascii('ä')
SELECT quote_literal('a''b'), quote_literal(E'a\\b'), quote_literal(5), quote_nullable(NULL), quote_ident('Ab c'), quote_ident('abc'), quote_ident('select')
SELECT format('%s-%I-%L', 'a', 'B c', 'd''e'), format('%%'), format('%s', NULL), format('%L', NULL), format('%5s|%-5s|', 'a', 'b')
SELECT format('%2$s %1$s', 'a', 'b')
SELECT format('%s', f), format('%s', b) FROM items ORDER BY id
SELECT starts_with('abc', 'ab'), 'abc' ^@ 'ab'
SELECT regexp_replace('foobarbaz', 'b..', 'X'), regexp_replace('foobarbaz', 'b..', 'X', 'g'), regexp_replace('FOO', 'o', 'x', 'gi'), regexp_replace('foobar', '(o+)(b)', '[\2\1]')
SELECT regexp_replace('foobar', 'o', '\&\&', 'g'), regexp_replace('abc', 'x', 'y')
SELECT regexp_match('foobarbaz', 'b..'), regexp_match('foobarbaz', '(b.)(.)'), regexp_match('abc', 'x')
SELECT regexp_match('FOO', 'o+', 'i')
SELECT regexp_matches('foobarbaz', 'b..', 'g')
SELECT regexp_matches('foobarbaz', '(b)(..)')
SELECT regexp_split_to_array('a1b22c', '\d+'), regexp_split_to_array('abc', '')
SELECT regexp_split_to_table('a b c', ' ')
SELECT regexp_count('abcabc', 'b'), regexp_substr('foobar', 'o+'), regexp_like('Foo', 'f', 'i')
-- differs: a function that is not there
SELECT regexp_instr('foobar', 'b')
SELECT 'abc' ~ 'B', 'abc' ~* 'B', 'abc' !~ 'b', 'abc' !~* 'B', 'a' || chr(10) || 'b' ~ 'a.b', 'ab' ~ '^b'
SELECT 'abc' LIKE 'a%', 'abc' LIKE 'A%', 'abc' ILIKE 'A%', 'abc' NOT LIKE '_b_', 'a%c' LIKE 'a\%c', 'abc' LIKE 'a\%c'
SELECT 'a%c' LIKE 'a#%c' ESCAPE '#', 'a\c' LIKE 'a\c' ESCAPE '', 'a\c' LIKE 'a\\c'
SELECT 'abc' LIKE 'ab\'
SELECT t LIKE '%\_\%', t ILIKE 'BAN%', t LIKE '%' FROM items ORDER BY id
SELECT id FROM items WHERE t LIKE ANY (ARRAY['a%', 'B%']) ORDER BY id
SELECT id FROM items WHERE t ILIKE ANY (ARRAY['A%', 'x']) ORDER BY id
SELECT id FROM items WHERE t NOT LIKE ALL (ARRAY['a%', 'B%']) ORDER BY id
SELECT id FROM items WHERE t LIKE ANY ('{a%,B%}') ORDER BY id
-- differs: a clause that is refused
SELECT id FROM items WHERE t ~ ANY (ARRAY['^a', 'n']) ORDER BY id
SELECT 'abc' SIMILAR TO 'a%', 'abc' SIMILAR TO '(a|b)%', 'abc' NOT SIMILAR TO 'b%', 'a.c' SIMILAR TO 'a.c', 'abc' SIMILAR TO 'a.c'
-- differs: char(n) is text without the blanks behind it
SELECT 'a'::char(3), 'a'::char(3) || 'b', length('a '::char(3)), 'a'::char(3) = 'a'
-- differs: the name of a column that is a cast of a constant to varchar or char is text
SELECT 'abcdef'::varchar(3)
-- differs: the name of a column that is a cast of a constant to varchar or char is text
SELECT 'abcdef'::char(3), 'abc'::bpchar
SELECT 'abcdef'::varchar(3) AS a, 'abcdef'::char(3) AS b, 'abc'::bpchar AS c
SELECT 'abc'::name, 'a'::"char" AS a
-- differs: the name of a column that is a cast of a constant to varchar or char is text
SELECT 'a'::"char"
SELECT E'a\tb', 'a\tb', E'\x41', $$it's$$, $q$a$q$
-- differs: a clause that is refused
SELECT U&'\0041'
SELECT 'a' 'b'
SELECT 'a' = 'A', 'a' < 'B', 'Z' < 'a', 'ä' > 'z'
SELECT string_agg(t, ',' ORDER BY id), string_agg(t, ',' ORDER BY id DESC) FROM items
SELECT string_agg(DISTINCT t, ',' ORDER BY t) FROM items
SELECT string_agg(n::text, ',' ORDER BY id) FROM items
SELECT string_agg(t, ',') FROM items WHERE id > 100
SELECT encode(raw, 'hex'), encode(raw, 'base64') FROM items ORDER BY id
-- differs: a function that is not there
SELECT encode(raw, 'escape') FROM items ORDER BY id
SELECT decode('616263', 'hex'), decode('YWJj', 'base64')
SELECT raw = '\x616263', raw || '\x00'::bytea FROM items ORDER BY id
-- differs: a function that is not there
SELECT substring(raw from 1 for 2) FROM items ORDER BY id
SELECT md5(raw), sha256(raw) FROM items WHERE id = 2
SELECT get_byte(raw, 0) FROM items WHERE id = 2
SELECT convert_from(raw, 'UTF8') FROM items WHERE id = 2
SELECT convert_to('ä', 'UTF8')
SELECT to_char(f, 'FM999.00') FROM items WHERE id = 1
SELECT parse_ident('a."B".c'), quote_ident(t) FROM items WHERE id = 1
SELECT string_to_table('a,b', ',')
-- differs: a function that is not there
SELECT unistr('\0041'), normalize('é')
SELECT 'abc'::text COLLATE "C" < 'abd'
SELECT concat('a', NULL, 1, true, 1.50), concat(NULL)
SELECT concat()
SELECT upper(NULL)
-- differs: the type of an expression whose values are NULL
SELECT length(NULL), NULL || 'a'
SELECT 'x' IN ('x', NULL), 'y' IN ('x', NULL), NULL IN ('x')
SELECT at, length(at) FROM items ORDER BY id
SELECT items.at FROM items WHERE at = 'x'
SELECT i.at AS at FROM items i ORDER BY i.at
SELECT max(at) FROM items
SELECT cast(f AS varchar), cast(b AS text), cast(d AS varchar(3)) FROM items ORDER BY id
SELECT left(f::text, 3), f::text = '1.5', f::text LIKE '%+20' FROM items ORDER BY id
SELECT (1.0::float8)::text, (100::float8)::text, (1e15::float8)::text, (1e16::float8)::text, (0.0001::float8)::text, (0.00001::float8)::text, (1.5e-7::float8)::text, (1::float4)::text
SELECT 'Infinity'::float8::text, 'NaN'::float8::text
SELECT interval '1 day 02:03:04'::text, time '10:00'::text, timestamptz '2024-01-01 00:00+00'::text
SELECT ARRAY[1.5::float8, 2]::text, ARRAY[true, false]::text, ARRAY['a b', 'c,d', '', NULL]::text
-- differs: the name of a column that is a cast of a constant to varchar or char is text
SELECT 5::char, 12.5::varchar, true::varchar(2)
SELECT 5::char AS a, 12.5::varchar AS b, true::varchar(2) AS c
