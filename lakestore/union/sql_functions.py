"""The functions of DuckDB that a query may call: an allow list by name, grouped by the reason for admission.

- A function in no group is refused. So a function that a newer DuckDB adds is refused until somebody lists it. A test
  compares the lists with `duckdb_functions()`.
- A function is admitted if its result depends on its arguments alone, or if it is in CLOCK, CHANCE or SESSION.
- A macro is admitted if its body calls admitted functions only. A test reads the bodies.
"""

from __future__ import annotations


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


OPERATORS = _names(
    "!__postfix !~~ !~~* % & && * ** + - -> ->> / // <-> <=> <@ << >> @ @> ^ ^@ | || ~ ~~ ~~* ~~~ add subtract"
    " multiply divide mod xor not_like_escape not_ilike_escape like_escape ilike_escape"
)
NUMBERS = _names(
    "abs acos acosh asin asinh atan atan2 atanh bit_count bit_length bit_position bitstring cbrt ceil ceiling cos"
    " cosh cot degrees even exp factorial fdiv floor fmod gamma gcd get_bit greatest_common_divisor isfinite isinf"
    " isnan lcm least_common_multiple lgamma ln log log10 log2 nextafter pi pow power radians round round_even"
    " roundbankers set_bit sign signbit sin sinh sqrt tan tanh trunc format_bytes formatreadabledecimalsize"
    " formatreadablesize parse_formatted_bytes pg_size_pretty equi_width_bins is_histogram_other_bin to_base"
)
TEXTS = _names(
    "ascii bar base64 bin char_length character_length chr concat concat_ws contains damerau_levenshtein decode"
    " editdist3 encode ends_with format from_base64 from_binary from_hex hamming hash hex instr jaccard"
    " jaro_similarity jaro_winkler_similarity lcase left left_grapheme len length length_grapheme levenshtein"
    " lower lpad ltrim md5 md5_number md5_number_lower md5_number_upper mismatches nfc_normalize octet_length ord"
    " parse_dirname parse_dirpath parse_filename parse_path position prefix printf regexp_escape regexp_extract"
    " regexp_extract_all regexp_full_match regexp_matches regexp_replace regexp_split_to_array repeat replace"
    " reverse right right_grapheme rpad rtrim sha1 sha256 split split_part starts_with str_split str_split_regex"
    " string_split string_split_regex string_to_array strip_accents strlen strpos substr substring"
    " substring_grapheme suffix to_base64 to_binary to_hex translate trim ucase unbin unhex unicode upper"
    " url_decode url_encode icu_sort_key"
)
"""Texts and bytes. The path functions split a text at its slashes and open no file."""
TIMES = _names(
    "age century date_add date_diff date_part date_sub date_trunc datediff datepart datesub datetrunc day dayname"
    " dayofmonth dayofweek dayofyear days_in_month decade epoch epoch_ms epoch_ns epoch_us era hour isodow isoyear"
    " julian last_day make_date make_time make_timestamp make_timestamp_ms make_timestamp_ns make_timestamptz"
    " microsecond millennium millisecond minute month monthname nanosecond normalized_interval quarter second"
    " strftime strptime time_bucket timezone timezone_hour timezone_minute to_centuries to_days to_decades"
    " to_hours to_microseconds to_millennia to_milliseconds to_minutes to_months to_quarters to_seconds"
    " to_timestamp to_weeks to_years try_strptime uuid_extract_timestamp uuid_extract_version week weekday"
    " weekofyear year yearweek"
)
CLOCK = _names(
    "ago current_date current_localtime current_localtimestamp get_current_time get_current_timestamp now today"
    " transaction_timestamp"
)
"""The time of the query, which is no secret."""
CHANCE = _names("gen_random_uuid random setseed uuid uuidv4 uuidv7")
"""Random values. Their state belongs to the connection, which ends with the query."""
AGGREGATE_BY_NAME = _names("aggregate array_aggr array_aggregate list_aggr list_aggregate")
"""Functions whose second argument names an aggregate. It must be a constant that is in AGGREGATES."""
LISTS = _names(
    "apply array_append array_apply array_cat array_concat array_contains array_cosine_distance"
    " array_cosine_similarity array_cross_product array_distance array_distinct array_dot_product array_extract"
    " array_filter array_grade_up array_has array_has_all array_has_any array_indexof array_inner_product"
    " array_intersect array_length array_negative_dot_product array_negative_inner_product array_pop_back"
    " array_pop_front array_position array_prepend array_push_back array_push_front array_reduce array_resize"
    " array_reverse array_reverse_sort array_select array_slice array_sort array_to_string"
    " array_to_string_comma_default array_transform array_unique array_value array_where array_zip filter flatten"
    " generate_series grade_up list_any_value list_append list_apply list_approx_count_distinct list_avg"
    " list_bit_and list_bit_or list_bit_xor list_bool_and list_bool_or list_cat list_concat list_contains"
    " list_cosine_distance list_cosine_similarity list_count list_distance list_distinct list_dot_product"
    " list_element list_entropy list_extract list_filter list_first list_grade_up list_has list_has_all"
    " list_has_any list_histogram list_indexof list_inner_product list_intersect list_kurtosis list_kurtosis_pop"
    " list_last list_mad list_max list_median list_min list_mode list_negative_dot_product"
    " list_negative_inner_product list_pack list_position list_prepend list_product list_reduce list_resize"
    " list_reverse list_reverse_sort list_select list_sem list_skewness list_slice list_sort list_stddev_pop"
    " list_stddev_samp list_string_agg list_sum list_transform list_unique list_value list_var_pop list_var_samp"
    " list_where list_zip range reduce unpivot_list"
)
ROWS = _names("generate_subscripts regexp_split_to_table unnest")
"""Functions that return several rows for one."""
STRUCTS = _names(
    "cardinality element_at map map_concat map_contains map_contains_entry map_contains_value map_entries"
    " map_extract map_extract_value map_from_entries map_keys map_values row struct_concat struct_contains"
    " struct_extract struct_extract_at struct_has struct_indexof struct_insert struct_keys struct_pack"
    " struct_position struct_update struct_values union_extract union_tag union_value variant_extract"
    " variant_normalize variant_typeof enum_code enum_first enum_last enum_range enum_range_boundary"
)
"""Structs, maps, unions, variants and enumerations."""
JSON = _names(
    "array_to_json from_json from_json_strict json json_array json_array_length json_contains json_exists"
    " json_extract json_extract_path json_extract_path_text json_extract_string json_keys json_merge_patch"
    " json_object json_pretty json_quote json_structure json_transform json_transform_strict json_type json_valid"
    " json_value row_to_json to_json"
)
CHOICES = _names("alias can_cast_implicitly constant_or_null error greatest least nullif switch typeof pg_typeof")
"""Choices between values, and facts about a value's type."""
SESSION = _names(
    "current_catalog current_database current_query current_role current_schema current_schemas current_user"
    " in_search_path session_user user version"
)
"""Names that are the same for every query, the query's text, and DuckDB's version."""
POSTGRES = _names(
    "col_description format_pg_type format_type has_any_column_privilege has_column_privilege"
    " has_database_privilege has_foreign_data_wrapper_privilege has_function_privilege has_language_privilege"
    " has_schema_privilege has_sequence_privilege has_server_privilege has_table_privilege"
    " has_tablespace_privilege inet_client_addr inet_client_port inet_server_addr inet_server_port map_to_pg_oid"
    " obj_description pg_collation_is_visible pg_conf_load_time pg_conversion_is_visible pg_function_is_visible"
    " pg_get_constraintdef pg_get_expr pg_has_role pg_is_other_temp_schema pg_my_temp_schema pg_opclass_is_visible"
    " pg_operator_is_visible pg_opfamily_is_visible pg_postmaster_start_time pg_table_is_visible"
    " pg_ts_config_is_visible pg_ts_dict_is_visible pg_ts_parser_is_visible pg_ts_template_is_visible"
    " pg_type_is_visible shobj_description"
)
"""Macros for Postgres tools: constants, and reads of the catalog tables below."""
AGGREGATES = _names(
    "any_value approx_count_distinct approx_quantile approx_top_k arbitrary arg_max arg_max_null"
    " arg_max_nulls_last arg_min arg_min_null arg_min_nulls_last argmax argmin array_agg avg bit_and bit_or"
    " bit_xor bitstring_agg bool_and bool_or corr count count_if count_star countif covar_pop covar_samp entropy"
    " favg first fsum geomean geometric_mean group_concat histogram histogram_exact json_group_array"
    " json_group_object json_group_structure kahan_sum kurtosis kurtosis_pop last list listagg mad max max_by mean"
    " median min min_by mode product quantile quantile_cont quantile_disc regr_avgx regr_avgy regr_count"
    " regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy reservoir_quantile sem skewness stddev"
    " stddev_pop stddev_samp string_agg sum sum_no_overflow sumkahan var_pop var_samp variance wavg weighted_avg"
)
WINDOWS = _names(
    "cume_dist dense_rank fill first_value lag last_value lead nth_value ntile percent_rank rank rank_dense row_number"
)
SCALARS = {
    "operators": OPERATORS,
    "numbers": NUMBERS,
    "texts": TEXTS,
    "times": TIMES,
    "clock": CLOCK,
    "chance": CHANCE,
    "aggregate by name": AGGREGATE_BY_NAME,
    "lists": LISTS,
    "rows": ROWS,
    "structs": STRUCTS,
    "JSON": JSON,
    "choices": CHOICES,
    "session": SESSION,
    "Postgres": POSTGRES,
}
"""Groups of functions of one row."""
PURE = OPERATORS | NUMBERS | TEXTS | TIMES | LISTS | STRUCTS | JSON | CHOICES | AGGREGATE_BY_NAME
"""Functions of one row whose result depends on their arguments alone."""
FUNCTIONS = frozenset().union(*SCALARS.values()) | AGGREGATES | WINDOWS
"""Every function that may occur in an expression."""

CATALOG_TABLES = _names(
    "duckdb_columns duckdb_constraints duckdb_databases duckdb_functions duckdb_indexes duckdb_keywords"
    " duckdb_schemas duckdb_sequences duckdb_tables duckdb_types duckdb_dependencies"
)
"""Table functions that list names and types of the query's own connection."""
ROW_TABLES = _names(
    "generate_series icu_calendar_names json_each json_tree pg_timezone_names range repeat repeat_row unnest"
    " generate_subscripts regexp_split_to_table"
)
"""Table functions that compute rows from their arguments alone."""
TABLE_FUNCTIONS = CATALOG_TABLES | ROW_TABLES
FILE_TABLES = _names(
    "glob parquet_bloom_probe parquet_file_metadata parquet_full_metadata parquet_kv_metadata parquet_metadata"
    " parquet_scan parquet_schema read_blob read_csv read_csv_auto read_json read_json_auto read_json_objects"
    " read_json_objects_auto read_ndjson read_ndjson_auto read_ndjson_objects read_parquet read_text sniff_csv"
    " delta_scan iceberg_metadata iceberg_scan iceberg_snapshots read_avro read_xlsx"
)
"""Table functions that read files and URLs: admitted only by `external_access=True`."""

VIEWS = {
    "main": _names(
        "duckdb_columns duckdb_constraints duckdb_databases duckdb_indexes duckdb_schemas duckdb_tables"
        " duckdb_types pragma_database_list"
    ),
    "information_schema": _names(
        "character_sets check_constraints columns constraint_column_usage constraint_table_usage key_column_usage"
        " referential_constraints schemata table_constraints tables"
    ),
    "pg_catalog": _names(
        "pg_am pg_attrdef pg_attribute pg_class pg_collation pg_constraint pg_database pg_depend pg_description"
        " pg_enum pg_index pg_indexes pg_namespace pg_proc pg_sequence pg_sequences pg_tables pg_tablespace"
        " pg_type"
    ),
}
"""DuckDB's views that a query may name, by schema. A test checks that their bodies call admitted functions only."""

REFUSED = {
    "executes a text as SQL, or serialises a plan": _names(
        "json_deserialize_sql json_execute_serialized_sql json_serialize_plan json_serialize_sql query"
        " query_table histogram histogram_values"
    ),
    "takes pointers, or code of Python": _names("arrow_scan arrow_scan_dumb pandas_scan python_map_function seq_scan"),
    "reads bytes as DuckDB's own memory": _names(
        "combine create_sort_key finalize remap_struct timetz_byte_comparable variant_bytes_to_variant"
        " variant_to_parquet_variant cast_to_type get_type make_type replace_type"
    ),
    "reads or changes settings, logs, secrets or the engine's state": _names(
        "add_parquet_key checkpoint current_connection_id current_query_id current_setting current_transaction_id"
        " currval disable_logging disable_profiling duckdb_approx_database_count duckdb_connection_count"
        " duckdb_coordinate_systems duckdb_extensions duckdb_external_file_cache duckdb_log_contexts duckdb_logs"
        " duckdb_logs_parsed duckdb_memory duckdb_optimizers duckdb_prepared_statements duckdb_profiling_settings"
        " duckdb_secret_types duckdb_secrets duckdb_settings duckdb_table_sample duckdb_temporary_files"
        " duckdb_variables duckdb_views enable_logging enable_profiling force_checkpoint get_block_size"
        " getvariable nextval parse_duckdb_log_message pg_get_viewdef pragma_collations pragma_database_size"
        " pragma_metadata_info pragma_platform pragma_show pragma_storage_info pragma_table_info pragma_user_agent"
        " pragma_version stats truncate_duckdb_logs txid_current vector_type which_secret write_log"
    ),
    "reads a file of DuckDB": _names("read_duckdb"),
    "keeps a thread asleep": _names("pg_sleep sleep_ms"),
    "has no column in a lake": _names(
        "st_asbinary st_astext st_aswkb st_aswkt st_crs st_geomfromwkb st_intersects_extent st_setcrs"
    ),
    "serves DuckDB's own tests": _names("summary test_all_types test_vector_types"),
}
"""Functions that were reviewed and refused, by reason."""
REFUSED_PREFIXES = ("__internal_", "icu_collate_")
"""DuckDB's internal compression functions, which trust their input, and collations, which are written COLLATE."""
REFUSED_VIEWS = {
    "main": _names("duckdb_logs duckdb_views sqlite_master sqlite_schema sqlite_temp_master sqlite_temp_schema"),
    "information_schema": _names("views"),
    "pg_catalog": _names("pg_prepared_statements pg_settings pg_views"),
}
"""DuckDB's views that show settings or the texts of views."""
OWN_SCHEMAS = frozenset({"information_schema", "pg_catalog", "main", "temp", "system"})
"""DuckDB's own schemas."""
ENGINE_PREFIXES = ("duckdb_", "pg_", "pragma_", "sqlite_")
"""Prefixes of DuckDB's own views. A WITH part with such a name is refused unless VIEWS has the name."""
