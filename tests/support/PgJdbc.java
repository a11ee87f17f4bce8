import java.io.StringWriter;
import java.math.BigDecimal;
import java.sql.Array;
import java.sql.Connection;
import java.sql.DatabaseMetaData;
import java.sql.Date;
import java.sql.DriverManager;
import java.sql.ParameterMetaData;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.ResultSetMetaData;
import java.sql.SQLException;
import java.sql.Savepoint;
import java.sql.Statement;
import java.sql.Timestamp;
import java.sql.Types;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.time.OffsetDateTime;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.postgresql.PGConnection;
import org.postgresql.copy.CopyManager;
import org.postgresql.util.PSQLException;
import org.postgresql.util.ServerErrorMessage;

/** What PostgreSQL's own JDBC driver shows of a server, one line for each fact: address, user, password, and perhaps
 * `only=` with a pattern of the parts to run, or the options of connections to open. */
public final class PgJdbc {
    private static final String[] MODES = {"extended", "simple", "extendedForPrepared", "extendedCacheEverything"};
    private static final Map<String, int[]> THRESHOLDS = Map.of("extended", new int[] {-1, 1, 5},
            "simple", new int[] {5}, "extendedForPrepared", new int[] {1}, "extendedCacheEverything", new int[] {-1});
    private static final String EVERY = "SELECT * FROM shop.every ORDER BY id";

    private static final String ENDLESS = "SELECT count(*) FROM generate_series(1, 300000000000) n";

    private static String url;
    private static Properties keys;
    private static String only = ".*";

    public static void main(String[] said) throws Exception {
        url = "jdbc:postgresql://" + said[0];
        keys = new Properties();
        keys.put("user", said[1]);
        keys.put("password", said[2]);
        if (said.length > 3 && said[3].startsWith("only=")) {
            only = said[3].substring(5);
        } else if (said.length > 3) {
            for (int place = 3; place < said.length; place++) {
                connect(said[place]);
            }
            return;
        }
        catalog();
        section("typeinfo", PgJdbc::typeInfo);
        section("columns", PgJdbc::columnsOfResults);
        section("parameters", PgJdbc::parameters);
        for (String mode : MODES) {
            for (int threshold : THRESHOLDS.get(mode)) {
                String name = mode + "/" + threshold;
                String options = "preferQueryMode=" + mode + "&prepareThreshold=" + threshold;
                int times = threshold == 5 && !mode.equals("simple") ? 6 : 2;
                section("values/" + name, connection -> values(name, times, connection), options);
                section("given/" + name, connection -> given(name, times, connection), options);
                section("arrays/" + name, connection -> arrays(name, times, connection), options);
            }
            section("errors/" + mode, connection -> errors(mode, connection), "preferQueryMode=" + mode);
            section("pieces/" + mode, connection -> pieces(mode, connection), "preferQueryMode=" + mode);
            section("batch/" + mode, connection -> batch(mode, connection), "preferQueryMode=" + mode);
            section("several/" + mode, connection -> several(mode, connection), "preferQueryMode=" + mode);
        }
        section("zones", PgJdbc::zones);
        section("scroll", PgJdbc::scroll);
        section("limits", PgJdbc::limits);
        section("cancel", PgJdbc::cancel);
        section("transactions", PgJdbc::transactions);
        section("copy", PgJdbc::copy);
        section("state", PgJdbc::state);
        section("autosave", PgJdbc::autosave, "autosave=always");
        section("escapes", PgJdbc::escapes);
        System.out.println("end");
    }

    private interface Work {
        void run(Connection connection) throws Exception;
    }

    private interface Call {
        Object get() throws Exception;
    }

    private static Connection open(String options) throws SQLException {
        return DriverManager.getConnection(url + "?" + options, keys);
    }

    private static void section(String name, Work work) {
        section(name, work, "");
    }

    /** Run a part on a connection of its own; an error is a line. */
    private static void section(String name, Work work, String options) {
        if (!name.matches(only)) {
            return;
        }
        try (Connection connection = open(options)) {
            work.run(connection);
        } catch (Exception error) {
            say(name, "failed", state(error), error);
        }
    }

    /** Connect with some options and say who is there. */
    private static void connect(String options) {
        try (Connection connection = open(options); Statement statement = connection.createStatement();
                ResultSet set = statement.executeQuery("SELECT current_user, count(*) FROM shop.orders")) {
            set.next();
            say("connect", options, set.getString(1), set.getInt(2), connection.isValid(5));
        } catch (SQLException error) {
            say("connect", options, error.getSQLState(), error.getMessage());
        }
    }

    private static String state(Exception error) {
        return error instanceof SQLException ? ((SQLException) error).getSQLState() : error.getClass().getName();
    }

    private static void say(Object... parts) {
        List<String> texts = new ArrayList<>();
        for (Object part : parts) {
            texts.add(text(part).replace("\n", "\\n"));
        }
        System.out.println(String.join("|", texts));
    }

    /** A value with the class that the driver gives it. */
    private static String typed(Object value) throws SQLException {
        return value == null ? "null" : value.getClass().getSimpleName() + ":" + text(value);
    }

    private static String text(Object value) {
        try {
            if (value instanceof Array) {
                Array array = (Array) value;
                return array.getBaseTypeName() + Arrays.deepToString((Object[]) array.getArray());
            }
        } catch (SQLException error) {
            return "array " + error;
        }
        String text = value instanceof byte[] ? Arrays.toString((byte[]) value) : String.valueOf(value);
        return text.startsWith("[B@") ? "[B" : text;  // an array of bytes that the driver has not read
    }

    /** What a call gives, or its SQLSTATE. */
    private static String tried(Call call) {
        try {
            return typed(call.get());
        } catch (SQLException error) {
            return "error " + error.getSQLState();
        } catch (Exception error) {
            return "error " + error.getClass().getSimpleName();
        }
    }

    private static void rows(String what, ResultSet set) throws SQLException {
        ResultSetMetaData about = set.getMetaData();
        StringBuilder names = new StringBuilder();
        for (int column = 1; column <= about.getColumnCount(); column++) {
            names.append(names.length() > 0 ? "," : "").append(about.getColumnLabel(column));
        }
        say(what, "labels", names);
        while (set.next()) {
            List<Object> parts = new ArrayList<>(List.of(what));
            for (int column = 1; column <= about.getColumnCount(); column++) {
                parts.add(set.getString(column));
            }
            say(parts.toArray());
        }
        set.close();
    }

    private interface Question {
        ResultSet ask(DatabaseMetaData about) throws SQLException;
    }

    private static void asked(String what, Question question) {
        section(what, connection -> rows(what, question.ask(connection.getMetaData())));
    }

    private static void catalog() {
        section("product", connection -> product(connection.getMetaData()));
        asked("getCatalogs", about -> about.getCatalogs());
        asked("getSchemas", about -> about.getSchemas(null, "shop"));
        asked("getTableTypes", about -> about.getTableTypes());
        asked("getTables", about -> about.getTables(null, "shop", "%", null));
        asked("getTables/types", about -> about.getTables(null, "shop", "o%", new String[] {"TABLE", "VIEW"}));
        asked("getTables/views", about -> about.getTables(null, "shop", "%", new String[] {"VIEW"}));
        asked("getTables/catalog", about -> about.getTables("nothing", "shop", "%", null));
        asked("getTables/escape", about -> about.getTables(null, "shop", "or\\_ders", null));
        asked("getColumns", about -> about.getColumns(null, "shop", "%", "%"));
        asked("getColumns/one", about -> about.getColumns(null, "shop", "orders", "c%"));
        asked("getPrimaryKeys", about -> about.getPrimaryKeys(null, "shop", "orders"));
        asked("getPrimaryKeys/two", about -> about.getPrimaryKeys(null, "shop", "lines"));
        asked("getPrimaryKeys/none", about -> about.getPrimaryKeys(null, "shop", "events"));
        asked("getIndexInfo", about -> about.getIndexInfo(null, "shop", "orders", false, true));
        asked("getIndexInfo/unique", about -> about.getIndexInfo(null, "shop", "lines", true, false));
        asked("getImportedKeys", about -> about.getImportedKeys(null, "shop", "orders"));
        asked("getExportedKeys", about -> about.getExportedKeys(null, "shop", "orders"));
        asked("getCrossReference",
                about -> about.getCrossReference(null, "shop", "orders", null, "shop", "lines"));
        asked("getBestRowIdentifier", about -> about.getBestRowIdentifier(null, "shop", "lines",
                DatabaseMetaData.bestRowSession, true));
        asked("getVersionColumns", about -> about.getVersionColumns(null, "shop", "orders"));
        asked("getTablePrivileges", about -> about.getTablePrivileges(null, "shop", "orders"));
        asked("getColumnPrivileges", about -> about.getColumnPrivileges(null, "shop", "orders", "c%"));
        asked("getFunctions", about -> about.getFunctions(null, "shop", "%"));
        asked("getFunctionColumns", about -> about.getFunctionColumns(null, "shop", "%", "%"));
        asked("getProcedures", about -> about.getProcedures(null, "shop", "%"));
        asked("getProcedureColumns", about -> about.getProcedureColumns(null, "shop", "%", "%"));
        asked("getUDTs", about -> about.getUDTs(null, "shop", "%", null));
        asked("getClientInfoProperties", about -> about.getClientInfoProperties());
        asked("getSuperTables", about -> about.getSuperTables(null, "shop", "%"));
        asked("getSuperTypes", about -> about.getSuperTypes(null, "shop", "%"));
        asked("getAttributes", about -> about.getAttributes(null, "shop", "%", "%"));
    }

    private static void product(DatabaseMetaData about) throws SQLException {
        say("product", about.getDatabaseProductName(), about.getDatabaseMajorVersion(), about.getSQLKeywords());
        say("product/names", about.getIdentifierQuoteString(), about.getSearchStringEscape(),
                about.getExtraNameCharacters(), about.getSchemaTerm(), about.getCatalogTerm());
        say("product/limits", about.getMaxColumnNameLength(), about.getMaxTableNameLength(),
                about.getMaxIndexLength(), about.getMaxColumnsInTable());
        say("product/transactions", about.getDefaultTransactionIsolation(), about.supportsTransactions(),
                about.supportsTransactionIsolationLevel(Connection.TRANSACTION_SERIALIZABLE));
        say("product/user", about.getUserName(), about.isReadOnly());
    }

    /** Types with their numbers for JDBC. */
    private static void typeInfo(Connection connection) throws SQLException {
        List<String> lines = new ArrayList<>();
        ResultSet set = connection.getMetaData().getTypeInfo();
        while (set.next()) {
            lines.add(set.getString(1) + "|" + set.getString(2) + "|" + set.getString(3) + "|" + set.getString(4) + "|"
                    + set.getString(5) + "|" + set.getString(7) + "|" + set.getString(8) + "|" + set.getString(12));
        }
        lines.sort(null);
        for (String line : lines) {
            System.out.println("typeinfo|" + line);
        }
    }

    private static void columnsOfResults(Connection connection) throws SQLException {
        String[] texts = {EVERY, "SELECT order_id AS a, amount + 1 AS b, 'x' AS c, count(*) OVER () AS d FROM shop.orders o",
            "SELECT 1, 1.5, 'x', true, now(), current_date, NULL, ARRAY[1, 2]", "SELECT * FROM shop.lines",
            "SELECT l.line, o.customer FROM shop.lines l JOIN shop.orders o USING (order_id)"};
        for (String text : texts) {
            try (PreparedStatement statement = connection.prepareStatement(text)) {
                columnsOf("columns/prepared", statement.getMetaData());
            }
            try (Statement statement = connection.createStatement(); ResultSet set = statement.executeQuery(text)) {
                columnsOf("columns/result", set.getMetaData());
            }
        }
    }

    private static void columnsOf(String what, ResultSetMetaData about) throws SQLException {
        for (int column = 1; column <= about.getColumnCount(); column++) {
            say(what, column, about.getColumnName(column), about.getColumnLabel(column), about.getTableName(column),
                    about.getSchemaName(column), about.getColumnType(column), about.getColumnTypeName(column),
                    about.getColumnClassName(column), about.getPrecision(column), about.getScale(column),
                    about.getColumnDisplaySize(column), about.isNullable(column), about.isAutoIncrement(column),
                    about.isSigned(column), about.isCaseSensitive(column), about.isWritable(column));
        }
    }

    private static void parameters(Connection connection) throws SQLException {
        String[] texts = {"SELECT * FROM shop.orders WHERE order_id = ? AND customer = ? AND amount > ? AND created_at < ?",
            "SELECT ?::int4 + 1, ?::text, ?::numeric, ?::date, ?::uuid, ?::jsonb, ?::bytea, ?::bool",
            "SELECT customer FROM shop.orders WHERE order_id IN (?, ?) LIMIT ? OFFSET ?",
            "SELECT * FROM shop.orders WHERE order_id = ANY(?)", "SELECT 1"};
        for (String text : texts) {
            try (PreparedStatement statement = connection.prepareStatement(text)) {
                ParameterMetaData about = statement.getParameterMetaData();
                for (int number = 1; number <= about.getParameterCount(); number++) {
                    say("parameters", number, about.getParameterTypeName(number), about.getParameterType(number),
                            about.getParameterClassName(number), about.isSigned(number), about.isNullable(number));
                }
                say("parameters", "count", about.getParameterCount());
            }
        }
    }

    /** Every column by every getter; several times, so that the statement becomes one of the server. */
    private static void values(String mode, int times, Connection connection) throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement(EVERY)) {
            for (int time = 0; time < times; time++) {
                try (ResultSet set = statement.executeQuery()) {
                    ResultSetMetaData about = set.getMetaData();
                    while (set.next() && (time == 0 || time == times - 1)) {
                        for (int place = 1; place <= about.getColumnCount(); place++) {
                            getters("values/" + mode + "/" + time, about.getColumnName(place), set, place);
                        }
                    }
                }
            }
        }
    }

    private static void getters(String what, String name, ResultSet set, int column) {
        say(what, name, tried(() -> set.getObject(column)), tried(() -> set.getString(column)),
                tried(() -> set.getBoolean(column)), tried(() -> set.getByte(column)), tried(() -> set.getShort(column)),
                tried(() -> set.getInt(column)), tried(() -> set.getLong(column)), tried(() -> set.getFloat(column)),
                tried(() -> set.getDouble(column)), tried(() -> set.getBigDecimal(column)),
                tried(() -> set.getBytes(column)), tried(() -> set.getDate(column)), tried(() -> set.getTime(column)),
                tried(() -> set.getTimestamp(column)), tried(() -> set.getArray(column)), tried(set::wasNull));
        say(what, name, "objects", tried(() -> set.getObject(column, String.class)),
                tried(() -> set.getObject(column, Long.class)), tried(() -> set.getObject(column, BigDecimal.class)),
                tried(() -> set.getObject(column, LocalDate.class)), tried(() -> set.getObject(column, LocalTime.class)),
                tried(() -> set.getObject(column, LocalDateTime.class)),
                tried(() -> set.getObject(column, OffsetDateTime.class)),
                tried(() -> set.getObject(column, Boolean.class)), tried(() -> set.getObject(column, Double.class)));
    }

    /** Values that go and come back. */
    private static void given(String mode, int times, Connection connection) throws SQLException {
        Object[][] pairs = {{"int2", (short) -7}, {"int4", 1 << 30}, {"int8", Long.MIN_VALUE}, {"float4", 1.25f},
            {"float8", -1e300}, {"numeric(20, 3)", new BigDecimal("-12345.678")}, {"text", "Ähre 'x' \\ \n🌾"},
            {"bool", true}, {"date", LocalDate.of(1999, 12, 31)}, {"time", LocalTime.of(23, 59, 58, 123456000)},
            {"timestamp", LocalDateTime.of(2026, 11, 28, 1, 2, 3, 456789000)},
            {"timestamptz", OffsetDateTime.parse("2026-11-28T01:02:03.456789+02:00")}, {"bytea", new byte[] {0, 1, -1}},
            {"uuid", java.util.UUID.fromString("01234567-89ab-cdef-0123-456789abcdef")},
            {"date", Date.valueOf("2026-02-28")}, {"timestamp", Timestamp.valueOf("2026-02-28 12:00:00.5")}};
        for (Object[] pair : pairs) {
            try (PreparedStatement statement = connection.prepareStatement("SELECT ?::" + pair[0] + " AS v")) {
                for (int time = 0; time < times; time++) {
                    statement.setObject(1, time == 1 && times > 2 ? null : pair[1]);
                    try (ResultSet set = statement.executeQuery()) {
                        set.next();
                        if (time == 0 || time == 1 || time == times - 1) {
                            say("given/" + mode, time, pair[0], typed(set.getObject(1)), set.getString(1));
                        }
                    }
                }
            } catch (SQLException error) {
                say("given/" + mode, pair[0], error.getSQLState(), error.getMessage());
            }
        }
        String text = "SELECT order_id, customer, amount FROM shop.orders WHERE ";
        for (String condition : new String[] {"order_id = ?", "order_id < ? ORDER BY 1 LIMIT 2", "order_id = ?::int8"}) {
            try (PreparedStatement statement = connection.prepareStatement(text + condition)) {
                for (Object value : new Object[] {1, 2L, (short) 3, new BigDecimal(4)}) {
                    statement.setObject(1, value);
                    rows("given/" + mode + "/" + condition, statement.executeQuery());
                }
            }
        }
    }

    private static void arrays(String mode, int times, Connection connection) throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement(
                "SELECT order_id FROM shop.orders WHERE order_id = ANY(?) ORDER BY 1")) {
            for (int time = 0; time < times; time++) {
                statement.setArray(1, connection.createArrayOf("int8", new Object[] {1L, 3L, null, 5L + time}));
                try (ResultSet set = statement.executeQuery()) {
                    List<Long> found = new ArrayList<>();
                    while (set.next()) {
                        found.add(set.getLong(1));
                    }
                    say("arrays/" + mode, time, found);
                }
            }
        }
        Object[][] kinds = {{"int4", 1, null, -3}, {"text", "a,b", null, "c\"d\\e"}, {"float8", 0.5, null, -1e10},
            {"bool", true, false}, {"numeric", new BigDecimal("1.50"), null}, {"int8"}};
        for (Object[] kind : kinds) {
            String type = (String) kind[0];
            try (PreparedStatement statement = connection.prepareStatement("SELECT ?::" + type + "[] AS v")) {
                for (int time = 0; time < times; time++) {
                    statement.setArray(1, connection.createArrayOf(type, Arrays.copyOfRange(kind, 1, kind.length)));
                    try (ResultSet set = statement.executeQuery()) {
                        set.next();
                        if (time == 0 || time == times - 1) {
                            say("arrays/" + mode, type, text(set.getArray(1)), set.getString(1));
                            rows("arrays/" + mode + "/rows", set.getArray(1).getResultSet());
                        }
                    }
                }
            } catch (SQLException error) {
                say("arrays/" + mode, type, error.getSQLState(), error.getMessage());
            }
        }
    }

    private static void errors(String mode, Connection connection) throws SQLException {
        String[] texts = {"SELEC 1", "SELECT * FROM shop.nothing", "SELECT nothing FROM shop.orders",
            "SELECT nothing(1)", "SELECT 'x'::int4", "SELECT order_id FROM shop.orders GROUP BY customer",
            "SELECT sum(sum(order_id)) FROM shop.orders", "SELECT * FROM shop.orders WHERE customer",
            "SELECT 1 WHERE 1", "SELECT '2026-13-01'::date", "SELECT 300::int2 * 300::int2", "SELECT (SELECT order_id FROM shop.orders)",
            "SELECT 1 UNION SELECT 1, 2", "SELECT o.order_id FROM shop.orders o, shop.lines o", "SELECT order_id FROM shop.orders, shop.lines",
            "SELECT x.* FROM shop.orders o", "SELECT 'a' || ", "SELECT 1 LIMIT -1", "SELECT 1 ORDER BY 2",
            "SELECT 9223372036854775807 + 1", "SELECT 'not a uuid'::uuid", "SELECT '{'::jsonb", "SELECT $1", "SELECT \"a",
            "SELECT 'a", "", ";", "SELECT 1 AS \"\""};
        for (String text : texts) {
            try (Statement statement = connection.createStatement()) {
                boolean is = statement.execute(text);
                say("errors/" + mode, text, "no error", is);
            } catch (PSQLException error) {
                ServerErrorMessage said = error.getServerErrorMessage();
                say("errors/" + mode, text, error.getSQLState(), said == null ? "" : said.getSeverity());
                say("positions", text, said == null ? "" : said.getPosition());
            }
        }
        for (String text : new String[] {"SELECT ? + 1", "SELECT * FROM shop.orders WHERE order_id = ?"}) {
            try (PreparedStatement statement = connection.prepareStatement(text)) {
                statement.setString(1, "x");
                statement.executeQuery();
                say("errors/" + mode, text, "no error");
            } catch (SQLException error) {
                say("errors/" + mode, text, error.getSQLState());
            }
        }
        try (PreparedStatement statement = connection.prepareStatement("SELECT ?")) {
            say("errors/" + mode, "unset", tried(statement::executeQuery));
        }
    }

    /** Rows in pieces: portals with row limits. */
    private static void pieces(String mode, Connection connection) throws SQLException {
        connection.setAutoCommit(false);
        for (int size : new int[] {0, 1, 7, 100, 1000}) {
            try (PreparedStatement statement = connection.prepareStatement(
                    "SELECT order_id, customer FROM shop.orders ORDER BY order_id")) {
                for (int time = 0; time < 3; time++) {
                    statement.setFetchSize(size);
                    long sum = 0;
                    int count = 0;
                    try (ResultSet set = statement.executeQuery(); Statement beside = connection.createStatement()) {
                        while (set.next()) {
                            sum += set.getLong(1) * ++count;
                            if (count % 40 == 0) {
                                rows("pieces/" + mode + "/beside", beside.executeQuery("SELECT " + count));
                            }
                            if (count == 20) {
                                set.setFetchSize(3);
                            }
                        }
                    }
                    say("pieces/" + mode, size, count, sum);
                }
            }
        }
        try (Statement statement = connection.createStatement()) {
            statement.setFetchSize(10);
            ResultSet open = statement.executeQuery("SELECT order_id FROM shop.orders ORDER BY 1");
            open.next();
            connection.commit();
            int rest = 1;
            try {
                while (open.next()) {
                    rest++;
                }
                say("pieces/" + mode, "after commit", rest);
            } catch (SQLException error) {
                say("pieces/" + mode, "after commit", rest, error.getSQLState());
            }
        }
        connection.rollback();
    }

    private static void batch(String mode, Connection connection) throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement("SELECT * FROM shop.orders WHERE order_id = ?")) {
            for (int number = 0; number < 3; number++) {
                statement.setLong(1, number);
                statement.addBatch();
            }
            say("batch/" + mode, tried(() -> Arrays.toString(statement.executeBatch())));
        }
        try (Statement statement = connection.createStatement()) {
            statement.addBatch("SET search_path = shop");
            statement.addBatch("SET application_name = 'batch'");
            say("batch/" + mode, Arrays.toString(statement.executeBatch()));
            rows("batch/" + mode, statement.executeQuery("SHOW application_name"));
            statement.addBatch("SET search_path = shop");
            statement.addBatch("DELETE FROM shop.orders WHERE nothing = 1");
            say("batch/" + mode, tried(() -> Arrays.toString(statement.executeBatch())).startsWith("error"));
        }
    }

    private static void several(String mode, Connection connection) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            boolean is = statement.execute("SELECT 1 AS a; SET application_name = 'x'; SELECT 2 AS b, 'two' AS c;");
            for (int number = 0; number < 5; number++) {
                if (is) {
                    rows("several/" + mode, statement.getResultSet());
                } else {
                    say("several/" + mode, "count", statement.getUpdateCount());
                }
                is = statement.getMoreResults();
            }
            say("several/" + mode, tried(() -> statement.execute("SELECT 1; SELECT nothing; SELECT 3")));
            rows("several/" + mode, statement.executeQuery("SELECT 4 /* ; */ -- ; \n"));
            rows("several/" + mode, statement.executeQuery("SELECT $$a;b$$ AS d, E'c\\n' AS e"));
        }
    }

    private static void zones(Connection connection) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            for (String zone : new String[] {"Europe/Berlin", "America/St_Johns", "UTC", "+3", "+03:30"}) {
                String set = tried(() -> statement.execute("SET TIME ZONE '" + zone + "'"));
                say("zones", zone, set);
                if (set.startsWith("error")) {
                    continue;
                }
                rows("zones", statement.executeQuery("SELECT id, moment, local, moment::text, moment::date FROM shop.every ORDER BY id"));
                rows("zones", statement.executeQuery("SHOW TimeZone"));
            }
        }
    }

    private static void scroll(Connection connection) throws SQLException {
        int[][] kinds = {{ResultSet.TYPE_SCROLL_INSENSITIVE, ResultSet.CONCUR_READ_ONLY},
            {ResultSet.TYPE_SCROLL_SENSITIVE, ResultSet.CONCUR_READ_ONLY}, {ResultSet.TYPE_SCROLL_INSENSITIVE, ResultSet.CONCUR_UPDATABLE}};
        for (int[] kind : kinds) {
            try (Statement statement = connection.createStatement(kind[0], kind[1]);
                    ResultSet set = statement.executeQuery("SELECT order_id, customer, amount, created_at FROM shop.orders ORDER BY order_id")) {
                say("scroll", set.last(), set.getRow(), set.getLong(1), set.first(), set.getLong(1), set.absolute(50),
                        set.getLong(1), set.relative(-7), set.getLong(1), set.previous(), set.getLong(1),
                        set.absolute(-1), set.getLong(1), set.next(), set.isAfterLast());
                set.beforeFirst();
                say("scroll", set.isBeforeFirst(), set.next(), set.getRow(), set.getType(), set.getConcurrency());
                if (kind[1] == ResultSet.CONCUR_UPDATABLE) {
                    say("scroll/refreshed", tried(() -> {
                        set.refreshRow();
                        return set.getString(2);
                    }));
                }
            }
        }
        connection.setAutoCommit(false);
        try (Statement statement = connection.createStatement()) {
            statement.execute("DECLARE c NO SCROLL CURSOR FOR SELECT order_id FROM shop.orders ORDER BY 1");
            rows("scroll/fetch", statement.executeQuery("FETCH 3 FROM c"));
            rows("scroll/fetch", statement.executeQuery("FETCH FORWARD 2 FROM c"));
            say("scroll/move", statement.executeUpdate("MOVE 5 FROM c"));
            rows("scroll/fetch", statement.executeQuery("FETCH NEXT FROM c"));
            statement.execute("CLOSE c");
            say("scroll/closed", tried(() -> statement.executeQuery("FETCH 1 FROM c")));
        }
        connection.rollback();
    }

    private static void limits(Connection connection) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            statement.setMaxRows(3);
            rows("limits/max", statement.executeQuery("SELECT order_id FROM shop.orders ORDER BY 1"));
            statement.setMaxRows(0);
            statement.setMaxFieldSize(3);
            rows("limits/field", statement.executeQuery("SELECT customer FROM shop.orders WHERE order_id = 1"));
            statement.setMaxFieldSize(0);
            statement.setQueryTimeout(1);
            say("limits/timeout", tried(() -> statement.executeQuery(ENDLESS)));
            statement.setQueryTimeout(0);
            rows("limits/after", statement.executeQuery("SELECT 1"));
            statement.execute("SET statement_timeout = '300ms'");
            say("limits/statement", tried(() -> statement.executeQuery(ENDLESS)));
            statement.execute("RESET statement_timeout");
            rows("limits/after", statement.executeQuery("SHOW statement_timeout"));
        }
    }

    private static void cancel(Connection connection) throws Exception {
        for (int time = 0; time < 2; time++) {
            try (Statement statement = connection.createStatement()) {
                Thread ender = new Thread(() -> {
                    try {
                        Thread.sleep(800);
                        statement.cancel();
                    } catch (Exception error) {
                        say("cancel", error);
                    }
                });
                ender.start();
                say("cancel", tried(() -> statement.executeQuery(ENDLESS)));
                ender.join();
                rows("cancel/after", statement.executeQuery("SELECT count(*) FROM shop.orders"));
            }
        }
    }

    private static void transactions(Connection connection) throws SQLException {
        say("transactions", connection.isReadOnly(), connection.getTransactionIsolation(), connection.getAutoCommit());
        for (int level : new int[] {Connection.TRANSACTION_READ_UNCOMMITTED, Connection.TRANSACTION_READ_COMMITTED,
            Connection.TRANSACTION_REPEATABLE_READ, Connection.TRANSACTION_SERIALIZABLE}) {
            connection.setTransactionIsolation(level);
            say("transactions/level", level, connection.getTransactionIsolation());
        }
        connection.setReadOnly(true);
        say("transactions/readonly", connection.isReadOnly());
        connection.setAutoCommit(false);
        try (Statement statement = connection.createStatement()) {
            rows("transactions", statement.executeQuery("SELECT count(*) FROM shop.orders"));
            rows("transactions", statement.executeQuery("SHOW transaction_read_only"));
            say("transactions/write", tried(() -> statement.executeUpdate("DELETE FROM shop.orders")));
            say("transactions/aborted", tried(() -> statement.executeQuery("SELECT 1")));
            connection.rollback();
            Savepoint point = connection.setSavepoint("a point");
            say("transactions/savepoint", tried(() -> statement.executeQuery("SELECT nothing")));
            connection.rollback(point);
            rows("transactions/savepoint", statement.executeQuery("SELECT 1"));
            connection.releaseSavepoint(point);
            say("transactions/released", tried(() -> {
                statement.execute("RELEASE SAVEPOINT nothing");
                return 1;
            }));
            connection.rollback();
            rows("transactions", statement.executeQuery("SELECT 2"));
            connection.commit();
        }
        connection.setAutoCommit(true);
        connection.setReadOnly(false);
        say("transactions/readonly", connection.isReadOnly());
    }

    private static void copy(Connection connection) throws Exception {
        CopyManager copies = connection.unwrap(PGConnection.class).getCopyAPI();
        String[] texts = {"COPY shop.lines TO STDOUT", "COPY (SELECT * FROM shop.every WHERE id = 2) TO STDOUT",
            "COPY (SELECT * FROM shop.every ORDER BY id) TO STDOUT (FORMAT csv, HEADER, NULL 'nil')",
            "COPY (SELECT 1 AS a) TO STDOUT (FORMAT csv, FORCE_QUOTE *)",
            "COPY (SELECT order_id, customer FROM shop.orders WHERE order_id < 3 ORDER BY 1) TO STDOUT WITH CSV DELIMITER ';'",
            "COPY shop.lines (line, order_id) TO STDOUT", "COPY (SELECT 1 WHERE false) TO STDOUT (HEADER, FORMAT csv)"};
        for (String text : texts) {
            StringWriter out = new StringWriter();
            String count = tried(() -> copies.copyOut(text, out));
            String[] lines = out.toString().split("\n");
            if (!text.contains("SELECT")) {
                Arrays.sort(lines);  // a table has no order
            }
            say("copy", text, count, String.join("\n", lines));
        }
        java.io.ByteArrayOutputStream bytes = new java.io.ByteArrayOutputStream();
        long count = copies.copyOut("COPY (SELECT order_id, customer, amount FROM shop.orders ORDER BY 1 LIMIT 3) TO STDOUT (FORMAT binary)", bytes);
        say("copy/binary", count, bytes.toByteArray());
        say("copy/wrong", tried(() -> copies.copyOut("COPY shop.nothing TO STDOUT", new StringWriter())));
        org.postgresql.copy.CopyOut open = copies.copyOut("COPY shop.orders TO STDOUT");
        open.readFromCopy();
        say("copy/cancelled", tried(() -> {
            open.cancelCopy();
            return "ended";
        }));
        try (Statement statement = connection.createStatement()) {
            rows("copy/after", statement.executeQuery("SELECT 1"));
        }
    }

    private static void state(Connection connection) throws SQLException {
        say("state", connection.getSchema(), connection.getCatalog(), connection.isValid(3), connection.getHoldability());
        connection.setSchema("shop");
        say("state", connection.getSchema());
        connection.setClientInfo("ApplicationName", "a test");
        say("state", connection.getClientInfo("ApplicationName"));
        PGConnection own = connection.unwrap(PGConnection.class);
        for (String name : new String[] {"server_encoding", "client_encoding", "DateStyle", "integer_datetimes",
            "standard_conforming_strings", "TimeZone", "application_name", "IntervalStyle", "in_hot_standby", "is_superuser",
            "default_transaction_read_only"}) {
            say("state", name, own.getParameterStatus(name));
        }
        say("state", own.escapeLiteral("a'b"), own.escapeIdentifier("a\"b"), own.getBackendPID() != 0);
        own.addDataType("mine", org.postgresql.geometric.PGpoint.class);
        say("state", own.getNotifications().length);
        try (Statement statement = connection.createStatement()) {
            rows("state", statement.executeQuery("SELECT count(*) FROM orders"));
            statement.execute("DISCARD ALL");
            rows("state", statement.executeQuery("SHOW application_name"));
        }
    }

    private static void autosave(Connection connection) throws SQLException {
        connection.setAutoCommit(false);
        try (Statement statement = connection.createStatement()) {
            say("autosave", tried(() -> statement.executeQuery("SELECT nothing FROM shop.orders")));
            rows("autosave", statement.executeQuery("SELECT count(*) FROM shop.orders"));
        }
        connection.commit();
    }

    /** JDBC's escapes, which the driver makes into functions of the server. */
    private static void escapes(Connection connection) throws SQLException {
        String[] texts = {"{fn concat('a', 'b')}", "{fn length(' a ')}", "{fn ucase('ä')}", "{fn lcase('Ä')}", "{fn abs(-1)}",
            "{fn ceiling(1.2)}", "{fn log(2.5)}", "{fn log10(100)}", "{fn power(2, 3)}", "{fn truncate(1.29, 1)}", "{fn mod(7, 3)}",
            "{fn locate('b', 'abc')}", "{fn insert('abcd', 2, 2, 'xy')}", "{fn left('abc', 2)}", "{fn right('abc', 2)}",
            "{fn substring('abcd', 2, 2)}", "{fn space(2)}", "{fn ltrim(' a')}", "{fn repeat('ab', 2)}", "{fn replace('abc', 'b', 'x')}",
            "{fn ascii('a')}", "{fn char(65)}", "{fn dayofmonth({d '2026-11-28'})}", "{fn dayofweek({d '2026-11-28'})}",
            "{fn dayofyear({d '2026-11-28'})}", "{fn hour({t '12:13:14'})}", "{fn month({d '2026-11-28'})}", "{fn quarter({d '2026-11-28'})}",
            "{fn week({d '2026-11-28'})}", "{fn year({ts '2026-11-28 12:13:14'})}", "{fn monthname({d '2026-11-28'})}", "{fn dayname({d '2026-11-28'})}",
            "{fn timestampadd(SQL_TSI_HOUR, 3, {ts '2026-11-28 12:13:14'})}", "{fn timestampdiff(SQL_TSI_DAY, {ts '2026-11-01 12:00:00'}, {ts '2026-11-28 12:13:14'})}",
            "{fn ifnull(NULL, 'x')}", "{fn user()} = current_user", "{fn database()}", "{fn pi()}", "{fn sign(-2)}", "{fn sqrt(2)}", "{fn degrees(1)}",
            "{fn round(1.25, 1)}", "{fn cot(1)}", "{fn atan2(1, 2)}", "{fn exp(1)}", "{fn floor(-1.5)}", "{fn radians(180)}"};
        try (Statement statement = connection.createStatement()) {
            for (String text : texts) {
                try (ResultSet set = statement.executeQuery("SELECT " + text)) {
                    set.next();
                    say("escapes", text, typed(set.getObject(1)));
                } catch (SQLException error) {
                    say("escapes", text, error.getSQLState(), error.getMessage());
                }
            }
            rows("escapes/join", statement.executeQuery(
                    "SELECT o.order_id, l.line FROM {oj shop.orders o LEFT OUTER JOIN shop.lines l ON o.order_id = l.order_id} WHERE o.order_id < 3 ORDER BY 1, 2"));
        }
    }
}
