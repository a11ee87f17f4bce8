-- source: node-postgres, pg8000, Flyway, Tableau, Superset and pools: short texts on connect

-- name: node-postgres
-- differs: the clock
SELECT NOW()
;;

-- name: node-postgres types
SELECT typname, oid, typarray FROM pg_type WHERE typname = 'hstore' OR typname = 'int8'
;;

-- name: Flyway schema exists
SELECT EXISTS (
  SELECT 1
  FROM   pg_namespace
  WHERE  nspname = 'shop'
)
;;

-- name: Flyway table exists
SELECT EXISTS (
  SELECT 1
  FROM   information_schema.tables 
  WHERE  table_schema = 'shop'
  AND    table_name = 'flyway_schema_history'
)
;;

-- name: Flyway empty
SELECT EXISTS (
    SELECT c.oid FROM pg_catalog.pg_class c
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    LEFT JOIN pg_catalog.pg_depend d ON d.objid = c.oid AND d.deptype = 'e'
    WHERE  n.nspname = 'shop' AND d.objid IS NULL AND c.relkind IN ('r', 'v', 'S', 't')
  UNION ALL
    SELECT t.oid FROM pg_catalog.pg_type t
    JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
    LEFT JOIN pg_catalog.pg_depend d ON d.objid = t.oid AND d.deptype = 'e'
    WHERE n.nspname = 'shop' AND d.objid IS NULL AND t.typcategory NOT IN ('A', 'C')
)
;;

-- name: Flyway user
-- differs: other users, owners and databases
SELECT current_user
;;

-- name: Flyway schema
SELECT current_schema
;;

-- name: Superset
SELECT 1
;;

-- name: pools
SELECT 1 FROM pg_catalog.pg_class LIMIT 1
;;

-- name: Superset schemas
SELECT nspname FROM pg_namespace WHERE nspname NOT LIKE 'pg\_%' ORDER BY nspname
;;

-- name: Superset time grain
SELECT DATE_TRUNC('week', ts) AS __timestamp, COUNT(*) AS count FROM shop.orders GROUP BY DATE_TRUNC('week', ts) ORDER BY count DESC LIMIT 10000
;;

-- name: Tableau
SELECT CAST(EXTRACT(YEAR FROM "orders"."ts") AS INTEGER) AS "yr:ts:ok", SUM("orders"."amount") AS "sum:amount:ok" FROM "shop"."orders" "orders" GROUP BY 1
;;

-- name: psqlODBC tables
select n.nspname, c.relname, c.relkind from pg_catalog.pg_class c, pg_catalog.pg_namespace n where c.relkind in ('r', 'v', 'm', 'f', 'p') and c.relname like 'orders' and n.nspname = E'shop' and n.nspname !~ '^pg_|^information_schema$' and n.oid = c.relnamespace order by nspname, relname
;;

-- name: psqlODBC columns
select n.nspname, c.relname, a.attname, a.atttypid, t.typname, a.attnum, a.attlen, a.atttypmod, a.attnotnull, c.relhasrules, c.relkind, c.oid, pg_get_expr(d.adbin, d.adrelid), case t.typtype when 'd' then t.typbasetype else 0 end, t.typtypmod, 0, attidentity, c.relhassubclass from (((pg_catalog.pg_class c inner join pg_catalog.pg_namespace n on n.oid = c.relnamespace and c.relname like E'orders' and n.nspname like E'shop') inner join pg_catalog.pg_attribute a on (not a.attisdropped) and a.attnum > 0 and a.attrelid = c.oid) inner join pg_catalog.pg_type t on t.oid = a.atttypid) left outer join pg_attrdef d on a.atthasdef and d.adrelid = a.attrelid and d.adnum = a.attnum order by n.nspname, c.relname, attnum
;;

-- name: psqlODBC keys
select ta.attname, ia.attnum, ic.relname, n.nspname, tc.relname from pg_catalog.pg_attribute ta, pg_catalog.pg_attribute ia, pg_catalog.pg_class tc, pg_catalog.pg_index i, pg_catalog.pg_namespace n, pg_catalog.pg_class ic where tc.relname = 'orders' AND n.nspname = 'shop' AND tc.oid = i.indrelid AND n.oid = tc.relnamespace AND i.indisprimary = 't' AND ia.attrelid = i.indexrelid AND ta.attrelid = i.indrelid AND ta.attnum = i.indkey[ia.attnum-1] AND (NOT ta.attisdropped) AND (NOT ia.attisdropped) AND ic.oid = i.indexrelid order by ia.attnum
;;

-- name: dbt relations
select
      'shop' as database,
      tablename as name,
      schemaname as schema,
      'table' as type
    from pg_tables
    where schemaname ilike 'shop'
    union all
    select
      'shop' as database,
      viewname as name,
      schemaname as schema,
      'view' as type
    from pg_views
    where schemaname ilike 'shop'
;;

-- name: dbt columns
select
          column_name,
          data_type,
          character_maximum_length,
          numeric_precision,
          numeric_scale

      from "shop".INFORMATION_SCHEMA.columns
      where table_name = 'orders'
        
        and table_schema = 'shop'
        
      order by ordinal_position
;;

-- name: dbt schemas
-- differs: objects that a lake does not have
select distinct nspname from pg_namespace
;;

-- name: Superset cancel
-- differs: objects that a lake does not have
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid='12'
;;

-- name: Tableau encoding and identifiers
SELECT current_setting('max_identifier_length'), current_setting('server_encoding')
;;

-- name: SQLTools and Redash columns
SELECT s.nspname as table_schema, c.relname as table_name, a.attname as column_name, null as data_type
FROM pg_class c JOIN pg_namespace s ON c.relnamespace = s.oid AND s.nspname NOT IN ('pg_catalog', 'information_schema')
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.relkind = 'm'
UNION
SELECT table_schema, table_name, column_name, data_type FROM information_schema.columns WHERE table_schema NOT IN ('pg_catalog', 'information_schema')
;;

-- name: Superset comments of columns
SELECT c.column_name, pgd.description FROM information_schema.columns c
LEFT JOIN pg_catalog.pg_statio_all_tables st ON st.schemaname = c.table_schema AND st.relname = c.table_name
LEFT JOIN pg_catalog.pg_description pgd ON pgd.objoid = st.relid AND pgd.objsubid = c.ordinal_position
WHERE c.table_schema = 'shop' AND c.table_name = 'orders'
;;
