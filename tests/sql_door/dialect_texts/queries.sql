VALUES (1), (2)
VALUES (1, 'a'), (2, 'b') ORDER BY 1 DESC LIMIT 1
SELECT * FROM (VALUES (1, 'a'), (2, NULL)) AS v(x, y)
TABLE items LIMIT 0
SELECT id FROM items ORDER BY id LIMIT 2 OFFSET 1
SELECT id FROM items ORDER BY id OFFSET 3
SELECT id FROM items ORDER BY id FETCH FIRST 2 ROWS ONLY
-- differs: a clause that is refused
SELECT id FROM items ORDER BY n FETCH FIRST 1 ROWS WITH TIES
SELECT id FROM items ORDER BY id LIMIT ALL
SELECT id FROM items ORDER BY id LIMIT -1
SELECT DISTINCT ON (b) b, id FROM items ORDER BY b, id
SELECT DISTINCT n FROM items ORDER BY n
SELECT DISTINCT n, id FROM items ORDER BY n DESC, id
SELECT n, count(*) FROM items GROUP BY n ORDER BY n
SELECT n, count(*) FROM items GROUP BY 1 HAVING count(*) > 1
SELECT n AS k, count(*) FROM items GROUP BY k ORDER BY k
SELECT n, b, count(*) FROM items GROUP BY GROUPING SETS ((n), (b), ()) ORDER BY n, b, 3
SELECT n, b, count(*), grouping(n, b) FROM items GROUP BY ROLLUP (n, b) ORDER BY n, b, 3, 4
SELECT n, b, count(*) FROM items GROUP BY CUBE (n, b) ORDER BY n, b, 3
SELECT t, n FROM items GROUP BY n
SELECT count(*) FROM items WHERE count(*) > 1
SELECT id, row_number() OVER (ORDER BY n DESC, id), rank() OVER (ORDER BY n), dense_rank() OVER (ORDER BY n) FROM items ORDER BY id
SELECT id, lag(id) OVER (ORDER BY id), lead(id, 2, 0::int8) OVER (ORDER BY id), first_value(t) OVER (ORDER BY id), last_value(id) OVER (ORDER BY id) FROM items ORDER BY id
SELECT id, sum(id) OVER (ORDER BY id ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)::int8 FROM items ORDER BY id
SELECT id, count(*) OVER (ORDER BY n RANGE BETWEEN 1 PRECEDING AND 1 FOLLOWING) FROM items ORDER BY id
SELECT id, count(*) OVER (ORDER BY n GROUPS BETWEEN 1 PRECEDING AND CURRENT ROW) FROM items ORDER BY id
SELECT id, sum(n) OVER w, max(n) OVER w FROM items WINDOW w AS (PARTITION BY b ORDER BY id) ORDER BY id
SELECT id, ntile(2) OVER (ORDER BY id), percent_rank() OVER (ORDER BY id), cume_dist() OVER (ORDER BY id) FROM items ORDER BY id
SELECT id, nth_value(t, 2) OVER (ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) FROM items ORDER BY id
SELECT id, sum(n) OVER (ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW EXCLUDE CURRENT ROW) FROM items ORDER BY id
SELECT i.id, x.m FROM items i, LATERAL (SELECT max(j.id) AS m FROM items j WHERE j.id < i.id) x ORDER BY i.id
SELECT i.id, x.v FROM items i CROSS JOIN LATERAL unnest(i.nums) AS x(v) ORDER BY 1, 2
SELECT i.id, x.v FROM items i LEFT JOIN LATERAL unnest(i.nums) AS x(v) ON true ORDER BY 1, 2
SELECT id, u FROM items, unnest(tags) u ORDER BY 1, 2
SELECT id, unnest(nums) FROM items ORDER BY 1, 2
-- differs: a clause that is refused
SELECT * FROM unnest(ARRAY[1, 2], ARRAY['a', 'b']) AS u(x, y)
SELECT * FROM unnest(ARRAY['a', 'b']) WITH ORDINALITY AS u(x, n)
SELECT * FROM generate_series(1, 3) WITH ORDINALITY
SELECT generate_series(1, 3), generate_series(1, 2)
SELECT * FROM generate_series(5, 1, -2)
SELECT g, g * 2 FROM generate_series(1, 3) g
SELECT x FROM generate_series(1, 3) AS g(x)
WITH RECURSIVE r(n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM r WHERE n < 5) SELECT * FROM r
WITH RECURSIVE r AS (SELECT 1 AS n, 'a' AS p UNION ALL SELECT n + 1, p || 'b' FROM r WHERE n < 3) SELECT * FROM r
WITH a AS (SELECT 1 AS x), b AS (SELECT x + 1 AS y FROM a) SELECT * FROM a, b
WITH a AS MATERIALIZED (SELECT id FROM items) SELECT count(*) FROM a
WITH x(a, b) AS (SELECT 1, 2) SELECT b, a FROM x
SELECT 1 UNION SELECT 2 UNION SELECT 1 ORDER BY 1
-- differs: all numbers of one column or array have the same digits behind the point
SELECT 1 UNION ALL SELECT 1.5
SELECT 1 UNION SELECT NULL ORDER BY 1
SELECT 'a' UNION SELECT 1
SELECT '1' UNION SELECT 2 ORDER BY 1
SELECT NULL UNION SELECT 'a' ORDER BY 1
SELECT day FROM items WHERE id = 1 UNION SELECT '2024-05-05' ORDER BY 1
SELECT n FROM items EXCEPT SELECT 10 ORDER BY 1
SELECT n FROM items INTERSECT SELECT 10
SELECT n FROM items EXCEPT ALL SELECT 10 ORDER BY 1
SELECT 1, 2 UNION SELECT 1
SELECT a.id, b.id FROM items a JOIN items b ON a.id = b.n ORDER BY 1
SELECT a.id, b.id FROM items a LEFT JOIN items b ON b.id = a.id + 3 ORDER BY 1
SELECT a.id, b.id FROM items a FULL JOIN items b ON b.id = a.id + 3 ORDER BY 1, 2
SELECT * FROM (SELECT 1 AS a, 2 AS b) x NATURAL JOIN (SELECT 1 AS a, 3 AS c) y
SELECT * FROM (SELECT 1 AS a, 2 AS b) x JOIN (SELECT 1 AS a, 3 AS c) y USING (a)
SELECT a FROM (SELECT 1 AS a) x, (SELECT 2 AS a) y
SELECT id FROM items WHERE id = (SELECT max(id) FROM items)
SELECT (SELECT id FROM items)
SELECT id FROM items WHERE EXISTS (SELECT 1 FROM items j WHERE j.n = items.id) ORDER BY id
SELECT id FROM items WHERE n IN (SELECT n FROM items WHERE b) ORDER BY id
SELECT id FROM items WHERE n NOT IN (SELECT n FROM items WHERE id = 3) ORDER BY id
SELECT id FROM items WHERE n > ALL (SELECT id FROM items WHERE id < 5) ORDER BY id
SELECT id FROM items WHERE n > ANY (SELECT id FROM items) ORDER BY id
SELECT id FROM items WHERE n > ANY (ARRAY[5, 8]) ORDER BY id
SELECT id FROM items WHERE n <= ALL (ARRAY[7, 8]) ORDER BY id
SELECT id FROM items WHERE n = SOME (ARRAY[7, 10]) ORDER BY id
SELECT id FROM items WHERE id BETWEEN 4 AND 2 ORDER BY id
SELECT id FROM items WHERE id BETWEEN SYMMETRIC 4 AND 2 ORDER BY id
-- differs: a clause that is refused
SELECT id FROM items WHERE id NOT BETWEEN SYMMETRIC 4 AND 2 ORDER BY id
SELECT id FROM items WHERE b IS UNKNOWN
SELECT id FROM items WHERE b IS NOT UNKNOWN ORDER BY id
SELECT id FROM items WHERE b IS TRUE ORDER BY id
SELECT id FROM items WHERE b IS NOT FALSE ORDER BY id
SELECT (n > 5) IS UNKNOWN FROM items ORDER BY id
SELECT id FROM items WHERE n IS DISTINCT FROM 10 ORDER BY id
SELECT id FROM items WHERE n ISNULL
SELECT id FROM items WHERE n NOTNULL ORDER BY id
SELECT id FROM items WHERE NOT b ORDER BY id
SELECT id FROM items WHERE (id, n) < (2, 0) ORDER BY id
SELECT id FROM items WHERE (n, id) < (10, 5) ORDER BY id
SELECT id FROM items WHERE (n, id) >= (7, 4) ORDER BY id
SELECT id FROM items WHERE (b, n) > (false, 5) ORDER BY id
SELECT (1, NULL) < (2, 3), (1, NULL) < (1, 3), (NULL, 1) < (1, 2), (1, 2) <= (1, 2), (1, 2) > (1, NULL)
SELECT (1, 2) = (1, NULL), (1, 2) <> (2, NULL), ROW(1, 2) = ROW(1, 2), (1, NULL) IS NULL, (NULL, NULL) IS NULL
SELECT (id, n) IN ((1, 10), (2, -3)) FROM items ORDER BY id
SELECT id FROM items WHERE (id, n) IN (SELECT id, n FROM items WHERE n > 5) ORDER BY id
SELECT (1, 2) IS DISTINCT FROM (1, NULL)
SELECT CASE WHEN n > 5 THEN 'big' WHEN n IS NULL THEN 'none' END FROM items ORDER BY id
-- differs: all numbers of one column or array have the same digits behind the point
SELECT CASE n WHEN 10 THEN 1 ELSE 2.5 END FROM items ORDER BY id
SELECT coalesce(n, 0), coalesce(t, 'none'), coalesce(NULL, d, 0.00) FROM items ORDER BY id
-- differs: all numbers of one column or array have the same digits behind the point
SELECT coalesce(NULL, d, 0) FROM items ORDER BY id
SELECT coalesce(n, 'x') FROM items
SELECT coalesce(n, '5') FROM items ORDER BY id
SELECT nullif(n, 10), nullif('a', 'a'), nullif(1, 2)
SELECT nullif(n, 10) FROM items ORDER BY id
SELECT NULL, NULL::int, 'a', '1'
SELECT id AS "Id", n "N", t AS "größe" FROM items WHERE id = 1
SELECT ID, Items.N FROM Items WHERE Id = 1
SELECT count(*) AS count, sum(n) AS sum FROM items
SELECT id i, i.n FROM items i WHERE id = 1
-- differs: a row is jsonb
SELECT items FROM items WHERE id = 2
-- differs: a row is jsonb
SELECT row(1, 'a', NULL), row(1.5, true)
SELECT i.* FROM items i WHERE false
SELECT nope FROM items
SELECT id FROM nope
SELECT nope(1)
-- differs: a text that is compared with a number becomes a number
SELECT id FROM items WHERE t = 1
SELECT id FROM items WHERE n = 'x'
SELECT id + t FROM items
SELECT sum(t) FROM items
SELECT length(n) FROM items
SELECT upper(1)
SELECT 1 +
-- differs: a row without columns has a column
SELECT FROM items
-- differs: a text that PostgreSQL does not read is answered
SELECT id, FROM items
SELECT * FROM items WHERE
SELECT a.id FROM items
SELECT id FROM items ORDER BY 99
SELECT id, id FROM items ORDER BY id LIMIT 1
SELECT 'abc' AS x ORDER BY x
SELECT true AND NULL, false AND NULL, true OR NULL, NOT NULL
SELECT 1 <> 2, 1 != 2, 1 >= 1
SELECT exists(SELECT 1), array(SELECT id FROM items ORDER BY id)
SELECT array_agg(n ORDER BY id), array_agg(DISTINCT n ORDER BY n), array_agg(t ORDER BY id DESC) FROM items
SELECT array_agg(n) FROM items WHERE id > 100
-- differs: an array of arrays is jsonb
SELECT array_agg(nums ORDER BY id) FROM items WHERE id = 5
SELECT bool_and(b), bool_or(b), every(b) FROM items
SELECT count(*) FILTER (WHERE b), sum(f) FILTER (WHERE id < 3) FROM items
SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY f), percentile_disc(0.5) WITHIN GROUP (ORDER BY n), mode() WITHIN GROUP (ORDER BY n) FROM items
SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY n) FROM items
SELECT percentile_cont(ARRAY[0.25, 0.75]) WITHIN GROUP (ORDER BY f) FROM items
SELECT corr(f, n), regr_slope(f, n), covar_pop(f, n) FROM items WHERE id < 3
-- differs: a function that PostgreSQL 15 does not have
SELECT any_value(id) FROM items
SELECT sum(n) FROM items WHERE false
SELECT count(n) FROM items WHERE false GROUP BY b
SELECT CAST(id AS text) || 'x' FROM items WHERE id = 1
SELECT id::text::int FROM items ORDER BY id
SELECT CURRENT_DATE IS NOT NULL, CURRENT_USER IS NOT NULL
SELECT pg_typeof(id), pg_typeof(n), pg_typeof(f), pg_typeof(d), pg_typeof(t), pg_typeof(tags), pg_typeof(doc) FROM items WHERE id = 1
SELECT pg_typeof(sum(n)), pg_typeof(sum(id)), pg_typeof(avg(f)), pg_typeof(count(*)) FROM items
-- differs: a clause that is refused
SELECT id FROM items TABLESAMPLE BERNOULLI (100) ORDER BY id
SELECT id FROM ONLY items ORDER BY id
-- differs: a clause that is refused
SELECT id FROM items FOR UPDATE
-- differs: a clause that is refused
SELECT * FROM ROWS FROM (generate_series(1, 2), generate_series(1, 3)) AS r(a, b)
SELECT id FROM items ORDER BY b, n DESC NULLS LAST, id
SELECT id FROM items ORDER BY lower(t)
-- differs: a text that PostgreSQL does not read is answered
SELECT t AS x FROM items ORDER BY x || 'a'
SELECT id FROM items ORDER BY -id
SELECT max(x) FROM (SELECT n AS x FROM items UNION ALL SELECT 100) q
SELECT (SELECT array_agg(id ORDER BY id) FROM items WHERE n = i.n) FROM items i ORDER BY id
SELECT id FROM items i WHERE i.n = (SELECT max(n) FROM items j WHERE j.b = i.b) ORDER BY id
VALUES ('1'), (2)
SELECT * FROM (VALUES ('2024-01-01', 1), (date '2024-02-02', 2)) v(a, b)
SELECT sum(sum(n)) FROM items
-- differs: a text that PostgreSQL does not read is answered
SELECT id AS x FROM items WHERE x = 1
-- differs: a boolean is compared with a number as a number
SELECT true = 1
-- differs: another SQLSTATE
SELECT day = 1 FROM items
