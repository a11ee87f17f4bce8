SELECT doc -> 'city', doc ->> 'city', doc ->> 'code', doc -> 'code' FROM items ORDER BY id
SELECT doc -> 'list' -> 0, doc -> 'list' ->> 1, doc #> '{list,0}', doc #>> '{list,1}', doc #>> '{city}' FROM items WHERE id <> 3 ORDER BY id
-- differs: an item of a JSON value that is no array is null
SELECT doc -> 'list' -> 0 FROM items WHERE id = 3
SELECT doc -> 'nope', doc ->> 'nope' FROM items ORDER BY id
SELECT id FROM items WHERE doc ->> 'city' = 'Bonn'
SELECT id FROM items WHERE (doc ->> 'code')::int > 0 ORDER BY id
SELECT id FROM items WHERE doc @> '{"city": "Bonn"}'
SELECT id FROM items WHERE doc ? 'city' ORDER BY id
SELECT id FROM items WHERE doc ?| ARRAY['city', 'x'] ORDER BY id
SELECT id FROM items WHERE doc ?& ARRAY['city', 'x'] ORDER BY id
SELECT jsonb_array_length(doc -> 'list') FROM items WHERE id IN (1, 2, 5) ORDER BY id
SELECT id, jsonb_array_elements(doc -> 'list') FROM items WHERE id IN (1, 2, 5) ORDER BY 1, 2
SELECT id, e FROM items, jsonb_array_elements_text(doc -> 'list') e WHERE id IN (1, 2, 5) ORDER BY 1, 2
SELECT jsonb_object_keys(doc) FROM items WHERE id = 1
SELECT k, v FROM items, jsonb_each(doc) AS e(k, v) WHERE id = 1 ORDER BY k
SELECT key, value FROM items, jsonb_each_text(doc) WHERE id = 1 AND key <> 'list' ORDER BY key
-- differs: the text of a JSON value inside another one has no spaces
SELECT key, value FROM items, jsonb_each_text(doc) WHERE id = 1 AND key = 'list'
SELECT jsonb_typeof(doc), jsonb_typeof(doc -> 'city'), jsonb_typeof(doc -> 'code'), jsonb_typeof(doc -> 'list') FROM items ORDER BY id
SELECT jsonb_build_object('a', 1, 'b', 'x', 'c', NULL, 'd', ARRAY[1, 2]), jsonb_build_array(1, 'a', NULL, true)
SELECT json_build_object('a', 1, 'b', 1.50), json_build_array(1, 'a')
SELECT jsonb_agg(n ORDER BY id), json_agg(t ORDER BY id) FROM items
SELECT jsonb_object_agg(id, n) FROM items WHERE id < 3
SELECT '{"b": 1, "a": [1, 2, {"c": null}]}'::jsonb, '{"b":1,  "a":2}'::json
-- differs: comparisons of JSON values are refused
SELECT '{"b": 1, "a": 2}'::jsonb = '{"a": 2, "b": 1}'::jsonb
SELECT '{"a": 1, "a": 2}'::jsonb
SELECT '[1, 2]'::jsonb -> 0, '[1, 2]'::jsonb -> -1, '[1, 2]'::jsonb ->> 5, '"x"'::jsonb #>> '{}'
-- differs: an item of a JSON value that is no array is null
SELECT '"x"'::jsonb ->> 0, 'null'::jsonb -> 0
SELECT '{"a": {"b": [10, 20]}}'::jsonb -> 'a' -> 'b' -> 1, '{"a": {"b": [10, 20]}}'::jsonb #>> '{a,b,1}'
-- differs: changes of JSON values are refused
SELECT '{"a": 1}'::jsonb || '{"b": 2}'::jsonb
-- differs: changes of JSON values are refused
SELECT '{"a": 1, "b": 2}'::jsonb - 'a'
-- differs: changes of JSON values are refused
SELECT '{"a": {"b": 1}}'::jsonb #- '{a,b}'
SELECT '{"a": 1, "b": 2}'::jsonb @> '{"a": 1}', '{"a": 1}'::jsonb <@ '{"a": 1, "b": 2}', '[1, 2, 3]'::jsonb @> '[3, 1]', '{"a": {"b": 1, "c": 2}}'::jsonb @> '{"a": {"b": 1}}'
SELECT '{"a": 1}'::jsonb ? 'a', '["a", "b"]'::jsonb ? 'b', '"a"'::jsonb ? 'a'
SELECT 'x'::jsonb
SELECT '{"a":'::json
SELECT ''::jsonb
SELECT ('{"a": "5"}'::jsonb ->> 'a')::int + 1, ('{"a": 5}'::jsonb -> 'a')::int
SELECT '{"a.b": 1}'::jsonb -> 'a.b', '{"$": 1}'::jsonb -> '$', '{"": 1}'::jsonb -> '', '{"a": null}'::jsonb -> 'a', '{"a": null}'::jsonb ->> 'a'
SELECT '{"a": true}'::jsonb ->> 'a', '{"a": 1.5}'::jsonb ->> 'a', '{"a": "q\"x"}'::jsonb -> 'a', '{"a": "q\"x"}'::jsonb ->> 'a'
-- differs: the text of a JSON value inside another one has no spaces
SELECT '{"a": 1.50}'::jsonb ->> 'a', '{"a": {"x": 1}}'::jsonb ->> 'a'
SELECT to_jsonb(1), to_jsonb('a'::text), to_jsonb(true), to_jsonb(NULL::int), to_json('x'::text)
SELECT to_jsonb(ts), to_jsonb(day), to_jsonb(d), to_jsonb(f) FROM items ORDER BY id
SELECT row_to_json(x) FROM (SELECT id, t FROM items WHERE id < 3 ORDER BY id) x
SELECT to_jsonb(x) FROM (SELECT id, t FROM items WHERE id < 3 ORDER BY id) x
-- differs: changes of JSON values are refused
SELECT jsonb_set('{"a": 1}'::jsonb, '{a}', '2')
-- differs: changes of JSON values are refused
SELECT jsonb_strip_nulls('{"a": null, "b": 1}'::jsonb)
SELECT jsonb_pretty('{"a": 1}'::jsonb)
-- differs: a function that is not there
SELECT jsonb_path_query('{"a": [1, 2]}'::jsonb, '$.a[*]')
-- differs: a function that is not there
SELECT jsonb_path_exists('{"a": 1}'::jsonb, '$.a')
SELECT jsonb_extract_path('{"a": {"b": 1}}'::jsonb, 'a', 'b'), jsonb_extract_path_text('{"a": {"b": 1}}'::jsonb, 'a', 'b')
SELECT json_array_elements('[1, 2]'::json), json_array_elements_text('["a", "b"]'::json)
SELECT * FROM json_each('{"a": 1, "b": "x"}'::json)
-- differs: a function that is not there
SELECT * FROM jsonb_to_recordset('[{"a": 1, "b": "x"}]'::jsonb) AS x(a int, b text)
-- differs: a function that is not there
SELECT * FROM jsonb_populate_record(NULL::shop.items, '{"id": 1}')
SELECT json_typeof('[1]'::json), json_array_length('[1, 2]'::json)
SELECT doc ->> 'city' AS city, count(*) FROM items GROUP BY 1 ORDER BY 1
SELECT id FROM items ORDER BY doc ->> 'city', id
-- differs: comparisons of JSON values are refused
SELECT doc = '{"city": "Bonn", "code": 5, "list": [1, 2]}'::jsonb FROM items ORDER BY id
SELECT (doc -> 'code')::text, doc ->> 'city' FROM items ORDER BY id
-- differs: the text of a JSON value inside another one has no spaces
SELECT doc ->> 'list' FROM items ORDER BY id
SELECT doc['city'], doc['list'][0] FROM items ORDER BY id
SELECT count(DISTINCT doc) FROM items
SELECT doc IS NULL, doc IS NOT NULL FROM items ORDER BY id
-- differs: a time inside a row that becomes JSON has a space before the hour
SELECT to_json(x) FROM (SELECT id, ts FROM items) x ORDER BY id
SELECT jsonb_build_object('at', ts, 'day', day), to_json(tz), to_jsonb(tz) FROM items ORDER BY id
SELECT id FROM items WHERE doc ? 'city' AND doc @> '{"code": 5}'
