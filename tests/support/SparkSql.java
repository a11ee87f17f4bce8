import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.List;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SparkSession;

/**
 * Stock Spark with two cores. Each argument is a setting: name=value.
 *
 * <p>Each line of stdin is a statement of SQL and is answered by one line: "ok" with its rows, or "failed" with the error.
 */
public final class SparkSql {
    private SparkSql() {}

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        SparkSession.Builder builder = SparkSession.builder()
                .master("local[2]")
                .config("spark.ui.enabled", "false")
                .config("spark.sql.shuffle.partitions", "2");
        for (String setting : arguments) {
            String[] parts = setting.split("=", 2);
            builder = builder.config(parts[0], parts[1]);
        }
        SparkSession spark = builder.getOrCreate();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String answer;
            try {
                List<Row> rows = spark.sql(line).collectAsList();
                answer = "ok " + rows;
            } catch (Exception error) {
                answer = "failed " + error;
            }
            answers.write((answer.replaceAll("\\s+", " ") + "\n").getBytes(StandardCharsets.UTF_8));
            answers.flush();
        }
    }
}
