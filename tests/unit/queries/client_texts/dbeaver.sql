-- source: DBeaver 24, plugins/org.jkiss.dbeaver.ext.postgresql, PostgreDataSource, PostgreDatabase, PostgreSchema, PostgreDataType

-- name: current database
SELECT current_database()
;;

-- name: databases
-- differs: other users, owners and databases
SELECT db.oid,db.* FROM pg_catalog.pg_database db WHERE 1 = 1 AND datallowconn AND NOT datistemplate 
ORDER BY db.datname
;;

-- name: database
-- differs: other users, owners and databases
SELECT db.oid,db.* FROM pg_catalog.pg_database db WHERE datname=current_database()
;;

-- name: version
-- differs: another version
SELECT version()
;;

-- name: exists
SELECT * FROM pg_catalog.pg_enum WHERE 1<>1 LIMIT 1
;;

-- name: typcategory
SELECT typcategory FROM pg_catalog.pg_type WHERE 1<>1 LIMIT 1
;;

-- name: session
-- differs: other users, owners and databases
SELECT current_schema(),session_user
;;

-- name: description of the database
select description from pg_shdescription join pg_database on objoid = pg_database.oid where datname = 'shop'
;;

-- name: roles
-- differs: other users, owners and databases
SELECT a.oid,a.*,pd.description FROM pg_catalog.pg_roles a 
left join pg_catalog.pg_shdescription pd on a.oid = pd.objoid
ORDER BY a.rolname
;;

-- name: access methods
-- differs: regproc columns are numbers, not names
SELECT am.oid,am.* FROM pg_catalog.pg_am am 
ORDER BY am.oid
;;

-- name: encodings
-- differs: objects that a lake does not have
SELECT c.contoencoding as encid,pg_catalog.pg_encoding_to_char(c.contoencoding) as encname
FROM pg_catalog.pg_conversion c
GROUP BY c.contoencoding
ORDER BY 2

;;

-- name: collations
-- differs: objects that a lake does not have
SELECT c.oid,c.* FROM pg_catalog.pg_collation c 
ORDER BY c.oid
;;

-- name: languages
-- differs: objects that a lake does not have
SELECT l.oid,l.* FROM pg_catalog.pg_language l 
ORDER BY l.oid
;;

-- name: foreign servers
SELECT l.oid,l.* FROM pg_catalog.pg_foreign_server l
ORDER BY l.srvname
;;

-- name: foreign data wrappers
SELECT l.oid,l.*,p.pronamespace as handler_schema_id 
FROM pg_catalog.pg_foreign_data_wrapper l
LEFT OUTER JOIN pg_catalog.pg_proc p ON p.oid=l.fdwhandler 
ORDER BY l.fdwname
;;

-- name: tablespaces
SELECT t.oid,t.*,pg_tablespace_location(t.oid) loc
FROM pg_catalog.pg_tablespace t 
ORDER BY t.oid
;;

-- name: available extensions
-- differs: objects that a lake does not have
SELECT name,default_version,installed_version,comment FROM pg_catalog.pg_available_extensions ORDER BY name
;;

-- name: event triggers
SELECT pet.*, d.description FROM pg_catalog.pg_event_trigger pet
LEFT OUTER JOIN pg_catalog.pg_description d ON pet."oid" = d.objoid
;;

-- name: extensions
-- differs: objects that a lake does not have
SELECT 
 e.oid,
 cfg.tbls,
  n.nspname as schema_name,
 e.* 
FROM 
 pg_catalog.pg_extension e 
 join pg_namespace n on n.oid =e.extnamespace
 left join  (
         select
            ARRAY_AGG(ns.nspname || '.' ||  cls.relname) tbls, oid_ext
          from
            (
            select
                unnest(e1.extconfig) oid , e1.oid oid_ext
            from
                pg_catalog.pg_extension e1 ) c 
                join    pg_class cls on cls.oid = c.oid 
                join pg_namespace ns on ns.oid = cls.relnamespace
            group by oid_ext        
         ) cfg on cfg.oid_ext = e.oid
ORDER BY e.oid
;;

-- name: schemas
-- differs: objects that a lake does not have
SELECT n.oid,n.*,d.description FROM pg_catalog.pg_namespace n
LEFT OUTER JOIN pg_catalog.pg_description d ON d.objoid=n.oid AND d.objsubid=0 AND d.classoid='pg_namespace'::regclass
 ORDER BY nspname
;;

-- name: types
-- differs: regproc columns are numbers, not names
SELECT t.oid,t.*,c.relkind,format_type(nullif(t.typbasetype, 0), t.typtypmod) as base_type_name, d.description
FROM pg_catalog.pg_type t
LEFT OUTER JOIN pg_catalog.pg_type et ON et.oid=t.typelem 
LEFT OUTER JOIN pg_catalog.pg_class c ON c.oid=t.typrelid
LEFT OUTER JOIN pg_catalog.pg_description d ON t.oid=d.objoid
WHERE t.typname IS NOT NULL
AND (c.relkind IS NULL OR c.relkind = 'c') AND (et.typcategory IS NULL OR et.typcategory <> 'C')
;;

-- name: inheritance
SELECT i.inhrelid relid, pc.relnamespace parent_ns, pc.oid parent_oid, i.inhseqno
FROM pg_catalog.pg_inherits i, pg_class rc, pg_class pc
WHERE rc.oid=i.inhrelid AND rc.relnamespace={shop} AND pc.oid=i.inhparent
;;

-- name: sizes
-- differs: sizes and numbers of rows are unknown
select c.oid,pg_catalog.pg_total_relation_size(c.oid) as total_rel_size,pg_catalog.pg_relation_size(c.oid) as rel_size
FROM pg_class c
WHERE c.relnamespace={shop}
;;

-- name: default privileges
SELECT * FROM pg_default_acl WHERE defaclnamespace = {shop}
;;

-- name: aggregates
SELECT p.oid AS proc_oid,p.proname AS proc_name,a.*
FROM pg_catalog.pg_aggregate a,pg_catalog.pg_proc p
WHERE p.oid=a.aggfnoid AND p.pronamespace={shop}
ORDER BY p.proname
;;

-- name: tables
-- differs: sizes and numbers of rows are unknown
SELECT c.oid,c.*,d.description,pg_catalog.pg_get_expr(c.relpartbound, c.oid) as partition_expr,  pg_catalog.pg_get_partkeydef(c.oid) as partition_key 
FROM pg_catalog.pg_class c
LEFT OUTER JOIN pg_catalog.pg_description d ON d.objoid=c.oid AND d.objsubid=0 AND d.classoid='pg_class'::regclass
WHERE c.relnamespace={shop} AND c.relkind not in ('i','I','c')
;;

-- name: columns
-- differs: objects that a lake does not have
SELECT c.relname,a.*,pg_catalog.pg_get_expr(ad.adbin, ad.adrelid, true) as def_value,dsc.description,dep.objid
FROM pg_catalog.pg_attribute a
INNER JOIN pg_catalog.pg_class c ON (a.attrelid=c.oid)
LEFT OUTER JOIN pg_catalog.pg_attrdef ad ON (a.attrelid=ad.adrelid AND a.attnum = ad.adnum)
LEFT OUTER JOIN pg_catalog.pg_description dsc ON (c.oid=dsc.objoid AND a.attnum = dsc.objsubid)
LEFT OUTER JOIN pg_depend dep on dep.refobjid = a.attrelid AND dep.deptype = 'i' and dep.refobjsubid = a.attnum and dep.classid = dep.refclassid
WHERE NOT a.attisdropped AND c.relkind not in ('i','I','c') AND c.oid={orders}
ORDER BY a.attnum
;;

-- name: constraints
SELECT c.oid,c.*,t.relname as tabrelname,rt.relnamespace as refnamespace,d.description, case when c.contype='c' then "substring"(pg_get_constraintdef(c.oid), 7) else null end consrc_copy
FROM pg_catalog.pg_constraint c
INNER JOIN pg_catalog.pg_class t ON t.oid=c.conrelid
LEFT OUTER JOIN pg_catalog.pg_class rt ON rt.oid=c.confrelid
LEFT OUTER JOIN pg_catalog.pg_description d ON d.objoid=c.oid AND d.objsubid=0 AND d.classoid='pg_constraint'::regclass
WHERE t.relnamespace={shop}
ORDER BY c.oid
;;

-- name: indexes
-- differs: sizes and numbers of rows are unknown
SELECT i.*,i.indkey as keys,c.relname,c.relnamespace,c.relam,c.reltablespace,tc.relname as tabrelname,dsc.description,pg_catalog.pg_get_expr(i.indpred, i.indrelid) as pred_expr,pg_catalog.pg_get_expr(i.indexprs, i.indrelid, true) as expr,pg_catalog.pg_relation_size(i.indexrelid) as index_rel_size,pg_catalog.pg_stat_get_numscans(i.indexrelid) as index_num_scans
FROM pg_catalog.pg_index i
INNER JOIN pg_catalog.pg_class c ON c.oid=i.indexrelid
INNER JOIN pg_catalog.pg_class tc ON tc.oid=i.indrelid
LEFT OUTER JOIN pg_catalog.pg_description dsc ON i.indexrelid=dsc.objoid
WHERE  i.indrelid={orders} ORDER BY c.relname
;;

-- name: index column
select pg_catalog.pg_get_indexdef({orders_pkey}, 1, true)
;;

-- name: procedures
SELECT p.oid as poid,p.*,pg_catalog.pg_get_expr(p.proargdefaults, 0) as arg_defaults,d.description
FROM pg_catalog.pg_proc p
LEFT OUTER JOIN pg_catalog.pg_description d ON d.objoid=p.oid and d.classoid='pg_proc'::regclass  AND d.objsubid = 0
WHERE p.pronamespace={shop}
ORDER BY p.proname
;;

-- name: settings
-- differs: a setting
select * from pg_catalog.pg_settings where name='standard_conforming_strings'
;;

-- name: columns of a type
SELECT c.relname,row_number() OVER (ORDER BY a.attnum) as attnum,a.*,pg_catalog.pg_get_expr(ad.adbin, ad.adrelid, true) as def_value,dsc.description
FROM pg_catalog.pg_attribute a
INNER JOIN pg_catalog.pg_class c ON (a.attrelid=c.oid)
LEFT OUTER JOIN pg_catalog.pg_attrdef ad ON (a.attrelid=ad.adrelid AND a.attnum = ad.adnum)
LEFT OUTER JOIN pg_catalog.pg_description dsc ON (c.oid=dsc.objoid AND a.attnum = dsc.objsubid)
WHERE a.attnum > 0 AND NOT a.attisdropped AND c.oid={orders}
ORDER BY a.attnum
;;

-- name: sessions
-- differs: objects that a lake does not have
SELECT sa.* FROM pg_catalog.pg_stat_activity sa
;;

-- name: members of a role
SELECT * FROM pg_catalog.pg_auth_members WHERE member=10
;;

-- name: permissions of a role
-- differs: other users, owners and databases
SELECT * FROM information_schema.table_privileges WHERE table_catalog='shop' AND grantee='ann'
;;

-- name: triggers
SELECT x.oid,x.*,p.pronamespace AS func_schema_id,d.description
FROM pg_catalog.pg_trigger x
LEFT OUTER JOIN pg_catalog.pg_proc p ON p.oid=x.tgfoid 
LEFT OUTER JOIN pg_catalog.pg_description d ON d.objoid=x.oid AND d.objsubid=0 
WHERE x.tgrelid={orders} AND NOT x.tgisinternal
;;

-- name: rules
SELECT x.oid,x.* FROM pg_catalog.pg_rewrite x WHERE x.ev_class={orders} AND x.rulename <> '_RETURN'
;;

-- name: policies
SELECT *,pg_catalog.pg_get_expr(polqual, polrelid) as polqual_expr,pg_catalog.pg_get_expr(polwithcheck, polrelid) as polwithcheck_expr FROM pg_catalog.pg_policy WHERE polrelid={orders}
;;

-- name: search of tables
SELECT pc.oid,pc.relname,pc.relnamespace,pc.relkind FROM pg_catalog.pg_class pc 
LEFT JOIN pg_catalog.pg_description pd ON pc.oid = pd.objoid AND pd.objsubid = 0 
WHERE pc.relkind in('r','v','m','f','p') AND (pc.relname ILIKE '%ord%' OR pd.description ILIKE '%ord%') AND pc.relnamespace IN ({shop}) ORDER BY pc.relname LIMIT 100
;;

-- name: search of columns
SELECT x.attname,x.attrelid,x.atttypid,c.relnamespace FROM pg_catalog.pg_attribute x, pg_catalog.pg_class c 
WHERE c.oid=x.attrelid AND x.attname ILIKE '%ord%' AND c.relnamespace IN ({shop}) AND c.relkind = 'r' ORDER BY x.attname LIMIT 100
;;

-- name: dependencies
-- differs: objects that a lake does not have
SELECT DISTINCT dep.deptype, dep.classid, dep.objid, cl.relkind, attr.attname, pg_get_expr(ad.adbin, ad.adrelid) adefval, 
CASE WHEN cl.relkind IS NOT NULL THEN cl.relkind::text || COALESCE(dep.objsubid::text, '') WHEN tg.oid IS NOT NULL THEN 'T'::text WHEN ty.oid IS NOT NULL THEN 'y'::text WHEN ns.oid IS NOT NULL THEN 'n'::text WHEN pr.oid IS NOT NULL THEN 'p'::text WHEN la.oid IS NOT NULL THEN 'l'::text WHEN rw.oid IS NOT NULL THEN 'R'::text WHEN co.oid IS NOT NULL THEN 'C'::text || contype::text WHEN ad.oid IS NOT NULL THEN 'A'::text ELSE '' END AS type, 
COALESCE(coc.relname, clrw.relname) AS ownertable, 
CASE WHEN cl.relname IS NOT NULL AND att.attname IS NOT NULL THEN cl.relname || '.' || att.attname ELSE COALESCE(cl.relname, co.conname, pr.proname, tg.tgname, ty.typname, la.lanname, rw.rulename, ns.nspname) END AS refname, 
COALESCE(nsc.nspname, nso.nspname, nsp.nspname, nst.nspname, nsrw.nspname) AS nspname 
FROM pg_depend dep 
LEFT JOIN pg_class cl ON dep.objid=cl.oid 
LEFT JOIN pg_attribute att ON dep.objid=att.attrelid AND dep.objsubid=att.attnum 
LEFT JOIN pg_namespace nsc ON cl.relnamespace=nsc.oid 
LEFT JOIN pg_proc pr ON dep.objid=pr.oid 
LEFT JOIN pg_namespace nsp ON pr.pronamespace=nsp.oid 
LEFT JOIN pg_trigger tg ON dep.objid=tg.oid 
LEFT JOIN pg_type ty ON dep.objid=ty.oid 
LEFT JOIN pg_namespace nst ON ty.typnamespace=nst.oid 
LEFT JOIN pg_constraint co ON dep.objid=co.oid 
LEFT JOIN pg_class coc ON co.conrelid=coc.oid 
LEFT JOIN pg_namespace nso ON co.connamespace=nso.oid 
LEFT JOIN pg_rewrite rw ON dep.objid=rw.oid 
LEFT JOIN pg_class clrw ON clrw.oid=rw.ev_class 
LEFT JOIN pg_namespace nsrw ON clrw.relnamespace=nsrw.oid 
LEFT JOIN pg_language la ON dep.objid=la.oid 
LEFT JOIN pg_namespace ns ON dep.objid=ns.oid 
LEFT JOIN pg_attrdef ad ON ad.oid=dep.objid 
LEFT JOIN pg_attribute attr ON attr.attrelid=ad.adrelid AND attr.attnum=ad.adnum 
WHERE dep.refobjid={orders} 
ORDER BY type
;;

-- name: locks
-- differs: objects that a lake does not have
SELECT blocked_locks.pid AS blocked_pid, blocked_activity.usename AS blocked_user, blocking_locks.pid AS blocking_pid, blocking_activity.usename AS blocking_user, blocked_activity.query AS blocked_statement, blocking_activity.query AS statement_in
FROM pg_catalog.pg_locks blocked_locks
JOIN pg_catalog.pg_stat_activity blocked_activity ON blocked_activity.pid = blocked_locks.pid
JOIN pg_catalog.pg_locks blocking_locks ON blocking_locks.locktype = blocked_locks.locktype AND blocking_locks.DATABASE IS NOT DISTINCT FROM blocked_locks.DATABASE AND blocking_locks.relation IS NOT DISTINCT FROM blocked_locks.relation AND blocking_locks.pid != blocked_locks.pid
JOIN pg_catalog.pg_stat_activity blocking_activity ON blocking_activity.pid = blocking_locks.pid
WHERE NOT blocked_locks.GRANTED
;;

-- name: size of the database
-- differs: sizes and numbers of rows are unknown
SELECT pg_catalog.pg_database_size('shop')
;;

-- name: size of a tablespace
-- differs: sizes and numbers of rows are unknown
SELECT pg_catalog.pg_tablespace_size(1663)
;;

-- name: view definition
SELECT pg_catalog.pg_get_viewdef({orders}, true)
;;
