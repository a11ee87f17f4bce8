-- source: what people and reports write: operators, functions and names whose meaning differs between PostgreSQL and DuckDB

-- name: 1
SELECT 7/2, -7/2, 7/2.0, 7 % 3, -7 % 3, mod(-7, 3), 2 ^ 3, 5 & 3, 5 | 2, ~1, 1 << 3
;;

-- name: 2
SELECT 'a' || NULL IS NULL, 'a' || 1, concat('a', NULL, 1), concat_ws('-', 'a', NULL, 'b')
;;

-- name: 3
SELECT 'foobar' ~ 'o+b', 'foobar' ~ '^f', 'foobar' ~* 'OB', 'foobar' !~ 'x', 'foobar' !~* 'FOO', 'foobar' OPERATOR(pg_catalog.~) 'bar$'
;;

-- name: 4
SELECT 'abc' SIMILAR TO '%(b|d)%', 'abc' SIMILAR TO '(b|c)%', 'abc' NOT SIMILAR TO 'a_c', 'a.c' SIMILAR TO 'a.c', 'abc' SIMILAR TO 'a.c'
;;

-- name: 5
SELECT 'a_c' LIKE 'a\_c', 'abc' LIKE 'a\_c', 'ABC' ILIKE 'a%', 'a%' LIKE 'a!%' ESCAPE '!'
;;

-- name: 6
SELECT E'a\'b\\n', $$it's$$, $x$a$$b$x$, 'it''s'
;;

-- name: 7
-- differs: names of columns: DuckDB has one type for texts and one for int8 and oid
SELECT 'abcdef'::varchar(3), CAST('abcdef' AS char(2)), 'x'::char, 'abc'::text::varchar(2)
;;

-- name: 8
SELECT 'a' = ANY('{a,b}'), 'c' = ANY(ARRAY['a','b']), 3 = ANY('{1,2,3}'::int[]), 3 <> ALL(ARRAY[1,2]), 3 <> ALL('{1,3}'::int[])
;;

-- name: 9
SELECT ARRAY[1,2,3], (ARRAY['a','b','c'])[2], (ARRAY[1,2,3])[2:3], (ARRAY[1,2])[5], array_length(ARRAY[1,2,3], 1), cardinality(ARRAY[1,2]), array_upper(ARRAY[1,2], 1)
;;

-- name: 10
SELECT array_to_string(ARRAY['a','b'], ','), string_to_array('a,b', ','), array_position(ARRAY['a','b'], 'b'), array_append(ARRAY[1], 2), array_remove(ARRAY[1,2,1], 1), array_cat(ARRAY[1], ARRAY[2])
;;

-- name: 11
SELECT '{a,"b c",NULL}'::text[], '{}'::int[], ARRAY[1,2] @> ARRAY[1], ARRAY[1,2] && ARRAY[2,3]
;;

-- name: 12
SELECT date_trunc('month', timestamp '2020-05-17 10:11:12'), date_trunc('week', timestamp '2020-05-17'), extract(year from date '2020-05-17'), extract(dow from date '2020-05-17'), extract(doy from date '2020-05-17'), extract(quarter from date '2020-05-17'), date_part('hour', timestamp '2020-05-17 10:11:12')
;;

-- name: 13
SELECT extract(epoch from timestamp '2020-01-01 00:00:01.5')::float8, extract(epoch from interval '1 day 2 hours')::int, extract(isodow from date '2020-05-17')
;;

-- name: 14
SELECT to_char(timestamp '2020-05-07 14:05:09', 'YYYY-MM-DD HH24:MI:SS'), to_char(timestamp '2020-05-07 14:05:09', 'DD.MM.YY HH12:MI AM'), to_char(timestamp '2020-05-07', 'FMMonth'), to_char(timestamp '2020-05-07', 'Mon'), to_char(timestamp '2020-05-07', 'IYYY-IW'), to_char(timestamp '2020-05-07', 'yyyy-mm')
;;

-- name: 15
SELECT to_date('07.05.2020', 'DD.MM.YYYY'), to_timestamp('2020-05-07 10:00', 'YYYY-MM-DD HH24:MI') AT TIME ZONE 'UTC'
;;

-- name: 16
SELECT date '2020-01-31' + 1, date '2020-01-31' - date '2020-01-01', date '2020-01-01' + interval '1 month', timestamp '2020-01-31' + interval '1 mon 2 days 03:00', date '2020-01-31' - 30
;;

-- name: 17
SELECT timestamptz '2020-01-01 12:00:00+00' AT TIME ZONE 'Europe/Berlin', timestamp '2020-01-01 12:00:00' AT TIME ZONE 'UTC' = timestamptz '2020-01-01 12:00:00+00'
;;

-- name: 18
SELECT round(2.567, 2), round(2.5), round(-2.5), round(0.5), trunc(2.789), floor(-2.5), ceil(2.1), abs(-3), sign(-2.0), power(2, 3), sqrt(16), exp(0), ln(1), log(100)
;;

-- name: 19
SELECT round(2.567::numeric, 2), 0.1::numeric + 0.2 = 0.3, 10::numeric / 4, 1.5::numeric(4,1), 12.345::decimal(5,2)
;;

-- name: 20
SELECT length('äöü'), char_length('abc'), octet_length('äö'), upper('abc'), initcap('hello world'), lower('AB'), reverse('abc'), repeat('ab', 3), lpad('7', 3, '0'), rpad('a', 3, '-'), left('abcdef', 2), right('abcdef', 2), left('abc', -1)
;;

-- name: 21
SELECT position('b' in 'abc'), strpos('abc', 'c'), substring('foobar' from 2 for 3), substring('foobar', 4), substring('foobar' from 'o(.)b'), substring('foobar' from 'xyz'), overlay('abcdef' placing 'XX' from 2 for 3), split_part('a-b-c', '-', 2)
;;

-- name: 22
SELECT trim('  a '), trim(both 'x' from 'xax'), ltrim('xxa', 'x'), rtrim('axx', 'x'), btrim('xxaxx', 'x'), replace('abcabc', 'b', 'X'), translate('abc', 'ab', 'xy')
;;

-- name: 23
SELECT regexp_replace('foobar', 'o', 'X'), regexp_replace('foobar', 'o', 'X', 'g'), regexp_replace('foobar', '(o)(b)', '\2\1')
;;

-- name: 24
SELECT md5('a'), encode('abc'::bytea, 'hex'), encode('abc'::bytea, 'base64'), quote_ident('Foo bar'), quote_ident('foo'), quote_literal('it''s'), format('%s-%I-%L', 'a', 'B', 'c')
;;

-- name: 25
SELECT coalesce(NULL, 1), nullif(1, 1), greatest(1, 3, 2), least(3, NULL, 2), CASE WHEN 1 = 1 THEN 'a' ELSE 'b' END, NULL IS DISTINCT FROM 1
;;

-- name: 26
SELECT true AND NULL, NOT false, 't'::bool, 1::bool, 'yes'::bool, true::int, 3.7::int, -3.5::int, 2.5::int, '42'::int
;;

-- name: 27
SELECT generate_series(1, 3)
;;

-- name: 28
SELECT '{"a":{"b":[1,2]}}'::json->'a'->'b'->>1, '{"a":{"b":"x"}}'::jsonb #>> '{a,b}', '{"a":1}'::json->>'a'
;;

-- name: 29
-- differs: names of columns: DuckDB has one type for texts and one for int8 and oid
SELECT pg_typeof(1), format_type(1700, 786438), 'int4'::regtype::text, 'numeric'::regtype::oid, to_regclass('shop.nope') IS NULL, 'shop.orders'::regclass::text
;;

-- name: 30
SELECT current_schema(), current_schemas(false), current_database(), current_setting('server_encoding'), pg_is_in_recovery(), has_table_privilege('shop.orders', 'SELECT')
;;

-- name: 31
SELECT interval '1 day' + interval '2 hours' = interval '1 day 2 hours', make_date(2020, 5, 17), age(timestamp '2020-05-17', timestamp '2019-04-16') = interval '1 year 1 mon 1 day'
;;

-- name: 32
SELECT 10 / 4 * 2, (10 / 4)::float8, 1e3, 0.1 + 0.2, 1::float8 / 3 > 0.33, 5::int8 / 2, 7::numeric / 2
;;

-- name: 33
SELECT ROW(1, 2) = ROW(1, 2), (1, 2) < (1, 3), 1 BETWEEN 0 AND 2, 3 IN (1, 2), 3 NOT IN (1, 2)
;;

-- name: 34
SELECT string_agg(x, ',' ORDER BY x), array_agg(x ORDER BY x DESC), count(*), count(DISTINCT x), bool_and(x > ''), every(x > 'a'), min(x), json_agg(x ORDER BY x) IS NULL FROM (VALUES ('b'), ('a')) v(x)
;;

-- name: 35
SELECT sum(x), avg(x)::float8, stddev_samp(x)::float8 > 1.2, percentile_cont(0.5) WITHIN GROUP (ORDER BY x), count(*) FILTER (WHERE x > 2), mode() WITHIN GROUP (ORDER BY x) FROM generate_series(1, 4) x
;;

-- name: 36
SELECT x, row_number() OVER (ORDER BY x DESC), lag(x) OVER (ORDER BY x), sum(x) OVER (ORDER BY x ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) FROM generate_series(1, 3) AS x ORDER BY x
;;

-- name: 37
SELECT DISTINCT ON (a) a, b FROM (VALUES (1, 'x'), (1, 'y'), (2, 'z')) v(a, b) ORDER BY a, b DESC
;;

-- name: 38
SELECT a FROM (VALUES (1), (NULL), (3)) v(a) ORDER BY a DESC LIMIT 2
;;

-- name: 39
SELECT a FROM (VALUES (1), (NULL), (3)) v(a) ORDER BY a OFFSET 1 ROWS FETCH FIRST 2 ROWS ONLY
;;

-- name: 40
SELECT a, b FROM unnest(ARRAY['x','y']) WITH ORDINALITY AS t(a, b)
;;

-- name: 41
SELECT v.a, w.b FROM (VALUES (1), (2)) v(a) CROSS JOIN (VALUES (1), (3)) u(c) LEFT JOIN (VALUES (2, 'x')) w(a, b) ON w.a = v.a AND u.c = 1 ORDER BY 1, 2
;;

-- name: 42
SELECT s, s::date FROM generate_series(timestamp '2020-01-01', timestamp '2020-01-03', interval '1 day') s LIMIT ALL
;;

-- name: 43
SELECT "Foo", FOO.bar, count FROM (SELECT 1 AS "Foo", 2 AS BAR, count(*) FROM (VALUES (1)) x) AS foo
;;

-- name: 44
SELECT 1 AS a, 'x' UNION ALL SELECT 2, 'y' ORDER BY 1
;;

-- name: 45
SELECT max(order_id), count(*), lower(customer), date_trunc('day', ts), ts::date, amount::text, CASE WHEN amount > 1 THEN 'x' END, -amount, EXISTS (SELECT 1), (SELECT max(amount) FROM shop.orders), amount IS NULL, tags[1], ARRAY[1], customer COLLATE "C", coalesce(customer, '') FROM orders GROUP BY 3, 4, 5, amount, ts, tags, customer
;;

-- name: 46
SELECT o.customer, shop.orders.amount, p.name FROM orders o JOIN shop.orders ON shop.orders.order_id = o.order_id LEFT JOIN crm.people p ON p.id = o.order_id
;;

-- name: 47
SELECT order_id FROM "shop"."orders" WHERE customer = 'x' AND ts > now() - interval '7 days' AND tags @> ARRAY['a'] AND customer ILIKE 'A%' ORDER BY ts DESC NULLS LAST LIMIT 10
;;

-- name: 48
SELECT x FROM (SELECT 'b' AS x UNION SELECT 'B' UNION SELECT 'a') s ORDER BY x
;;

-- name: 49
SELECT relname FROM pg_class WHERE relname ~ '^(orders)$' AND relnamespace = 'shop'::regnamespace
;;

-- name: 50
SELECT attname FROM pg_attribute WHERE attrelid = 'orders'::regclass AND attnum > 0 ORDER BY attnum
;;

-- name: 51
SELECT '100'::numeric::text, 1.10::text, 1e10::float8::text, 3::float8::text, true::text, now()::date = current_date, NULL::text
;;

-- name: 52
SELECT gcd(12, 8), lcm(4, 6), factorial(5), random() < 1, chr(65), ascii('A'), to_hex(255)
;;

-- name: 53
SELECT regexp_split_to_array('a1b2c', '[0-9]'), regexp_match('foobar', 'o+b')
;;

-- name: 54
SELECT starts_with('abc', 'ab'), 'abc' ^@ 'ab'
;;

-- name: 55
SELECT '2020-01-01'::timestamptz, '2020-01-01 10:00'::timestamp::time, '10:00'::time + interval '1 hour', date '2020-01-01' = '2020-01-01'
;;

-- name: 56
-- differs: names of columns: DuckDB has one type for texts and one for int8 and oid
SELECT 'x'::name, 16::oid, '1'::"char", 'a'::bpchar, '1 day'::interval = '24 hours'::interval
;;
