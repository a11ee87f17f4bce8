SELECT date '2024-02-30'
SELECT '2024-13-01'::date
SELECT 'x'::date
SELECT 'x'::timestamp
SELECT '2024-01-01 25:00'::timestamp
SELECT '2024-01-01T10:00:00Z'::timestamptz, '2024-01-01 10:00+02'::timestamptz, '2024-01-01'::timestamp
SELECT 'today'::date = current_date, 'yesterday'::date = current_date - 1, 'tomorrow'::date = current_date + 1
SELECT 'now'::timestamptz <= now(), 'epoch'::timestamp, 'today'::timestamp = current_date
SELECT 'infinity'::timestamp, '-infinity'::date
SELECT 'January 8, 1999'::date, '8 Jan 1999'::date, '19990108'::date, '1/8/1999'::date
-- differs: dates before Christ are refused
SELECT '0044-03-15 BC'::date
SELECT date '2024-01-31' + 1, date '2024-01-31' - date '2024-01-01', date '2024-01-31' - 1
SELECT date '2024-01-31' + interval '1 month', date '2024-01-31' - interval '1 day'
SELECT day + 1, day - 1, day - date '2024-01-01', day + interval '1 month' FROM items ORDER BY id
SELECT ts - interval '1 hour', ts + interval '1 day', ts - ts FROM items ORDER BY id
SELECT tz - interval '1 hour', tz - tz, tz::date, tz::timestamp FROM items ORDER BY id
SELECT ts::date, ts::time, tz::time FROM items ORDER BY id
SELECT timestamptz '2024-01-01 10:00+00'::time, timestamp '2024-01-01 10:00'::time
SELECT timestamp '2024-03-01 12:00' - timestamp '2024-02-28 10:30', timestamptz '2024-03-01 00:00+00' - timestamptz '2024-02-28 00:00+00'
SELECT date_trunc('month', ts), date_trunc('hour', tz), date_trunc('week', day) FROM items ORDER BY id
SELECT date_trunc('day', date '2024-05-05'), date_trunc('quarter', timestamp '2024-05-05'), date_trunc('decade', timestamp '2024-05-05')
SELECT date_trunc('day', interval '2 days 10 hours'), date_trunc('foo', now())
SELECT date_trunc('day', timestamptz '2024-01-01 23:00+00', 'Europe/Berlin')
SELECT extract(year FROM day), extract(month FROM ts), extract(epoch FROM ts) FROM items ORDER BY id
SELECT extract(dow FROM date '2024-03-10'), extract(isodow FROM date '2024-03-10'), extract(doy FROM date '2024-03-10'), extract(week FROM date '2024-03-10'), extract(quarter FROM date '2024-03-10')
SELECT extract(epoch FROM interval '1 day 2 hours'), extract(epoch FROM timestamptz '2024-01-01 00:00:00.5+00'), extract(second FROM timestamp '2024-01-01 00:00:01.25')
SELECT date_part('year', day), date_part('epoch', ts), date_part('second', ts) FROM items ORDER BY id
SELECT extract(day FROM interval '40 days 5 hours'), extract(hour FROM interval '30 hours'), extract(month FROM interval '14 months'), extract(year FROM interval '14 months')
SELECT extract(century FROM date '2024-01-01'), extract(decade FROM date '2024-01-01'), extract(millennium FROM date '2024-01-01')
SELECT extract(microseconds FROM time '10:00:01.5'), extract(hour FROM time '10:00')
SELECT extract(timezone FROM tz) FROM items WHERE id = 1
SELECT age(timestamp '2024-03-01', timestamp '2023-01-15'), age(date '2024-03-01', date '2024-02-28')
SELECT age(timestamp '2024-01-01', timestamp '2024-03-05 10:00')
SELECT interval '1 year 2 months', interval '90 minutes', interval '1 day -1 hour', interval '-1 day', interval '0'
SELECT interval '1.5 days', interval '1 week', '1:30'::interval, 'P1Y2M3DT4H5M6S'::interval, interval '3' day, interval '2 hours ago'
SELECT interval '1 day' * 2, interval '1 day' / 2, 2 * interval '1 hour', interval '1 month' * 1.5, interval '1 hour' + interval '1 day', - interval '1 day'
SELECT interval '1 day' = interval '24 hours', interval '1 month' > interval '29 days', interval '1 month' = interval '30 days'
-- differs: a function that is not there
SELECT justify_hours(interval '30 hours'), justify_days(interval '40 days')
SELECT justify_interval(interval '1 month 10 days 1 hour')
SELECT max(i) FROM (VALUES (interval '1 day'), (interval '3 hours')) v(i)
-- differs: sums and averages of intervals are refused
SELECT sum(i), avg(i) FROM (VALUES (interval '1 day'), (interval '3 hours')) v(i)
SELECT make_date(2024, 2, 29), make_time(10, 20, 30.5), make_timestamp(2024, 1, 2, 3, 4, 5.5), make_interval(days => 3, hours => 2)
SELECT make_date(2023, 2, 29)
SELECT to_timestamp(0), to_timestamp(1700000000.5), to_date('05 Dec 2000', 'DD Mon YYYY'), to_timestamp('2024-01-02 03:04', 'YYYY-MM-DD HH24:MI')
SELECT to_char(ts, 'YYYY-MM-DD HH24:MI:SS'), to_char(ts, 'Mon DD, YYYY'), to_char(day, 'YYYY/MM'), to_char(ts, 'HH12:MI AM') FROM items ORDER BY id
SELECT to_char(ts, 'FMMonth FMDD'), to_char(ts, 'Month DD') || '|', to_char(ts, 'Day') || '|', to_char(ts, 'DY dy Dy'), to_char(ts, 'MS US') FROM items ORDER BY id
SELECT to_char(ts, 'FMHH12'), to_char(ts, 'Q'), to_char(ts, 'D ID DDD WW IW IYYY'), to_char(ts, 'J'), to_char(ts, 'CC'), to_char(ts, 'SSSS') FROM items ORDER BY id
SELECT to_char(timestamp '2024-01-05 03:04:05', 'FMMM/FMDD/YY'), to_char(timestamp '2024-01-05 03:04:05', 'YYYY"year"MM'), to_char(timestamp '2024-01-05 03:04:05', 'month'), to_char(timestamp '2024-01-05 03:04:05', 'am pm')
-- differs: a format of to_char that is refused
SELECT to_char(timestamp '2024-01-05 03:04:05', 'A.M.')
-- differs: a format of to_char that is refused
SELECT to_char(timestamp '2024-01-05 03:04:05', 'DDth')
-- differs: a format of to_char that is refused
SELECT to_char(interval '15 hours 2 minutes', 'HH24:MI:SS')
SELECT to_char(tz, 'YYYY-MM-DD"T"HH24:MI:SS"Z"'), to_char(tz, 'TZ'), to_char(tz, 'OF') FROM items ORDER BY id
SELECT tz AT TIME ZONE 'Europe/Berlin', ts AT TIME ZONE 'Europe/Berlin', ts AT TIME ZONE 'UTC' FROM items ORDER BY id
SELECT timezone('America/New_York', tz) FROM items ORDER BY id
SELECT timestamp '2024-01-01 10:00' AT TIME ZONE 'Nowhere/City'
SELECT day = '2024-01-31', day > '2024-01-01', ts < '2024-01-01', tz >= '2024-01-01' FROM items ORDER BY id
SELECT id FROM items WHERE day BETWEEN '2024-01-01' AND '2024-12-31' ORDER BY id
SELECT id FROM items WHERE ts > '2024-01-01'::date ORDER BY id
SELECT id FROM items WHERE day = 'x'
SELECT id FROM items WHERE tz > now() - interval '100 years' ORDER BY id
SELECT generate_series(timestamp '2024-01-01', timestamp '2024-01-03', interval '1 day')
SELECT * FROM generate_series(timestamptz '2024-01-01 00:00+00', timestamptz '2024-01-01 02:00+00', interval '1 hour')
SELECT * FROM generate_series(date '2024-01-01', date '2024-01-03', interval '1 day') AS g(d)
SELECT d::date FROM generate_series('2024-01-01'::date, '2024-01-03', '1 day') d
SELECT date_bin('15 minutes', timestamp '2024-01-01 10:17', timestamp '2024-01-01')
SELECT time '10:00' + interval '3 hours', time '10:00' - time '08:30', date '2024-01-01' + time '10:00'
SELECT time '25:00'
SELECT time '10:00:00.123456', '10:00 PM'::time
-- differs: constants of timetz are refused
SELECT timetz '10:00+02'
SELECT isfinite(date '2024-01-01'), isfinite(timestamp 'infinity')
SELECT current_date = now()::date, localtimestamp <= now()::timestamp, current_timestamp = now()
SELECT pg_typeof(now()), pg_typeof(current_date), pg_typeof(1), pg_typeof(1.5), pg_typeof('a'::text), pg_typeof(interval '1 day')
SELECT (date '2024-01-01', date '2024-02-01') OVERLAPS (date '2024-01-15', date '2024-03-01')
SELECT max(ts) - min(ts) FROM items
SELECT extract(epoch FROM max(ts) - min(ts)) FROM items
SELECT floor(extract(epoch FROM tz) / 3600) FROM items ORDER BY id
SELECT date_trunc('month', day)::date, (date_trunc('month', day) + interval '1 month - 1 day')::date FROM items ORDER BY id
SELECT count(*), date_trunc('year', ts) FROM items GROUP BY 2 ORDER BY 2
SELECT date '2024-01-15'::timestamptz, now()::date = current_date
SELECT '2024-01-01'::text::date, to_char(now(), 'YYYY') = extract(year FROM now())::text
SELECT timestamp(0) '2024-01-01 00:00:00.6', ts::timestamp(0) FROM items WHERE id = 1
-- differs: digits behind a microsecond are cut, not rounded
SELECT timestamp '2024-01-01 00:00:00.1234567'
SELECT date '10000-01-01', date '0001-01-01', timestamp '1900-01-01'
SELECT day - interval '1 day' * id FROM items ORDER BY id
SELECT (date '2024-01-01', interval '10 days') OVERLAPS (date '2024-01-15', date '2024-03-01')
SELECT make_interval(days => 3, hours => 2), make_interval(1, 2, 3, 4, 5, 6, 7.5)
SELECT ts AT TIME ZONE 'Asia/Kolkata', tz AT TIME ZONE 'Asia/Kolkata', ts AT TIME ZONE 'UTC' AT TIME ZONE 'Europe/Berlin' FROM items ORDER BY id
