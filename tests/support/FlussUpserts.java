import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.SplittableRandom;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.fluss.client.Connection;
import org.apache.fluss.client.ConnectionFactory;
import org.apache.fluss.client.admin.Admin;
import org.apache.fluss.client.lookup.Lookuper;
import org.apache.fluss.client.table.Table;
import org.apache.fluss.client.table.writer.UpsertWriter;
import org.apache.fluss.config.Configuration;
import org.apache.fluss.metadata.DatabaseDescriptor;
import org.apache.fluss.metadata.Schema;
import org.apache.fluss.metadata.TableDescriptor;
import org.apache.fluss.metadata.TablePath;
import org.apache.fluss.row.BinaryString;
import org.apache.fluss.row.GenericRow;
import org.apache.fluss.row.TimestampNtz;
import org.apache.fluss.types.DataTypes;

/**
 * A producer of Fluss with its client's own settings: rows of five random columns, as tests.bench.growth.rows has them.
 *
 * <p>Arguments: address, buckets. Lines of stdin: "insert FIRST COUNT", "update KNOWN SECONDS", "check KNOWN COUNT"; each
 * is answered by a line of rows and nanoseconds, once all rows are acknowledged; check answers with the rows it found.
 */
public final class FlussUpserts {
    private static final int POOL = 1 << 20;
    private static final int BETWEEN_LOOKS = 1000;

    private final SplittableRandom chance = new SplittableRandom(15);
    private final AtomicLong acknowledged = new AtomicLong();
    private final AtomicReference<Throwable> failure = new AtomicReference<>();
    private final BinaryString[] names = new BinaryString[POOL];
    private final double[] scores = new double[POOL];
    private final int[] counts = new int[POOL];
    private final TimestampNtz[] times = new TimestampNtz[POOL];
    private final UpsertWriter writer;
    private final Lookuper lookuper;
    private long sent;

    private FlussUpserts(Table table) {
        for (int i = 0; i < POOL; i++) {
            byte[] letters = new byte[16];
            for (int j = 0; j < letters.length; j++) {
                letters[j] = (byte) (48 + chance.nextInt(64));
            }
            names[i] = BinaryString.fromBytes(letters);
            scores[i] = chance.nextDouble();
            counts[i] = chance.nextInt();
            times[i] = TimestampNtz.fromMicros(chance.nextLong(1L << 52));
        }
        writer = table.newUpsert().createWriter();
        lookuper = table.newLookup().createLookuper();
    }

    /** The key of a number: splitmix64. */
    private static long key(long number) {
        long mixed = (number + 1) * 0x9E3779B97F4A7C15L;
        mixed = (mixed ^ (mixed >>> 30)) * 0xBF58476D1CE4E5B9L;
        mixed = (mixed ^ (mixed >>> 27)) * 0x94D049BB133111EBL;
        return mixed ^ (mixed >>> 31);
    }

    private void upsert(long number) {
        int at = (int) (sent++ * 7919 & (POOL - 1));
        GenericRow row = new GenericRow(5);
        row.setField(0, key(number));
        row.setField(1, names[at]);
        row.setField(2, scores[at]);
        row.setField(3, counts[at]);
        row.setField(4, times[at]);
        writer.upsert(row).whenComplete((done, error) -> {
            if (error != null) {
                failure.compareAndSet(null, error);
            } else {
                acknowledged.incrementAndGet();
            }
        });
    }

    private long insert(long first, long count) {
        for (long number = first; number < first + count; number++) {
            upsert(number);
        }
        return count;
    }

    private long update(long known, double seconds) {
        long ends = System.nanoTime() + (long) (seconds * 1e9);
        long rows = 0;
        while (System.nanoTime() < ends) {
            for (int i = 0; i < BETWEEN_LOOKS; i++) {
                upsert(chance.nextLong(known));
            }
            rows += BETWEEN_LOOKS;
        }
        return rows;
    }

    private long check(long known, long count) throws Exception {
        long found = 0;
        for (long i = 0; i < count; i++) {
            GenericRow wanted = new GenericRow(1);
            wanted.setField(0, key(chance.nextLong(known)));
            found += lookuper.lookup(wanted).get().getSingletonRow() != null ? 1 : 0;
        }
        return found;
    }

    private String answer(String[] said) throws Exception {
        long began = System.nanoTime();
        long first = Long.parseLong(said[1]);
        long rows;
        if (said[0].equals("check")) {
            rows = check(first, Long.parseLong(said[2]));
        } else {
            long before = acknowledged.get();
            rows = said[0].equals("insert") ? insert(first, Long.parseLong(said[2])) : update(first, Double.parseDouble(said[2]));
            writer.flush();
            if (failure.get() != null) {
                throw new IllegalStateException("rows were refused", failure.get());
            }
            if (acknowledged.get() - before != rows) {
                throw new IllegalStateException("rows are not acknowledged");
            }
        }
        return rows + " " + (System.nanoTime() - began);
    }

    public static void main(String[] arguments) throws Exception {
        Configuration settings = new Configuration();
        settings.setString("bootstrap.servers", arguments[0]);
        TablePath path = TablePath.of("bench", "growth");
        Schema schema = Schema.newBuilder()
                .column("id", DataTypes.BIGINT()).column("name", DataTypes.STRING()).column("score", DataTypes.DOUBLE())
                .column("count", DataTypes.INT()).column("at", DataTypes.TIMESTAMP(6)).primaryKey("id").build();
        TableDescriptor definition =
                TableDescriptor.builder().schema(schema).distributedBy(Integer.parseInt(arguments[1]), "id").build();
        try (Connection connection = ConnectionFactory.createConnection(settings)) {
            Admin admin = connection.getAdmin();
            admin.createDatabase(path.getDatabaseName(), DatabaseDescriptor.EMPTY, true).get();
            admin.createTable(path, definition, false).get();
            try (Table table = connection.getTable(path)) {
                FlussUpserts producer = new FlussUpserts(table);
                System.out.println("ready");
                BufferedReader asked = new BufferedReader(new InputStreamReader(System.in));
                for (String line = asked.readLine(); line != null; line = asked.readLine()) {
                    System.out.println(producer.answer(line.split(" ")));
                }
            }
        }
    }
}
