import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.SplittableRandom;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.fluss.client.Connection;
import org.apache.fluss.client.ConnectionFactory;
import org.apache.fluss.client.admin.Admin;
import org.apache.fluss.client.lookup.LookupResult;
import org.apache.fluss.client.lookup.Lookuper;
import org.apache.fluss.client.table.Table;
import org.apache.fluss.client.table.scanner.Scan;
import org.apache.fluss.client.table.scanner.ScanRecord;
import org.apache.fluss.client.table.scanner.log.LogScanner;
import org.apache.fluss.client.table.scanner.log.ScanRecords;
import org.apache.fluss.client.table.writer.AppendWriter;
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
 * A program with Fluss's own client. Arguments: the address, then settings of the client as NAME=VALUE.
 *
 * <p>Each line of stdin is a command with words between spaces, and is answered by one line of numbers. Times are
 * nanoseconds. Rows are those of tests.bench.growth.rows; KEYS says how many keys the table has.
 *
 * <pre>
 * make TABLE BUCKETS keyed|bytes|sent|wide  -> 0
 * insert TABLE FIRST COUNT                  -> ROWS TIME
 * uniform|skewed|partial TABLE KEYS SECONDS -> ROWS TIME
 * lookups TABLE KEYS SECONDS                -> ROWS TIME (pipelined)
 * singles TABLE KEYS COUNT                  -> P50 P99   (one after the other)
 * check TABLE KEYS COUNT                    -> ROWS
 * random|same TABLE COUNT                   -> ROWS TIME (appends of 1,000 bytes)
 * fill TABLE COUNT                          -> ROWS TIME (rows of 20 doubles)
 * scan TABLE COLUMNS COUNT                  -> ROWS TIME (the first COLUMNS of 20)
 * delay TABLE RATE SECONDS                  -> P50 P99   (append to subscriber)
 * fan TABLE SUBSCRIBERS COUNT               -> ROWS TIME (of all subscribers)
 * </pre>
 */
public final class FlussClient {
    private static final int POOL = 1 << 20;
    private static final int BLOBS = 1 << 16;
    private static final int BLOB_BYTES = 1000;
    private static final int BETWEEN_LOOKS = 1000;
    private static final int OUTSTANDING = 20_000;
    private static final int WIDE = 20;
    private static final Duration POLL = Duration.ofSeconds(10);

    private final SplittableRandom chance = new SplittableRandom(15);
    private final AtomicLong acknowledged = new AtomicLong();
    private final AtomicReference<Throwable> failure = new AtomicReference<>();
    private final BinaryString[] names = new BinaryString[POOL];
    private final double[] scores = new double[POOL];
    private final int[] counts = new int[POOL];
    private final TimestampNtz[] times = new TimestampNtz[POOL];
    private final Connection connection;
    private final Map<String, Table> tables = new HashMap<>();
    private final Map<String, UpsertWriter> upserts = new HashMap<>();
    private final Map<String, AppendWriter> appends = new HashMap<>();
    private byte[][] blobs;
    private long sent;

    private FlussClient(Connection connection) {
        this.connection = connection;
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
    }

    /** The key of a number: splitmix64. */
    private static long key(long number) {
        long mixed = (number + 1) * 0x9E3779B97F4A7C15L;
        mixed = (mixed ^ (mixed >>> 30)) * 0xBF58476D1CE4E5B9L;
        mixed = (mixed ^ (mixed >>> 27)) * 0x94D049BB133111EBL;
        return mixed ^ (mixed >>> 31);
    }

    private static TablePath path(String table) {
        return TablePath.of("bench", table);
    }

    private Table table(String name) {
        return tables.computeIfAbsent(name, each -> connection.getTable(path(each)));
    }

    private String make(String name, int buckets, String kind) throws Exception {
        Schema.Builder schema = Schema.newBuilder();
        TableDescriptor.Builder definition = TableDescriptor.builder();
        if (kind.equals("keyed")) {
            schema.column("id", DataTypes.BIGINT()).column("name", DataTypes.STRING()).column("score", DataTypes.DOUBLE())
                    .column("count", DataTypes.INT()).column("at", DataTypes.TIMESTAMP(6)).primaryKey("id");
            definition.distributedBy(buckets, "id");
        } else {
            definition.distributedBy(buckets);
            if (kind.equals("bytes")) {
                schema.column("value", DataTypes.BYTES());
            } else if (kind.equals("sent")) {
                schema.column("sent", DataTypes.BIGINT());
            } else {
                for (int i = 0; i < WIDE; i++) {
                    schema.column("c" + i, DataTypes.DOUBLE());
                }
            }
        }
        Admin admin = connection.getAdmin();
        admin.createDatabase("bench", DatabaseDescriptor.EMPTY, true).get();
        admin.createTable(path(name), definition.schema(schema.build()).build(), false).get();
        return "0";
    }

    private void note(Throwable error) {
        if (error != null) {
            failure.compareAndSet(null, error);
        } else {
            acknowledged.incrementAndGet();
        }
    }

    private void upsert(UpsertWriter writer, long number, boolean partial) {
        int at = (int) (sent++ * 7919 & (POOL - 1));
        GenericRow row = new GenericRow(5);
        row.setField(0, key(number));
        row.setField(2, scores[at]);
        if (!partial) {
            row.setField(1, names[at]);
            row.setField(3, counts[at]);
            row.setField(4, times[at]);
        }
        writer.upsert(row).whenComplete((done, error) -> note(error));
    }

    private UpsertWriter upserts(String name, boolean partial) {
        return upserts.computeIfAbsent(name + partial, each -> partial
                ? table(name).newUpsert().partialUpdate("id", "score").createWriter()
                : table(name).newUpsert().createWriter());
    }

    private AppendWriter appends(String name) {
        return appends.computeIfAbsent(name, each -> table(each).newAppend().createWriter());
    }

    private long insert(String name, long first, long count) {
        UpsertWriter writer = upserts(name, false);
        for (long number = first; number < first + count; number++) {
            upsert(writer, number, false);
        }
        return count;
    }

    private long update(String kind, String name, long keys, double seconds) {
        UpsertWriter writer = upserts(name, kind.equals("partial"));
        long ends = System.nanoTime() + (long) (seconds * 1e9);
        long rows = 0;
        while (System.nanoTime() < ends) {
            for (int i = 0; i < BETWEEN_LOOKS; i++) {
                boolean hot = kind.equals("skewed") && chance.nextDouble() < 0.9;
                upsert(writer, chance.nextLong(hot ? keys / 100 : keys), kind.equals("partial"));
            }
            rows += BETWEEN_LOOKS;
        }
        return rows;
    }

    private long append(String kind, String name, long count) {
        if (blobs == null) {
            blobs = new byte[BLOBS][BLOB_BYTES];
            for (byte[] blob : blobs) {
                chance.nextBytes(blob);
            }
        }
        byte[] same = new byte[BLOB_BYTES];
        Arrays.fill(same, (byte) 'x');
        AppendWriter writer = appends(name);
        for (long i = 0; i < count; i++) {
            GenericRow row = new GenericRow(1);
            row.setField(0, kind.equals("same") ? same : blobs[(int) (i & (BLOBS - 1))]);
            writer.append(row).whenComplete((done, error) -> note(error));
        }
        return count;
    }

    private long fill(String name, long count) {
        AppendWriter writer = appends(name);
        for (long i = 0; i < count; i++) {
            GenericRow row = new GenericRow(WIDE);
            for (int j = 0; j < WIDE; j++) {
                row.setField(j, scores[(int) ((i * 31 + j) & (POOL - 1))]);
            }
            writer.append(row).whenComplete((done, error) -> note(error));
        }
        return count;
    }

    private static GenericRow wanted(long number) {
        GenericRow row = new GenericRow(1);
        row.setField(0, key(number));
        return row;
    }

    private long check(String name, long keys, long count) throws Exception {
        Lookuper lookuper = table(name).newLookup().createLookuper();
        List<CompletableFuture<LookupResult>> asked = new ArrayList<>();
        for (long i = 0; i < count; i++) {
            asked.add(lookuper.lookup(wanted(chance.nextLong(keys))));
        }
        long rows = 0;
        for (CompletableFuture<LookupResult> answer : asked) {
            rows += answer.get().getSingletonRow() != null ? 1 : 0;
        }
        return rows;
    }

    private String lookups(String name, long keys, double seconds) throws Exception {
        Lookuper lookuper = table(name).newLookup().createLookuper();
        Semaphore room = new Semaphore(OUTSTANDING);
        long before = acknowledged.get();
        long began = System.nanoTime();
        long ends = began + (long) (seconds * 1e9);
        while (System.nanoTime() < ends) {
            for (int i = 0; i < 100; i++) {
                room.acquire();
                lookuper.lookup(wanted(chance.nextLong(keys))).whenComplete((row, error) -> {
                    note(error == null && row.getSingletonRow() == null ? new IllegalStateException("a key is missing") : error);
                    room.release();
                });
            }
        }
        room.acquire(OUTSTANDING);
        return answer(acknowledged.get() - before, began);
    }

    private String singles(String name, long keys, int count) throws Exception {
        Lookuper lookuper = table(name).newLookup().createLookuper();
        long[] took = new long[count];
        for (int i = 0; i < count; i++) {
            GenericRow row = wanted(chance.nextLong(keys));
            long began = System.nanoTime();
            if (lookuper.lookup(row).get().getSingletonRow() == null) {
                throw new IllegalStateException("a key is missing");
            }
            took[i] = System.nanoTime() - began;
        }
        return percentiles(took);
    }

    private static String percentiles(long[] took) {
        Arrays.sort(took);
        return took[took.length / 2] + " " + took[Math.min(took.length * 99 / 100, took.length - 1)];
    }

    private String scan(String name, int columns, long count) throws Exception {
        Scan scan = table(name).newScan();
        if (columns < WIDE) {
            int[] first = new int[columns];
            Arrays.setAll(first, i -> i);
            scan = scan.project(first);
        }
        long began = System.nanoTime();
        long rows = 0;
        double sum = 0;
        try (LogScanner scanner = scan.createLogScanner()) {
            scanner.subscribeFromBeginning(0);
            while (rows < count) {
                for (ScanRecord record : scanner.poll(POLL)) {
                    sum += record.getRow().getDouble(0);
                    rows++;
                }
            }
        }
        if (Double.isNaN(sum)) {
            throw new IllegalStateException("a value is missing");
        }
        return answer(rows, began);
    }

    private String delay(String name, int rate, double seconds) throws Exception {
        int count = (int) (rate * seconds);
        long[] took = new long[count];
        AppendWriter writer = appends(name);
        CountDownLatch follows = new CountDownLatch(1);
        Table table = table(name);
        Thread reader = new Thread(() -> {
            try (LogScanner scanner = table.newScan().createLogScanner()) {
                scanner.subscribeFromBeginning(0);
                for (int rows = -1; rows < count; ) {
                    ScanRecords records = scanner.poll(POLL);
                    long now = System.nanoTime();
                    for (ScanRecord record : records) {
                        if (rows >= 0) {
                            took[rows] = now - record.getRow().getLong(0);
                        }
                        rows++;
                        follows.countDown();
                    }
                }
            } catch (Exception error) {
                failure.compareAndSet(null, error);
            }
        });
        reader.start();
        GenericRow first = new GenericRow(1);
        first.setField(0, 0L);
        writer.append(first).get();
        follows.await();
        long began = System.nanoTime();
        for (int i = 0; i < count; i++) {
            long due = began + i * 1_000_000_000L / rate;
            for (long left = due - System.nanoTime(); left > 0; left = due - System.nanoTime()) {
                Thread.sleep(left / 1_000_000, (int) (left % 1_000_000));
            }
            GenericRow row = new GenericRow(1);
            row.setField(0, System.nanoTime());
            writer.append(row).whenComplete((done, error) -> note(error));
        }
        reader.join();
        return percentiles(took);
    }

    private String fan(String name, int subscribers, long count) throws Exception {
        List<Thread> readers = new ArrayList<>();
        CountDownLatch follow = new CountDownLatch(subscribers);
        Table table = table(name);
        for (int i = 0; i < subscribers; i++) {
            Thread reader = new Thread(() -> {
                try (LogScanner scanner = table.newScan().createLogScanner()) {
                    scanner.subscribeFromBeginning(0);
                    for (long rows = 0; rows <= count; ) {
                        for (ScanRecord record : scanner.poll(POLL)) {
                            rows += record.getRow().getBytes(0).length == BLOB_BYTES ? 1 : 0;
                        }
                        if (rows > 0) {
                            follow.countDown();
                        }
                    }
                } catch (Exception error) {
                    failure.compareAndSet(null, error);
                }
            });
            readers.add(reader);
            reader.start();
        }
        append("random", name, 1);
        follow.await();
        long began = System.nanoTime();
        append("random", name, count);
        appends(name).flush();
        for (Thread reader : readers) {
            reader.join();
        }
        return answer(subscribers * count, began);
    }

    private static String answer(long rows, long began) {
        return rows + " " + (System.nanoTime() - began);
    }

    private String written(String[] said) {
        long before = acknowledged.get();
        long began = System.nanoTime();
        long rows;
        if (said[0].equals("insert")) {
            rows = insert(said[1], Long.parseLong(said[2]), Long.parseLong(said[3]));
            upserts(said[1], false).flush();
        } else if (said[0].equals("fill")) {
            rows = fill(said[1], Long.parseLong(said[2]));
            appends(said[1]).flush();
        } else if (said[0].equals("random") || said[0].equals("same")) {
            rows = append(said[0], said[1], Long.parseLong(said[2]));
            appends(said[1]).flush();
        } else {
            rows = update(said[0], said[1], Long.parseLong(said[2]), Double.parseDouble(said[3]));
            upserts(said[1], said[0].equals("partial")).flush();
        }
        String answer = answer(rows, began);
        if (failure.get() == null && acknowledged.get() - before != rows) {
            throw new IllegalStateException("rows are not acknowledged");
        }
        return answer;
    }

    private String answer(String[] said) throws Exception {
        switch (said[0]) {
            case "make":
                return make(said[1], Integer.parseInt(said[2]), said[3]);
            case "check":
                return "" + check(said[1], Long.parseLong(said[2]), Long.parseLong(said[3]));
            case "lookups":
                return lookups(said[1], Long.parseLong(said[2]), Double.parseDouble(said[3]));
            case "singles":
                return singles(said[1], Long.parseLong(said[2]), Integer.parseInt(said[3]));
            case "scan":
                return scan(said[1], Integer.parseInt(said[2]), Long.parseLong(said[3]));
            case "delay":
                return delay(said[1], Integer.parseInt(said[2]), Double.parseDouble(said[3]));
            case "fan":
                return fan(said[1], Integer.parseInt(said[2]), Long.parseLong(said[3]));
            default:
                return written(said);
        }
    }

    public static void main(String[] arguments) throws Exception {
        Configuration settings = new Configuration();
        settings.setString("bootstrap.servers", arguments[0]);
        for (String setting : Arrays.copyOfRange(arguments, 1, arguments.length)) {
            settings.setString(setting.substring(0, setting.indexOf('=')), setting.substring(setting.indexOf('=') + 1));
        }
        try (Connection connection = ConnectionFactory.createConnection(settings)) {
            FlussClient client = new FlussClient(connection);
            System.out.println("ready");
            BufferedReader asked = new BufferedReader(new InputStreamReader(System.in));
            for (String line = asked.readLine(); line != null; line = asked.readLine()) {
                String answer = client.answer(line.split(" "));
                if (client.failure.get() != null) {
                    throw new IllegalStateException("Fluss refused work", client.failure.get());
                }
                System.out.println(answer);
            }
        }
    }
}
