-- source: Grafana, public/app/plugins/datasource/grafana-postgresql-datasource/postgresMetaQuery.ts; macros as pkg/tsdb/grafana-postgresql-datasource/macros.go writes them

-- name: version
SELECT current_setting('server_version_num')::int/100 as version
;;

-- name: timescale
SELECT extversion FROM pg_extension WHERE extname = 'timescaledb'
;;

-- name: schemas
SELECT schema_name AS "name"
    FROM information_schema.schemata
    WHERE schema_name NOT IN ('information_schema',
                              'pg_catalog',
                              'pg_toast',
                              '_timescaledb_cache',
                              'timescaledb_experimental')
    ORDER BY schema_name
;;

-- name: tables of a schema
SELECT quote_ident(table_name) AS "table"
      FROM information_schema.tables
      WHERE quote_ident(table_schema) = 'shop'
      ORDER BY 1
;;

-- name: tables
SELECT
    CASE WHEN 
          quote_ident(table_schema) IN (
          SELECT
            CASE WHEN trim(s[i]) = '"$user"' THEN user ELSE trim(s[i]) END
          FROM
            generate_series(
              array_lower(string_to_array(current_setting('search_path'),','),1),
              array_upper(string_to_array(current_setting('search_path'),','),1)
            ) as i,
            string_to_array(current_setting('search_path'),',') s
          )
      THEN quote_ident(table_name)
      ELSE quote_ident(table_schema) || '.' || quote_ident(table_name)
    END AS "table"
    FROM information_schema.tables
    WHERE quote_ident(table_schema) NOT IN ('information_schema',
                             'pg_catalog')
    ORDER BY CASE WHEN 
          quote_ident(table_schema) IN (
          SELECT
            CASE WHEN trim(s[i]) = '"$user"' THEN user ELSE trim(s[i]) END
          FROM
            generate_series(
              array_lower(string_to_array(current_setting('search_path'),','),1),
              array_upper(string_to_array(current_setting('search_path'),','),1)
            ) as i,
            string_to_array(current_setting('search_path'),',') s
          ) THEN 0 ELSE 1 END, 1
;;

-- name: columns
SELECT quote_ident(column_name) AS "column", data_type AS "type"
    FROM information_schema.columns
    WHERE
      CASE WHEN array_length(parse_ident('shop.orders'),1) = 2
        THEN quote_ident(table_schema) = (parse_ident('shop.orders'))[1]
          AND quote_ident(table_name) = (parse_ident('shop.orders'))[2]
        ELSE quote_ident(table_name) = 'shop.orders'
          AND 
          quote_ident(table_schema) IN (
          SELECT
            CASE WHEN trim(s[i]) = '"$user"' THEN user ELSE trim(s[i]) END
          FROM
            generate_series(
              array_lower(string_to_array(current_setting('search_path'),','),1),
              array_upper(string_to_array(current_setting('search_path'),','),1)
            ) as i,
            string_to_array(current_setting('search_path'),',') s
          )
      END
;;

-- name: $__timeGroupAlias and $__timeFilter
SELECT floor(extract(epoch from ts)/300)*300 AS "time", avg(amount) AS "value" FROM shop.orders WHERE ts BETWEEN '2026-11-20T10:00:00Z' AND '2026-11-20T16:00:00Z' GROUP BY 1 ORDER BY 1
;;

-- name: $__unixEpochFilter
SELECT extract(epoch from ts) as "time", order_id FROM shop.orders WHERE order_id >= 1732096800 AND order_id <= 1732118400 LIMIT 50
;;
