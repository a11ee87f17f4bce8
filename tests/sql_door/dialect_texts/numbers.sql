SELECT '3.5'::int
SELECT ' 42 '::int
SELECT 'x'::int
SELECT ''::int
SELECT '3'::int + 1
SELECT id FROM items WHERE id = '3.5'
SELECT id FROM items WHERE id = '3'
SELECT id FROM items WHERE id = 'x'
SELECT id FROM items WHERE id IN ('1', '2') ORDER BY id
SELECT '300'::int2, '3000000000'::int8
SELECT '70000'::int2
SELECT '3000000000'::int
SELECT 3000000000::int
SELECT 70000::int2
SELECT 2147483647 + 1
SELECT 9223372036854775807 + 1
SELECT 2147483647 * 2
-- differs: a constant beyond int4 is int8
SELECT -2147483648 - 1
SELECT id * 9223372036854775807 FROM items WHERE id = 2
SELECT 9223372036854775808
SELECT 1.5::int, 2.5::int, 3.5::int, -2.5::int, -1.5::int
SELECT 1.5::float8::int, 2.5::float8::int, 3.5::float8::int, -2.5::float8::int
SELECT round(2.5), round(3.5), round(-2.5), round(2.45, 1), round(-0.5)
SELECT round(2.5::float8), round(3.5::float8), round(-2.5::float8), round(0.5::float8)
SELECT id, round(f) FROM items ORDER BY id
SELECT id, round(d), round(d, 1) FROM items ORDER BY id
SELECT round(1234.5678, -2), round(15, -1)
SELECT trunc(2.7), trunc(-2.7), trunc(2.789, 2), trunc(-2.7::float8)
SELECT ceil(2.1), floor(-2.1), ceiling(2.1::float8), floor(2)
SELECT abs(-3), abs(-2.5), sign(-3), sign(2.5), sign(0::float8)
SELECT 7 / 2, -7 / 2, 7 % 3, -7 % 3, 7 % -3
SELECT mod(7, 3), mod(-7, 3), div(7, 2), div(-7, 2)
SELECT 7.5 % 2, mod(7.5, 2)
SELECT 1 / 0
SELECT 1 % 0
SELECT mod(1, 0)
SELECT 1.5 / 0
SELECT 1::float8 / 0
SELECT id / 0 FROM items
SELECT id / (id - 1) FROM items WHERE id > 1 ORDER BY id
SELECT n / (id - 1) FROM items ORDER BY id
SELECT n % (id - 1) FROM items ORDER BY id
SELECT d / 0 FROM items
SELECT f / 0 FROM items WHERE f IS NOT NULL
SELECT nullif(n, 10) / 2 FROM items ORDER BY id
SELECT id / 2, n / 2, s / 2 FROM items ORDER BY id
SELECT id / 2.0::float8 FROM items ORDER BY id
SELECT f / 2, f / n FROM items ORDER BY id
SELECT sum(id) / 4 > 3.7 FROM items
SELECT sum(n) / 5 FROM items
SELECT sum(id) FROM items
SELECT sum(n), sum(s), sum(id), sum(f), sum(d) FROM items
SELECT sum(r) FROM items WHERE id < 4
SELECT sum(n) FILTER (WHERE n > 0) FROM items
SELECT id, sum(n) OVER (ORDER BY id), sum(id) OVER (ORDER BY id) FROM items ORDER BY id
SELECT sum(DISTINCT n) FROM items
SELECT sum(n + 1), sum(id + n), sum(id * 2), sum(1) FROM items
SELECT sum(CASE WHEN b THEN 1 ELSE 0 END) FROM items
SELECT count(*), count(n), count(DISTINCT n) FROM items
SELECT min(id), max(n), min(t), max(day), min(tz), max(d), min(f) FROM items
SELECT avg(f), avg(r) FROM items
SELECT avg(n)::numeric(10,2), avg(d)::numeric(10,3), avg(id)::float8 FROM items
SELECT round(avg(n), 2), round(avg(d), 2) FROM items
SELECT 2 ^ 3, 2 ^ 0.5::float8, power(2, 3), power(2::float8, 3)
SELECT sqrt(16::float8), cbrt(27::float8), exp(0::float8), ln(1::float8), log(100::float8)
SELECT sqrt(-1::float8)
SELECT ln(0::float8)
SELECT pi(), degrees(pi()), radians(180::float8)
SELECT greatest(1, 2, NULL), least(3, 1, NULL)
SELECT 5 & 3, 5 | 3, 5 # 3, ~5, 1 << 4, 16 >> 2
-- differs: the operators |/, ||/ and @ are refused
SELECT |/ 25.0::float8, ||/ 27.0::float8, @ -5
SELECT 1e3, 1.0, 0.1 + 0.2, 1.10 * 2.0
SELECT 0.1::float8 + 0.2::float8, 1e20::float8, 1e-5::float8, 123456789012345678::float8
SELECT 'NaN'::float8, 'Infinity'::float8, '-inf'::float8
SELECT 'NaN'::float8 = 'NaN'::float8, 'NaN'::float8 > 'Infinity'::float8
SELECT 1::float4 / 3, 1::float8 / 3
SELECT 1 / 3.0::float4
SELECT 1.23456789::float4, 16777217::float4
SELECT 3::numeric, 3.14::numeric
-- differs: all numbers of one column or array have the same digits behind the point
SELECT 1e10::numeric
SELECT '3.14'::numeric, '1.50'::numeric(5,1), '1.55'::numeric(5,1)
SELECT 12345.678::numeric(5,2)
SELECT 99999.99::numeric(5,2)
SELECT '-0'::float8, -0.0::float8
SELECT id FROM items WHERE d = 1.25
SELECT id FROM items WHERE d > '1' ORDER BY id
SELECT id FROM items WHERE f = 1.5
SELECT n + d, n * d, d - 1, -d FROM items ORDER BY id
SELECT d * 1.5, d + 0.001 FROM items ORDER BY id
SELECT f * 2, f + 1, -f FROM items ORDER BY id
SELECT n + s, n * s, id + n, s + s FROM items ORDER BY id
SELECT d::int, f::int FROM items WHERE id IN (1, 2, 3) ORDER BY id
SELECT f::int FROM items WHERE id = 4
SELECT width_bucket(5.3, 0, 10, 5)
SELECT gcd(12, 18), lcm(4, 6), factorial(5)
SELECT 1 = 1.0, 1 < 1.5, 2::int8 = 2::int2
SELECT 0b1::int
-- differs: a text that PostgreSQL does not read is answered
SELECT 1_000
SELECT '0x1F'::int
SELECT '1e3'::int
SELECT '1e3'::float8, ' 1.5 '::float8
SELECT 'x'::float8
SELECT 'x'::numeric
SELECT '1e400'::float8
SELECT 1::bool, 0::bool, true::int
SELECT 1.5::bool
SELECT to_char(1234.5, '9999.99'), to_char(1234.5, 'FM9,999.00'), to_char(7, '000')
SELECT to_char(-5, '999'), to_char(0.5, 'FM0.99'), to_char(12, 'FM999')
-- differs: a function that is not there
SELECT to_number('1,234.5', '9,999.9')
SELECT bit_and(n), bit_or(n) FROM items
SELECT stddev(n) FROM items WHERE id = 1
SELECT variance(f), stddev_pop(f), var_samp(f) FROM items WHERE id < 3
SELECT random() < 1, random() >= 0
-- differs: a function that is not there
SELECT scale(1.230), trim_scale(1.230), numeric_inc(1)
SELECT 10 / 4 * 1.0, 10 / 4.0 > 2.4
SELECT 100 * count(*) / 7 FROM items
SELECT count(*) / 2 FROM items
SELECT sum(n)::float8 / count(*) FROM items
SELECT id % 2 = 0, id % 2 FROM items ORDER BY id
SELECT 0.1::float4 = 0.1, 0.5::float4 = 0.5, r = 0.5, r > 0.1, r IN (0.5, 2) FROM items ORDER BY id
SELECT r + 1, r * 2.5, r / 2, r - f, r + r FROM items ORDER BY id
SELECT id FROM items WHERE r BETWEEN 0.4 AND 0.6
SELECT round(sum(d) / count(*), 2), round(d, 3), round(n / 3.0, 2), round(1.5, 3), round(f::numeric, 2) FROM items WHERE id < 3 GROUP BY d, n, f ORDER BY d
SELECT round(100.0 * count(*) FILTER (WHERE b) / count(*), 1) FROM items
SELECT 1 + '2', n * '3' FROM items ORDER BY id
SELECT 1 + 'a'
-- differs: the digits behind the point of a quotient of numerics
SELECT 1.0 / 3, 10 / 4.0
-- differs: powers outside the real numbers are NaN or infinity
SELECT power(0, -1)
-- differs: powers outside the real numbers are NaN or infinity
SELECT power(-8, 0.5)
-- differs: the types bit and bit varying
SELECT 5::bit(4), B'101'
SELECT (n * 1000000000) FROM items WHERE id = 1
SELECT abs((-32768)::int2)
