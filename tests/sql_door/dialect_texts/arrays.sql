SELECT tags @> '{b}' FROM items ORDER BY id
SELECT tags @> ARRAY['b'], tags <@ ARRAY['a', 'b', 'c'], tags && ARRAY['a', 'z'] FROM items ORDER BY id
SELECT id FROM items WHERE tags && '{a,c}' ORDER BY id
SELECT id FROM items WHERE nums @> ARRAY[5]::int8[] ORDER BY id
SELECT id FROM items WHERE nums @> '{1,2}' ORDER BY id
SELECT id FROM items WHERE 'b' = ANY (tags) ORDER BY id
SELECT id FROM items WHERE 5 = ANY (nums) ORDER BY id
SELECT id FROM items WHERE 'a' <> ALL (tags) ORDER BY id
SELECT id FROM items WHERE NOT ('b' = ANY (tags)) ORDER BY id
SELECT tags || 'z' FROM items ORDER BY id
SELECT 'z' || tags FROM items ORDER BY id
SELECT tags || ARRAY['z'], nums || 9::int8, nums || ARRAY[9]::int8[] FROM items ORDER BY id
SELECT ARRAY[1, 2] || 3, 0 || ARRAY[1, 2], ARRAY[1] || ARRAY[2, 3], ARRAY[1, 2] || NULL
SELECT tags || NULL FROM items ORDER BY id
SELECT array_append(tags, 'x'), array_prepend('x', tags), array_cat(tags, ARRAY['y']) FROM items ORDER BY id
SELECT array_remove(tags, 'b'), array_replace(tags, 'b', 'q'), array_position(tags, 'b'), array_positions(tags, 'b') FROM items ORDER BY id
SELECT array_length(tags, 1), cardinality(tags), array_upper(nums, 1), array_lower(nums, 1), array_ndims(nums), array_dims(nums) FROM items ORDER BY id
SELECT tags[1], tags[2], tags[9], tags[0], tags[-1], nums[1] FROM items ORDER BY id
SELECT tags[1:2], tags[2:], tags[:1], nums[2:9] FROM items ORDER BY id
-- differs: a text that PostgreSQL does not read is answered
SELECT ARRAY[1, 2, 3][2]
SELECT (ARRAY[1, 2, 3])[2:3], (ARRAY[1, 2, 3])[2]
-- differs: an array of arrays is jsonb
SELECT ARRAY[[1, 2], [3, 4]]
SELECT ARRAY[1, NULL, 3], ARRAY[]::int[], '{1,2}'::int[], '{a,"b c",NULL}'::text[], '{}'::text[]
SELECT '{1,x}'::int[]
SELECT '{1,2'::int[]
-- differs: an array of arrays as a constant is refused
SELECT '{{1,2},{3,4}}'::int[]
SELECT ARRAY[1, 2] = ARRAY[1, 2], ARRAY[1, 2] < ARRAY[1, 3], ARRAY[1] < ARRAY[1, 2], ARRAY[1, 2] <> ARRAY[2, 1]
SELECT tags = ARRAY['a', 'b'], tags = '{a,b}' FROM items ORDER BY id
SELECT unnest(tags) AS u FROM items ORDER BY 1
SELECT id, count(u) FROM items LEFT JOIN LATERAL unnest(tags) u ON true GROUP BY id ORDER BY id
SELECT array_agg(u ORDER BY u) FROM items, unnest(nums) u
SELECT nums, nums::text[], nums::int4[] FROM items ORDER BY id
SELECT array_to_json(nums), to_json(tags), to_jsonb(nums) FROM items ORDER BY id
SELECT ARRAY['a', 'b']::varchar[], ARRAY[1.5, 2.5], ARRAY['2024-01-01'::date]
-- differs: all numbers of one column or array have the same digits behind the point
SELECT ARRAY[1.5, 2], ARRAY[1, 2.5]
SELECT trim_array(ARRAY[1, 2, 3], 1), generate_subscripts(ARRAY['a', 'b'], 1)
-- differs: a function that is not there
SELECT array_fill(0, ARRAY[3])
SELECT ARRAY[1, 2] @> ARRAY[]::int[], ARRAY[1, NULL] @> ARRAY[NULL]::int[], ARRAY[1, 1] <@ ARRAY[1]
SELECT ARRAY[1, 2, 3] && NULL, NULL::int[] @> ARRAY[1]
SELECT id FROM items WHERE nums = '{}' ORDER BY id
SELECT id FROM items WHERE tags IS NULL
SELECT array_agg(tags[1] ORDER BY id) FROM items
SELECT (array_agg(t ORDER BY id))[1] FROM items
SELECT string_to_array('1,2', ',')::int[]
SELECT min(u), max(u) FROM items, unnest(nums) AS u
SELECT x FROM unnest('{3,1,2}'::int[]) x ORDER BY x
SELECT array(SELECT n FROM items ORDER BY id), array(SELECT id FROM items WHERE false)
