import java.sql.Connection;
import java.sql.DatabaseMetaData;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.ResultSetMetaData;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.Properties;

/** What Arrow's JDBC driver shows of a server, one line for each fact: address, user, token. */
public final class FlightJdbc {
    public static void main(String[] said) throws Exception {
        definition("org.apache.arrow.driver.jdbc.shaded.org.apache.arrow.flight.impl.Flight");
        definition("org.apache.arrow.driver.jdbc.shaded.org.apache.arrow.flight.sql.impl.FlightSql");
        Properties keys = new Properties();
        keys.put("useEncryption", "false");
        if (said.length > 1) {
            keys.put("user", said[1]);
            keys.put("password", said[2]);
        }
        try (Connection connection = DriverManager.getConnection("jdbc:arrow-flight-sql://" + said[0], keys)) {
            describe(connection.getMetaData());
            try (Statement statement = connection.createStatement()) {
                show("rows", statement.executeQuery("SELECT * FROM shop.every ORDER BY id"));
                show("count", statement.executeQuery("SELECT count(*) AS n FROM shop.every"));
                show("many", statement.executeQuery("SELECT sum(range) AS n FROM (SELECT range FROM range(300000))"));
                refuse("update", () -> statement.executeUpdate("DELETE FROM shop.every"));
                refuse("rights", () -> statement.executeQuery("SELECT * FROM secret.plans"));
            }
            long rows = 0;
            try (Statement statement = connection.createStatement();
                    ResultSet set = statement.executeQuery("SELECT range AS n FROM range(300000)")) {
                while (set.next()) {
                    rows += set.getLong(1) == rows ? 1 : 0;
                }
            }
            System.out.println("streamed|" + rows);
            try (PreparedStatement prepared = connection.prepareStatement(
                    "SELECT id, name FROM shop.every WHERE id = ? OR name = ? ORDER BY id")) {
                prepared.setLong(1, 1);
                prepared.setString(2, "zwei");
                show("prepared", prepared.executeQuery());
                prepared.setLong(1, 2);
                prepared.setString(2, "none");
                show("prepared", prepared.executeQuery());
            }
        }
    }

    /** Print a file of the protocol as the driver has it. */
    private static void definition(String name) throws Exception {
        Object file = Class.forName(name).getMethod("getDescriptor").invoke(null);
        Object proto = file.getClass().getMethod("toProto").invoke(file);
        byte[] data = (byte[]) proto.getClass().getMethod("toByteArray").invoke(proto);
        System.out.println("proto|" + java.util.Base64.getEncoder().encodeToString(data));
    }

    private interface Work {
        void run() throws SQLException;
    }

    private static void describe(DatabaseMetaData about) throws SQLException {
        System.out.println("product|" + about.getDatabaseProductName() + "|" + about.isReadOnly());
        System.out.println("quote|" + about.getIdentifierQuoteString() + "|" + about.supportsTransactions());
        show("catalogs", about.getCatalogs());
        show("schemas", about.getSchemas());
        show("tabletypes", about.getTableTypes());
        some("tables", about.getTables(null, "shop", "%", null), "TABLE_CAT", "TABLE_SCHEM", "TABLE_NAME", "TABLE_TYPE");
        some("columns", about.getColumns(null, "shop", "every", "%"),
                "COLUMN_NAME", "DATA_TYPE", "TYPE_NAME", "COLUMN_SIZE", "DECIMAL_DIGITS", "IS_NULLABLE");
        some("keys", about.getPrimaryKeys(null, "shop", "every"), "COLUMN_NAME", "KEY_SEQ", "PK_NAME");
        some("imported", about.getImportedKeys(null, "shop", "every"), "PKTABLE_NAME");
        some("exported", about.getExportedKeys(null, "shop", "every"), "PKTABLE_NAME");
    }

    private static void refuse(String what, Work work) {
        try {
            work.run();
            System.out.println(what + "|was done");
        } catch (SQLException error) {
            Throwable cause = error;
            StringBuilder text = new StringBuilder();
            while (cause != null) {
                text.append(cause.getMessage()).append(' ');
                cause = cause.getCause();
            }
            System.out.println(what + "|" + text.toString().replace('\n', ' '));
        }
    }

    private static void some(String what, ResultSet set, String... names) throws SQLException {
        while (set.next()) {
            StringBuilder line = new StringBuilder(what);
            for (String name : names) {
                line.append('|').append(set.getString(name));
            }
            System.out.println(line);
        }
        set.close();
    }

    private static void show(String what, ResultSet set) throws SQLException {
        ResultSetMetaData about = set.getMetaData();
        while (set.next()) {
            StringBuilder line = new StringBuilder(what);
            for (int column = 1; column <= about.getColumnCount(); column++) {
                line.append('|').append(set.getString(column));
            }
            System.out.println(line);
        }
        set.close();
    }
}
